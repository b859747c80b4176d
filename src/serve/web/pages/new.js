// A new run, one question at a time, as the terminal's wizard asks: machine, model, data, plan, start.
import { work } from "../api.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { useRead } from "../parts/load.js";
import { Action, Head, Loading, Note, ProblemNote } from "../parts/page.js";
import { Memory, Problems, Summary, Time, given, usePlan } from "../parts/planning.js";
import { Spoken, TaskProgress } from "../parts/progress.js";
import { SettingField, grouped } from "../parts/settings.js";
import { remembered } from "../parts/store.js";
import { useTask } from "../parts/task.js";
import { href } from "../routes.js";
import { DataStep, ModelStep } from "./new-steps.js";

const STEPS = [
  { id: "machine", title: "Machine", question: "Is this machine ready?" },
  { id: "model", title: "Model", question: "Which model do you want to fine-tune?" },
  { id: "data", title: "Data", question: "Which data do you want to train on?" },
  { id: "plan", title: "Plan", question: "Training plan" },
  { id: "start", title: "Start", question: "Review and start" },
];

export default function NewRun({ query }) {
  const kept = query.plan ? remembered.get("new", {}) : {};
  const [answers, setAnswers] = useState(() => ({
    ...kept.answers,
    ...(query.model ? { model: query.model } : {}),
    ...(query.data ? { data: [query.data] } : {}),
  }));
  const [preset, setPreset] = useState(kept.preset ?? "");
  const [at, setAt] = useState(() =>
    query.plan ? 4 : query.data && query.model ? 3 : query.data || query.model ? 1 : 0,
  );
  const planning = usePlan(answers, preset);
  const set = (name, value) => setAnswers((before) => given({ ...before, [name]: value }));
  const done = {
    machine: true,
    model: Boolean(answers.model),
    data: Boolean(answers.data?.length),
    plan: Boolean(planning.plan) && !planning.plan.problems?.length,
    start: false,
  };
  // A step is open when everything before it is answered.
  const open = (step) => STEPS.slice(0, step).every(({ id }) => done[id]);
  const step = STEPS[at];
  const go = (next) => open(next) && setAt(next);
  const back = html`<button type="button" class="button" onClick=${() => setAt(at - 1)}>Back</button>`;
  const props = { answers, set, planning, preset, setPreset, back };
  return html`
    <${Head} title=${step.question} name="New run" crumb=${{ href: "#/runs", text: "New run" }} />
    <ol class="steps" aria-label="Questions">${STEPS.map(
      (
        { id, title },
        number,
      ) => html`<li key=${id}><button type="button" aria-current=${number === at ? "step" : undefined} disabled=${!open(number)}
      class=${number < at && done[id] ? "done" : ""} onClick=${() => go(number)} data-test=${`step-${id}`}><i>${number < at && done[id] ? "✓" : number + 1}</i><span>${title}</span></button></li>`,
    )}</ol>
    ${step.id === "machine" && html`<${MachineStep} ...${props} />`}
    ${step.id === "model" && html`<${ModelStep} ...${props} />`}
    ${step.id === "data" && html`<${DataStep} ...${props} />`}
    ${step.id === "plan" && html`<${PlanStep} ...${props} />`}
    ${step.id === "start" && html`<${StartStep} ...${props} />`}
    ${
      at < 4 &&
      html`<div class="step-foot">
        ${at > 0 && back}
        <button
          type="button"
          class="button main"
          disabled=${!open(at + 1)}
          onClick=${() => go(at + 1)}
          data-test="next"
        >Continue</button>
      </div>`
    }`;
}

const MARKS = {
  good: ["✓", "good"],
  note: ["i", "live"],
  problem: ["!", "warn"],
  refused: ["×", "bad"],
  unknown: ["?", "soft"],
  skipped: ["–", "soft"],
};

function MachineStep() {
  const { data, problem, again } = useRead("GET /api/v1/machine");
  const [deep, setDeep] = useState(null);
  const [task, setTask] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const examine = async () => {
    setTrouble(null);
    const result = await work("POST /api/v1/doctor", { body: {}, onUpdate: setTask }).finally(() =>
      setTask(null),
    );
    setDeep(result.findings ?? result);
  };
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Looking at the machine" />`;
  const findings = deep ?? data.findings ?? [];
  return html`<div class="stack">
    <ul class="findings" data-test="findings">
      ${findings.map((finding) => {
        const [mark, kind] = MARKS[finding.severity] ?? MARKS.unknown;
        return html`<li>
          <i class=${`verdict ${kind}`} role="img" aria-label=${finding.severity}>${mark}</i>
          <div>
            <span class="soft">${finding.what}</span> ${finding.found}
            ${[finding.advice]
              .flat()
              .filter(Boolean)
              .map((advice) => html`<div class="soft small">${advice}</div>`)}
          </div>
        </li>`;
      })}
    </ul>
    <${ProblemNote} problem=${trouble} />
    <${TaskProgress} task=${task} title="Examining the machine" />
    ${
      !deep &&
      html`<div>
        <${Action} onClick=${examine} onProblem=${setTrouble} data-test="doctor">Examine it thoroughly<//>
        <span class="faint small"> tries the GPU and trains a tiny model; about half a minute</span>
      </div>`
    }
  </div>`;
}

function PlanStep({ answers, set, planning, preset, setPreset }) {
  const settings = useRead("GET /api/v1/settings");
  const presets = useRead("GET /api/v1/presets");
  const { plan, task, busy, problem } = planning;
  const planned = new Map((plan?.settings ?? []).map((setting) => [setting.name, setting]));
  const troubles = new Map(
    (plan?.problems ?? []).filter((each) => each.setting).map((each) => [each.setting, each]),
  );
  const rows = (settings.data?.items ?? []).filter(
    (row) =>
      // What keeps the run from starting can be changed here, whichever setting it is.
      (row.page === "essential" || troubles.has(row.name)) &&
      row.type !== "path" &&
      !["model", "data", "preset"].includes(row.name),
  );
  return html`<div class="stack">
    <${ProblemNote} problem=${problem ?? settings.problem} />
    <${Problems} problems=${plan?.problems} />
    <${TaskProgress} task=${task} title="Reading the data" />
    <${Spoken} text=${plan && !busy ? (plan.summary ?? []).map((row) => `${row.label} ${row.value}`).join(", ") : ""} ms=${4000} />
    <div class=${`plan ${busy ? "busy" : ""}`} aria-busy=${busy}>
      <div class="stack">
        <div class="field preset-pick"><label for="preset">Preset</label><select id="preset" class="select" value=${preset} onChange=${(event) => setPreset(event.target.value)}>
          <option value="">the built-in rules</option>${(presets.data?.items ?? []).map((item) => html`<option key=${item.name} value=${item.name}>${item.label ?? item.name}</option>`)}</select></div>
        ${
          !settings.data
            ? html`<${Loading} />`
            : grouped(rows).map(
                ([
                  heading,
                  group,
                ]) => html`<section class="card settings" key=${heading}><h2>${heading}</h2><div class="setting-grid">
          ${group.map((row) => html`<${SettingField} key=${row.name} row=${row} planned=${planned.get(row.name)} typed=${answers[row.name]} problem=${troubles.get(row.name)} onType=${(value) => set(row.name, value)} />`)}</div></section>`,
              )
        }
        <p class="faint small">An empty field keeps the recommendation. All other settings are on the page <a href="#/plan" onClick=${() => remembered.set("plan", answers)}>Plan</a>.</p>
      </div>
      <aside class="stack plan-side">${plan ? html`<${Memory} memory=${plan.memory} /><${Time} eta=${plan.eta} />` : !problem && html`<${Loading} what="Planning" />`}</aside>
    </div></div>`;
}

function StartStep({ answers, set, planning, preset, back }) {
  const [trouble, setTrouble] = useState(null);
  const { plan, busy, problem } = planning;
  const { task, start } = useTask("start", {
    onDone: (result) => (location.hash = href(["runs", result.run])),
    onProblem: setTrouble,
  });
  const train = () => {
    setTrouble(null);
    return start("POST /api/v1/runs", { answers: given(answers), preset: preset || undefined });
  };
  useEffect(() => {
    document.querySelector("[data-test=start]")?.focus();
  }, [Boolean(plan)]);
  const stopped = Boolean(plan?.problems?.length);
  return html`<div class="stack">
    <${ProblemNote} problem=${trouble ?? problem} />
    <${Problems} problems=${plan?.problems} />
    <div class="plan"><section class="card"><h2>The run</h2>${plan ? html`<${Summary} summary=${plan.summary} />` : html`<${Loading} what="Planning" />`}
        <div class="field run-name-field"><label for="run-name">Name of the run</label><input id="run-name" class="input" placeholder="made of date, model and method" autocomplete="off" value=${answers.name ?? ""} onInput=${(event) => set("name", event.target.value)} /></div></section>
      <aside class="stack plan-side">${plan && html`<${Memory} memory=${plan.memory} /><${Time} eta=${plan.eta} />`}</aside></div>
    <${TaskProgress} task=${task} title="Starting" />
    ${!task && html`<${Note} title="What happens now:">weights that are missing are downloaded, the trainer starts as a process of its own, and this page shows it. It keeps running when this page or the server is closed.<//>`}
    <div class="step-foot">
      ${back}
      <${Action}
        kind="main"
        disabled=${!plan || busy || stopped || Boolean(task)}
        onClick=${train}
        onProblem=${setTrouble}
        data-test="start"
      >Start training<//>
    </div>
  </div>`;
}
