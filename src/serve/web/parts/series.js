// Curves as the API sends them: buckets of consecutive steps, each with its smallest, largest and mean value, so that a
// single spike in a million steps stays visible. A bucket without a finite value has null.

/** The weight of one step in the moving average: about the last 20 steps, as in the terminal. */
const EMA_WEIGHT = 0.1;

/** An empty curve. */
export const emptySeries = () => ({
  steps: [],
  min: [],
  max: [],
  mean: [],
  last: [],
  width: 1,
  nonfinite: [],
});

/** Adds the value of a step at the end; a step that is already there is left alone. */
export function append(series, step, value) {
  const { steps } = series;
  // The last bucket may cover steps after its first; they are seen again when the curve is read anew.
  if (steps.length && step <= steps[steps.length - 1]) return;
  const finite = typeof value === "number" && Number.isFinite(value);
  steps.push(step);
  for (const column of [series.min, series.max, series.mean, series.last]) column.push(finite ? value : null);
  if (!finite) series.nonfinite.push(step);
}

/** Moves everything after a step to `discarded`, because a later attempt repeats it. */
export function cutAfter(series, step, discarded) {
  const at = series.steps.findIndex((each) => each > step);
  if (at < 0) return;
  for (const name of ["steps", "min", "max", "mean", "last"]) {
    const cut = series[name].splice(at);
    discarded?.[name].push(...cut);
  }
  series.nonfinite = series.nonfinite.filter((each) => each <= step);
}

/**
 * The columns that a chart draws: x, largest, smallest, average. The average weighs a bucket by its steps. It begins
 * anew after a gap.
 */
export function columns(series, smooth = true) {
  const { steps, min, max, mean } = series;
  const average = new Array(steps.length);
  let ema = null;
  for (let at = 0; at < steps.length; at += 1) {
    const value = mean[at];
    if (value === null || value === undefined) {
      average[at] = null;
      continue;
    }
    const width = Math.max(1, (steps[at + 1] ?? steps[at] + (series.width || 1)) - steps[at]);
    const weight = smooth ? 1 - (1 - EMA_WEIGHT) ** width : 1;
    ema = ema === null ? value : ema + weight * (value - ema);
    average[at] = ema;
  }
  return [steps, max, min, average];
}
