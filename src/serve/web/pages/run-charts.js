// The charts of a run: the loss large, everything else small beside it, all over the same steps.
import { Chart } from "../parts/chart.js";
import { Legend } from "../parts/chart-marks.js";
import { html, useEffect, useMemo, useState } from "../parts/dom.js";
import { bytes, count, figure, loss } from "../parts/format.js";
import { asProblem } from "../parts/load.js";
import { Chips, Empty, Loading, ProblemNote } from "../parts/page.js";
import { METRICS, readSeries } from "../parts/run-curves.js";
import { columns } from "../parts/series.js";
import { isLive } from "../parts/states.js";
import { useShortcuts } from "../parts/shortcuts.js";
import { remembered } from "../parts/store.js";

const LINES = [
  { name: "largest", colour: "accent", width: 1, opacity: 0.34, band: 0.16 },
  { name: "smallest", colour: "accent", width: 1, opacity: 0.34 },
  { name: "average", colour: "accent", width: 2 },
];

const RANGES = [
  { value: 0, text: "Whole run" },
  { value: 1000, text: "Last 1,000" },
  { value: 100, text: "Last 100" },
];

export function Charts({ id, run, curves }) {
  const [range, setRange] = useState(null);
  const [newest, setNewest] = useState(0);
  const [log, setLog] = useState(() => remembered.get("log-scale", false));
  const [near, setNear] = useState(null);
  const [problem, setProblem] = useState(null);
  const last = curves?.last_step ?? 0;
  const followed = newest > 0 && last > newest ? [last - newest, last] : null;
  const shownRange = range ?? followed;
  const zoom = (next) => {
    setRange(next);
    setNewest(0);
  };
  const logs = () => {
    setLog(!log);
    remembered.set("log-scale", !log);
  };
  useShortcuts("Charts", [
    { keys: "l", about: "Logarithmic loss", act: logs },
    { keys: "0", about: "The whole run", act: () => zoom(null) },
    {
      keys: "f",
      about: "The newest 100 steps",
      act: () => [setRange(null), setNewest(newest === 100 ? 0 : 100)],
    },
  ]);
  // A zoom into merged columns asks the server for the steps in it; a range that follows the end has them already.
  const key = range ? `${range[0]}-${range[1]}` : "";
  useEffect(() => {
    setNear(null);
    if (!range || !curves || (curves.series.loss_nats?.width ?? 1) <= 1) return undefined;
    const ending = new AbortController();
    readSeries(id, range, ending.signal).then(
      (read) => setNear({ key, read }),
      (error) => !ending.signal.aborted && setProblem(asProblem(error)),
    );
    return () => ending.abort();
  }, [id, key]);
  if (!curves) return html`<${Loading} what="Reading the curves" />`;
  const source = near?.key === key && key ? near.read : curves;
  const losses = source.series.loss_nats;
  if (!losses?.steps.length) {
    return html`<${Empty} icon="runs" title=${isLive(run) ? "The first step is on its way" : "No step has been trained"}>
      ${isLive(run) ? "The curves begin with the first optimizer step. Until then the bar above says what is being prepared." : "This run ended before its first step. Its events say why."}<//>`;
  }
  const marks = {
    evals: curves.evals,
    checkpoints: curves.checkpoints,
    resumed: curves.resumed,
    nonfinite: losses.nonfinite,
    discarded: [curves.discarded?.loss_nats].filter((line) => line?.steps.length),
  };
  const names = [
    "range",
    "average",
    ...(curves.evals.some((each) => each.step > 0) ? ["eval", "best"] : []),
    ...(curves.evals.some((each) => each.step === 0) ? ["base"] : []),
    ...(curves.checkpoints.length ? ["checkpoint"] : []),
    ...(curves.resumed.length ? ["resumed"] : []),
    ...(losses.nonfinite?.length ? ["nonfinite"] : []),
    ...(marks.discarded.length ? ["discarded"] : []),
  ];
  const small = METRICS.filter(({ name }) => source.series[name]?.steps.length);
  const whole = [curves.series.loss_nats.steps[0], Math.max(last, 1)];
  return html`
    <${ProblemNote} problem=${problem} />
    <div class="filters">
      <${Chips} label="Steps" choices=${RANGES} value=${range ? -1 : newest} onPick=${(next) => [setRange(null), setNewest(next)]} />
      <button class="chip" aria-pressed=${log} onClick=${logs}>Log scale</button>
      ${range && html`<span class="soft small">steps ${count(range[0])} to ${count(range[1])}</span><button class="button small" onClick=${() => zoom(null)} data-test="reset-zoom">Show all</button>`}
      <span class="faint small hint-zoom">Drag to zoom, double-click for all</span>
    </div>
    <div class="run-charts">
      <div class="card run-loss">
        <${Curve} title="Loss" unit="nats per trained token" series=${losses} marks=${marks} height=${380} format=${figure} precise=${loss} range=${shownRange} whole=${whole} onRange=${zoom} log=${log} sync=${id} />
        <${Legend} names=${names} />
      </div>
      <div class="run-small">
        ${small.map(
          (
            metric,
          ) => html`<div class="card" key=${metric.name}><${Curve} title=${metric.title} unit=${metric.unit} series=${source.series[metric.name]} height=${124}
          format=${metric.bytes ? bytes : figure} precise=${metric.bytes ? bytes : figure} range=${metric.of === "head" ? null : shownRange} whole=${metric.of === "head" ? undefined : whole} onRange=${metric.of === "head" ? undefined : zoom}
          smooth=${metric.of === "step" && metric.name !== "lr"} sync=${metric.of === "head" ? undefined : id} /></div>`,
        )}
      </div>
    </div>`;
}

/** One curve with its range and average, and words for the column under the pointer. */
function Curve({
  title,
  unit,
  series,
  marks,
  height,
  format,
  precise,
  range,
  whole,
  onRange,
  log,
  smooth = true,
  sync,
}) {
  const length = series.steps.length;
  const data = useMemo(() => columns(series, smooth), [series, length, series.last.at(-1), smooth]);
  const read = (at) => {
    if (at < 0 || at >= length) return null;
    const value = series.last[at];
    const merged = series.min[at] !== null && series.min[at] !== series.max[at];
    const exact =
      value === null || value === undefined ? "not finite" : precise(merged ? series.mean[at] : value);
    const more = merged
      ? `${precise(series.min[at])} to ${precise(series.max[at])}`
      : smooth && data[3][at] !== null && data[3][at] !== undefined && marks
        ? `average ${precise(data[3][at])}`
        : "";
    return {
      at: `step ${count(series.steps[at])}`,
      value: exact,
      more,
      text: `Step ${count(series.steps[at])}: ${exact}. ${more}`,
    };
  };
  return html`<${Chart} title=${title} unit=${unit} data=${data} lines=${LINES} marks=${marks} format=${format} height=${height} range=${range} whole=${whole} onRange=${onRange}
    log=${log} read=${read} sync=${sync} />`;
}
