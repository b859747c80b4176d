// What is drawn on a chart beside its lines: evaluations, the base's held-out loss, checkpoints, resumes, values that were
// not finite, and what a later attempt replaced.
import { html } from "./dom.js";
import { colour } from "./theme.js";

/** Draws the marks of a chart; those outside the visible steps are cut off. */
export function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  const scale = window.devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 4 * scale, bbox.width + 4 * scale, bbox.height + 8 * scale);
  ctx.clip();
  const x = (step) => u.valToPos(step, "x", true);
  const y = (value) => u.valToPos(value, "y", true);
  const [top, bottom] = [bbox.top, bbox.top + bbox.height];
  for (const line of marks.discarded ?? [])
    curve(
      ctx,
      line.steps.map((step, at) => [x(step), line.mean[at] === null ? null : y(line.mean[at])]),
      colour("faint"),
      1.25 * scale,
    );
  for (const { step } of marks.resumed ?? [])
    vertical(ctx, x(step), top, bottom, colour("soft"), [3 * scale, 4 * scale], scale);
  const base = marks.evals?.find((each) => each.step === 0);
  if (base && base.loss_nats !== null && marks.zero !== false) {
    ctx.strokeStyle = colour("soft");
    ctx.lineWidth = scale;
    ctx.setLineDash([6 * scale, 4 * scale]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y(base.loss_nats));
    ctx.lineTo(bbox.left + bbox.width, y(base.loss_nats));
    ctx.stroke();
    ctx.setLineDash([]);
  }
  for (const step of marks.nonfinite ?? []) cross(ctx, x(step), top, bottom, colour("bad"), scale);
  // Each that was the best of its time is marked as such; only the last of them still is.
  const latest = Math.max(...(marks.checkpoints ?? []).filter((each) => each.best).map((each) => each.step));
  for (const { step } of marks.checkpoints ?? [])
    triangle(
      ctx,
      x(step),
      bottom,
      (step === latest ? 4.5 : 3.5) * scale,
      colour(step === latest ? "ink" : "faint"),
    );
  const evals = (marks.evals ?? []).filter((each) => each.step > 0 && each.loss_nats !== null);
  curve(
    ctx,
    evals.map((each) => [x(each.step), y(each.loss_nats)]),
    colour("faint"),
    scale,
  );
  const lowest = Math.min(...evals.map((each) => each.loss_nats));
  for (const each of evals)
    diamond(
      ctx,
      x(each.step),
      y(each.loss_nats),
      4.2 * scale,
      colour(each.loss_nats === lowest ? "ink" : "paper"),
      colour("ink"),
      1.4 * scale,
    );
  ctx.restore();
}

function curve(ctx, points, stroke, width) {
  ctx.strokeStyle = stroke;
  ctx.lineWidth = width;
  ctx.beginPath();
  let open = false;
  for (const [x, y] of points) {
    if (y === null) open = false;
    else if (open) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
    open = y !== null;
  }
  ctx.stroke();
}

function vertical(ctx, x, top, bottom, stroke, dash, width) {
  ctx.strokeStyle = stroke;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, bottom);
  ctx.stroke();
  ctx.setLineDash([]);
}

function cross(ctx, x, top, bottom, stroke, scale) {
  ctx.fillStyle = stroke;
  ctx.globalAlpha = 0.16;
  ctx.fillRect(x - 1.5 * scale, top, 3 * scale, bottom - top);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 1.6 * scale;
  const size = 3.2 * scale;
  const y = top + 7 * scale;
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}

function triangle(ctx, x, bottom, size, fill) {
  ctx.fillStyle = fill;
  ctx.beginPath();
  ctx.moveTo(x - size, bottom + 1);
  ctx.lineTo(x + size, bottom + 1);
  ctx.lineTo(x, bottom - size * 1.5);
  ctx.fill();
}

function diamond(ctx, x, y, size, fill, stroke, width) {
  ctx.beginPath();
  ctx.moveTo(x, y - size);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + size);
  ctx.lineTo(x - size, y);
  ctx.closePath();
  ctx.fillStyle = fill;
  ctx.fill();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = width;
  ctx.stroke();
}

const SIGNS = {
  range: html`<rect x="0" y="3" width="16" height="8" fill="var(--accent)" opacity="0.22" />`,
  average: html`<path d="M0 7h16" stroke="var(--accent)" stroke-width="2" />`,
  eval: html`<path d="m8 2.5 4.5 4.5L8 11.5 3.5 7z" fill="var(--paper)" stroke="var(--ink)" stroke-width="1.4" />`,
  best: html`<path d="m8 2.5 4.5 4.5L8 11.5 3.5 7z" fill="var(--ink)" />`,
  base: html`<path d="M0 7h16" stroke="var(--soft)" stroke-width="1.4" stroke-dasharray="5 3" />`,
  checkpoint: html`<path d="M4 11h8L8 4z" fill="var(--faint)" />`,
  resumed: html`<path d="M8 0v14" stroke="var(--soft)" stroke-width="1.4" stroke-dasharray="3 3" />`,
  nonfinite: html`<path d="m5 4 6 6m0-6-6 6" stroke="var(--bad)" stroke-width="1.6" />`,
  discarded: html`<path d="M0 7h16" stroke="var(--faint)" stroke-width="1.5" />`,
};

const WORDS = {
  range: "smallest to largest",
  average: "average",
  eval: "held-out loss",
  best: "best",
  base: "base model",
  checkpoint: "checkpoint",
  resumed: "resumed",
  nonfinite: "not finite",
  discarded: "replaced by a later attempt",
};

/** The legend of the marks that a chart has. */
export function Legend({ names, words = {} }) {
  return html`<ul class="legend">${names.map(
    (name) => html`<li key=${name}>
    <svg width="16" height="14" viewBox="0 0 16 14" fill="none" aria-hidden="true">${SIGNS[name]}</svg>${words[name] ?? WORDS[name]}</li>`,
  )}</ul>`;
}
