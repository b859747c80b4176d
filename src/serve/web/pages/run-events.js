// What happened in a run, newest first, in words.
import { html, useState } from "../parts/dom.js";
import { bytes, clock, count, counted, loss, milliseconds, moment } from "../parts/format.js";
import { Chips, Empty } from "../parts/page.js";

/** One sentence per kind of event. Kinds of a later sparktune are shown by their name. */
const SENTENCES = {
  run_started: (event) => [
    event.resumed_from_step
      ? `Attempt ${event.attempt} resumed from step ${count(event.resumed_from_step)}`
      : `Attempt ${event.attempt} started`,
    event.device,
  ],
  phase: (event) => [`Phase ${event.phase}`, event.detail],
  progress: (event) => [
    `${event.phase}: ${count(event.done)}${event.total ? ` of ${count(event.total)}` : ""} ${event.unit}`,
  ],
  step: (event) => [
    `Step ${count(event.step)}: loss ${event.loss_nats === null ? (event.loss_nonfinite ?? "not finite") : loss(event.loss_nats)}`,
    event.tokens_per_s ? `${count(event.tokens_per_s)} tokens/s` : "",
  ],
  eval: (event) => [
    event.step
      ? `Held-out loss ${loss(event.loss_nats)} at step ${count(event.step)}`
      : `The base's held-out loss is ${loss(event.loss_nats)}`,
    `${counted(event.examples, "example")}${event.eval_ms ? `, ${milliseconds(event.eval_ms)}` : ""}`,
  ],
  head_eval: (event) => [`MTP head: held-out loss ${loss(event.loss_nats)} at its step ${count(event.step)}`],
  sample: (event) => [
    `Sample at step ${count(event.step)}`,
    `${counted(event.tokens, "token")}: ${String(event.text).slice(0, 90)}`,
  ],
  members: (event) => [
    `Ranks ${(event.members ?? []).join(", ")} train from step ${count(event.step)} on`,
    [
      event.shares ? `in shares of ${event.shares.join(", ")}` : "",
      ...(event.lost ?? []).map((lost) => `without ${lost.rank}: ${lost.reason}`),
    ]
      .filter(Boolean)
      .join("; "),
  ],
  member_samples: (event) => [
    "Ranks seen",
    (event.ranks ?? []).map((rank) => `${rank.rank} ${rank.state}`).join(", "),
  ],
  device_sample: (event) => ["Machine measured", `${bytes(event.mem_used_bytes)} in use`],
  checkpoint_committed: (event) => [
    `Checkpoint ${event.name}${event.best ? ", the best so far" : ""}`,
    `${bytes(event.bytes)}${event.commit_ms ? `, ${milliseconds(event.commit_ms)}` : ""}`,
  ],
  control_applied: (event) => [
    `Request carried out: ${event.action}`,
    event.id === "signal" ? "asked by a signal" : event.id === "memory" ? "because memory ran short" : "",
  ],
  warning: (event) => [event.message, event.step ? `at step ${count(event.step)}` : ""],
  run_finished: (event) => [`Attempt ${event.attempt} ended: ${event.outcome}`, event.reason ?? ""],
  fp8_loss: (event) => [`fp8 against bf16: ${loss(event.fp8_nats)} and ${loss(event.bf16_nats)}`],
};

const NOISE = ["step", "progress", "device_sample", "member_samples"];
const KINDS = [
  { value: "news", text: "What matters" },
  { value: "warning", text: "Warnings" },
  { value: "all", text: "Everything" },
];

/** The events that a page has seen, and, where the stream began later, what the summary still knows of before. */
export function Events({ events, view }) {
  const [kind, setKind] = useState("news");
  const [limit, setLimit] = useState(100);
  const first = events.find((event) => event.time_us)?.time_us ?? Infinity;
  const all = [...remembered(view).filter((event) => event.time_us < first), ...events];
  const shown = all.filter((event) =>
    kind === "all" ? true : kind === "warning" ? event.kind === "warning" : !NOISE.includes(event.kind),
  );
  if (!all.length)
    return html`<${Empty} icon="runs" title="No events yet">The trainer writes the first one as soon as it starts.<//>`;
  return html`
    <div class="filters"><${Chips} label="Events" choices=${KINDS} value=${kind} onPick=${setKind} /><span class="faint small">${counted(shown.length, "event")}, newest first</span></div>
    ${
      shown.length === 0
        ? html`<p class="soft">There were no warnings.</p>`
        : html`<ol class="events" aria-label="Events" reversed>
      ${shown
        .slice(-limit)
        .reverse()
        .map((event) => {
          const [what, more] = SENTENCES[event.kind]?.(event) ?? [event.kind, ""];
          const end = event.kind === "run_finished" && event.outcome === "failed";
          return html`<li key=${`${event.attempt}.${event.seq ?? event.time_us}`} class=${event.kind === "warning" ? "is-warning" : end ? "is-bad" : ""}>
          <time title=${moment(event.time_us)}>${clock(event.time_us)}</time><i class=${`mark ${event.kind}`}></i><div><span>${what}</span>${more && html` <span class="soft">${more}</span>`}</div></li>`;
        })}</ol>
      ${shown.length > limit && html`<p class="more"><button class="button" onClick=${() => setLimit(limit * 4)}>Earlier events</button></p>`}`
    }`;
}

/** Events as far as the summary keeps them: starts of attempts, and warnings. */
function remembered(view) {
  const attempts = (view.attempts ?? []).flatMap(({ number, started_us, started }) => [
    { ...started, kind: "run_started", attempt: number, time_us: started_us },
  ]);
  const warnings = (view.warnings ?? []).map((warning) => ({ ...warning, kind: "warning" }));
  return [...attempts, ...warnings].sort((a, b) => a.time_us - b.time_us);
}
