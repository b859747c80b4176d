// The text of a page of the guide under its title, and the way to a place in it.
import { html } from "./dom.js";
import { Markdown } from "./markdown.js";
import { Head } from "./page.js";

/** Returns the name of the place under a heading, as links of the guide and other readers of it spell it. */
const placeOf = (heading) =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} -]/gu, "")
    .replaceAll(" ", "-");

export function GuideText({ text, page, crumb, at }) {
  const [first, ...rest] = text.split("\n");
  const title = first.replace(/^# /, "");
  const drawn = (element) => {
    for (const heading of element.querySelectorAll("h2, h3, h4")) {
      if (at && placeOf(heading.textContent) === at) heading.scrollIntoView();
    }
    // A table or a picture that is wider than the page is moved, also by keys.
    for (const wide of element.querySelectorAll("pre, table")) wide.tabIndex = 0;
  };
  return html`<${Head} title=${title} crumb=${crumb} />
    <div class="guide" data-test="guide"><${Markdown} key=${`${page}#${at ?? ""}`} text=${rest.join("\n").trim()} page=${page} onDrawn=${drawn} /></div>`;
}
