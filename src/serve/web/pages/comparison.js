// One comparison: the table with intervals, what the differences mean, and every answer with its checks.
import { html, useState } from "../parts/dom.js";
import { count, figure, milliseconds, moment, percent } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Chips, Head, Loading, Note, ProblemNote, Search } from "../parts/page.js";
import { promptText, suiteName } from "../parts/suites.js";

export default function Comparison({ id }) {
  const { data, problem, again } = useRead("GET /api/v1/comparisons/{id}", { params: { id } }, [id]);
  if (!data)
    return html`<${Head} title="Comparison" crumb=${{ href: "#/compare", text: "Compare" }} />${problem ? html`<${ProblemNote} problem=${problem} again=${again} />` : html`<${Loading} what="Reading the answers" />`}`;
  return html`
    <${Head} title=${data.models.map((model) => model.name).join(" · ")} name="Comparison" crumb=${{ href: "#/compare", text: "Compare" }} about=${`${suiteName(data.suite)}, ${count(data.prompts.length)} prompts, ${moment(data.created_us)}`}>
      <a class="button" href=${`#/arena?id=${encodeURIComponent(id)}`}>Judge blind</a>
    <//>
    <div class="stack">
      ${(data.pairs ?? []).map((pair) => html`<${Note} key=${`${pair.left}-${pair.right}`} kind=${pair.verdict === "noise" ? "" : "good"} title=${pair.verdict === "noise" ? "Noise." : "A difference."}>${pair.sentence}<//>`)}
      <section class="card"><h2>Results</h2><${Results} models=${data.models} /></section>
      <${Answers} data=${data} />
    </div>`;
}

/** Pass rates with their intervals, drawn over one scale from 0 to 1. */
function Results({ models }) {
  const scored = models.some((model) => model.score);
  const rated = models.some((model) => model.pass_rate);
  return html`<div class="scroll"><table class="table results" data-test="results"><thead><tr><th>Model</th>${rated && html`<th class="interval-col">Passed <span class="faint">(95 % interval)</span></th>`}${scored && html`<th class="interval-col">Score</th>`}
    <th class="right">Speed</th><th class="right">First token</th><th class="right">Length</th></tr></thead>
    <tbody>${models.map(
      (model) => html`<tr key=${model.id}><th scope="row" class="anywhere">${model.name}</th>
      ${rated && html`<td><${Interval} value=${model.pass_rate} words=${model.pass_rate ? `${percent(model.pass_rate.value)}${model.checked ? ` (${count(model.passed)} of ${count(model.checked)})` : ""}` : "–"} /></td>`}
      ${scored && html`<td><${Interval} value=${model.score} words=${model.score ? figure(model.score.value) : "–"} /></td>`}
      <td class="right number">${model.tokens_per_s ? `${figure(model.tokens_per_s)} tokens/s` : "–"}</td><td class="right number">${milliseconds(model.first_token_ms)}</td>
      <td class="right number">${model.mean_tokens ? `${count(model.mean_tokens)} tokens` : "–"}</td></tr>`,
    )}</tbody></table></div>`;
}

function Interval({ value, words }) {
  if (!value) return html`<span class="faint">–</span>`;
  const at = (share) => Math.min(1, Math.max(0, share)) * 100;
  return html`<div class="interval"><span class="number">${words}</span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`between ${percent(value.low)} and ${percent(value.high)}`}>
      <line x1="0" x2="100" y1="5" y2="5" class="rule" /><line x1=${at(value.low)} x2=${at(value.high)} y1="5" y2="5" class="span" /><line x1=${at(value.value)} x2=${at(value.value)} y1="0.5" y2="9.5" class="point" /></svg></div>`;
}

const ONLY = [
  { value: "", text: "All prompts" },
  { value: "differ", text: "Where they differ" },
  { value: "failed", text: "Something failed" },
];

/** Each prompt with the answers side by side. */
function Answers({ data }) {
  const [only, setOnly] = useState("");
  const [search, setSearch] = useState("");
  const [limit, setLimit] = useState(20);
  const fits = (prompt) => {
    const passed = prompt.answers.map((answer) => answer.passed);
    if (only === "differ" && new Set(passed).size < 2) return false;
    if (only === "failed" && !passed.includes(false)) return false;
    return (
      !search ||
      JSON.stringify([prompt.name, promptText(prompt), prompt.answers.map((answer) => answer.text)])
        .toLowerCase()
        .includes(search.toLowerCase())
    );
  };
  const shown = data.prompts.filter(fits);
  return html`<section><div class="filters"><h2 class="section-title">Answers</h2><${Chips} label="Prompts" choices=${ONLY} value=${only} onPick=${setOnly} /><${Search} label="Search prompts and answers" value=${search} onInput=${setSearch} /></div>
    ${shown.length === 0 && html`<p class="soft">No prompt matches.</p>`}
    <div class="stack">${shown.slice(0, limit).map(
      (prompt, at) => html`<article class="card" key=${prompt.name ?? at} data-test="prompt">
      <header class="prompt-head">${prompt.name && html`<span class="tag">${prompt.name}</span>`}<div class="text">${promptText(prompt)}</div></header>
      <div class=${`answers n${Math.min(3, data.models.length)}`}>${prompt.answers.map((answer, column) => html`<${Answer} key=${column} answer=${answer} name=${data.models[column].name} />`)}</div></article>`,
    )}</div>
    ${shown.length > limit && html`<p class="more"><button class="button" onClick=${() => setLimit(limit * 3)}>More prompts</button></p>`}</section>`;
}

function Answer({ answer, name }) {
  const verdict =
    answer.passed === true
      ? html`<span class="pill good">passed</span>`
      : answer.passed === false
        ? html`<span class="pill bad">failed</span>`
        : null;
  return html`<section class="answer-of"><h3 class="small"><span class="soft">${name}</span> ${verdict} ${typeof answer.score === "number" && html`<span class="soft">score ${figure(answer.score)}</span>`}</h3>
    ${answer.error ? html`<p class="bad">${answer.error}</p>` : html`<div class="text answer-text">${answer.text || html`<i class="faint">nothing</i>`}</div>`}
    ${(answer.checks ?? []).length > 0 && html`<ul class="checks">${answer.checks.map((check) => html`<li class=${check.passed === false ? "bad" : check.passed ? "good" : "soft"}><b aria-hidden="true">${check.passed === false ? "×" : check.passed ? "✓" : "·"}</b> ${check.name}${check.detail && html`<span class="soft">: ${check.detail}</span>`}</li>`)}</ul>`}
    <footer class="faint small">${[answer.tokens && `${count(answer.tokens)} tokens`, answer.tokens_per_s && `${figure(answer.tokens_per_s)} tokens/s`, answer.first_token_ms && `first after ${milliseconds(answer.first_token_ms)}`].filter(Boolean).join(" · ")}</footer></section>`;
}
