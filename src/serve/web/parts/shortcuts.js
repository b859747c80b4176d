// Keys. One table drives both what a key does and what the help shows.
import { show } from "./dialog.js";
import { html, useEffect } from "./dom.js";

/** Groups of shortcuts: title → rows of `{ keys, about, act }`. `keys` is one key, or two after each other ("g r"). */
const groups = new Map();
let before = "";
let beforeAt = 0;

/** Registers shortcuts of the whole page. */
export function addShortcuts(title, rows) {
  groups.set(title, rows);
}

/** Registers shortcuts while a component is shown. */
export function useShortcuts(title, rows) {
  useEffect(() => {
    groups.set(title, rows);
    return () => groups.delete(title);
  });
}

/** Shows all shortcuts that work now. */
export function showShortcuts() {
  return show(
    "Keyboard shortcuts",
    (close) => html`
    <div class="stack">
      ${[...groups].map(
        ([title, rows]) => html`<section><h3>${title}</h3><ul class="keys">
        ${rows.map((row) => html`<li>${row.about}<span class="number">${row.keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</span></li>`)}
      </ul></section>`,
      )}
      <p class="small">Tab moves through everything, arrow keys through tabs and charts, and Esc closes what is open.</p>
    </div>
    <div class="actions"><button type="button" class="button main" onClick=${() => close(true)}>Close</button></div>`,
  );
}

const types = (element) =>
  element?.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");

/** Starts to listen for keys. */
export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (types(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const chord = before && Date.now() - beforeAt < 1200 ? `${before} ${event.key}` : "";
    const rows = [...groups.values()].flat();
    const row = rows.find((each) => each.keys === chord) ?? rows.find((each) => each.keys === event.key);
    before = rows.some((each) => each.keys.startsWith(`${event.key} `)) ? event.key : "";
    beforeAt = Date.now();
    if (!row) return;
    event.preventDefault();
    before = "";
    row.act();
  });
}
