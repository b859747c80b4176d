// Comparisons of models: start one, and the list of those that were made.
import { html, useState } from "../parts/dom.js";
import { ago, count, moment } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Action, Empty, Head, Loading, ProblemNote, joined } from "../parts/page.js";
import { TaskProgress } from "../parts/progress.js";
import { suiteName } from "../parts/suites.js";
import { useTask } from "../parts/task.js";
import { href } from "../routes.js";

/** What a run started from can be named through the run, even if it is no model of its own here. */
const BASE = "@base";

/** The models, and before them the bases of runs that an address asks for. */
function withBases(models, asked) {
  const bases = asked.flatMap((id) => {
    const run = id.endsWith(BASE) && models.find((model) => model.id === id.slice(0, -BASE.length));
    return run ? [{ id, name: run.base ?? "its base", kind: "base", base: run.name }] : [];
  });
  const first = models.filter((model) => asked.includes(model.id));
  return [...bases, ...first, ...models.filter((model) => !asked.includes(model.id))];
}

export default function Compare({ query }) {
  const models = useRead("GET /api/v1/models");
  const suites = useRead("GET /api/v1/suites");
  const made = useRead("GET /api/v1/comparisons", {}, [], 5000);
  const [picked, setPicked] = useState(() => (query.models ?? "").split(",").filter(Boolean));
  const [suite, setSuite] = useState("");
  const [most, setMost] = useState("");
  const [trouble, setTrouble] = useState(null);
  const { task, start } = useTask("comparison", {
    onDone: (result) => (location.hash = href(["compare", result.comparison])),
    onProblem: setTrouble,
  });
  const [asked] = useState(picked);
  const items = withBases(models.data?.items ?? [], asked);
  const known = suites.data?.items ?? [];
  const chosen = known.find((each) => each.name === suite) ?? known[0];
  const toggle = (id) =>
    setPicked(picked.includes(id) ? picked.filter((each) => each !== id) : [...picked, id]);
  const compare = () => {
    setTrouble(null);
    const body = { models: picked, suite: chosen.name, max_prompts: most ? Number(most) : undefined };
    return start("POST /api/v1/comparisons", body);
  };
  return html`
    <${Head} title="Compare" about="The same prompts to several models, each answer checked. A difference that may be chance is called noise.">
      <a class="button" href="#/arena">Blind arena</a>
    <//>
    <${ProblemNote} problem=${trouble ?? models.problem ?? suites.problem} />
    <div class="stack">
      ${
        !models.data
          ? !models.problem && html`<${Loading} what="Looking for models" />`
          : items.length === 0
            ? html`<${Empty} icon="compare" title="There is nothing to compare yet" actions=${html`<a class="button main" href="#/new">Start a run</a>`}>
        A finished run can be compared with its base model. Models that are downloaded appear here too.<//>`
            : html`<section class="card">
        <div class="card-head"><h2>New comparison</h2></div>
        <div class="compare-new">
          <fieldset class="plain"><legend class="label">Models</legend><div class="options tight">${items.map(
            (
              model,
            ) => html`<label key=${model.id} class=${`option ${picked.includes(model.id) ? "picked" : ""}`} data-test="compare-model">
            <input type="checkbox" checked=${picked.includes(model.id)} onChange=${() => toggle(model.id)} /><div class="anywhere"><b><bdi>${model.name}</bdi></b> <span class="faint small">${[model.kind, model.base && `of ${model.base}`].filter(Boolean).join(" ")}</span></div></label>`,
          )}</div></fieldset>
          <div class="stack">
            <div class="field"><label for="suite">Prompts</label><select id="suite" class="select" value=${chosen?.name ?? ""} data-test="suite" onChange=${(event) => setSuite(event.target.value)}>
              ${known.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}${each.prompts ? ` (${count(each.prompts)})` : ""}</option>`)}</select>
              ${chosen?.about && html`<span class="hint">${chosen.about}</span>`}</div>
            <div class="field"><label for="most">At most</label><input id="most" class="input" type="number" min="1" placeholder="all prompts" value=${most} onInput=${(event) => setMost(event.target.value)} /></div>
            <div><${Action} kind="main" disabled=${!picked.length || !chosen || Boolean(task)} onClick=${compare} onProblem=${setTrouble} data-test="start-comparison">${picked.length > 1 ? `Compare ${picked.length} models` : picked.length === 1 ? "Check one model" : "Choose models"}<//></div>
          </div>
        </div></section>`
      }
      <${TaskProgress} task=${task} title="Comparing" />
      ${
        (made.data?.items ?? []).length > 0 &&
        html`<section><h2 class="section-title">Earlier comparisons</h2><table class="table rows fold"><thead><tr><th>Comparison</th><th>Models</th><th class="right">Prompts</th><th>Made</th></tr></thead>
        <tbody>${made.data.items.map(
          (
            each,
          ) => html`<tr key=${each.id} data-test="comparison-row"><th scope="row"><a href=${href(["compare", each.id])}>${suiteName(each.suite)}</a></th>
          <td class="soft anywhere whole">${joined((each.models ?? []).map((model) => model.name ?? model))}</td><td class="right number" data-label="prompts">${count(typeof each.prompts === "number" ? each.prompts : each.prompts?.length)}</td>
          <td class="soft number" title=${moment(each.created_us)}>${ago(each.created_us)}</td></tr>`,
        )}</tbody></table></section>`
      }
      ${made.data && made.data.items.length === 0 && items.length > 0 && html`<p class="soft">No comparison has been made yet. Choose two models, for example a run and its base.</p>`}
    </div>`;
}
