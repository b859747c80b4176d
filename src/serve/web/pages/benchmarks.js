// Measurements of this machine, each beside its target or a peer of the same run.
import { call } from "../api.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { ago, bytes, counted, figure, moment } from "../parts/format.js";
import { asProblem, useRead } from "../parts/load.js";
import { Action, Empty, Head, Loading, ProblemNote } from "../parts/page.js";
import { TaskProgress } from "../parts/progress.js";
import { useTask } from "../parts/task.js";
import { keepQuery } from "../routes.js";

export default function Benchmarks({ query }) {
  const list = useRead("GET /api/v1/benchmarks");
  const [picked, setPicked] = useState([]);
  const [shown, setShown] = useState(query.id ?? "");
  const [trouble, setTrouble] = useState(null);
  const items = list.data?.items ?? [];
  const sections = list.data?.sections ?? [];
  const id = shown || items[0]?.id;
  const pick = (next) => {
    setShown(next);
    keepQuery({ id: next });
  };
  const { task, start } = useTask("benchmark", {
    onDone: (result) => [list.again(), pick(result.benchmark)],
    onProblem: setTrouble,
  });
  const measure = () => {
    setTrouble(null);
    return start("POST /api/v1/benchmarks", { sections: picked });
  };
  const toggle = (name) =>
    setPicked(picked.includes(name) ? picked.filter((each) => each !== name) : [...picked, name]);
  return html`
    <${Head} title="Benchmarks" about="What this machine can do. Each figure stands beside its target, or beside a peer that was measured in the same run." />
    <${ProblemNote} problem=${trouble ?? list.problem} again=${list.again} />
    <div class="stack">
      ${
        !list.data
          ? !list.problem && html`<${Loading} /> `
          : html`<section class="card"><div class="card-head"><h2>Measure</h2><span class="faint small">only while nothing else runs; otherwise the figures mean little</span></div>
        <div class="options grid">${sections.map(
          (
            section,
          ) => html`<label key=${section.name} class=${`option ${picked.includes(section.name) ? "picked" : ""}`} data-test="bench-section"><input type="checkbox" checked=${picked.includes(section.name)} onChange=${() => toggle(section.name)} />
          <div><b>${section.name}</b><div class="soft small">${section.about}</div></div></label>`,
        )}</div>
        <div class="step-foot"><${Action} kind="main" disabled=${!picked.length || Boolean(task)} onClick=${measure} onProblem=${setTrouble} data-test="start-bench">${picked.length ? `Measure ${counted(picked.length, "section")}` : "Choose sections"}<//></div></section>`
      }
      <${TaskProgress} task=${task} title="Measuring" />
      ${list.data && items.length === 0 && html`<${Empty} icon="bench" title="Nothing has been measured yet">Choose what to measure above. Each measurement is kept with a description of the machine.<//>`}
      ${
        items.length > 0 &&
        html`<div class="filters"><h2 class="section-title">Results</h2><select class="select model-pick" aria-label="Measurement" value=${id} onChange=${(event) => pick(event.target.value)}>
        ${items.map((item) => html`<option key=${item.id} value=${item.id}>${moment(item.created_us)}: ${(item.sections ?? []).join(", ")}</option>`)}</select></div>
        <${Result} key=${id} id=${id} />`
      }
    </div>`;
}

const VERDICTS = new Map([
  [true, ["met", "good"]],
  [false, ["missed", "warn"]],
]);

function Result({ id }) {
  const [state, setState] = useState({ data: null, problem: null });
  useEffect(() => {
    call("GET /api/v1/benchmarks/{id}", { params: { id } }).then(
      (data) => setState({ data, problem: null }),
      (error) => setState({ data: null, problem: asProblem(error) }),
    );
  }, [id]);
  const { data, problem } = state;
  if (!data) return problem ? html`<${ProblemNote} problem=${problem} />` : html`<${Loading} />`;
  const groups = grouped(data.rows ?? []);
  return html`<div class="stack">
    <p class="soft small">${[...machineWords(data.machine), ago(data.created_us)].filter(Boolean).join(" · ")}</p>
    ${[...groups].map(
      ([
        section,
        rows,
      ]) => html`<section class="card" key=${section}><h2>${section}</h2><div class="scroll"><table class="table" data-test="bench-rows"><thead><tr><th>What</th><th class="right">Measured</th><th class="right">Target</th><th>Verdict</th></tr></thead>
      <tbody>${rows.map((row) => {
        const [text, kind] = VERDICTS.get(row.met) ?? ["", ""];
        return html`<tr key=${row.what}><th scope="row">${row.what}${row.note && html`<div class="faint small">${row.note}</div>`}</th><td class="right number"><b>${amount(row.value)}</b> <span class="soft">${row.unit}</span></td>
          <td class="right number soft">${targetWords(row.target)}</td><td>${text && html`<span class=${`pill ${kind}`}>${text}</span>`}</td></tr>`;
      })}</tbody></table></div></section>`,
    )}
  </div>`;
}

const amount = (value) => (typeof value === "number" ? figure(value, 4) : "");

const SIGNS = { at_least: "≥", at_most: "≤", less_than: "<" };

/** A target, such as `{ at_least: 0.8 }`. */
const targetWords = (target) =>
  Object.entries(target ?? {})
    .map(([kind, limit]) => `${SIGNS[kind] ?? kind} ${amount(limit)}`)
    .join(" ");

/** What a reader has to know of the machine that was measured. */
const machineWords = (machine) => [
  machine?.cpu_model,
  machine?.cores_usable && counted(machine.cores_usable, "core"),
  machine?.mem_total_bytes && bytes(machine.mem_total_bytes),
  ...(machine?.gpus ?? []).map((gpu) => gpu.name),
];

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.section, [...(groups.get(row.section) ?? []), row]);
  return groups;
}
