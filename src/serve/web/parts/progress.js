// How far something is: a bar with words, which a screen reader hears once in a while.
import { cancelTask } from "../api.js";
import { bytes, count } from "./format.js";
import { html, useEffect, useRef, useState } from "./dom.js";

/** A bar. `share` is 0 to 1, or null if nobody knows. */
export function Bar({ share, kind = "", label }) {
  const known = typeof share === "number" && Number.isFinite(share);
  const now = known ? Math.round(Math.min(1, Math.max(0, share)) * 1000) / 10 : null;
  return html`<span class=${`bar ${kind} ${known ? "" : "unknown"}`} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${known ? now : undefined}><i style=${{ width: `${now ?? 30}%` }}></i></span>`;
}

/** Says a text to screen readers, at most every `ms`, so that a fast number is not read out all the time. */
export function Spoken({ text, ms = 15000 }) {
  const [said, setSaid] = useState(text);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + ms - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      setSaid(text);
    }, wait);
    return () => clearTimeout(timer);
  }, [text, ms]);
  return html`<span class="hidden-visually" role="status" aria-live="polite">${said}</span>`;
}

/** The progress of a task, in words. */
export function wordsOf(progress) {
  if (!progress) return "";
  const amount = progress.unit === "bytes" ? bytes : count;
  const of = progress.total ? ` of ${amount(progress.total)}` : "";
  const done = progress.done || progress.total ? `${amount(progress.done)}${of}` : "";
  return [progress.what, done, progress.note].filter(Boolean).join(" · ");
}

/** A task that is at work, with a button that ends it. */
export function TaskProgress({ task, title, onCancel }) {
  if (!task || !["running", "queued"].includes(task.state)) return null;
  const { progress } = task;
  const share = progress?.total ? progress.done / progress.total : null;
  const words = wordsOf(progress);
  return html`<div class="card stack" data-test="task">
    <div class="card-head"><h2>${title}</h2><span class="soft">${words}</span>
      <div class="actions"><button class="button small" onClick=${() => (onCancel ? onCancel() : cancelTask(task.id).catch(() => {}))}>Cancel</button></div></div>
    <${Bar} share=${share} label=${title} />
    <${Spoken} text=${`${title}: ${words}`} ms=${8000} />
  </div>`;
}
