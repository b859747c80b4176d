// The facts of an edit: typed, a file, or a patch that was made elsewhere; and how they are written.
import { html, useState } from "../parts/dom.js";
import { counted } from "../parts/format.js";
import { Drop } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { useRead } from "../parts/load.js";
import { Action, Chips } from "../parts/page.js";
import { MeasureForm } from "./knowledge-measure.js";

const KINDS = [
  { value: "typed", text: "Type them" },
  { value: "file", text: "A file" },
  { value: "patch", text: "A patch" },
];

const METHODS = {
  auto: "For one fact rome, for more memit.",
  rome: "One fact after another, each exactly.",
  memit: "All facts at once, with the least change.",
  ultraedit: "All facts in one step, in several layers.",
  memory: "Beside the weights, which do not change.",
};

const EMPTY = { prompt: "", subject: "", target: "", paraphrases: "", neighbours: "", portability: "" };
const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** A typed fact as the server reads it. Lines of questions are `prompt => answer`. */
export function factOf(typed) {
  const fact = { prompt: typed.prompt.trimEnd(), target: typed.target.trim() };
  if (typed.subject.trim()) fact.subject = typed.subject.trim();
  for (const name of ["paraphrases", "neighbours"]) {
    if (linesOf(typed[name]).length) fact[name] = linesOf(typed[name]);
  }
  const questions = linesOf(typed.portability).map((line) => {
    const at = line.lastIndexOf("=>");
    return at < 0
      ? { prompt: line, answer: "" }
      : { prompt: line.slice(0, at).trim(), answer: line.slice(at + 2).trim() };
  });
  if (questions.length) fact.portability = questions;
  return fact;
}

export function FactsForm({ busy, tracing, measuring, layers, setLayers, onEdit, onTrace, onMeasure, onProblem }) {
  const [kind, setKind] = useState("typed");
  const [facts, setFacts] = useState([EMPTY]);
  const [data, setData] = useState("");
  const [settings, setSettings] = useState({ method: "auto", name: "", text: "", chat: false, force: false, known: false, suite: "" });
  const sets = useRead("GET /api/v1/datasets");
  const files = sets.data?.items ?? [];
  const suites = useRead("GET /api/v1/suites").data?.items ?? [];
  const set = (name) => (value) => setSettings((before) => ({ ...before, [name]: value }));
  const change = (at, name, value) =>
    setFacts((before) => before.map((fact, each) => (each === at ? { ...fact, [name]: value } : fact)));
  const usable = files.filter((file) => /\.qubgpu$/.test(file.name) === (kind === "patch"));
  const chosen = usable.find((file) => file.id === data)?.id ?? usable[0]?.id ?? "";
  const whole = (fact) => fact.prompt.trim() && fact.target.trim();
  const isReady = kind === "typed" ? facts.every(whole) : Boolean(chosen);
  /** The facts and how they are written, as requests say them. */
  const asked = () => {
    const body = { method: settings.method, chat: settings.chat };
    if (layers.trim()) body.layers = layers.replace(/\s/g, "");
    if (settings.text) body.text = settings.text;
    if (settings.suite) body.suite = settings.suite;
    return kind === "typed" ? { ...body, facts: facts.map(factOf) } : { ...body, data: chosen };
  };
  const start = () => {
    if (kind === "patch") return onEdit({ patch: chosen });
    const name = settings.name.trim() ? { name: settings.name.trim() } : {};
    return onEdit({ ...asked(), ...name, force: settings.force, write_known: settings.known });
  };
  return html`<section class="card" aria-labelledby="k-facts">
    <div class="card-head"><h2 id="k-facts">${kind === "patch" ? "Patch" : "Facts"}</h2>
      <div class="actions"><${Chips} label="Where the facts come from" choices=${KINDS} value=${kind} onPick=${setKind} /></div></div>
    ${
      kind === "typed"
        ? html`<ol class="k-facts">${facts.map(
            (fact, at) => html`<li key=${at}><${FactFields} fact=${fact} at=${at} set=${(name, value) => change(at, name, value)}
            onTrace=${fact.prompt.trim() && fact.subject.trim() && !tracing && !busy ? () => onTrace(factOf({ ...fact, target: fact.target.trim() || "?" }), settings.chat) : null}
            onRemove=${facts.length > 1 ? () => setFacts((before) => before.filter((_, each) => each !== at)) : null} /></li>`,
          )}</ol>
        <p><button type="button" class="button small" data-test="k-add" onClick=${() => setFacts((before) => [...before, EMPTY])}><${Icon} name="add" size=${13} />Add a fact</button></p>`
        : html`<div class="stack">
        <div class="field"><label for="k-file">${kind === "patch" ? "File of the patch" : "File of facts"}</label>
          <select class="select" id="k-file" data-test="k-file" value=${chosen} onChange=${(event) => setData(event.target.value)}>
            ${!usable.length && html`<option value="">none yet</option>`}
            ${usable.map((file) => html`<option key=${file.id} value=${file.id}>${`${file.name} (${file.folder})`}</option>`)}</select>
          <span class="hint">${kind === "patch" ? "A .qubgpu file of the folder patches of an edited model with the same base." : "One JSON object on each line with prompt, target, and optional subject, paraphrases, neighbours and portability; CounterFact's and zsRE's files are read too."}</span></div>
        <${Drop} compact kinds=${kind === "patch" ? ".qubgpu" : ".jsonl, .json"} onDone=${(item) => {
          sets.again();
          setData(item.id);
        }} /></div>`
    }
    ${kind !== "patch" && html`<${EditSettings} kind=${kind} settings=${settings} set=${set} layers=${layers} setLayers=${setLayers} files=${files.filter((file) => !/\.qubgpu$/.test(file.name))} suites=${suites} />`}
    <p class="k-start"><${Action} kind="main" disabled=${busy || !isReady} onClick=${start} onProblem=${onProblem} data-test="k-edit">${kind === "patch" ? "Lay it on a copy" : "Write into a copy and judge"}<//>
      <span class="soft small">Nothing else changes until you keep the edit.</span></p>
    ${kind !== "patch" && html`<${MeasureForm} disabled=${busy || measuring || !isReady} onStart=${(sizes) => onMeasure({ ...asked(), ...sizes })} onProblem=${onProblem} />`}
  </section>`;
}

function FactFields({ fact, at, set, onTrace, onRemove }) {
  const input = (name, label, place, test) => html`<div class="field"><label for=${`k-${name}-${at}`}>${label}</label>
    <input class="input" id=${`k-${name}-${at}`} data-test=${test} placeholder=${place} value=${fact[name]} onInput=${(event) => set(name, event.target.value)} /></div>`;
  const area = (name, label, hint) => html`<div class="field"><label for=${`k-${name}-${at}`}>${label}</label>
    <textarea class="area" rows="2" id=${`k-${name}-${at}`} value=${fact[name]} onInput=${(event) => set(name, event.target.value)}></textarea><span class="hint">${hint}</span></div>`;
  const judged = ["paraphrases", "neighbours", "portability"].filter((name) => fact[name].trim()).length;
  return html`<fieldset class="plain"><legend class="hidden-visually">Fact ${at + 1}</legend>
    <div class="k-fact">
      ${input("prompt", "Prompt", "The shop closes at", `k-prompt-${at}`)}
      ${input("target", "Target", "six", `k-target-${at}`)}
      ${input("subject", html`Subject <span class="faint">(optional, as in the prompt)</span>`, "The shop", `k-subject-${at}`)}
      <div class="actions k-tools">
        <button type="button" class="button small" disabled=${!onTrace} onClick=${onTrace} data-test=${`k-trace-${at}`} aria-label=${`Trace fact ${at + 1}`} title="Where does the model recall this? Needs prompt and subject.">Trace</button>
        ${onRemove && html`<button type="button" class="button quiet small icon" aria-label=${`Remove fact ${at + 1}`} onClick=${onRemove}><${Icon} name="close" size=${13} /></button>`}
      </div>
    </div>
    <details class="k-more"><summary>Prompts to judge it by <span class="faint">(${judged > 0 ? `${judged} of 3 kinds` : "without neighbours, only held-out text shows what else changes"})</span></summary><div class="k-judge">
      ${area("paraphrases", "The same in other words", "One on each line. Never used for the edit itself.")}
      ${area("neighbours", "About something else", "One on each line. Their answers have to stay the same.")}
      ${area("portability", "What follows from it", "One on each line: prompt => answer")}
    </div></details></fieldset>`;
}

function EditSettings({ kind, settings, set, layers, setLayers, files, suites }) {
  const check = (name, text) => html`<label class="check"><input type="checkbox" checked=${settings[name]} data-test=${`k-${name}`} onChange=${(event) => set(name)(event.target.checked)} /> ${text}</label>`;
  return html`<div class="k-settings">
    <div class="field"><label for="k-method">Method</label><select class="select" id="k-method" data-test="k-method" value=${settings.method} onChange=${(event) => set("method")(event.target.value)}>
      ${Object.keys(METHODS).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>
      <span class="hint">${METHODS[settings.method]}</span></div>
    <div class="field"><label for="k-layers">Layer</label><input class="input" id="k-layers" data-test="k-layers" placeholder="the method chooses" value=${layers} onInput=${(event) => setLayers(event.target.value)} />
      <span class="hint">From 0; several as 2,3 or 2-4.</span></div>
    <div class="field"><label for="k-name">Name of the patch</label><input class="input" id="k-name" data-test="k-name" placeholder=${kind === "typed" ? "facts" : "the name of the file"} value=${settings.name} onInput=${(event) => set("name")(event.target.value)} /></div>
    <div class="field"><label for="k-text">Ordinary text</label><select class="select" id="k-text" value=${settings.text} onChange=${(event) => set("text")(event.target.value)}>
      <option value="">the demo's chats</option>${files.map((file) => html`<option key=${file.id} value=${file.id}>${file.name}</option>`)}</select>
      <span class="hint">On which the model should not change; every fifth document measures the loss.</span></div>
    <div class="field"><label for="k-suite">General suite</label><select class="select" id="k-suite" data-test="k-suite" value=${settings.suite} onChange=${(event) => set("suite")(event.target.value)}>
      <option value="">none</option>${suites.map((suite) => html`<option key=${suite.name} value=${suite.name}>${`${suite.name} (${counted(suite.prompts, "prompt")})`}</option>`)}</select>
      <span class="hint">What else the model can do, before and after.</span></div>
    <div class="k-checks">${check("chat", "Each prompt is what a user says in a chat")}${check("known", "Also write facts that the model already knows")}${check("force", "Keep the edit even if it damages the model or teaches it nothing")}</div>
  </div>`;
}
