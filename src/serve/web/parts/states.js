// The states of a run, in words and colours, the same on every page.
import { html } from "./dom.js";

const STATES = {
  running: { text: "running", kind: "live beat" },
  starting: { text: "starting", kind: "live beat" },
  stalled: { text: "stalled", kind: "warn" },
  crashed: { text: "crashed", kind: "bad" },
  failed: { text: "failed", kind: "bad" },
  stopped: { text: "stopped", kind: "warn hollow" },
  done: { text: "done", kind: "good" },
  completed: { text: "done", kind: "good" },
  diverged: { text: "diverged", kind: "warn" },
  gone: { text: "gone", kind: "hollow" },
};

/** The states that a list can be filtered by. */
export const FILTERS = [
  { value: "", text: "All" },
  { value: "running", text: "Running", of: ["running", "starting", "stalled"] },
  { value: "done", text: "Done", of: ["done", "completed", "diverged"] },
  { value: "open", text: "To resume", of: ["stopped", "crashed", "failed"] },
];

/** A state as a dot and a word. */
export function State({ state }) {
  const { text, kind } = STATES[state] ?? { text: state, kind: "hollow" };
  return html`<span class=${`pill ${kind}`} data-test="state">${text}</span>`;
}

/** The kind of a bar for a state. */
export const barKind = (state) =>
  ["crashed", "failed"].includes(state)
    ? "bad"
    : state === "diverged"
      ? "warn"
      : ["running", "starting"].includes(state)
        ? ""
        : state === "done" || state === "completed"
          ? "good"
          : "still";
