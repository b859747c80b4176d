// What if: change any setting and see at once what the plan makes of it, in memory, time and reasons.
import { call } from "../api.js";
import { confirm, tell } from "../parts/dialog.js";
import { html, useMemo, useState } from "../parts/dom.js";
import { useRead } from "../parts/load.js";
import { Chips, Empty, Head, Loading, ProblemNote, Search } from "../parts/page.js";
import { Memory, Packs, Problems, Summary, Time, given, usePlan } from "../parts/planning.js";
import { Spoken, TaskProgress } from "../parts/progress.js";
import { SettingField, SettingsTable, grouped } from "../parts/settings.js";
import { remembered } from "../parts/store.js";

const SHOWN = [
  { value: "essential", text: "Essential" },
  { value: "all", text: "All settings" },
  { value: "set", text: "Changed" },
  { value: "explain", text: "Every value with its reason" },
];
/** Settings that this page asks for at its head, or that belong to the server. */
const ASKED = ["model", "data", "preset", "runs-dir", "name", "eval-data", "from"];

export default function Plan({ query }) {
  const catalog = useRead("GET /api/v1/catalog");
  const datasets = useRead("GET /api/v1/datasets");
  const settings = useRead("GET /api/v1/settings");
  const presets = useRead("GET /api/v1/presets");
  const [answers, setAnswers] = useState(() => ({
    ...remembered.get("plan", {}),
    ...(query.model ? { model: query.model } : {}),
    ...(query.data ? { data: [query.data] } : {}),
  }));
  const [preset, setPreset] = useState("");
  const [shown, setShown] = useState("essential");
  const [search, setSearch] = useState("");
  const { plan, task, busy, problem } = usePlan(answers, preset);
  const set = (name, value) => {
    const next = given({ ...answers, [name]: value });
    setAnswers(next);
    remembered.set("plan", next);
  };
  const planned = useMemo(
    () => new Map((plan?.settings ?? []).map((setting) => [setting.name, setting])),
    [plan],
  );
  const troubles = new Map(
    (plan?.problems ?? []).filter((each) => each.setting).map((each) => [each.setting, each]),
  );
  const rows = (settings.data?.items ?? []).filter(
    (row) =>
      row.type !== "path" &&
      !ASKED.includes(row.name) &&
      (search
        ? `${row.name} ${row.decides}`.toLowerCase().includes(search.toLowerCase())
        : shown === "all" ||
          (shown === "set" ? answers[row.name] : row.page === "essential" || answers[row.name])),
  );
  const save = () => savePreset(answers, presets.again);
  const changed = Object.keys(answers).filter((name) => !ASKED.includes(name));
  const models = catalog.data?.items ?? [];
  return html`
    <${Head} title="Plan" about="Nothing is started or downloaded here. Each value comes with its reason, and each change shows at once what it costs.">
      ${changed.length > 0 && html`<button class="button quiet" onClick=${() => setAnswers(given({ model: answers.model, data: answers.data }))}>Undo ${changed.length} ${changed.length === 1 ? "change" : "changes"}</button>`}
      ${changed.length > 0 && html`<button class="button" onClick=${save}>Save as preset</button>`}
      <a class="button main" href="#/new?plan=1" onClick=${() => remembered.set("new", { answers, preset })} data-test="start-from-plan">Start a run</a>
    <//>
    <div class="plan-ask card">
      <div class="field"><label for="plan-model">Model</label>
        <input id="plan-model" class="input" list="plan-models" placeholder="organisation/name" autocomplete="off" spellcheck=${false} value=${answers.model ?? ""} onInput=${(event) => set("model", event.target.value)} data-test="plan-model" />
        <datalist id="plan-models">${models.map((model) => html`<option key=${model.id} value=${model.id} />`)}</datalist></div>
      <div class="field"><label for="plan-data">Data</label>
        <select id="plan-data" class="select" value=${answers.data?.[0] ?? ""} onChange=${(event) => set("data", event.target.value ? [event.target.value] : [])} data-test="plan-data">
          <option value="">typical data, assumed</option>${(datasets.data?.items ?? []).map((item) => html`<option key=${item.id} value=${item.id}>${item.name} (${item.folder})</option>`)}</select></div>
      <div class="field"><label for="plan-preset">Preset</label>
        <select id="plan-preset" class="select" value=${preset} onChange=${(event) => setPreset(event.target.value)}>
          <option value="">the built-in rules</option>${(presets.data?.items ?? []).map((item) => html`<option key=${item.name} value=${item.name}>${item.label ?? item.name}</option>`)}</select></div>
    </div>
    <${ProblemNote} problem=${problem ?? settings.problem} />
    <${Problems} problems=${plan?.problems} />
    <${TaskProgress} task=${task} title="Reading the data" />
    <${Spoken} text=${plan && !busy ? (plan.summary ?? []).map((row) => `${row.label} ${row.value}`).join(", ") : ""} ms=${4000} />
    ${
      !answers.model
        ? html`<${Empty} icon="plan" title="Which model?" actions=${models.slice(0, 4).map((model) => html`<button class="button" key=${model.id} onClick=${() => set("model", model.id)}>${model.id}</button>`)}>
        Type the id of a model, or choose one from the catalog. Its configuration is enough for a plan; weights are not downloaded.<//>`
        : html`
      <div class=${`plan ${busy ? "busy" : ""}`} aria-busy=${busy}>
        <div class="stack">
          <div class="filters"><${Chips} label="Settings" choices=${SHOWN} value=${shown} onPick=${setShown} />${shown !== "explain" && html`<${Search} label="Search settings" value=${search} onInput=${setSearch} />`}</div>
          ${
            shown === "explain"
              ? html`<${SettingsTable} settings=${plan?.settings ?? []} />`
              : !settings.data
                ? html`<${Loading} what="Reading the settings" />`
                : rows.length === 0
                  ? html`<p class="soft">${shown === "set" && !search ? "Nothing is changed: every value is the recommended one." : "No setting matches."}</p>`
                  : grouped(rows).map(
                      ([
                        heading,
                        group,
                      ]) => html`<section class="card settings" key=${heading}><h2>${heading}</h2><div class="setting-grid">
                ${group.map((row) => html`<${SettingField} key=${row.name} row=${row} planned=${planned.get(row.name)} typed=${answers[row.name]} problem=${troubles.get(row.name)} onType=${(value) => set(row.name, value)} />`)}</div></section>`,
                    )
          }
        </div>
        <aside class="stack plan-side" aria-label="What the plan needs">
          ${
            plan
              ? html`<section class="card"><h2>The plan</h2><${Summary} summary=${plan.summary} /></section><${Memory} memory=${plan.memory} /><${Time} eta=${plan.eta} />
            <${Packs} curve=${plan.curve} chosen=${planned.get("pack-length")?.value ?? planned.get("pack.length")?.value} />`
              : !problem && html`<${Loading} what="Planning" />`
          }
        </aside>
      </div>`
    }`;
}

/** Asks for a name and saves the changed settings as a preset. */
function savePreset(answers, again) {
  const named = { name: "" };
  const changed = Object.fromEntries(Object.entries(answers).filter(([name]) => !ASKED.includes(name)));
  return confirm({
    title: "Save these settings",
    button: "Save",
    text: "The changed settings, without model and data, can be chosen by this name here, in the wizard and with --preset.",
    body: html`<div class="field">
      <label for="preset-name">Name</label>
      <input id="preset-name" class="input" autocomplete="off" onInput=${(event) => (named.name = event.target.value.trim())} />
    </div>`,
    act: async () => {
      await call("PUT /api/v1/presets/{name}", { params: { name: named.name }, body: { answers: changed } });
      tell({ kind: "good", title: "Saved", text: `The preset ${named.name} can now be chosen.` });
      again();
    },
  });
}
