// A causal trace as a heat map: tokens from top to bottom, layers from left to right. A strong cell is a place where
// restoring what the model computed without noise brings its own answer back.
import { html, useState } from "../parts/dom.js";
import { figure } from "../parts/format.js";
import { Chips } from "../parts/page.js";

const KINDS = [
  { value: "mlp", text: "MLP" },
  { value: "mixer", text: "Attention or DeltaNet" },
  { value: "state", text: "Hidden state" },
];

/** A gain of the answer's probability below which an edit does not follow a trace. */
const LITTLE = 0.05;

export function Trace({ trace, onLayer }) {
  const [kind, setKind] = useState("mlp");
  const grid = trace[kind] ?? [];
  const layers = grid.length;
  const { clean, corrupted, tokens = [], subject_tokens: [from, to] = [0, 0], best } = trace;
  const share = (p) => Math.min(1, Math.max(0, (p - corrupted) / Math.max(1e-9, clean - corrupted)));
  const top = most(grid);
  return html`<section class="card" aria-labelledby="k-trace" data-test="k-trace"><div class="card-head"><h2 id="k-trace">Where it is recalled</h2>
      <div class="actions"><${Chips} label="What is restored" choices=${KINDS.filter((each) => (trace[each.value] ?? []).length)} value=${kind} onPick=${setKind} /></div></div>
    <p class="soft">The model answers <q class="anywhere"><bdi>${trace.answer}</bdi></q> with a probability of ${figure(clean)}, and of ${figure(corrupted)} with noise on the subject (${trace.samples ?? "several"} samples). Each cell shows how much of it comes back where one place is restored${trace.window > 1 && kind !== "state" ? `, with ${trace.window} layers around it` : ""}.</p>
    <div class="k-map" role="group" aria-label=${`Heat map, ${tokens.length} tokens by ${layers} layers`}>
      ${tokens.map((token, at) => {
        const row = grid.map((layer) => layer[at] ?? 0);
        const strongest = row.indexOf(Math.max(...row));
        const isSubject = at >= from && at < to;
        return html`<div class="k-row" key=${at}><span class=${`k-token ${isSubject ? "subject" : ""}`}><bdi>${token}</bdi>${isSubject && html`<span class="hidden-visually"> (subject)</span>`}</span>
          <svg viewBox=${`0 0 ${Math.max(1, layers)} 1`} preserveAspectRatio="none" role="img" aria-label=${`Token ${at + 1}: most in layer ${strongest}, probability ${figure(row[strongest])}`}>${row.map(
            (p, layer) => html`<rect key=${layer} x=${layer} y="0" width="1" height="1" fill-opacity=${share(p).toFixed(3)}><title>${`layer ${layer}, probability ${figure(p)}`}</title></rect>`,
          )}</svg></div>`;
      })}
      <div class="k-row k-axis" aria-hidden="true"><span class="k-token">layer</span><span class="k-layers"><span>0</span><span>${layers > 2 && layers % 2 ? (layers - 1) / 2 : ""}</span><span>${layers - 1}</span></span></div>
    </div>
    ${top && html`<p class="small" role="status">Most is restored in layer <b>${top.layer}</b> at token <q class="anywhere"><bdi>${tokens[top.token]}</bdi></q>: ${figure(top.p)}.</p>`}
    ${
      best &&
      html`<p><button type="button" class="button small" data-test="k-use-layer" onClick=${() => onLayer(best.layer)}>Edit in layer ${best.layer}</button>
      <span class="soft small"> the MLP that restores most at the subject's last token (${figure(best.restored)})${best.restored - corrupted < LITTLE ? "; this is so little that it does not say where to edit" : ""}</span></p>`
    }
  </section>`;
}

function most(grid) {
  let found = null;
  grid.forEach((row, layer) =>
    row.forEach((p, token) => {
      if (!found || p > found.p) found = { p, layer, token };
    }),
  );
  return found;
}
