// An edit that waits for a decision: conflicts, scores, answers before and after, a try, and keep or discard.
import { html, useState } from "../parts/dom.js";
import { count, counted, moment } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Action, Chips, Loading, Note, ProblemNote } from "../parts/page.js";
import { Scores, inLayers } from "./knowledge-scores.js";
import { Try } from "./knowledge-try.js";

/** The answers that are shown at first. */
const SHOWN = 20;

export function Draft({ id, models, busy, onKeep, onDiscard }) {
  const { data, problem, again } = useRead("GET /api/v1/knowledge/edits/{id}", { params: { id } }, [id]);
  const [trouble, setTrouble] = useState(null);
  const [name, setName] = useState(null);
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Reading the edit" />`;
  const { result } = data;
  const of = models.find((model) => model.id === data.model);
  const inPlace = Boolean(of?.can_be_changed) && name === null;
  const typed = name ?? `${data.model_name.replace(/[^\w.-]/g, "-")}-edited`.replace(/^[^a-zA-Z0-9]+/, "");
  const conflicts = result.conflicts ?? [];
  return html`<section class="stack" aria-label="The edit" data-test="k-edit-result">
    <div class="card"><div class="card-head"><h2>The edit</h2><span class="faint small">${[
      result.name && `patch ${result.name}`,
      result.facts && counted(result.facts, "fact"),
      result.method && `by ${result.method}`,
      result.layers && inLayers(result.layers),
      moment(data.created_us),
    ]
      .filter(Boolean)
      .join(", ")}</span></div>
      <div class="stack">
        ${result.refused && html`<${Note} kind="bad" title="Not kept.">${result.refused}. ${result.facts === 1 ? "Use" : "Edit fewer facts, use"} another method or layer, or write it again with the tick at “Keep the edit even if it damages the model”.<//>`}
        ${result.damage && html`<${Note} kind="warn" title="It damages the model.">It can be kept although ${result.damage}.<//>`}
        ${
          conflicts.length > 0 &&
          html`<div class="note warn" data-test="k-conflicts"><div><b>It may spoil what other patches do, or they what it does.</b><ul>${conflicts.map(
            (conflict, at) => html`<li key=${at} class="anywhere">${conflictWords(conflict)}</li>`,
          )}${result.conflicts_total > conflicts.length && html`<li>and ${count(result.conflicts_total - conflicts.length)} more</li>`}</ul></div></div>`
        }
        ${(result.displaced ?? []).length > 0 && html`<${Note} kind="warn">Made on top of other patches than those below them now: ${result.displaced.join(", ")}. Their scores may not hold here.<//>`}
        ${(result.scores || result.answers) && html`<${Scores} scores=${result.scores} />`}
        ${
          data.can_be_kept &&
          html`<div class="k-keep">
          ${
            inPlace
              ? html`<${Action} kind="main" disabled=${busy} onClick=${() => onKeep("")} onProblem=${setTrouble} data-test="k-keep">Keep it in ${of.name}<//>
            <button type="button" class="button" onClick=${() => setName(typed)}>Keep it as a new model …</button>`
              : html`<div class="field"><label for="k-keep-name">Name of the edited model</label><input class="input" id="k-keep-name" data-test="k-keep-name" value=${typed} onInput=${(event) => setName(event.target.value)} /></div>
            <${Action} kind="main" disabled=${busy || !typed} onClick=${() => onKeep(typed)} onProblem=${setTrouble} data-test="k-keep">Keep it<//>`
          }
          <${Action} disabled=${busy} onClick=${onDiscard} onProblem=${setTrouble} data-test="k-discard">Discard it<//></div>`
        }
        ${!data.can_be_kept && html`<div><${Action} onClick=${onDiscard} onProblem=${setTrouble} data-test="k-discard">Discard it<//></div>`}
        <${ProblemNote} problem=${trouble} />
      </div></div>
    ${data.can_be_kept && html`<${Try} key=${id} without=${{ id: data.model, name: data.model_name }} edited=${{ id: `draft:${id}`, name: "with the edit" }} first=${result.answers?.[0]?.prompt} />`}
    ${result.answers && html`<${Answers} answers=${result.answers} total=${result.answers_total} />`}
  </section>`;
}

/** A conflict in a sentence, as the terminal says it. */
function conflictWords(conflict) {
  const patch = html`<b>${conflict.patch}</b>`;
  if (conflict.kind === "same_prompt") return html`Patch ${patch} answers the same prompt in another way: <q><bdi>${conflict.prompt}</bdi></q>`;
  if (conflict.kind === "same_subject") return html`Patch ${patch} is about the same subject: <q><bdi>${conflict.subject}</bdi></q>`;
  const [one, other] = conflict.prompts ?? [];
  return html`The keys of <q><bdi>${one}</bdi></q> and of <q><bdi>${other}</bdi></q> in patch ${patch} are ${Math.round(conflict.degrees)} degrees apart in layer ${conflict.layer}.`;
}

const ONLY = [
  { value: "", text: "All" },
  { value: "failed", text: "Not as they should be" },
];

function Answers({ answers, total }) {
  const [only, setOnly] = useState("");
  const [limit, setLimit] = useState(SHOWN);
  const shown = answers.filter((answer) => !only || !answer.holds);
  return html`<section class="card" aria-labelledby="k-answers"><div class="card-head"><h2 id="k-answers">Answers before and after</h2>
      <div class="actions"><${Chips} label="Answers" choices=${ONLY} value=${only} onPick=${setOnly} /></div></div>
    ${
      shown.length === 0
        ? html`<p class="soft">All are as they should be.</p>`
        : html`<div class="scroll"><table class="table fold" data-test="k-answers"><thead><tr><th>Prompt</th><th>Before</th><th>After</th><th>As it should be</th></tr></thead><tbody>${shown
            .slice(0, limit)
            .map(
              (answer, at) => html`<tr key=${at}><th scope="row" class="anywhere whole"><bdi class="k-answer">${answer.prompt}</bdi><div class="faint small">${answer.aspect} of ${answer.fact === null ? "held-out text" : `fact ${answer.fact + 1}`}</div></th>
      <td class="anywhere whole" data-label="before"><bdi class="k-answer">${answer.before || "nothing"}</bdi></td><td class="anywhere whole" data-label="after"><bdi class="k-answer">${answer.after || "nothing"}</bdi></td><td><span class=${`pill ${answer.holds ? "good" : "bad"}`}>${answer.holds ? "yes" : "no"}</span></td></tr>`,
            )}</tbody></table></div>`
    }
    ${shown.length > limit && html`<p class="more"><button type="button" class="button" onClick=${() => setLimit(limit * 3)}>More answers</button></p>`}
    ${total > answers.length && html`<p class="faint small">The first ${count(answers.length)} of ${count(total)}; sparktune edit --json prints all.</p>`}
  </section>`;
}
