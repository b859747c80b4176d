// One comparison: the table with intervals, what the differences mean, and every answer with its checks.
import { html, useState } from "../parts/dom.js";
import { NONE, count, counted, figure, milliseconds, moment, percent } from "../parts/format.js";
import { Interval } from "../parts/interval.js";
import { useRead } from "../parts/load.js";
import { Chips, Head, Loading, Note, ProblemNote, Search, joined } from "../parts/page.js";
import { promptText, suiteName } from "../parts/suites.js";

/** What a verdict on a model after the first looks like. */
const VERDICTS = {
  better: ["good", "Better."],
  worse: ["warn", "Worse."],
  equal: ["", "Equal."],
  noise: ["", "Noise."],
  too_few: ["", "Too few prompts."],
};

export default function Comparison({ id }) {
  const { data, problem, again } = useRead("GET /api/v1/comparisons/{id}", { params: { id } }, [id]);
  const crumb = { href: "#/compare", text: "Compare" };
  if (!data)
    return html`<${Head} title="Comparison" crumb=${crumb} />
      ${problem ? html`<${ProblemNote} problem=${problem} again=${again} />` : html`<${Loading} what="Reading the answers" />`}`;
  const title = joined(data.models.map((model) => model.name));
  const about = [
    `${suiteName(data.suite)}, ${count(data.prompts.length)} prompts`,
    moment(data.created_us),
    data.about,
  ];
  return html`
    <${Head} title=${title} name="Comparison" crumb=${crumb} about=${about.filter(Boolean).join(". ")}>
      ${data.models.length > 1 && html`<a class="button" href=${`#/arena?id=${encodeURIComponent(id)}`}>Vote in the blind arena</a>`}
    <//>
    <div class="stack">
      ${(data.differences ?? []).map((each) => {
        const [kind, word] = VERDICTS[each.verdict] ?? ["", ""];
        return html`<${Note} key=${`${each.model} ${each.measure}`} kind=${kind} title=${word}>${each.words}<//>`;
      })}
      ${(data.notes ?? []).map((note) => html`<${Note} key=${note}>${note}<//>`)}
      <section class="card"><h2>Results</h2><${Results} models=${data.models} /></section>
      <${Answers} models=${data.models} prompts=${data.prompts} />
    </div>`;
}

/** Pass rates with their intervals, drawn over one scale from 0 to 1. */
function Results({ models }) {
  const sums = models.map((model) => model.summary);
  const has = (name) => sums.some((sum) => sum[name] !== null && sum[name] !== undefined);
  const text = (value, unit = "") => (typeof value === "number" ? `${figure(value)}${unit}` : NONE);
  return html`<div class="scroll">
    <table class="table results" data-test="results">
      <thead><tr>
        <th>Model</th>
        ${has("pass_rate") && html`<th class="interval-col">Passed <span class="faint">(95 % interval)</span></th>`}
        ${has("score") && html`<th class="interval-col">Score</th>`}
        ${has("chrf") && html`<th class="right">chrF</th>`}
        ${has("bleu") && html`<th class="right">BLEU</th>`}
        ${has("reference_perplexity") && html`<th class="right">Perplexity</th>`}
        <th class="right">Speed</th><th class="right">First token</th><th class="right">Length</th>
      </tr></thead>
      <tbody>${models.map(({ id, name, summary }) => {
        const { pass_rate: rate, score, passed, decided } = summary;
        const share = rate ? `${percent(rate.value)} (${count(passed)} of ${count(decided)})` : NONE;
        return html`<tr key=${id}>
          <th scope="row" class="anywhere">${name}${summary.errors > 0 && html`<div class="bad small">${counted(summary.errors, "prompt")} without an answer</div>`}</th>
          ${has("pass_rate") && html`<td><${Interval} value=${rate} words=${share} /></td>`}
          ${has("score") && html`<td><${Interval} value=${score} words=${score ? figure(score.value) : NONE} /></td>`}
          ${has("chrf") && html`<td class="right number">${text(summary.chrf)}</td>`}
          ${has("bleu") && html`<td class="right number">${text(summary.bleu)}</td>`}
          ${has("reference_perplexity") && html`<td class="right number">${text(summary.reference_perplexity)}</td>`}
          <td class="right number">${text(summary.tokens_per_s, " tokens/s")}</td>
          <td class="right number">${milliseconds(summary.first_token_ms)}</td>
          <td class="right number">${text(summary.answer_tokens, " tokens")}</td>
        </tr>`;
      })}</tbody>
    </table></div>`;
}

const ONLY = [
  { value: "", text: "All prompts" },
  { value: "differ", text: "Where they differ" },
  { value: "failed", text: "Where one fails" },
];

/** Each prompt with the answers side by side. */
function Answers({ models, prompts }) {
  const [only, setOnly] = useState("");
  const [search, setSearch] = useState("");
  const [limit, setLimit] = useState(20);
  const rows = prompts.map((prompt, at) => ({
    prompt,
    answers: models.map((model) => model.answers[at] ?? {}),
  }));
  const fits = ({ prompt, answers }) => {
    const passed = answers.map((answer) => answer.passed);
    if (only === "differ" && new Set(passed).size < 2) return false;
    if (only === "failed" && !passed.includes(false)) return false;
    const said = [prompt.id, promptText(prompt), ...answers.map((answer) => answer.text)].join(" ");
    return said.toLowerCase().includes(search.toLowerCase());
  };
  const shown = rows.filter(fits);
  return html`<section>
    <div class="filters">
      <h2 class="section-title">Answers</h2>
      <${Chips} label="Prompts" choices=${ONLY} value=${only} onPick=${setOnly} />
      <${Search} label="Search prompts and answers" value=${search} onInput=${setSearch} />
    </div>
    ${shown.length === 0 && html`<p class="soft">No prompt matches.</p>`}
    <div class="stack">${shown.slice(0, limit).map(
      ({ prompt, answers }) => html`<article class="card" key=${prompt.id} data-test="prompt">
      <header class="prompt-head">
        <span class="tag">${prompt.id}</span>
        <div class="text">${promptText(prompt)}</div>
        ${prompt.reference && html`<div class="soft small text">Reference: ${prompt.reference}</div>`}
      </header>
      <div class=${`answers n${Math.min(3, models.length)}`}>
        ${answers.map((answer, column) => html`<${Answer} key=${column} answer=${answer} name=${models[column].name} />`)}
      </div>
    </article>`,
    )}</div>
    ${shown.length > limit && html`<p class="more"><button class="button" onClick=${() => setLimit(limit * 3)}>More prompts</button></p>`}
  </section>`;
}

const SIGNS = new Map([
  [true, ["✓", "good"]],
  [false, ["×", "bad"]],
]);

function Answer({ answer, name }) {
  const [word, kind] =
    answer.passed === true ? ["passed", "good"] : answer.passed === false ? ["failed", "bad"] : ["", ""];
  return html`<section class="answer-of">
    <h3 class="small">
      <span class="soft">${name}</span>
      ${word && html`<span class=${`pill ${kind}`}>${word}</span>`}
      ${typeof answer.score === "number" && html`<span class="soft">score ${figure(answer.score)}</span>`}
    </h3>
    ${answer.error && html`<p class="bad">${answer.error}</p>`}
    ${answer.thought && html`<details class="thinking"><summary>Thought</summary><div class="thought">${answer.thought}</div></details>`}
    <div class="text answer-text">${answer.text || (!answer.error && html`<i class="faint">nothing</i>`)}</div>
    <ul class="checks">${(answer.outcomes ?? []).map((check, at) => {
      const [sign, colour] = SIGNS.get(check.passed) ?? ["·", "soft"];
      // A note says the value in words.
      const value = typeof check.value === "number" && !check.note ? ` ${figure(check.value)}` : "";
      return html`<li key=${at} class=${colour}><b aria-hidden="true">${sign}</b> ${check.check}${value}${check.note && html`<span class="soft">: ${check.note}</span>`}</li>`;
    })}</ul>
    <footer class="faint small">${timesOf(answer)}</footer>
  </section>`;
}

const timesOf = ({ completion_tokens: tokens, first_token_ms: first, total_ms: total }) =>
  [
    tokens && counted(tokens, "token"),
    first && `first after ${milliseconds(first)}`,
    total && milliseconds(total),
  ]
    .filter(Boolean)
    .join(" · ");
