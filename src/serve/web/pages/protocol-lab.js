// The protocol lab: a packet drawn byte by byte in both versions, edited, damaged and checked. The server computes
// everything with the code that reads and writes files; this page only shows it.
import { call } from "../api.js";
import { html, useEffect, useMemo, useState } from "../parts/dom.js";
import { asProblem, useRead, useSettled } from "../parts/load.js";
import { Chips, Head, Loading, ProblemNote } from "../parts/page.js";
import { Layers, Overhead, Rates } from "./lab-plots.js";
import { PacketCard } from "./lab-packet.js";

const KINDS = [
  { value: "ids", text: "Token ids" },
  { value: "text", text: "Text" },
  { value: "hex", text: "Bytes" },
  { value: "tensor", text: "Tensor" },
];

const FIRST = {
  kind: "ids",
  ids: "9906, 11, 1917, 0",
  text: "Hello, packet",
  hex: "de ad be ef",
  name: "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
  dtype: "BF16",
  shape: "4, 2",
  numbers: "803f 0040 4040 8040 a040 c040 e040 0041",
  src: "",
  dst: "",
  typ: "",
};

export default function ProtocolLab() {
  const codes = useRead("GET /api/v1/packets/codes");
  const [wish, setWish] = useState(FIRST);
  const settled = useSettled(wish, 180);
  const one = useMade(1, settled);
  const two = useMade(2, settled);
  const set = (name) => (value) => setWish((before) => ({ ...before, [name]: value }));
  const payload = two.data?.payload_bytes ?? one.data?.payload_bytes;
  return html`
    <${Head} title="Protocol lab" about="One packet, byte by byte, in both versions of the format. Change what it carries, flip any of its bits, and see which check notices." />
    <${ProblemNote} problem=${codes.problem} again=${codes.again} />
    <div class="stack">
      ${codes.data ? html`<${Form} codes=${codes.data} wish=${wish} set=${set} />` : !codes.problem && html`<${Loading} />`}
      <div class="lab-pair">
        <${PacketCard} title="Version 1" about="8 bytes around the payload, big-endian, CRC-16" made=${one} />
        <${PacketCard} title="Version 2" about="aligned to 64 bytes, little-endian, CRC-32C" made=${two} />
      </div>
      <${Layers} packet=${two.data} />
      <div class="cards wide">
        <${Overhead} payload=${payload} />
        <${Rates} />
      </div>
    </div>`;
}

/** Asks the server for the packet of a wish. What was made last stays until the answer is there. */
function useMade(version, wish) {
  const [state, setState] = useState({ data: null, problem: null });
  const body = useMemo(() => bodyOf(version, wish), [version, JSON.stringify(wish)]);
  useEffect(() => {
    const ending = new AbortController();
    call("POST /api/v1/packets", { body, signal: ending.signal }).then(
      (data) => setState({ data, problem: null }),
      (error) => !ending.signal.aborted && setState({ data: null, problem: asProblem(error) }),
    );
    return () => ending.abort();
  }, [body]);
  return state;
}

const numbers = (text) =>
  text
    .split(/[\s,;]+/)
    .filter(Boolean)
    .map(Number);

function bodyOf(version, wish) {
  const body = { version };
  for (const name of ["src", "dst", "typ"]) if (wish[name] !== "") body[name] = Number(wish[name]);
  if (wish.kind === "ids") body.ids = numbers(wish.ids);
  if (wish.kind === "text") body.text = wish.text;
  if (wish.kind === "hex") body.hex = wish.hex;
  if (wish.kind === "tensor")
    body.tensor = { name: wish.name, dtype: wish.dtype, shape: numbers(wish.shape), hex: wish.numbers };
  return body;
}

function Form({ codes, wish, set }) {
  return html`<section class="card" aria-labelledby="lab-content">
    <div class="card-head"><h2 id="lab-content">What the packet carries</h2>
      <div class="actions"><${Chips} label="Kind of content" choices=${KINDS} value=${wish.kind} onPick=${set("kind")} /></div></div>
    <div class="lab-form">
      <${Content} codes=${codes} wish=${wish} set=${set} />
      <${CodeField} name="SRC" about="where it comes from" codes=${codes.src} value=${wish.src} onPick=${set("src")} usual=${wish.kind === "tensor" ? "weights (128)" : "text corpus (1)"} />
      <${CodeField} name="DST" about="the part of a model" codes=${codes.dst} value=${wish.dst} onPick=${set("dst")} usual=${wish.kind === "tensor" ? "what the name says" : "embedding (1)"} />
      <${CodeField} name="TYP" about="how it is encoded" codes=${codes.typ} value=${wish.typ} onPick=${set("typ")} usual="that of its content" />
    </div>
  </section>`;
}

function Content({ codes, wish, set }) {
  const area = (name, label, hint) => html`<div class="field lab-whole"><label for=${`lab-${name}`}>${label}</label>
    <textarea class="area mono" id=${`lab-${name}`} rows="2" spellcheck="false" data-test=${`lab-${name}`} value=${wish[name]} onInput=${(event) => set(name)(event.target.value)}></textarea>
    <span class="hint">${hint}</span></div>`;
  if (wish.kind === "ids") return area("ids", "Token ids", "Numbers with commas between them.");
  if (wish.kind === "text") return area("text", "Text", "Its bytes in UTF-8.");
  if (wish.kind === "hex") return area("hex", "Bytes", "Hex digits, two per byte.");
  return html`
    <div class="field lab-whole"><label for="lab-name">Name of the tensor</label>
      <input class="input mono" id="lab-name" data-test="lab-name" value=${wish.name} onInput=${(event) => set("name")(event.target.value)} /></div>
    <div class="field"><label for="lab-dtype">Dtype</label>
      <select class="select" id="lab-dtype" value=${wish.dtype} onChange=${(event) => set("dtype")(event.target.value)}>${codes.dtypes.map(
        (name) => html`<option key=${name} value=${name}>${name}</option>`,
      )}</select></div>
    <div class="field"><label for="lab-shape">Shape</label>
      <input class="input mono" id="lab-shape" value=${wish.shape} onInput=${(event) => set("shape")(event.target.value)} /></div>
    ${area("numbers", "Numbers", "Hex digits, little-endian; empty means zeros.")}`;
}

/** One of the named codes, or any other number. */
function CodeField({ name, about, codes, value, onPick, usual }) {
  const isNamed = value === "" || codes.some((code) => String(code.code) === value);
  const [open, setOpen] = useState(!isNamed);
  const id = `lab-code-${name}`;
  const pick = (event) => {
    const other = event.target.value === "other";
    setOpen(other);
    onPick(other ? "42" : event.target.value);
  };
  return html`<div class="field"><label for=${id}>${name} <span class="faint">${about}</span></label>
    <div class="inline"><select class="select" id=${id} data-test=${id} value=${open ? "other" : value} onChange=${pick}>
      <option value="">${usual}</option>
      ${codes.map((code) => html`<option key=${code.code} value=${String(code.code)}>${`${code.name} (${code.code})`}</option>`)}
      <option value="other">another code …</option></select>
    ${open && html`<input class="input lab-code" type="number" min="0" max="255" aria-label=${`${name}, a number from 0 to 255`} value=${value} onInput=${(event) => onPick(event.target.value)} />`}</div></div>`;
}
