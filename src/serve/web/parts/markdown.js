// Text of a model as markdown. It is untrusted: marked makes HTML of it, dompurify removes everything that could run
// or load something, and only then it becomes part of the page.
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
        if (node.tagName !== "A") return;
        node.setAttribute("target", "_blank");
        node.setAttribute("rel", "noopener noreferrer nofollow");
      });
      return (text) => purify.sanitize(marked.parse(text), { ...CLEAN, RETURN_DOM_FRAGMENT: true });
    },
  );
  return tools;
}

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** Draws markdown; as plain text until the libraries are there. */
export function Markdown({ text }) {
  const place = useRef(null);
  const [render, setRender] = useState(null);
  useEffect(() => {
    load().then((made) => setRender(() => made));
  }, []);
  useEffect(() => {
    if (!render || !place.current) return;
    const fragment = render(text);
    for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
    place.current.replaceChildren(fragment);
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
