// A histogram whose bins are each twice as wide as the one before, drawn with bars of equal width.
import { html } from "./dom.js";
import { count, percent } from "./format.js";

/** Draws `{ unit, count, histogram: [{ from, to, count }], mean, p50, p90, p99, max }`. */
export function Histogram({ lengths }) {
  const bins = lengths.histogram ?? [];
  if (!bins.length) return null;
  const high = Math.max(...bins.map((bin) => bin.count));
  const [width, height, room] = [640, 150, 20];
  const step = width / bins.length;
  const words = bins
    .map((bin) => `${count(bin.from)} to ${count(bin.to - 1)} ${lengths.unit}: ${count(bin.count)}`)
    .join("; ");
  return html`<svg class="bars" viewBox=${`0 0 ${width} ${height + room}`} role="img" aria-label=${`Lengths of the examples. ${words}`}>
    ${bins.map((bin, at) => {
      const tall = Math.max(bin.count ? 1.5 : 0, (bin.count / high) * (height - 16));
      return html`<g key=${bin.from}><title>${`${count(bin.from)} to ${count(bin.to - 1)} ${lengths.unit}: ${count(bin.count)} examples, ${percent(bin.count / lengths.count, 1)}`}</title>
        <rect class="hit" x=${at * step} y="0" width=${step} height=${height} />
        <rect x=${at * step + 2} y=${height - tall} width=${Math.max(1, step - 4)} height=${tall} rx="2" />
        <text x=${at * step + 2} y=${height + 15}>${short(bin.from)}</text>
        <text x=${at * step + step / 2} y=${height - tall - 4} text-anchor="middle">${bin.count ? count(bin.count) : ""}</text></g>`;
    })}
  </svg>`;
}

const short = (value) => (value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : count(value));
