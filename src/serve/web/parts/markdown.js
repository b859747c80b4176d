// Markdown as part of the page. Text of a model is untrusted: marked makes HTML of it, dompurify removes everything that
// could run or load something, and only then it becomes part of the page. Pages of the guide are cleaned too, and may
// also show its pictures and lead to each other.
import { html, useEffect, useRef, useState } from "./dom.js";
import { tell } from "./dialog.js";

const CLEAN = {
  ALLOWED_TAGS: [
    "a",
    "b",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
  ],
  ALLOWED_ATTR: ["href", "title", "class", "align", "start"],
  ALLOWED_URI_REGEXP: /^(https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
};

/** What pages of the guide may contain besides. */
const OF_GUIDE = {
  ...CLEAN,
  ALLOWED_TAGS: [...CLEAN.ALLOWED_TAGS, "img"],
  ALLOWED_ATTR: [...CLEAN.ALLOWED_ATTR, "src", "alt"],
  ALLOWED_URI_REGEXP: /^(https?:|mailto:|#\/guide|\/guide\/screens\/)/i,
};

let tools;

/** Loads both libraries when the first answer is shown. */
function load() {
  tools ??= Promise.all([import("../vendor/marked.esm.js"), import("../vendor/purify.min.js")]).then(
    ([{ Marked }]) => {
      // HTML in an answer is shown as it was written, and an image, which would be loaded from elsewhere, as its words.
      const marked = new Marked({
        gfm: true,
        breaks: true,
        async: false,
        renderer: { html: ({ text }) => escaped(text), image: ({ text }) => escaped(text) },
      });
      const purify = globalThis.DOMPurify;
      purify.addHook("afterSanitizeAttributes", (node) => {
        if (node.tagName !== "A" || node.getAttribute("href")?.startsWith("#")) return;
        node.setAttribute("target", "_blank");
        node.setAttribute("rel", "noopener noreferrer nofollow");
      });
      return (text, page) => {
        if (page === undefined)
          return purify.sanitize(marked.parse(text), { ...CLEAN, RETURN_DOM_FRAGMENT: true });
        const ofGuide = new Marked({ gfm: true, async: false, walkTokens: (token) => lead(token, page) });
        return purify.sanitize(ofGuide.parse(text), { ...OF_GUIDE, RETURN_DOM_FRAGMENT: true });
      };
    },
  );
  return tools;
}

/**
 * Gives pictures and links between pages of the guide their addresses here. Other links of it lead to files of the clone,
 * which are not part of the program: they become text that says where the file is.
 */
function lead(token, page) {
  if (token.type === "image") token.href = `/guide/${token.href}`;
  if (token.type !== "link" || /^[a-z]+:/.test(token.href)) return;
  const found = /^(?:([a-z-]+)\.md)?(?:#(.*))?$/.exec(token.href);
  if (found) {
    token.href = `#/guide/${found[1] ?? page}${found[2] ? `?at=${found[2]}` : ""}`;
    return;
  }
  const file = new URL(token.href, "file:///src/guide/").pathname.slice(1);
  const where = token.text === file ? " (in the clone)" : ` (${file} in the clone)`;
  token.type = "text";
  token.tokens = [...token.tokens, { type: "text", raw: where, text: where }];
}

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/**
 * Draws markdown; as plain text until the libraries are there. `page` is the name of the page of the guide that it is, and
 * `onDrawn` gets the element once it is drawn.
 */
export function Markdown({ text, page, onDrawn }) {
  const place = useRef(null);
  const [render, setRender] = useState(null);
  useEffect(() => {
    load().then((made) => setRender(() => made));
  }, []);
  useEffect(() => {
    if (!render || !place.current) return;
    const fragment = render(text, page);
    for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
    place.current.replaceChildren(fragment);
    onDrawn?.(place.current);
  }, [render, text]);
  return render
    ? html`<div class="markdown" ref=${place}></div>`
    : html`<div class="markdown plain">${text}</div>`;
}

/** A block of code with its language and a button that copies it. */
function codeBlock(pre) {
  const code = pre.querySelector("code");
  const language = [...(code?.classList ?? [])].find((name) => name.startsWith("language-"))?.slice(9) ?? "";
  const block = element("div", "code");
  const head = element("div", "code-head");
  const button = element("button", "button quiet small");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () =>
    navigator.clipboard.writeText(pre.textContent).then(
      () => {
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      },
      () => tell({ title: "Not copied", text: "The browser refused access to the clipboard.", kind: "bad" }),
    ),
  );
  head.append(Object.assign(element("span", ""), { textContent: language || "code" }), button);
  block.append(head, pre.cloneNode(true));
  return block;
}

const element = (name, className) => Object.assign(document.createElement(name), { className });
