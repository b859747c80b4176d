// Knowledge put into weights: facts are written into a copy of a model, judged, tried beside the model as it was,
// kept or discarded; patches are switched and taken away. The server starts `sparktune edit` for all of it.
import { call } from "../api.js";
import { tell } from "../parts/dialog.js";
import { html, useEffect, useRef, useState } from "../parts/dom.js";
import { moment, sentence } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Empty, Head, Loading, ProblemNote } from "../parts/page.js";
import { TaskProgress } from "../parts/progress.js";
import { useTask } from "../parts/task.js";
import { keepQuery } from "../routes.js";
import { Draft } from "./knowledge-draft.js";
import { FactsForm } from "./knowledge-facts.js";
import { Measurements } from "./knowledge-measure.js";
import { Patches } from "./knowledge-patches.js";
import { Trace } from "./knowledge-trace.js";

const ABOUT =
  "Facts written straight into a model, without training. See what the model has learned and what else has changed, ask it with and without the edit, and take the edit back.";

export default function Knowledge({ query }) {
  const known = useRead("GET /api/v1/knowledge", {}, [], 10000);
  const [picked, setPicked] = useState(query.model ?? "");
  const [open, setOpen] = useState(query.edit ?? "");
  const [round, setRound] = useState(0);
  const [trouble, setTrouble] = useState(null);
  const [trace, setTrace] = useState(null);
  const [layers, setLayers] = useState("");
  const models = known.data?.models ?? [];
  const drafts = known.data?.drafts ?? [];
  const model = models.find((each) => each.id === picked) ?? models[0];
  const pick = (id) => {
    setPicked(id);
    setTrace(null);
    keepQuery({ model: id });
  };
  const look = (id) => {
    setOpen(id);
    keepQuery({ edit: id });
  };
  const changed = () => {
    known.again();
    setRound((before) => before + 1);
  };
  const edit = useTask("edit", {
    onDone: (result) => {
      look(result.edit);
      known.again();
    },
    onProblem: setTrouble,
  });
  const change = useTask("patch", {
    onDone: (result) => {
      const undone = result.undone ? `Undone: ${result.undone}.` : "The weights were computed anew from the base.";
      const displaced = result.displaced ?? [];
      const moved = displaced.length ? ` Made on top of other patches: ${displaced.join(", ")}.` : "";
      const note = result.note ? ` ${sentence(result.note)}.` : "";
      tell({ kind: "good", title: "Changed", text: undone + moved + note });
      look("");
      pick(result.model);
      changed();
    },
    onProblem: setTrouble,
  });
  const tracing = useTask("trace", { onDone: setTrace, onProblem: setTrouble });
  const measuring = useTask("measure-edits", { onDone: changed, onProblem: setTrouble });
  // A draft that was kept or discarded elsewhere is not there any more.
  useEffect(() => {
    if (open && known.data && !edit.task && !drafts.some((each) => each.id === open)) look("");
  }, [known.data]);
  // What went wrong is told at the top, which may be out of sight.
  const place = useRef(null);
  useEffect(() => {
    if (trouble) place.current?.scrollIntoView({ block: "center" });
  }, [trouble]);
  const begin = (work, ...request) => {
    setTrouble(null);
    return work.start(...request);
  };
  const busy = Boolean(edit.task || change.task);
  if (!known.data)
    return html`<${Head} title="Knowledge" about=${ABOUT} />
      ${known.problem ? html`<${ProblemNote} problem=${known.problem} again=${known.again} />` : html`<${Loading} what="Looking for models" />`}`;
  return html`
    <${Head} title="Knowledge" about=${ABOUT} />
    <div ref=${place} class="k-trouble"><${ProblemNote} problem=${trouble ?? (known.problem?.status ? known.problem : null)} /></div>
    <div class="stack">
      ${
        !model
          ? html`<${Empty} icon="knowledge" title="There is no model to edit yet" actions=${html`<a class="button main" href="#/new">Start a run</a>`}>
        Facts are written into whole weights: a downloaded model, a run with merged weights, or a folder that the server was started with.<//>`
          : html`
        <section class="card" aria-labelledby="k-model">
          <div class="card-head"><h2 id="k-model">Model</h2></div>
          <div class="field"><label for="k-pick">Write into</label>
            <select class="select" id="k-pick" data-test="k-model" value=${model.id} onChange=${(event) => pick(event.target.value)}>${models.map(
              (each) => html`<option key=${each.id} value=${each.id}>${`${each.name} (${kindOf(each)})`}</option>`,
            )}</select></div>
          ${
            model.kind === "edited"
              ? html`<${Patches} key=${`${model.id} ${round}`} id=${model.id} busy=${busy}
                onChange=${(endpoint, body) => begin(change, endpoint, body, { id: model.id })}
                onDeleted=${() => {
                  pick("");
                  changed();
                }} />`
              : html`<p class="soft small k-after">This model never changes: an edit that you keep is a new model beside it.</p>`
          }
        </section>
        <${FactsForm} busy=${busy} tracing=${Boolean(tracing.task)} measuring=${Boolean(measuring.task)} layers=${layers} setLayers=${setLayers}
          onEdit=${(body) => begin(edit, "POST /api/v1/knowledge/edits", { model: model.id, ...body })}
          onTrace=${(fact, chat) => begin(tracing, "POST /api/v1/knowledge/traces", { model: model.id, fact, chat })}
          onMeasure=${(body) => begin(measuring, "POST /api/v1/knowledge/measurements", { model: model.id, ...body })} onProblem=${setTrouble} />`
      }
      <${TaskProgress} task=${edit.task} title="Writing and judging" />
      <${TaskProgress} task=${tracing.task} title="Tracing" />
      <${TaskProgress} task=${measuring.task} title="Measuring" />
      <${TaskProgress} task=${change.task} title="Changing the model" />
      ${trace && html`<${Trace} trace=${trace} onLayer=${(layer) => setLayers(String(layer))} />`}
      ${drafts.length > 0 && html`<${Waiting} drafts=${drafts} open=${open} onPick=${look} />`}
      ${
        open &&
        drafts.some((each) => each.id === open) &&
        html`<${Draft} key=${open} id=${open} models=${models} busy=${busy}
          onKeep=${(name) => begin(change, "POST /api/v1/knowledge/edits/{id}/keep", name ? { name } : {}, { id: open })}
          onDiscard=${async () => {
            await call("DELETE /api/v1/knowledge/edits/{id}", { params: { id: open } });
            look("");
            known.again();
          }} />`
      }
      <${Measurements} round=${round} />
    </div>`;
}

const kindOf = (model) =>
  model.kind === "edited"
    ? `${model.patches.length === 1 ? "1 patch" : `${model.patches.length} patches`} on ${model.base}`
    : model.kind;

/** The edits that were tried and neither kept nor discarded. */
function Waiting({ drafts, open, onPick }) {
  return html`<section aria-labelledby="k-waiting"><h2 class="section-title" id="k-waiting">Edits that were tried</h2>
    <div class="chips" role="group" aria-label="Edits that were tried">${drafts.map(
      (draft) => html`<button type="button" key=${draft.id} class="chip" data-test="k-draft" aria-pressed=${draft.id === open}
      onClick=${() => onPick(draft.id === open ? "" : draft.id)}><bdi>${draft.model}</bdi>, ${moment(draft.created_us)}${draft.can_be_kept ? "" : ", refused"}</button>`,
    )}</div></section>`;
}
