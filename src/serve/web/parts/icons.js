// The icons, drawn on a grid of 16 with a line of 1.5. They say nothing that a word beside them does not say.
import { html } from "./dom.js";

const PATHS = {
  runs: "M2 12.5 5.5 8l3 2.5L14 4M10.5 4H14v3.5",
  data: "M2.5 4c0-1.1 2.5-2 5.5-2s5.5.9 5.5 2-2.5 2-5.5 2-5.5-.9-5.5-2ZM2.5 4v8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2V4M2.5 8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2",
  plan: "M2 4.5h5M11 4.5h3M2 11.5h3M9 11.5h5M9 2.5v4M7 9.5v4",
  add: "M8 3v10M3 8h10",
  chat: "M2.5 3.5h11v7.5h-6L4.5 13.5V11h-2z",
  compare: "M8 2v12M2.5 4.5h3v7h-3zM10.5 4.5h3v7h-3z",
  arena: "M3 13 13 3M10 3h3v3M13 13 8.9 8.9M3 3l4.1 4.1M10 13h3v-3",
  bench: "M8 13.5A5.5 5.5 0 1 1 13.5 8M8 8l3-3M13 11v2.5h-2.5",
  knowledge: "M5.6 11.2C4.3 10.3 3.5 8.9 3.5 7.2a4.5 4.5 0 0 1 9 0c0 1.7-.8 3.1-2.1 4v1.3H5.6zM6.5 14.5h3",
  undo: "M3 8a5 5 0 1 0 1.7-3.8L3 5.8M3 2.5v3.3h3.3",
  packet: "M2.5 5 8 2.2 13.5 5v6L8 13.8 2.5 11zM2.5 5 8 7.8 13.5 5M8 7.8v6",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 11.5a4.5 4.5 0 1 1 0-9 4.5 4.5 0 0 1 0 9ZM10.3 10.3 14 14",
  sun: "M8 11a3 3 0 1 1 0-6 3 3 0 0 1 0 6ZM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  moon: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1Z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  help: "M8 14.2A6.2 6.2 0 1 1 8 1.8a6.2 6.2 0 0 1 0 12.4ZM6.2 6.2a1.9 1.9 0 1 1 2.6 1.8c-.5.2-.8.6-.8 1.2M8 11.4v.1",
  guide: "M8 4.2C6.5 3 4.5 2.7 2 3v9.5c2.5-.3 4.5 0 6 1.2 1.5-1.2 3.5-1.5 6-1.2V3c-2.5-.3-4.5 0-6 1.2v9.5",
  leave: "M6 2.5H3v11h3M7 8h7M11 5l3 3-3 3",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  stop: "M4 4h8v8H4z",
  send: "M8 13V3.5M4 7.5l4-4 4 4",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  again: "M13 8A5 5 0 1 1 11.3 4.2L13 5.8M13 2.5v3.3H9.7",
  edit: "M10.5 3 13 5.5 5.5 13H3v-2.5z",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.5 9h6l.5-9",
  upload: "M8 10.5V3M4.8 6 8 2.8 11.2 6M2.5 10.5v3h11v-3",
  file: "M4 2h5l3.5 3.5V14H4zM9 2v3.5h3.5",
  export: "M8 2.5V10M4.8 7 8 10.2 11.2 7M2.5 10.5v3h11v-3",
  report: "M4 2h5l3.5 3.5V14H4zM6 8h4M6 10.5h4",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  check: "M3 8.5 6.5 12 13 4.5",
  sliders: "M2 4.5h5M11 4.5h3M2 11.5h3M9 11.5h5M9 2.5v4M7 9.5v4",
};

/** An icon by its name, without meaning for a screen reader. */
export function Icon({ name, size = 16 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}
