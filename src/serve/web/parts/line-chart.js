// Lines with bands over a common axis, drawn once: what the white paper shows. Charts that are zoomed and followed live
// are in chart.js.
import { html } from "./dom.js";
import { figure } from "./format.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 250, 50, 26, 8, 34];

/** Draws `{ title, x, y, lines: [{ name, colour, points: [[x, y]], band: [[low, high]] }] }`. */
export function LineChart({ chart }) {
  const points = chart.lines.flatMap((line) => line.points);
  const across = axis(points.map(([x]) => x), 7);
  const down = axis(
    [...points.map(([, y]) => y), ...chart.lines.flatMap((line) => line.band.flat())],
    5,
  );
  const atX = (x) => LEFT + across.share(x) * (WIDTH - LEFT - RIGHT);
  const atY = (y) => HEIGHT - BOTTOM - down.share(y) * (HEIGHT - TOP - BOTTOM);
  const place = (x, y) => `${atX(x).toFixed(1)},${atY(y).toFixed(1)}`;
  const words = chart.lines
    .map((line) => `${line.name} ends at ${figure(line.points[line.points.length - 1][1])}`)
    .join("; ");
  return html`<figure class="paper-chart">
    <figcaption><b>${chart.title}</b> <span class="faint small">${chart.y}</span>
      <span class="paper-keys">${chart.lines.map((line) => html`<span key=${line.name} class=${`paper-key c${line.colour}`}>${line.name}</span>`)}</span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`${chart.title}, ${chart.y}, over ${chart.x}. ${words}`}>
      ${down.ticks.map(
        (tick) => html`<g key=${tick}><line class="grid" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${atY(tick)} y2=${atY(tick)} />
        <text text-anchor="end" x=${LEFT - 7} y=${atY(tick) + 4}>${down.show(tick)}</text></g>`,
      )}
      ${across.ticks.map((tick) => html`<text key=${tick} text-anchor="middle" x=${atX(tick)} y=${HEIGHT - BOTTOM + 16}>${across.show(tick)}</text>`)}
      <text text-anchor="end" x=${WIDTH - RIGHT} y=${HEIGHT - 3}>${chart.x}</text>
      ${chart.lines.map((line) => {
        const above = line.points.map(([x], at) => place(x, line.band[at][1]));
        const below = line.points.map(([x], at) => place(x, line.band[at][0])).reverse();
        return html`<g key=${line.name} class=${`c${line.colour}`}><polygon class="band" points=${[...above, ...below].join(" ")} />
          <polyline class="line" points=${line.points.map(([x, y]) => place(x, y)).join(" ")} /></g>`;
      })}
    </svg></figure>`;
}

/** Spans values with about `wanted` round ticks. */
function axis(values, wanted) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const rough = Math.max(most - least, Math.abs(most) * 1e-3, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
  const [low, high] = [Math.floor(least / step) * step, Math.ceil(most / step) * step];
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  return {
    ticks: Array.from({ length: Math.round((high - low) / step) + 1 }, (_, at) => low + at * step),
    share: (value) => (value - low) / Math.max(high - low, 1e-12),
    show: (value) =>
      value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
  };
}
