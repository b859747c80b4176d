// Where the axes of a chart begin and end, and which values have a label. Pure. Whatever the data and the zoom are, the
// answer is finite numbers in order and few labels: uPlot would count labels without end otherwise.

/** The most labels of an axis. */
const MOST_LABELS = 12;

const isRange = (range) =>
  Array.isArray(range) && Number.isFinite(range[0]) && Number.isFinite(range[1]) && range[0] < range[1];

const finite = (values) => values.filter((value) => typeof value === "number" && Number.isFinite(value));

/** The visible steps: the zoom, or from the first to the last step or evaluation. */
export function stepRange({ evals = [], total, range }, low, high) {
  if (isRange(range)) return [range[0], range[1]];
  const steps = finite([low, high, ...evals.map((each) => each.step)]);
  if (!steps.length) return [0, total > 0 ? total : 1];
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  return first === last ? [first - 1, last + 1] : [first, last];
}

/** The visible values: those of the curve and of the evaluations among the visible steps, with a little room. */
export function valueRange({ evals = [], log, steps: [first, last] }, low, high) {
  const seen = evals.filter((each) => each.step >= first && each.step <= last).map((each) => each.loss_nats);
  const values = finite([low, high, ...seen]).filter((value) => !log || value > 0);
  if (!values.length) return log ? [0.1, 1] : [0, 1];
  let [bottom, top] = [Math.min(...values), Math.max(...values)];
  // Values that differ by a rounding error only have no scale of their own.
  if (top - bottom <= Math.abs(top) * 1e-9) {
    const [under, over] = [Math.abs(bottom || 1) * 0.1, Math.abs(top || 1) * 0.1];
    [bottom, top] = [bottom - under, top + over];
  }
  if (log) return [bottom * 0.95, top * 1.05];
  const room = (top - bottom) * 0.06;
  // A curve that never goes below zero gets no room below it.
  return [bottom >= 0 ? Math.max(0, bottom - room) : bottom - room, top + room];
}

/**
 * The labels of a logarithmic axis: powers of ten, with values in between where there are few. Inside a part of a
 * decade they are even. uPlot's own begin at any value and round to its decimals, which for a scale from 0.0953
 * leads back to zero again and again.
 */
export function logLabels(low, high) {
  if (!(low > 0) || !(high > low) || !Number.isFinite(high)) return [];
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.ceil((last - first) / (MOST_LABELS - 2));
  const parts = last - first <= 2 ? [1, 2, 3, 5, 7] : last - first <= 4 ? [1, 2, 5] : [1];
  const labels = [];
  for (let power = first; power <= last; power += every)
    for (const part of parts) {
      const at = Number(`${part}e${power}`);
      if (at >= low && at <= high) labels.push(at);
    }
  return labels.length > 2 ? labels : evenLabels(low, high);
}

function evenLabels(low, high) {
  const rough = (high - low) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 2.5, 5, 10].find((part) => part * size >= rough) * size;
  const first = Math.ceil(low / every);
  const labels = [];
  for (let at = 0; at < MOST_LABELS && (first + at) * every <= high; at += 1)
    labels.push(Number(((first + at) * every).toPrecision(12)));
  return labels;
}

/** The digits that tell neighbouring labels apart. */
export function digitsOf(labels) {
  const seen = finite(labels);
  if (seen.length < 2) return 3;
  const step = Math.abs(seen[1] - seen[0]);
  const size = Math.max(...seen.map(Math.abs));
  const digits = Math.floor(Math.log10(size)) - Math.floor(Math.log10(step)) + 1;
  return Math.min(9, Math.max(3, Number.isFinite(digits) ? digits : 3));
}
