// What pages are put together from: heading, notes, empty states, tabs, buttons that wait for their work.
import { asProblem } from "./load.js";
import { html, useEffect, useRef, useState } from "./dom.js";
import { sentence } from "./format.js";
import { Icon } from "./icons.js";

/** The heading of a page with its actions. The browser's title follows it. */
export function Head({ title, name, about, crumb, children }) {
  useEffect(() => {
    document.title = `${name ?? title} · sparktune`;
  }, [name ?? title]);
  return html`<header class="page-head">
    <div>
      ${crumb && html`<a class="crumb" href=${crumb.href}>${crumb.text}</a>`}
      <h1>${title}</h1>
      ${about && html`<p>${about}</p>`}
    </div>
    <div class="actions">${children}</div>
  </header>`;
}

/** A problem in its parts: what, where, and what to do. */
export function ProblemNote({ problem, again }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert" data-test="problem">
    <div>
      <b>${problem.title}</b>
      ${problem.detail && html`<div>${problem.detail}</div>`}
      ${problem.where && html`<div class="where">${problem.where}</div>`}
      ${problem.advice && html`<div>${sentence(problem.advice)}</div>`}
    </div>
    ${again && html`<button class="button small" onClick=${again}>Try again</button>`}
  </div>`;
}

/** A note of a kind: good, warn, bad, or plain. */
export function Note({ kind = "", title, children }) {
  return html`<div class=${`note ${kind}`}><div>${title && html`<b>${title} </b>`}${children}</div></div>`;
}

/** What to see where there is nothing yet, and what to do about it. */
export function Empty({ icon, title, children, actions }) {
  return html`<div class="empty">
    ${icon && html`<${Icon} name=${icon} size=${26} />`}
    <h2>${title}</h2>
    <p>${children}</p>
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;
}

/** Shown while something is read; a short wait shows nothing. */
export function Loading({ what = "Reading" }) {
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSeen(true), 250);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="loading" role="status">${seen && html`<span><span class="spin"></span> ${what} …</span>`}</div>`;
}

/** A button whose work takes time: it is off until the work is done, and a problem goes to `onProblem`. */
export function Action({ onClick, onProblem, children, kind = "", icon, disabled, ...more }) {
  const [busy, setBusy] = useState(false);
  const alive = useRef(true);
  useEffect(() => () => (alive.current = false), []);
  const press = async (event) => {
    setBusy(true);
    try {
      await onClick(event);
    } catch (error) {
      if (error?.name !== "AbortError") onProblem?.(asProblem(error));
    }
    if (alive.current) setBusy(false);
  };
  return html`<button type="button" class=${`button ${kind}`} disabled=${busy || disabled} aria-busy=${busy} onClick=${press} ...${more}>
    ${busy ? html`<span class="spin"></span>` : icon && html`<${Icon} name=${icon} size=${15} />`}${children}
  </button>`;
}

/** A row of tabs, moved through with the arrow keys. `tabs` are `{ id, title, count }`. */
export function Tabs({ tabs, current, onPick, label }) {
  const row = useRef(null);
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = (at + by + tabs.length) % tabs.length;
    onPick(tabs[next].id);
    row.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${row} onKeyDown=${move}>
    ${tabs.map(
      (
        tab,
      ) => html`<button key=${tab.id} role="tab" id=${`tab-${tab.id}`} aria-selected=${tab.id === current} aria-controls="tab-panel"
      tabindex=${tab.id === current ? 0 : -1} onClick=${() => onPick(tab.id)}>${tab.title}${tab.count !== undefined && html`<span class="count">${tab.count}</span>`}</button>`,
    )}
  </div>`;
}

/** One of several values, as chips. */
export function Chips({ label, choices, value, onPick }) {
  return html`<div class="chips" role="group" aria-label=${label}>
    ${choices.map(
      (
        choice,
      ) => html`<button type="button" key=${choice.value} class="chip" aria-pressed=${choice.value === value}
      onClick=${() => onPick(choice.value)}>${choice.text}</button>`,
    )}
  </div>`;
}

/** A field for searching; the key / reaches it. */
export function Search({ value, onInput, label }) {
  return html`<div class="search" role="search"><${Icon} name="search" size=${14} />
    <input class="input" type="search" data-search aria-label=${label} placeholder=${label} value=${value} onInput=${(event) => onInput(event.target.value)} /></div>`;
}

/** Texts with dots between them. None of them can turn the direction of another one, whatever it contains. */
export const joined = (texts) =>
  texts
    .filter(Boolean)
    .map((text, at) => html`${at > 0 && " · "}<bdi>${text}</bdi>`);

/** Names with values in two columns; rows without a value are left out. */
export function Facts({ rows }) {
  const shown = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class="facts">${shown.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

/** Figures: the name small, the value large, and what it is compared with. */
export function Figures({ items }) {
  return html`<dl class="figures">${items.filter(Boolean).map(
    ([name, value, more]) => html`<div key=${name}>
    <dt>${name}</dt><dd>${value}${more && html`<small>${more}</small>`}</dd></div>`,
  )}</dl>`;
}
