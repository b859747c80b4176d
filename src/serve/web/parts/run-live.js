// A run as it goes on: its summary, curves and events, read once and then followed. One stream of events serves
// everything that a page shows of a run.
import { call, follow } from "../api.js";
import { useEffect, useRef, useState } from "./dom.js";
import { asProblem } from "./load.js";
import { METRICS, readSeries } from "./run-curves.js";
import { append, cutAfter, emptySeries } from "./series.js";
import { isLive } from "./states.js";

/** With this many columns the curve is read again, merged. */
const TOO_MANY = 3600;
/** Events before the present one that the list of events begins with. */
const HISTORY = 1200;
const KEPT_EVENTS = 2000;

/** Events after which the summary is read at once. */
const TURNS = [
  "run_started",
  "run_finished",
  "phase",
  "control_applied",
  "checkpoint_committed",
  "members",
  "member_samples",
];

/** Follows a run. Returns `{ run, curves, events, problem, again }`; drawn again at most five times a second. */
export function useRun(id) {
  const state = useRef(null);
  const [, draw] = useState(0);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    const mine = { run: null, curves: null, events: [], problem: null };
    state.current = mine;
    let stop = () => {};
    let timer = 0;
    let drawing = 0;
    const changed = () => {
      drawing ||= setTimeout(() => {
        drawing = 0;
        draw((n) => n + 1);
      }, 200);
    };
    const summary = async () => {
      clearTimeout(timer);
      try {
        mine.run = await call("GET /api/v1/runs/{id}", { params: { id }, signal });
        mine.problem = null;
        if (!mine.curves) curves();
      } catch (error) {
        if (signal.aborted) return;
        mine.problem = asProblem(error);
      }
      changed();
      timer = setTimeout(
        () => (document.hidden ? summary.later() : summary()),
        isLive(mine.run) ? 2000 : 5000,
      );
    };
    summary.later = () => (timer = setTimeout(() => (document.hidden ? summary.later() : summary()), 1000));
    const soon = () => {
      clearTimeout(timer);
      timer = setTimeout(summary, 150);
    };
    /** The last event that the curves show. */
    let seen = 0;
    let reading = false;
    const curves = async () => {
      if (reading) return;
      reading = true;
      try {
        const read = prepared(await readSeries(id, null, signal));
        seen = order(read.position);
        // Those that came while it was read.
        for (const event of mine.events) if (place(event) > seen) apply(read, event);
        mine.curves = read;
      } catch (error) {
        if (!signal.aborted) mine.problem ??= asProblem(error);
      }
      if (!signal.aborted) changed();
      reading = false;
    };
    const start = async () => {
      await Promise.all([summary(), curves()]);
      if (signal.aborted) return;
      const from = earlier(mine.curves?.position ?? mine.run?.position);
      if (!mine.curves) seen = order(mine.run?.position);
      stop = follow("GET /api/v1/runs/{id}/events", {
        params: { id },
        from,
        on: {
          event(event) {
            mine.events.push(event);
            if (mine.events.length > KEPT_EVENTS) mine.events.splice(0, KEPT_EVENTS / 4);
            const isNew = place(event) > seen;
            if (isNew && mine.curves) {
              apply(mine.curves, event);
              if (mine.curves.series.loss_nats?.steps.length > TOO_MANY) curves();
            }
            if (isNew && TURNS.includes(event.kind)) soon();
            changed();
          },
          state: () => soon(),
        },
      });
    };
    start();
    return () => {
      ending.abort();
      clearTimeout(timer);
      clearTimeout(drawing);
      stop();
    };
  }, [id, round]);
  return {
    ...(state.current ?? { run: null, curves: null, events: [], problem: null }),
    again: () => setRound((n) => n + 1),
  };
}

/** "2.412" as a number that grows with attempts and events. */
function order(position) {
  const [attempt, seq] = String(position ?? "0.0")
    .split(".")
    .map(Number);
  return attempt * 1e9 + seq;
}

/** The same for an event. */
const place = ({ attempt, seq }) => order(`${attempt}.${seq}`);

/** A position some events earlier in the same attempt, so that a page begins with what happened just before. */
function earlier(position) {
  if (!position) return undefined;
  const [attempt, seq] = String(position).split(".").map(Number);
  return `${attempt}.${Math.max(0, seq - HISTORY)}`;
}

/** Adds what the server left out because it is empty. */
function prepared(curves) {
  return {
    ...curves,
    series: curves.series ?? {},
    evals: curves.evals ?? [],
    checkpoints: curves.checkpoints ?? [],
    resumed: curves.resumed ?? [],
    discarded: curves.discarded ?? {},
  };
}

/** Adds an event to the curves. */
function apply(curves, event) {
  const add = (name, step, value) => {
    if (value === undefined) return;
    append((curves.series[name] ??= emptySeries()), step, value);
  };
  if (event.kind === "run_started") {
    const from = event.resumed_from_step ?? 0;
    const old = (curves.discarded.loss_nats ??= emptySeries());
    for (const [name, series] of Object.entries(curves.series))
      if (name !== "head_loss") cutAfter(series, from, name === "loss_nats" ? old : null);
    curves.evals = curves.evals.filter((each) => each.step <= from || each.step === 0);
    curves.checkpoints = curves.checkpoints.filter((each) => each.step <= from);
    if (event.resumed_from_step) curves.resumed.push({ step: from, attempt: event.attempt });
  } else if (event.kind === "step") {
    add("loss_nats", event.step, event.loss_nats);
    for (const { name, of } of METRICS) if (of === "step") add(name, event.step, event[name]);
    curves.last_step = event.step;
  } else if (event.kind === "eval") {
    const best =
      event.step > 0 &&
      event.loss_nats !== null &&
      !curves.evals.some((each) => each.step > 0 && each.loss_nats <= event.loss_nats);
    if (best) for (const each of curves.evals) each.best = false;
    curves.evals = [
      ...curves.evals.filter((each) => each.step !== event.step),
      { step: event.step, loss_nats: event.loss_nats, best },
    ];
  } else if (event.kind === "checkpoint_committed") {
    curves.checkpoints = [
      ...curves.checkpoints.filter((each) => each.step !== event.step),
      { step: event.step, best: event.best },
    ];
  } else if (event.kind === "head_eval") {
    add("head_loss", event.step, event.loss_nats);
  } else if (event.kind === "device_sample") {
    const step = curves.last_step ?? 0;
    for (const { name, of, field } of METRICS) {
      if (of === "device") add(name, step, event[field ?? name]);
      if (of === "gpu") add(name, step, event.gpus?.[0]?.[field ?? name]);
    }
  }
}
