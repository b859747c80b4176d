// The patches of an edited model: what each is, how well it held, a switch, and how to take it back.
import { address, call } from "../api.js";
import { confirm } from "../parts/dialog.js";
import { html, useState } from "../parts/dom.js";
import { counted } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useRead } from "../parts/load.js";
import { Action, Loading, ProblemNote } from "../parts/page.js";
import { Scores, inLayers, inShort } from "./knowledge-scores.js";
import { Try } from "./knowledge-try.js";

const CHANGE = "POST /api/v1/knowledge/models/{id}/patches";

export function Patches({ id, busy, onChange, onDeleted }) {
  const { data, problem, again } = useRead("GET /api/v1/knowledge/models/{id}", { params: { id } }, [id]);
  const [trouble, setTrouble] = useState(null);
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Reading the patches" />`;
  const act = (patch, action) => onChange(CHANGE, { patch, action });
  const remove = (patch) =>
    confirm({
      title: `Take ${patch.name} away?`,
      button: "Take it away",
      text: "The other patches are computed anew from the base, as if this one had never been added. Undo brings it back.",
      act: async () => act(patch.name, "remove"),
    });
  const forget = () =>
    confirm({
      title: `Delete ${data.name}?`,
      danger: true,
      button: "Delete",
      text: "The edited model and its patches are deleted. Its base stays as it is.",
      act: async () => {
        await call("DELETE /api/v1/knowledge/models/{id}", { params: { id } });
        onDeleted();
      },
    });
  return html`<div class="stack k-after">
    <${ProblemNote} problem=${trouble} />
    ${
      data.patches.length === 0
        ? html`<p class="soft">No patches: it is the same as its base <bdi>${data.base}</bdi>.</p>`
        : html`<ol class="k-patches" aria-label="Patches, the first one first">${data.patches.map(
            (patch) => html`<li key=${patch.id} data-test="k-patch"><${Patch} id=${id} patch=${patch} canChange=${data.can_be_changed} busy=${busy} onRemove=${() => remove(patch)} onSwitch=${(on) => act(patch.name, on ? "enable" : "disable")} onProblem=${setTrouble} /></li>`,
          )}</ol>`
    }
    ${
      data.can_be_changed
        ? html`<div class="actions k-tools">
        <${Action} kind="small" icon="undo" disabled=${busy || !data.undo} onClick=${() => onChange("POST /api/v1/knowledge/models/{id}/undo")} onProblem=${setTrouble} data-test="k-undo">${data.undo ? `Undo: ${data.undo}` : "Nothing to undo"}<//>
        <button type="button" class="button small quiet" disabled=${busy} onClick=${forget} data-test="k-delete">Delete the model</button></div>`
        : html`<p class="soft small">This is one of your own folders, which this page does not change: use sparktune edit, or keep an edit on top of it as a new model.</p>`
    }
    <${Try} without=${data.base_id && { id: data.base_id, name: "without the patches" }} edited=${{ id, name: "with the patches" }} first=${data.patches[0]?.facts?.[0]?.prompt} />
  </div>`;
}

function Patch({ id, patch, canChange, busy, onRemove, onSwitch, onProblem }) {
  const facts = patch.facts ?? [];
  const more = (patch.facts_total ?? facts.length) - facts.length;
  return html`<div class="k-patch">
    <div class="k-patch-head"><b><bdi>${patch.name}</bdi></b>
      <span class="soft small">${counted(patch.facts_total ?? facts.length, "fact")} by ${patch.method} ${inLayers(patch.layers)}</span>
      ${patch.is_off && html`<span class="pill hollow">off</span>`}
      ${patch.is_displaced && html`<span class="pill warn">made on top of other patches</span>`}
      ${patch.overwritten_by && html`<span class="pill warn">overwritten by ${patch.overwritten_by}</span>`}
      ${
        canChange &&
        html`<div class="actions">
        <${Action} kind="small" disabled=${busy} onClick=${() => onSwitch(patch.is_off)} onProblem=${onProblem} aria-label=${`Switch ${patch.name} ${patch.is_off ? "on" : "off"}`}>${patch.is_off ? "Switch on" : "Switch off"}<//>
        <a class="button quiet small icon" href=${address("GET /api/v1/knowledge/models/{id}/patches/{patch}", { id, patch: patch.name }).url} download aria-label=${`Download ${patch.name}`} title="Download"><${Icon} name="export" size=${14} /></a>
        <button type="button" class="button quiet small icon" disabled=${busy} aria-label=${`Take ${patch.name} away`} onClick=${onRemove} data-test="k-remove"><${Icon} name="trash" size=${14} /></button></div>`
      }</div>
    <p class="soft small">${inShort(patch.scores)}</p>
    <details class="k-more"><summary>Facts and scores</summary>
      <ul class="k-list">${facts.map(
        (fact, at) => html`<li key=${at} class="anywhere"><bdi>${fact.prompt}</bdi> → <b><bdi>${fact.target}</bdi></b>${fact.subject && html` <span class="faint small">about <bdi>${fact.subject}</bdi></span>`}</li>`,
      )}</ul>
      ${more > 0 && html`<p class="faint small">and ${counted(more, "more fact")}</p>`}
      <${Scores} scores=${patch.scores} /></details>
  </div>`;
}
