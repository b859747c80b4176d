// A share with its 95 % interval, drawn over one scale from 0 to 1.
import { html } from "./dom.js";
import { percent } from "./format.js";

/** `value` is `{ value, low, high }`, or null if nothing was measured; `words` are shown above the drawing. */
export function Interval({ value, words }) {
  if (!value) return html`<span class="faint">–</span>`;
  const at = (share) => Math.min(1, Math.max(0, share)) * 100;
  return html`<div class="interval"><span class="number">${words}</span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`between ${percent(value.low)} and ${percent(value.high)}`}>
      <line x1="0" x2="100" y1="5" y2="5" class="rule" /><line x1=${at(value.low)} x2=${at(value.high)} y1="5" y2="5" class="span" /><line x1=${at(value.value)} x2=${at(value.value)} y1="0.5" y2="9.5" class="point" /></svg></div>`;
}
