// How well facts hold as their number grows: written at once and one after the other, beside LoRA on the same facts and the
// fact in the prompt. Measurements are kept, because one may take an hour.
import { call } from "../api.js";
import { confirm } from "../parts/dialog.js";
import { html, useState } from "../parts/dom.js";
import { NONE, count, counted, duration, moment, percent } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useRead } from "../parts/load.js";
import { Action, ProblemNote } from "../parts/page.js";
import { drift, inLayers } from "./knowledge-scores.js";

const SHARES = ["efficacy", "generalisation", "locality", "portability"];
const WAYS = {
  batched: "at once",
  sequential: "one after the other",
  lora: "LoRA instead",
  prompt: "the fact in the prompt instead",
};

/** What to measure, for the facts of the form. `onStart` gets `{ sizes, without }`. */
export function MeasureForm({ disabled, onStart, onProblem }) {
  const [sizes, setSizes] = useState("1, 10, 100");
  const [controls, setControls] = useState({ lora: true, prompt: true });
  const numbers = sizes.split(/[\s,;]+/).filter(Boolean).map(Number);
  const isReady = numbers.length > 0 && numbers.every((size) => Number.isInteger(size) && size > 0);
  const check = (name, text) => html`<label class="check"><input type="checkbox" checked=${controls[name]} onChange=${(event) => setControls({ ...controls, [name]: event.target.checked })} /> ${text}</label>`;
  const start = () =>
    onStart({ sizes: numbers, without: Object.keys(controls).filter((name) => !controls[name]) });
  return html`<details class="k-more"><summary>Measure how well facts hold as their number grows</summary><div class="k-keep">
    <div class="field"><label for="k-sizes">Numbers of facts</label><input class="input" id="k-sizes" data-test="k-sizes" value=${sizes} onInput=${(event) => setSizes(event.target.value)} /></div>
    <div class="k-checks">${check("lora", "beside LoRA on the same facts")}${check("prompt", "beside the fact in the prompt")}</div>
    <${Action} disabled=${disabled || !isReady} onClick=${start} onProblem=${onProblem} data-test="k-measure">Measure<//></div>
    <p class="faint small">No model is changed. Facts that the model already knows are left out. LoRA is trained for each number, which may take long.</p></details>`;
}

/** The measurements that were made; `round` changes when there is another one. */
export function Measurements({ round }) {
  const { data, problem, again } = useRead("GET /api/v1/knowledge/measurements", {}, [round]);
  const [picked, setPicked] = useState("");
  const items = data?.items ?? [];
  const shown = items.find((each) => each.id === picked) ?? items[0];
  if (!shown) return html`<${ProblemNote} problem=${problem} again=${again} />`;
  const forget = () =>
    confirm({
      title: "Delete this measurement?",
      danger: true,
      button: "Delete",
      text: "Its table is deleted. Models stay as they are.",
      act: async () => {
        await call("DELETE /api/v1/knowledge/measurements/{id}", { params: { id: shown.id } });
        again();
      },
    });
  return html`<section class="card" aria-labelledby="k-measured" data-test="k-measured">
    <div class="card-head"><h2 id="k-measured">Measured</h2>
      <div class="actions">
        ${items.length > 1 && html`<select class="select model-pick" aria-label="Measurement" value=${shown.id} onChange=${(event) => setPicked(event.target.value)}>${items.map((each) => html`<option key=${each.id} value=${each.id}>${`${each.model_name}, ${each.result.method ?? ""}, ${moment(each.created_us)}`}</option>`)}</select>`}
        <button type="button" class="button quiet small icon" aria-label="Delete this measurement" onClick=${forget}><${Icon} name="trash" size=${14} /></button></div></div>
    <${Table} measured=${shown} /></section>`;
}

function Table({ measured }) {
  const { model_name: model, result, created_us: created } = measured;
  const rows = result.rows ?? [];
  const hasSuite = rows.some((row) => row.suite);
  return html`<p class="soft small">${[
    model,
    result.facts && counted(result.facts, "fact"),
    result.known > 0 && `${count(result.known)} more are known to it`,
    result.method && `by ${result.method}`,
    result.layers && inLayers(result.layers),
    moment(created),
  ]
    .filter(Boolean)
    .join(", ")}. In brackets are 95 % intervals and counts.</p>
    <div class="scroll"><table class="table"><thead><tr><th>Facts</th>${SHARES.map((name) => html`<th key=${name}>${name}</th>`)}<th>loss</th>${hasSuite && html`<th>${result.suite_name ?? "suite"}</th>`}<th class="right">time</th></tr></thead>
    <tbody>${
      hasSuite &&
      html`<tr><th scope="row">${counted(0, "fact")}<div class="faint small">the model as it is</div></th>${[...SHARES, "loss"].map((name) => html`<td key=${name} class="number" data-label=${name}>${NONE}</td>`)}
      <td class="number" data-label="suite"><${ShareCell} share=${result.suite_before} /></td><td class="right number" data-label="time">${NONE}</td></tr>`
    }${rows.map(
      (row, at) => html`<tr key=${at} data-test="k-measured-row"><th scope="row">${counted(row.count, "fact")}<div class="faint small">${WAYS[row.how] ?? row.how}</div></th>
      ${
        row.scores
          ? html`${SHARES.map((name) => html`<td key=${name} class="number" data-label=${name}><${ShareCell} share=${row.scores[name]} /></td>`)}
        <td class="number" data-label="loss">${drift(row.scores.loss)}</td>${hasSuite && html`<td class="number" data-label="suite"><${ShareCell} share=${row.suite} /></td>`}`
          : html`<td class="bad anywhere" colspan=${SHARES.length + 1 + (hasSuite ? 1 : 0)}>${row.error ?? "no scores"}</td>`
      }
      <td class="right number" data-label="time">${row.scores ? duration(row.seconds) : NONE}</td></tr>`,
    )}</tbody></table></div>`;
}

function ShareCell({ share }) {
  if (!share) return NONE;
  return html`${percent(share.value, 1)}<div class="faint small">(${(100 * share.low).toFixed(0)} to ${(100 * share.high).toFixed(0)}), ${count(share.hits)} of ${count(share.of)}</div>`;
}
