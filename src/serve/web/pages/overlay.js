// Several runs over each other: their curves in one chart, and the settings in which they differ.
import { call } from "../api.js";
import { Chart } from "../parts/chart.js";
import { html, useEffect, useMemo, useState } from "../parts/dom.js";
import { bytes, count, figure, loss } from "../parts/format.js";
import { asProblem } from "../parts/load.js";
import { Chips, Empty, Head, Loading, ProblemNote } from "../parts/page.js";
import { METRICS, readSeries } from "../parts/run-curves.js";
import { columns } from "../parts/series.js";
import { State, isLive } from "../parts/states.js";
import { href } from "../routes.js";

/** Colours that differ for most eyes in both themes; style.css has them. */
const COLOURS = ["run-1", "run-2", "run-3", "run-4", "run-5", "run-6", "run-7", "run-8"];

export default function Overlay({ query }) {
  const ids = (query.ids ?? "").split(",").filter(Boolean).slice(0, COLOURS.length);
  const [runs, setRuns] = useState(null);
  const [problem, setProblem] = useState(null);
  const [metric, setMetric] = useState("loss_nats");
  const [log, setLog] = useState(false);
  const [range, setRange] = useState(null);
  const [hidden, setHidden] = useState(() => new Set());
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    let timer = 0;
    const read = async () => {
      try {
        const all = await Promise.all(
          ids.map(async (id) => {
            const [run, curves] = await Promise.all([
              call("GET /api/v1/runs/{id}", { params: { id }, signal }),
              readSeries(id, range, signal),
            ]);
            return { id, run, curves };
          }),
        );
        setRuns(all);
        setProblem(null);
        if (all.some(({ run }) => isLive(run))) timer = setTimeout(read, 1000);
      } catch (error) {
        if (signal.aborted) return;
        setProblem(asProblem(error));
        timer = setTimeout(read, 3000);
      }
    };
    read();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [ids.join(","), range?.join()]);
  const head = html`<${Head} title=${`${ids.length} runs`} name="Overlay" crumb=${{ href: "#/runs", text: "Runs" }} about="The curves of several runs over the same steps. Each line is a moving average." />`;
  if (ids.length < 2)
    return html`${head}<${Empty} icon="runs" title="Pick at least two runs" actions=${html`<a class="button main" href="#/runs">All runs</a>`}>In the list of runs, tick the ones to lay over each other.<//>`;
  if (!runs)
    return html`${head}${problem ? html`<${ProblemNote} problem=${problem} />` : html`<${Loading} what="Reading the runs" />`}`;
  const shown = runs
    .map((each, at) => ({ ...each, colour: COLOURS[at] }))
    .filter(({ id }) => !hidden.has(id));
  const choices = [
    { value: "loss_nats", text: "Loss" },
    { value: "eval", text: "Held-out loss" },
    ...METRICS.filter(({ name }) => runs.some(({ curves }) => curves.series[name]?.steps.length)).map(
      ({ name, title }) => ({ value: name, text: title }),
    ),
  ];
  const about = METRICS.find(({ name }) => name === metric);
  const format = about?.bytes ? bytes : figure;
  return html`${head}
    <${ProblemNote} problem=${problem?.status ? problem : null} />
    <div class="stack">
      <div class="filters"><${Chips} label="Curve" choices=${choices} value=${metric} onPick=${setMetric} /><button class="chip" aria-pressed=${log} onClick=${() => setLog(!log)}>Log scale</button>
        ${range && html`<button class="button small" onClick=${() => setRange(null)}>Show all steps</button>`}</div>
      <div class="card"><${Lines} title=${choices.find(({ value }) => value === metric)?.text} unit=${about?.unit ?? "nats per trained token"} runs=${shown} metric=${metric} log=${log} range=${range} onRange=${setRange} format=${format} />
        <ul class="legend runs-legend">${runs.map(
          (
            { id, run, curves },
            at,
          ) => html`<li key=${id}><label class="check"><input type="checkbox" aria-label=${`Show ${run.name ?? id}`} checked=${!hidden.has(id)} onChange=${() => {
            const next = new Set(hidden);
            if (!next.delete(id)) next.add(id);
            setHidden(next);
          }} /><span class="swatch" style=${{ background: `var(--${COLOURS[at]})` }}></span></label><a href=${href(["runs", id])}>${run.name ?? id}</a> <${State} state=${run.state} />
          <b class="number">${loss(best(curves) ?? run.best_eval_nats)}</b><span class="faint">best held-out</span></li>`,
        )}</ul></div>
      <${Differences} runs=${runs} />
    </div>`;
}

const best = (curves) =>
  (curves.evals ?? [])
    .filter((each) => each.step > 0 && each.loss_nats !== null)
    .reduce((low, each) => (low === null || each.loss_nats < low ? each.loss_nats : low), null);

/** The curves of several runs over all their steps. */
function Lines({ title, unit, runs, metric, log, range, onRange, format }) {
  const joined = useMemo(() => join(runs.map(({ curves }) => curve(curves, metric))), [runs, metric]);
  const read = (at) => {
    const step = joined[0][at];
    if (step === undefined) return null;
    const values = runs
      .map(({ run }, column) => [run.name, joined[column + 1][at]])
      .filter(([, value]) => value !== null && value !== undefined);
    return {
      at: `step ${count(step)}`,
      value: values.map(([, value]) => format(value)).join("  "),
      text: values.map(([name, value]) => `${name} ${format(value)}`).join(", "),
    };
  };
  return html`<${Chart} title=${title} unit=${unit} data=${joined} lines=${runs.map(({ run, colour }) => ({ name: run.id ?? run.name, colour, width: 1.75 }))} format=${format} height=${400} range=${range}
    onRange=${onRange} log=${log} read=${read} marks=${{}} />`;
}

function curve(curves, metric) {
  if (metric === "eval") {
    const evals = (curves.evals ?? []).filter((each) => each.loss_nats !== null);
    return [evals.map((each) => each.step), evals.map((each) => each.loss_nats)];
  }
  const series = curves.series[metric];
  if (!series) return [[], []];
  const [steps, , , average] = columns(series, metric !== "lr");
  return [steps, average];
}

/** All steps of all curves; undefined where a curve has no value, which its line passes over. */
function join(curves) {
  const steps = [...new Set(curves.flatMap(([each]) => each))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  return [
    steps,
    ...curves.map(([own, values]) => {
      const column = new Array(steps.length);
      own.forEach((step, at) => (column[place.get(step)] = values[at]));
      return column;
    }),
  ];
}

/** The settings in which the runs differ. */
function Differences({ runs }) {
  const keys = [
    ...new Set(runs.flatMap(({ run }) => (run.plan?.settings ?? []).map((setting) => setting.key))),
  ];
  const value = (run, key) => run.plan?.settings?.find((setting) => setting.key === key)?.value ?? "";
  const differing = keys.filter(
    (key) =>
      new Set(runs.map(({ run }) => String(value(run, key)))).size > 1 && !["name", "runs_dir"].includes(key),
  );
  return html`<section class="card"><div class="card-head"><h2>Settings that differ</h2><span class="faint small">${count(keys.length - differing.length)} others agree</span></div>
    ${
      differing.length === 0
        ? html`<p class="soft">All settings are the same: what differs is chance, machine or build.</p>`
        : html`<div class="scroll"><table class="table" data-test="differences"><thead><tr><th>Setting</th>${runs.map(({ id, run }, at) => html`<th key=${id}><span class="swatch" style=${{ background: `var(--${COLOURS[at]})` }}></span> ${run.name ?? id}</th>`)}</tr></thead>
      <tbody>${differing.map((key) => html`<tr key=${key}><th scope="row">${key.replaceAll(/[._]/g, " ")}</th>${runs.map(({ id, run }) => html`<td key=${id} class="anywhere">${String(value(run, key)) || "–"}</td>`)}</tr>`)}</tbody></table></div>`
    }</section>`;
}
