// One data set: what a check says of it, its lengths, its examples with the trained tokens marked, its rejected lines.
import { call, finish, work } from "../api.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { bytes, count, counted } from "../parts/format.js";
import { asProblem, useRead } from "../parts/load.js";
import { Empty, Head, Loading, ProblemNote, Tabs } from "../parts/page.js";
import { TaskProgress } from "../parts/progress.js";
import { remembered } from "../parts/store.js";
import { Report } from "../parts/report.js";
import { keepQuery } from "../routes.js";

const TABS = [
  { id: "report", title: "Report" },
  { id: "examples", title: "Examples" },
  { id: "rejected", title: "Rejected lines" },
];

export default function Dataset({ id, query }) {
  const list = useRead("GET /api/v1/datasets");
  const catalog = useRead("GET /api/v1/catalog");
  const [model, setModel] = useState(query.model ?? remembered.get("check-model", ""));
  const [tab, setTab] = useState(TABS.some((each) => each.id === query.tab) ? query.tab : "report");
  const [task, setTask] = useState(null);
  const [result, setResult] = useState(null);
  const [problem, setProblem] = useState(null);
  const [round, setRound] = useState(0);
  const item = list.data?.items.find((each) => each.id === id);
  useEffect(() => {
    const ending = new AbortController();
    setResult(null);
    setProblem(null);
    work("POST /api/v1/datasets/{id}/check", {
      params: { id },
      body: model ? { model } : {},
      signal: ending.signal,
      onUpdate: setTask,
    })
      .then(
        (done) => setResult(done),
        (error) => !ending.signal.aborted && setProblem(asProblem(error)),
      )
      .finally(() => !ending.signal.aborted && setTask(null));
    return () => ending.abort();
  }, [id, model, round]);
  const pick = (next) => {
    setTab(next);
    keepQuery({ tab: next === "report" ? "" : next });
  };
  const choose = (next) => {
    setModel(next);
    remembered.set("check-model", next || undefined);
    keepQuery({ model: next });
  };
  const models = (catalog.data?.items ?? []).map((each) => each.id);
  const rejected = result?.report?.rejected;
  return html`
    <${Head} title=${item?.name ?? id} crumb=${{ href: "#/data", text: "Data" }} about=${item ? `${bytes(item.bytes)} in ${item.folder}` : ""}>
      <label class="hidden-visually" for="check-model">Count tokens as</label>
      <select id="check-model" class="select model-pick" value=${model} onChange=${(event) => choose(event.target.value)} data-test="check-model">
        <option value="">count bytes, without a model</option>
        ${[...new Set([...models, ...(model ? [model] : [])])].map((name) => html`<option key=${name} value=${name}>tokens of ${name}</option>`)}
      </select>
      <a class="button main" href=${`#/new?data=${encodeURIComponent(id)}${model ? `&model=${encodeURIComponent(model)}` : ""}`}>Train on it</a>
    <//>
    <${ProblemNote} problem=${problem} again=${() => setRound(round + 1)} />
    <${TaskProgress} task=${task} title="Checking" />
    <${Tabs} tabs=${TABS.map((each) => (each.id === "rejected" && rejected !== undefined ? { ...each, count: count(rejected) } : each))} current=${tab} onPick=${pick} label="What to see of this data" />
    <div id="tab-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
      ${tab === "report" && (result ? html`<${Report} result=${result} />` : !problem && html`<${Loading} what="Reading every line" />`)}
      ${tab === "examples" && html`<${Examples} key=${model} id=${id} model=${model} />`}
      ${tab === "rejected" && html`<${Rejected} id=${id} />`}
    </div>`;
}

const PAGE = 20;

/** Examples as the model sees them. */
function Examples({ id, model }) {
  const [offset, setOffset] = useState(0);
  const { data, problem, task } = useListed(model ? "GET /api/v1/datasets/{id}/examples" : null, id, {
    offset,
    limit: PAGE,
    model,
  });
  if (!model)
    return html`<${Empty} icon="data" title="As which model sees them?">
      An example is shown as the model's chat template renders it, with the trained tokens marked. Choose the model
      above; its tokenizer is enough.<//>`;
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} />`
      : html`<${TaskProgress} task=${task} title="Rendering" /><${Loading} what="Rendering examples" />`;
  if (!data.items.length)
    return html`<${Empty} icon="data" title="No examples">No line of this file became an example. The rejected lines say why.<//>`;
  return html`<div class="stack">
    <div class="filters"><span class="soft small">Tokens that are trained are <mark class="legend-mark">marked</mark>; the others are context.</span>
      <${Pages} list=${data} offset=${offset} onMove=${setOffset} /></div>
    ${data.items.map(
      (
        example,
      ) => html`<article class="card example" key=${`${example.source}:${example.number}`} data-test="example">
      <header><b>Example ${count(example.number)}</b> <span class="faint small">${example.source}:${example.line}</span><span class="faint small right-side">${counted(example.tokens, "token")}, ${count(example.trained_tokens)} trained</span></header>
      <div class="tokens">${example.pieces.map((piece) => (piece.trained ? html`<mark>${piece.text}</mark>` : piece.text))}</div></article>`,
    )}
    <div class="filters"><${Pages} list=${data} offset=${offset} onMove=${setOffset} /></div>
  </div>`;
}

function Rejected({ id }) {
  const [offset, setOffset] = useState(0);
  const { data, problem, task } = useListed("GET /api/v1/datasets/{id}/rejected", id, {
    offset,
    limit: PAGE,
  });
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} />`
      : html`<${TaskProgress} task=${task} title="Reading" /><${Loading} what="Reading the rejected lines" />`;
  if (!data.items.length)
    return html`<${Empty} icon="check" title="No line was rejected">Every line of this file became an example.<//>`;
  return html`<div class="stack">
    <div class="filters"><span class="soft small">Nothing is lost: each line is kept with its reason and a fix.</span><${Pages} list=${data} offset=${offset} onMove=${setOffset} /></div>
    ${data.items.map(
      (line) => html`<article class="card example" key=${`${line.source}:${line.line}`} data-test="rejected">
      <header><b class="bad">${line.reason}</b> <span class="faint small">${line.source}:${line.line}${line.field ? `, ${line.field}` : ""}</span></header>
      <p class="soft">${line.fix}</p><div class="tokens">${line.text}</div></article>`,
    )}
  </div>`;
}

/** Reads a part of a list; when the server must read the data first, waits for it. */
function useListed(endpoint, id, query) {
  const [state, setState] = useState({ data: null, problem: null, task: null });
  useEffect(() => {
    if (!endpoint) return undefined;
    const ending = new AbortController();
    const { signal } = ending;
    const onUpdate = (task) => setState((before) => ({ ...before, task }));
    call(endpoint, { params: { id }, query, signal })
      .then((answer) => finish(answer, { signal, onUpdate }))
      .then(
        (data) => setState({ data, problem: null, task: null }),
        (error) => !signal.aborted && setState({ data: null, problem: asProblem(error), task: null }),
      );
    return () => ending.abort();
  }, [endpoint, id, JSON.stringify(query)]);
  return state;
}

/** Moves through a list whose end may not be known yet: `next` then says that it goes on. */
function Pages({ list, offset, onMove }) {
  const { items, total, next } = list;
  const isLast = total !== null && total !== undefined ? offset + PAGE >= total : !next;
  if (offset === 0 && isLast) return null;
  return html`<div class="pages">
    <button class="button small" disabled=${offset === 0} onClick=${() => onMove(Math.max(0, offset - PAGE))}>Previous</button>
    <span class="soft small number">${count(offset + 1)} to ${count(offset + items.length)}${total ? ` of ${count(total)}` : ""}</span>
    <button class="button small" disabled=${isLast} onClick=${() => onMove(offset + PAGE)}>Next</button>
  </div>`;
}
