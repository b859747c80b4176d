// One run: how far it is, how it does, what it wrote, and what can be done with it.
import { address, call, finish, work } from "../api.js";
import { confirm, tell, tellProblem } from "../parts/dialog.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { ago, bytes, count, duration, figure, loss, milliseconds, percent } from "../parts/format.js";
import { asProblem } from "../parts/load.js";
import { Action, Figures, Head, Loading, Note, ProblemNote, Tabs, joined } from "../parts/page.js";
import { Bar, Spoken, TaskProgress } from "../parts/progress.js";
import { useRun } from "../parts/run-live.js";
import { useShortcuts } from "../parts/shortcuts.js";
import { State, barKind, isLive } from "../parts/states.js";
import { href, keepQuery } from "../routes.js";
import { Charts } from "./run-charts.js";
import { Events } from "./run-events.js";
import { Machine, Outputs, Plan } from "./run-panels.js";
import { Samples } from "./run-samples.js";

const TABS = [
  { id: "charts", title: "Charts" },
  { id: "samples", title: "Samples" },
  { id: "events", title: "Events" },
  { id: "plan", title: "Plan" },
  { id: "machine", title: "Machine" },
  { id: "outputs", title: "Outputs" },
];

export default function Run({ id, query }) {
  const live = useRun(id);
  const { run, curves, events, problem, again } = live;
  const asked = TABS.some((each) => each.id === query.tab) ? query.tab : "charts";
  const [tab, setTab] = useState(asked);
  // A link or the history may ask for another tab of the run that is shown.
  useEffect(() => setTab(asked), [asked]);
  const [task, setTask] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const pick = (next) => {
    setTab(next);
    keepQuery({ tab: next === "charts" ? "" : next });
  };
  useShortcuts("This run", [
    ...TABS.map(({ id: each, title }, at) => ({ keys: String(at + 1), about: title, act: () => pick(each) })),
    { keys: "s", about: "Stop", act: () => isLive(run) && stop(run, again) },
  ]);
  if (!run) {
    return html`<${Head} title=${id} crumb=${{ href: "#/runs", text: "Runs" }} />
      ${problem ? html`<${ProblemNote} problem=${problem} again=${again} />` : html`<${Loading} what="Reading the run" />`}`;
  }
  const view = run.view ?? {};
  const started = view.attempts?.at(-1)?.started ?? {};
  const act = { run, again, setTask, setTrouble };
  return html`
    <${Head} title=${run.name ?? id} crumb=${{ href: "#/runs", text: "Runs" }}
      about=${html`<span class="run-about"><${State} state=${run.state} /> <span>${joined([run.id === run.name ? "" : run.id, run.model, method(run.method), started.device])}</span></span>`}>
      <${Buttons} ...${act} />
    <//>
    <${ProblemNote} problem=${trouble} />
    <${ProblemNote} problem=${problem?.status ? problem : null} again=${again} />
    <${Ended} run=${run} view=${view} />
    <${TaskProgress} task=${task?.task} title=${task?.title} />
    <${Progress} run=${run} view=${view} curves=${curves} />
    <${Numbers} run=${run} view=${view} curves=${curves} />
    <${Warnings} view=${view} onMore=${() => pick("events")} />
    <${Tabs} tabs=${TABS} current=${tab} onPick=${pick} label="What to see of this run" />
    <div id="tab-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
      ${tab === "charts" && html`<${Charts} id=${id} run=${run} curves=${curves} />`}
      ${tab === "samples" && html`<${Samples} id=${id} events=${events} />`}
      ${tab === "events" && html`<${Events} events=${events} view=${view} />`}
      ${tab === "plan" && html`<${Plan} run=${run} />`}
      ${tab === "machine" && html`<${Machine} view=${view} members=${run.members ?? []} exchange=${run.exchange} />`}
      ${tab === "outputs" && html`<${Outputs} run=${run} />`}
    </div>`;
}

const method = (name) => ({ lora: "LoRA", full: "full fine-tuning", head: "MTP head" })[name] ?? name;

/** What can be done with a run in its state. */
function Buttons({ run, again, setTask, setTrouble }) {
  const begin = (title) => ({ onUpdate: (task) => setTask({ title, task }) });
  const ended = (promise) =>
    promise
      .then(
        () => again(),
        (error) => error?.name !== "AbortError" && setTrouble(asProblem(error)),
      )
      .finally(() => setTask(null));
  const resume = () => {
    setTrouble(null);
    ended(work("POST /api/v1/runs/{id}/resume", { params: { id: run.id }, body: {}, ...begin("Resuming") }));
  };
  const exports = () => {
    const choice = { what: "best" };
    confirm({
      title: "Export again",
      button: "Export",
      text: "The outputs are written from a checkpoint of this run. Files that are already there are kept until the new ones are complete.",
      body: html`<${ExportChoice} choice=${choice} />`,
      act: async () => {
        setTrouble(null);
        const body = { best: { best: true }, last: {}, q8_0: { gguf: "q8_0" }, f16: { gguf: "f16" } }[
          choice.what
        ];
        ended(
          work("POST /api/v1/runs/{id}/export", { params: { id: run.id }, body, ...begin("Exporting") }).then(
            () => tell({ title: "Exported", text: "The outputs are written.", kind: "good" }),
          ),
        );
      },
    });
  };
  const remove = () =>
    confirm({
      title: `Delete ${run.name}?`,
      danger: true,
      button: "Delete for good",
      text: "The run's folder with its events, checkpoints and outputs is deleted. This cannot be undone.",
      act: async () => {
        await call("DELETE /api/v1/runs/{id}", { params: { id: run.id } });
        tell({ title: "Deleted", text: run.name });
        location.hash = "#/runs";
      },
    });
  const report = address("GET /api/v1/runs/{id}/report", { id: run.id }).url;
  const live = isLive(run);
  const canResume = ["stopped", "crashed", "failed"].includes(run.state);
  const model = `run:${run.id}`;
  const hasModel = !live && (run.outputs ?? []).some((output) => ["model", "adapter"].includes(output.kind));
  return html`
    ${
      hasModel &&
      html`<a class="button main" href=${href("chat", { model })} data-test="chat-with">Chat</a>
    <a class="button" href=${href("compare", { models: `${model}@base,${model}` })} data-test="compare-with-base">Compare with base</a>`
    }
    ${live && html`<button class="button danger" data-test="stop" onClick=${() => stop(run, again)}>Stop</button>`}
    ${canResume && html`<${Action} kind="main" data-test="resume" onClick=${resume}>Resume<//>`}
    ${!live && html`<button class="button" data-test="export" onClick=${exports}>Export</button>`}
    <a class="button" href=${report} target="_blank" rel="noopener" data-test="report">Report</a>
    ${!live && html`<button class="button danger" data-test="delete" onClick=${remove}>Delete</button>`}`;
}

function stop(run, again) {
  return confirm({
    title: "Stop this run?",
    button: "Stop after a checkpoint",
    text: "The trainer finishes the current step, saves a checkpoint and ends. Resume continues from there as if nothing had happened.",
    act: async () => {
      const task = await call("POST /api/v1/runs/{id}/stop", { params: { id: run.id }, body: {} });
      tell({ title: "Asked to stop", text: "The trainer ends after the current step." });
      finish(task).then(again, (error) => tellProblem(asProblem(error)));
    },
  });
}

function ExportChoice({ choice }) {
  const [what, setWhat] = useState(choice.what);
  const choices = [
    ["best", "The weights with the lowest held-out loss, as safetensors"],
    ["last", "The outputs as planned, as safetensors"],
    ["q8_0", "One GGUF file of q8_0, for llama.cpp and Ollama"],
    ["f16", "One GGUF file of f16"],
  ];
  return html`<div class="stack choices" role="radiogroup" aria-label="What to export">${choices.map(
    ([value, text]) => html`<label class="check">
    <input type="radio" name="export" checked=${what === value} onChange=${() => setWhat((choice.what = value))} />${text}</label>`,
  )}</div>`;
}

/** The bar, the steps, and how much time is left. */
function Progress({ run, view, curves }) {
  const step = Math.max(curves?.last_step ?? 0, view.last_step?.step ?? run.step ?? 0);
  const total = run.steps_total;
  const share = run.progress ?? (total ? step / total : null);
  const phase = view.phase?.phase;
  const left =
    isLive(run) && run.eta_s !== null && run.eta_s !== undefined ? `${duration(run.eta_s)} left` : "";
  const epoch = view.last_step?.epoch;
  const epochs = view.attempts?.at(-1)?.started?.epochs;
  const { done, total: all, unit } = view.progress ?? {};
  const amount = unit === "bytes" ? bytes : count;
  const during = view.progress
    ? `${amount(done)}${all ? ` of ${amount(all)}` : ""} ${unit === "bytes" ? "" : unit}`.trim()
    : "";
  const words = [
    total ? `step ${count(step)} of ${count(total)}` : step ? `step ${count(step)}` : "",
    share !== null && total ? percent(share) : "",
    epoch ? `epoch ${epoch.toFixed(2)}${epochs ? ` of ${figure(epochs)}` : ""}` : "",
    isLive(run) && phase && phase !== "train"
      ? [phase, view.phase.detail, during].filter(Boolean).join(": ")
      : "",
  ]
    .filter(Boolean)
    .join(" · ");
  return html`<section class="run-progress" aria-label="Progress">
    <${Bar} share=${share} kind=${barKind(run.state)} label="Progress of the run" />
    <div class="run-progress-words"><span data-test="steps">${words}</span><span class="soft" data-test="eta">${left}</span></div>
    <${Spoken} text=${`${words}. ${left}`} ms=${30000} />
  </section>`;
}

/** The figures that answer "how does it do?". */
function Numbers({ run, view, curves }) {
  const step = view.last_step ?? {};
  const base = view.base_eval?.loss_nats;
  const evals = (curves?.evals ?? []).filter((each) => each.step > 0 && each.loss_nats !== null);
  const best = evals.reduce(
    (low, each) => (low === null || each.loss_nats < low.loss_nats ? each : low),
    null,
  );
  const speed = curves?.series.tokens_per_s?.last.at(-1) ?? step.tokens_per_s;
  const memory = curves?.series.mem_used_bytes?.last.at(-1) ?? step.mem_used_bytes;
  const now = curves?.series.loss_nats?.last.at(-1) ?? step.loss_nats;
  const device = view.device ?? {};
  const items = [
    ["Loss", loss(view.loss_ema ?? now), now !== undefined && now !== null ? `last step ${loss(now)}` : ""],
    [
      "Best held-out",
      loss(best?.loss_nats ?? run.best_eval_nats),
      best
        ? `at step ${count(best.step)}${base ? `, base ${loss(base)}` : ""}`
        : base
          ? `base ${loss(base)}`
          : "",
    ],
    ["Speed", speed ? `${count(speed)}` : "–", "tokens a second"],
    ["Step", milliseconds(step.step_ms), step.tokens ? `${count(step.tokens)} tokens` : ""],
    ["Memory", bytes(memory), device.mem_total_bytes ? `of ${bytes(device.mem_total_bytes)}` : ""],
    ["Started", ago(run.started_us), view.attempts?.length > 1 ? `attempt ${view.attempts.length}` : ""],
  ];
  return html`<section class="run-figures" aria-label="Figures"><${Figures} items=${items} /></section>`;
}

/** The end of a run, with its reason. */
function Ended({ run, view }) {
  const end = view.attempts?.at(-1)?.finished;
  if (run.state === "crashed")
    return html`<${Note} kind="bad" title="The trainer ended without a message.">It was killed, or the machine went down. Resume continues from the newest complete checkpoint.<//>`;
  if (run.state === "stalled")
    return html`<${Note} kind="warn" title="Nothing has been logged for a while.">The trainer is still alive: it may be waiting for the disk or the GPU, or be suspended. The server does nothing about it.<//>`;
  if (!end?.reason) return null;
  return html`<${Note} kind=${run.state === "failed" ? "bad" : "warn"} title=${run.state === "failed" ? "The run failed." : "The run ended."}>${end.reason}<//>`;
}

function Warnings({ view, onMore }) {
  const warnings = (view.warnings ?? []).filter((warning) => !warning.discarded);
  if (!warnings.length) return null;
  const last = warnings.at(-1);
  return html`<div class="note warn run-warning"><div><b>Warning${last.step ? ` at step ${count(last.step)}` : ""}. </b>${last.message}</div>
    ${warnings.length > 1 && html`<button class="button small quiet" onClick=${onMore}>${warnings.length - 1} more</button>`}</div>`;
}
