// A packet of the lab: its bytes as a grid, the bits of one of them, its fields, and what each check says.
import { call } from "../api.js";
import { html, useEffect, useRef, useState } from "../parts/dom.js";
import { count, counted } from "../parts/format.js";
import { asProblem } from "../parts/load.js";
import { Action, Loading, ProblemNote } from "../parts/page.js";

/** The most bytes that are drawn. */
const DRAWN = 512;

export function PacketCard({ title, about, made }) {
  const [flips, setFlips] = useState([]);
  const [view, setView] = useState(null);
  const [at, setAt] = useState(1);
  const [every, setEvery] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const packet = made.data;
  // Another packet begins without damage.
  useEffect(() => {
    setFlips([]);
    setView(null);
    setEvery(null);
    if (packet) setAt((before) => Math.min(before, Math.max(0, packet.bytes - 1)));
  }, [packet?.hex]);
  useEffect(() => {
    if (!packet || !flips.length) {
      setView(null);
      return undefined;
    }
    const ending = new AbortController();
    call("POST /api/v1/packets/inspect", { body: { hex: packet.hex, flip: flips }, signal: ending.signal }).then(
      setView,
      (error) => !ending.signal.aborted && setTrouble(asProblem(error)),
    );
    return () => ending.abort();
  }, [packet?.hex, flips]);
  if (made.problem)
    return html`<section class="card"><${CardHead} title=${title} about=${about} /><${ProblemNote} problem=${made.problem} /></section>`;
  if (!packet) return html`<section class="card"><${CardHead} title=${title} about=${about} /><${Loading} /></section>`;
  const shown = view ?? packet;
  const toggle = (bit) =>
    setFlips((before) => (before.includes(bit) ? before.filter((each) => each !== bit) : [...before, bit]));
  const flipEvery = async () =>
    setEvery(await call("POST /api/v1/packets/flips", { body: { hex: packet.hex } }));
  const field = fieldOf(packet, at);
  return html`<section class="card lab-card" aria-label=${title} data-test=${`lab-${packet.format}`}>
    <${CardHead} title=${title} about=${about} />
    <p class="lab-sum"><b>${counted(packet.bytes, "byte")}</b> for ${counted(packet.payload_bytes, "byte")} of payload <span class="faint">${packet.format_name}</span></p>
    <${Legend} />
    <${Grid} packet=${shown} before=${packet} at=${at} onPick=${setAt} />
    <${Bits} packet=${shown} at=${at} flips=${flips} field=${field} onFlip=${toggle} />
    <${Checks} checks=${shown.checks} flips=${flips} isIntact=${shown.is_intact} />
    <div class="actions lab-tools">
      <button type="button" class="button small" disabled=${!flips.length} onClick=${() => setFlips([])} data-test="lab-mend">Undo the flips</button>
      <${Action} kind="small" disabled=${packet.bytes > 2048} onClick=${flipEvery} onProblem=${setTrouble} data-test="lab-every">Flip every bit, one at a time<//>
    </div>
    ${every && html`<p class="small" role="status" data-test="lab-every-result"><b>${count(every.noticed)} of ${count(every.bits)}</b> flips are noticed: ${every.by_check.map(([name, noticed]) => `${name} ${count(noticed)}`).join(", ")}.</p>`}
    <${ProblemNote} problem=${trouble} />
    <details class="lab-fields"><summary>Fields</summary><${Fields} packet=${shown} at=${at} onPick=${setAt} /></details>
  </section>`;
}

const CardHead = ({ title, about }) =>
  html`<div class="card-head"><h2>${title}</h2><span class="faint small">${about}</span></div>`;

const Legend = () =>
  html`<ul class="legend lab-legend" aria-hidden="true">${["frame", "routing", "payload"].map(
    (layer) => html`<li key=${layer}><span class=${`swatch lab-${layer}`}></span>${layer}</li>`,
  )}</ul>`;

const byteAt = (packet, at) => packet.hex.slice(2 * at, 2 * at + 2);
const fieldOf = (packet, at) => packet.fields.find((field) => at >= field.offset && at < field.offset + field.len);

/** The bytes; one is a stop of the Tab key, and the arrow keys move between them. */
function Grid({ packet, before, at, onPick }) {
  const grid = useRef(null);
  const drawn = Math.min(packet.bytes, DRAWN);
  const failing = packet.checks.filter((check) => !check.passes && check.name !== "content");
  const move = (event) => {
    const row = columns(grid.current);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -at, End: drawn - 1 - at }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(drawn - 1, at + by));
    onPick(next);
    grid.current.querySelectorAll("button")[next]?.focus();
  };
  const bytes = [];
  for (const field of packet.fields) {
    for (let place = field.offset; place < Math.min(field.offset + field.len, drawn); place += 1) {
      const value = byteAt(packet, place);
      const edge = `${place === field.offset ? "first" : ""} ${place === field.offset + field.len - 1 ? "last" : ""}`;
      const damaged = value !== byteAt(before, place) ? "damaged" : "";
      bytes.push(html`<button type="button" key=${place} class=${`byte lab-${field.layer} ${edge} ${damaged} ${isQuiet(field) ? "quiet" : ""}`}
        aria-pressed=${place === at} tabindex=${place === at ? 0 : -1} aria-label=${`Byte ${place}, ${field.name}: ${value}${damaged ? ", damaged" : ""}`}
        title=${`${field.name} · byte ${place}`} onClick=${() => onPick(place)}>${value}</button>`);
    }
  }
  return html`<div class=${`byte-grid ${failing.length ? "is-bad" : ""}`} role="group" aria-label="Bytes of the packet" ref=${grid} onKeyDown=${move}>${bytes}</div>
    ${packet.bytes > drawn && html`<p class="faint small">and ${counted(packet.bytes - drawn, "byte")} more</p>`}`;
}

const isQuiet = (field) => ["padding", "zero"].includes(field.name);

function columns(grid) {
  const buttons = [...grid.querySelectorAll("button")];
  const top = buttons[0]?.offsetTop;
  const next = buttons.findIndex((button) => button.offsetTop !== top);
  return next < 0 ? buttons.length : next;
}

/** The bits of the picked byte, highest first; pressing one flips it. */
function Bits({ packet, at, flips, field, onFlip }) {
  const value = Number.parseInt(byteAt(packet, at) || "0", 16);
  const now = fieldOf(packet, at) ?? field;
  return html`<div class="lab-bits">
    <div class="lab-what"><b>${field?.name}</b> <span class="faint">byte ${at}</span><div class="soft small anywhere">${field?.about} <span class="mono">${now?.value}</span></div></div>
    <div class="bits" role="group" aria-label=${`Bits of byte ${at}; press one to flip it`}>
      ${[7, 6, 5, 4, 3, 2, 1, 0].map((bit) => {
        const place = 8 * at + bit;
        const isOn = (value >> bit) & 1;
        return html`<button type="button" key=${bit} class=${`bit ${flips.includes(place) ? "damaged" : ""}`} aria-pressed=${flips.includes(place)}
          aria-label=${`Flip bit ${bit}, which is ${isOn}`} data-test=${`bit-${bit}`} onClick=${() => onFlip(place)}>${isOn}</button>`;
      })}
    </div></div>`;
}

function Checks({ checks, flips, isIntact }) {
  const verdict = flips.length
    ? isIntact
      ? ["No check notices the damage", "bad"]
      : ["The damage is noticed", "good"]
    : [isIntact ? "Every check passes" : "A check fails", isIntact ? "good" : "warn"];
  return html`<div class="lab-checks"><p class=${`lab-verdict ${verdict[1]}`} role="status" data-test="lab-verdict">${verdict[0]}</p>
    <ul>${checks.map(
      (check) => html`<li key=${check.name}><span class=${`pill ${check.passes ? "good" : "bad"}`}>${check.passes ? "passes" : "fails"}</span>
      <b>${check.name}</b><span class="soft anywhere">${check.says}</span></li>`,
    )}</ul></div>`;
}

function Fields({ packet, at, onPick }) {
  return html`<div class="scroll"><table class="table fold"><thead><tr><th>Field</th><th class="right">Byte</th><th class="right">Length</th><th>Value</th><th>Layer</th></tr></thead>
    <tbody>${packet.fields.map(
      (
        field,
      ) => html`<tr key=${field.offset} class=${at >= field.offset && at < field.offset + field.len ? "picked" : ""}>
      <th scope="row"><button type="button" class="link" onClick=${() => onPick(field.offset)}>${field.name}</button></th>
      <td class="right number" data-label="byte">${count(field.offset)}</td><td class="right number" data-label="length">${count(field.len)}</td>
      <td class="mono anywhere whole">${field.value}</td><td class="soft">${field.layer}</td></tr>`,
    )}</tbody></table></div>`;
}
