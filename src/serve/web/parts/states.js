// The states of a run, in words and colours, the same on every page.
import { html } from "./dom.js";

const STATES = {
  not_started: { text: "not started", kind: "hollow", bar: "still" },
  running: { text: "running", kind: "live beat", bar: "" },
  stalled: { text: "stalled", kind: "warn", bar: "warn" },
  crashed: { text: "crashed", kind: "bad", bar: "bad" },
  failed: { text: "failed", kind: "bad", bar: "bad" },
  stopped: { text: "stopped", kind: "warn hollow", bar: "still" },
  done: { text: "completed", kind: "good", bar: "good" },
  diverged: { text: "diverged", kind: "warn", bar: "warn" },
  gone: { text: "gone", kind: "hollow", bar: "still" },
  unreadable: { text: "unreadable", kind: "bad hollow", bar: "still" },
};

/** The states that a list can be filtered by. */
export const FILTERS = [
  { value: "", text: "All" },
  { value: "running", text: "Running", of: ["running", "stalled"] },
  { value: "done", text: "Completed", of: ["done", "diverged"] },
  { value: "open", text: "To resume", of: ["stopped", "crashed", "failed", "not_started"] },
];

/** A state as a dot and a word. */
export function State({ state }) {
  const { text, kind } = STATES[state] ?? { text: state, kind: "hollow" };
  return html`<span class=${`pill ${kind}`} data-test="state">${text}</span>`;
}

/** The kind of a bar for a state. */
export const barKind = (state) => STATES[state]?.bar ?? "still";

/** Whether a run is at work. */
export const isLive = (run) => ["running", "stalled"].includes(run?.state);
