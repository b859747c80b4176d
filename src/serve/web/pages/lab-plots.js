// The other parts of the lab: what packets cost by their payload, how fast they go through this machine, and the five
// layers with what each adds and checks.
import { call } from "../api.js";
import { html, useState } from "../parts/dom.js";
import { bytes, count, counted, figure, percent } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Action, Chips, Loading, ProblemNote } from "../parts/page.js";

const LINES = [
  { key: "v1_bytes", name: "version 1", colour: "var(--run-2)" },
  { key: "v2_token_bytes", name: "version 2, tokens and mask", colour: "var(--run-1)" },
  { key: "v2_typed_bytes", name: "version 2, typed", colour: "var(--run-4)" },
];
const [WIDTH, HEIGHT, LEFT, FOOT] = [560, 230, 52, 26];

/** Overhead as a share of the payload, both on scales of powers of ten. */
export function Overhead({ payload }) {
  const sizes = useRead("GET /api/v1/packets/sizes");
  const [at, setAt] = useState(null);
  const items = sizes.data?.items ?? [];
  const points = (key) =>
    items
      .filter((item) => item[key] !== null)
      .map((item) => [item.payload_bytes, (item[key] - item.payload_bytes) / item.payload_bytes]);
  const x = (size) => LEFT + ((Math.log10(size) - 0.6) / 6.05) * (WIDTH - LEFT - 8);
  const y = (share) => 8 + ((1.7 - Math.log10(Math.max(share, 1e-5))) / 6) * (HEIGHT - FOOT - 8);
  const near = at === null ? null : nearest(items, at);
  const marked = near ?? nearest(items, payload);
  const pick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * WIDTH;
    setAt(10 ** (((place - LEFT) / (WIDTH - LEFT - 8)) * 6.05 + 0.6));
  };
  return html`<section class="card" aria-labelledby="lab-overhead"><div class="card-head"><h2 id="lab-overhead">Overhead by payload</h2></div>
    <${ProblemNote} problem=${sizes.problem} again=${sizes.again} />
    ${
      items.length === 0
        ? !sizes.problem && html`<${Loading} />`
        : html`<svg class="lab-plot" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${inWords(items)} onPointerMove=${pick} onPointerLeave=${() => setAt(null)}>
        ${[10, 1, 0.1, 0.01, 0.001, 0.0001].map((share) => html`<g key=${share}><line class="grid-line" x1=${LEFT} x2=${WIDTH - 8} y1=${y(share)} y2=${y(share)} /><text x=${LEFT - 6} y=${y(share) + 4} text-anchor="end">${`${figure(share * 100)} %`}</text></g>`)}
        ${[10, 100, 1e3, 1e4, 1e5, 1e6].map((size) => html`<text key=${size} x=${x(size)} y=${HEIGHT - 8} text-anchor="middle">${bytes(size)}</text>`)}
        ${marked && html`<line class="mark-line" x1=${x(marked.payload_bytes)} x2=${x(marked.payload_bytes)} y1="4" y2=${HEIGHT - FOOT} />`}
        ${LINES.map(({ key, colour }) => {
          const line = points(key).map(([size, share]) => `${x(size).toFixed(1)},${y(share).toFixed(1)}`);
          return html`<polyline key=${key} points=${line.join(" ")} fill="none" stroke=${colour} stroke-width="1.8" stroke-linejoin="round" />`;
        })}
      </svg>
      <ul class="legend">${LINES.map(({ key, name, colour }) => html`<li key=${key}><svg width="14" height="4" aria-hidden="true"><rect width="14" height="3" fill=${colour} /></svg>${name}${marked && html` <b>${marked[key] === null ? "cannot hold it" : percent((marked[key] - marked.payload_bytes) / marked.payload_bytes, 2)}</b>`}</li>`)}</ul>
      ${marked && html`<p class="faint small">at ${counted(marked.payload_bytes, "byte")} of payload${near ? "" : ", that of the packet above"}. A packet of version 1 holds at most 65,535 bytes. The mask takes one bit per token.</p>`}`
    }</section>`;
}

function nearest(items, size) {
  if (!size || !items.length) return null;
  const far = (item) => Math.abs(Math.log(item.payload_bytes / Math.max(size, 1)));
  return items.reduce((best, item) => (far(item) < far(best) ? item : best));
}

function inWords(items) {
  const told = [4, 64, 2048, 65532, 4194304].map((size) => nearest(items, size));
  const one = (item) =>
    `${count(item.payload_bytes)} bytes: ${LINES.map(({ key, name }) => `${name} ${item[key] === null ? "cannot hold it" : `${count(item[key])} bytes`}`).join(", ")}`;
  return `Overhead by payload. ${told.map(one).join("; ")}`;
}

const TOKENS = [16, 512, 4096, 16383].map((value) => ({ value, text: counted(value, "token") }));

/** A measurement of about a second, on demand. */
export function Rates() {
  const [tokens, setTokens] = useState(512);
  const [rates, setRates] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const measure = async () => {
    setTrouble(null);
    setRates(await call("POST /api/v1/packets/rates", { body: { tokens } }));
  };
  const most = Math.max(1, ...(rates?.items ?? []).map((rate) => rate.bytes_per_s));
  return html`<section class="card" aria-labelledby="lab-rates"><div class="card-head"><h2 id="lab-rates">Throughput of this machine</h2></div>
    <div class="filters"><${Chips} label="Tokens in a packet" choices=${TOKENS} value=${tokens} onPick=${setTokens} />
      <${Action} kind="main small" onClick=${measure} onProblem=${setTrouble} data-test="lab-measure">${rates ? "Measure again" : "Measure"}<//></div>
    <${ProblemNote} problem=${trouble} />
    ${
      rates
        ? html`<div aria-live="polite"><table class="table lab-rates" data-test="lab-rates"><tbody>${rates.items.map(
            (
              rate,
            ) => html`<tr key=${`${rate.version}${rate.what}`}><th scope="row">${rate.what} <span class="faint">${rate.version ? `version ${rate.version}` : ""}</span></th>
          <td class="lab-rate"><span class=${`bar ${rate.version ? "" : "still"}`}><i style=${{ width: `${(100 * rate.bytes_per_s) / most}%` }}></i></span></td><td class="right number"><b>${bytes(rate.bytes_per_s)}/s</b></td></tr>`,
          )}</tbody></table><p class="faint small">${rates.about}</p></div>`
        : html`<p class="soft">Writes and reads packets for about a second on one core of the machine that serves this page, and copies as many bytes beside it.</p>`
    }</section>`;
}

/** From the bottom to the top. The first and third are around packets; the others have bytes in each of them. */
const LAYERS = [
  {
    name: "Payload",
    key: "payload",
    adds: "Token ids with their mask, or a part of a tensor with its name, dtype, shape and place.",
    checks: "Whether the content is what TYP says; that no part is missing, repeated or foreign. A file is used only when all of it is verified.",
  },
  {
    name: "Routing",
    key: "routing",
    adds: "SRC, DST and TYP, and the tensor's name from which its layer follows.",
    checks: "Which part of the program takes a packet. Unknown codes are carried and named, never guessed.",
  },
  {
    name: "Stream",
    adds: "An encrypted channel (TLS 1.3) with a pinned key and a token, credit for a slow receiver, and where to continue.",
    checks: "That nobody in between reads, changes, repeats or leaves out a packet.",
  },
  {
    name: "Frame",
    key: "frame",
    adds: "Where a packet begins and ends, and its checksums.",
    checks: "That its bytes are those that were written, that it is complete, and that it is the next one.",
  },
  {
    name: "Medium",
    adds: "Bytes of a file or of a connection, and nothing else.",
    checks: "That a connection makes progress: one that falls silent ends with a message and never hangs.",
  },
];

export function Layers({ packet }) {
  const inside = (key) => (packet?.fields ?? []).filter((field) => field.layer === key).reduce((sum, field) => sum + field.len, 0);
  return html`<section class="card" aria-labelledby="lab-layers"><div class="card-head"><h2 id="lab-layers">Five layers</h2><span class="faint small">what each adds and what it checks; the bytes are those of version 2 above</span></div>
    <ol class="lab-layers">${LAYERS.map(
      ({ name, key, adds, checks }) => html`<li key=${name} class=${key ? `lab-${key}` : "outside"}>
      <div class="lab-layer"><b>${name}</b><span class="number soft small">${key ? counted(inside(key), "byte") : "around packets"}</span></div>
      <div><span class="soft small">adds</span> ${adds}</div><div><span class="soft small">checks</span> ${checks}</div></li>`,
    )}</ol></section>`;
}
