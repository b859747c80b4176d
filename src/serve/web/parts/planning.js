// A plan that follows what is typed: answers in, the plan with its reasons, memory and time out.
import { work } from "../api.js";
import { html, useEffect, useState } from "./dom.js";
import { bytes, count, duration, figure, percent } from "./format.js";
import { asProblem, useSettled } from "./load.js";

/** Leaves out what was not answered. */
export const given = (answers) =>
  Object.fromEntries(
    Object.entries(answers).filter(
      ([, value]) =>
        value !== "" &&
        value !== null &&
        value !== undefined &&
        !(Array.isArray(value) && value.length === 0),
    ),
  );

/**
 * Plans what the answers say, 250 ms after they stopped changing. The last plan stays while the next one is made.
 * Returns `{ plan, task, busy, problem }`.
 */
export function usePlan(answers, preset) {
  const settled = useSettled({ answers: given(answers), preset: preset || undefined }, 250);
  const [state, setState] = useState({ plan: null, task: null, busy: false, problem: null });
  const key = JSON.stringify(settled);
  useEffect(() => {
    if (!settled.answers.model && !settled.answers.from) {
      setState({ plan: null, task: null, busy: false, problem: null });
      return undefined;
    }
    const ending = new AbortController();
    setState((before) => ({ ...before, busy: true, problem: null }));
    work("POST /api/v1/plan", {
      body: settled,
      signal: ending.signal,
      onUpdate: (task) => setState((before) => ({ ...before, task })),
    })
      .then((plan) => setState({ plan, task: null, busy: false, problem: null }))
      .catch(
        (error) =>
          !ending.signal.aborted &&
          setState((before) => ({ ...before, task: null, busy: false, problem: asProblem(error) })),
      );
    return () => ending.abort();
  }, [key]);
  const pending = JSON.stringify({ answers: given(answers), preset: preset || undefined }) !== key;
  return { ...state, busy: state.busy || pending };
}

const SHADES = [1, 0.78, 0.6, 0.45, 0.33, 0.24, 0.17, 0.12];

/** Memory by part against what is there. */
export function Memory({ memory }) {
  if (!memory) return null;
  const parts = (memory.parts ?? []).filter((part) => part.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const needed = memory.needed_bytes ?? parts.reduce((sum, part) => sum + part.bytes, 0);
  const whole = Math.max(needed, memory.available_bytes ?? 0);
  const fits = !memory.available_bytes || needed <= memory.available_bytes;
  return html`<section class="card" data-test="memory"><div class="card-head"><h2>Memory</h2><span class=${fits ? "soft" : "bad"}>${bytes(needed)} of ${bytes(memory.available_bytes)}${fits ? "" : ": it does not fit"}</span></div>
    <div class="stacked" role="img" aria-label=${parts.map((part) => `${part.name} ${bytes(part.bytes)}`).join(", ")}>
      ${parts.map((part, at) => html`<i key=${part.name} title=${`${part.name}: ${bytes(part.bytes)}`} style=${{ width: `${(part.bytes / whole) * 100}%`, background: shade(part, at, fits) }}></i>`)}</div>
    <ul class="legend">${parts.map((part, at) => html`<li key=${part.name}><span class="swatch" style=${{ background: shade(part, at, fits) }}></span>${part.name} <b class="number">${bytes(part.bytes)}</b></li>`)}</ul>
    ${memory.budget && html`<p class="faint small">${memory.budget}</p>`}</section>`;
}

const shade = (part, at, fits) =>
  part.name === "reserve"
    ? "var(--line-strong)"
    : `color-mix(in srgb, var(--${fits ? "accent-fill" : "bad"}) ${SHADES[Math.min(at, SHADES.length - 1)] * 100}%, var(--paper))`;

/** Time, with the calculation behind it. */
export function Time({ eta }) {
  if (!eta) return null;
  return html`<section class="card" data-test="time"><div class="card-head"><h2>Time</h2><span class="soft">${duration(eta.total_s)}</span></div>
    <dl class="facts">${eta.start_s >= 0.5 ? html`<dt>Start</dt><dd>${duration(eta.start_s)}</dd>` : null}
      <dt>Training</dt><dd>${duration(eta.train_s)}${eta.steps ? `, ${eta.steps_are_estimated ? "about " : ""}${count(eta.steps)} steps` : ""}</dd>
      ${eta.eval_s ? html`<dt>Evaluations</dt><dd>${duration(eta.eval_s)}</dd>` : null}
      ${eta.mtp_s ? html`<dt>MTP head</dt><dd>${duration(eta.mtp_s)}</dd>` : null}
      ${eta.finish_s ? html`<dt>Outputs</dt><dd>${duration(eta.finish_s)}</dd>` : null}
      ${eta.tokens_per_s ? html`<dt>Speed</dt><dd>${count(eta.tokens_per_s)} tokens a second (${eta.basis})</dd>` : null}</dl>
    ${eta.formula && html`<p class="faint small formula">${eta.formula}</p>`}</section>`;
}

/** Speed by pack length, with the chosen one marked. */
export function Packs({ curve, chosen }) {
  if (!curve?.length) return null;
  const high = Math.max(...curve.map((row) => row.tokens_per_s_relative));
  const step = 640 / curve.length;
  return html`<section class="card"><div class="card-head"><h2>Pack length</h2><span class="faint small">expected speed, relative to the best</span></div>
    <svg class="bars packs" viewBox="0 0 640 116" role="img" aria-label=${curve.map((row) => `${row.pack_length}: ${percent(row.tokens_per_s_relative / high)}`).join(", ")}>
      ${curve.map((row, at) => {
        const tall = (row.tokens_per_s_relative / high) * 84;
        return html`<g key=${row.pack_length} class=${`${row.fits ? "" : "unfit"} ${String(row.pack_length) === String(chosen) ? "chosen" : ""}`}><title>${`${count(row.pack_length)} tokens: ${percent(row.tokens_per_s_relative / high)} of the best speed, ${percent(row.waste, 1)} empty, ${bytes(row.needed_bytes)}${row.fits ? "" : ", does not fit"}`}</title>
          <rect class="hit" x=${at * step} y="0" width=${step} height="96" /><rect x=${at * step + 1.5} y=${96 - tall} width=${Math.max(1, step - 3)} height=${tall} rx="2" />
          ${at % Math.ceil(curve.length / 8) === 0 && html`<text x=${at * step + 2} y="111">${figure(row.pack_length)}</text>`}</g>`;
      })}</svg></section>`;
}

/** What keeps a plan from being started. */
export function Problems({ problems }) {
  if (!problems?.length) return null;
  return html`<div class="note bad" role="alert" data-test="plan-problems"><div>${problems.map((problem) => html`<div><b>${problem.setting ? `${problem.setting}: ` : ""}${problem.what}${problem.advice && !/[.!?]$/.test(problem.what) ? "." : ""}</b> ${problem.advice}</div>`)}</div></div>`;
}

/** The plan in a few lines. */
export function Summary({ summary }) {
  if (!summary?.length) return null;
  return html`<dl class="summary">${summary.map((row) => html`<div key=${row.label}><dt>${row.label}</dt><dd><b>${row.value}</b>${row.reason && html`<span class="soft small"> ${row.reason}</span>`}</dd></div>`)}</dl>`;
}
