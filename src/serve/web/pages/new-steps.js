// The questions for model and data of a new run.
import { work } from "../api.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { Drop } from "../parts/drop.js";
import { ago, bytes, parameters } from "../parts/format.js";
import { asProblem, useRead } from "../parts/load.js";
import { Action, Facts, Loading, Note, ProblemNote } from "../parts/page.js";
import { TaskProgress } from "../parts/progress.js";
import { Report } from "../parts/report.js";

/** One of the catalog, or any other by its id. */
export function ModelStep({ answers, set }) {
  const { data, problem, again } = useRead("GET /api/v1/catalog");
  const [typed, setTyped] = useState(answers.model ?? "");
  const [facts, setFacts] = useState(null);
  const [task, setTask] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const items = data?.items ?? [];
  const chosen = items.find((item) => item.id === answers.model);
  const check = async () => {
    setTrouble(null);
    setFacts(null);
    const result = await work("POST /api/v1/models/check", {
      body: { model: typed.trim() },
      onUpdate: setTask,
    }).finally(() => setTask(null));
    setFacts(result);
    set("model", typed.trim());
  };
  const download = async () => {
    setTrouble(null);
    await work("POST /api/v1/fetches", { body: { model: answers.model }, onUpdate: setTask }).finally(() =>
      setTask(null),
    );
    again();
  };
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Reading the catalog" />`;
  return html`<div class="stack">
    <div class="options" role="radiogroup" aria-label="Models of the catalog">${items.map(
      (
        model,
      ) => html`<label key=${model.id} class=${`option ${answers.model === model.id ? "picked" : ""} ${model.fits === false ? "unfit" : ""}`} data-test="model-option">
      <input type="radio" name="model" checked=${answers.model === model.id} onChange=${() => {
        set("model", model.id);
        setTyped(model.id);
        setFacts(null);
      }} />
      <div><b>${model.id}</b> ${model.recommended && html`<span class="tag accent">recommended here</span>`} ${model.cached && html`<span class="tag">on this machine</span>`}
        <div class="soft small">${[parameters(model.parameters), `${bytes(model.weights_bytes)} of weights`, model.family].filter(Boolean).join(" · ")}</div>
        ${model.outlook && html`<div class=${model.fits === false ? "warn small" : "small"}>${model.outlook}</div>`}</div></label>`,
    )}</div>
    <section class="card"><h2>Another model</h2>
      <div class="inline"><label class="hidden-visually" for="other-model">Id of a model</label><input id="other-model" class="input" placeholder="organisation/name on the Hugging Face hub" spellcheck=${false} autocomplete="off" value=${typed}
        onInput=${(event) => setTyped(event.target.value)} /><${Action} disabled=${!typed.trim()} onClick=${check} onProblem=${setTrouble} data-test="check-model-id">Check it<//></div>
      <p class="faint small">Its config.json is checked before anything else is downloaded.</p>
      ${
        facts &&
        html`<${Facts} rows=${Object.entries(facts)
          .filter(([, value]) => ["string", "number"].includes(typeof value))
          .map(([name, value]) => [
            name.replaceAll("_", " "),
            name.endsWith("_bytes")
              ? bytes(value)
              : typeof value === "number"
                ? value.toLocaleString("en-US")
                : value,
          ])} />`
      }
    </section>
    <${ProblemNote} problem=${trouble} />
    <${TaskProgress} task=${task} title="Working" />
    ${chosen && chosen.cached === false && !task && html`<${Note} title="The weights are not on this machine.">They are downloaded when the run starts; you can also <button type="button" class="link" onClick=${() => download().catch((error) => setTrouble(asProblem(error)))}>download ${bytes(chosen.weights_bytes)} now</button>.<//>`}
  </div>`;
}

/** The share of rejected lines that accepts data which is refused for them alone, as the terminal's wizard rounds it. */
function limitThatAccepts(result) {
  const report = result?.report;
  if (!result?.refused || !report.rejected || !report.examples) return undefined;
  if (report.files.some((file) => file.refused)) return undefined;
  const share = report.rejected / Math.max(1, report.lines - (report.blank_lines ?? 0));
  return String(Math.ceil(share * 100) / 100);
}

/** One or several of the known data sets, a file that is uploaded now, or data elsewhere; each is checked. */
export function DataStep({ answers, set }) {
  const { data, problem, again } = useRead("GET /api/v1/datasets");
  const [result, setResult] = useState(null);
  const [task, setTask] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const [typed, setTyped] = useState("");
  const picked = answers.data ?? [];
  // What was accepted of other data says nothing of these.
  const pick = (ids) => {
    set("data", ids);
    set("max-rejected", undefined);
  };
  const toggle = (id) =>
    pick(picked.includes(id) ? picked.filter((each) => each !== id) : [...picked, id]);
  const shown = picked.at(-1);
  useEffect(() => {
    setResult(null);
    setTrouble(null);
    if (!shown) return undefined;
    const ending = new AbortController();
    work("POST /api/v1/datasets/{id}/check", {
      params: { id: shown },
      body: { model: answers.model },
      signal: ending.signal,
      onUpdate: setTask,
    })
      .then(setResult, (error) => !ending.signal.aborted && setTrouble(asProblem(error)))
      .finally(() => !ending.signal.aborted && setTask(null));
    return () => ending.abort();
  }, [shown, answers.model]);
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Reading the folders" />`;
  const known = new Set(data.items.map((item) => item.id));
  const elsewhere = picked.filter((id) => !known.has(id));
  const add = () => {
    const name = typed.trim();
    if (!picked.includes(name)) pick([...picked, name]);
    setTyped("");
  };
  const limit = limitThatAccepts(result);
  const accepted = limit && answers["max-rejected"] === limit;
  return html`<div class="stack">
    ${
      data.items.length > 0 &&
      html`<div class="options" role="group" aria-label="Data sets">${data.items.map(
        (
          item,
        ) => html`<label key=${item.id} class=${`option ${picked.includes(item.id) ? "picked" : ""}`} data-test="data-option">
      <input type="checkbox" checked=${picked.includes(item.id)} onChange=${() => toggle(item.id)} /><div class="anywhere"><b>${item.name}</b><div class="soft small">${bytes(item.bytes)} · ${item.folder} · ${ago(item.modified_us)}</div></div></label>`,
      )}</div>`
    }
    <${Drop} compact=${data.items.length > 0} onDone=${(item) => {
      again();
      pick([...picked, item.id]);
    }} />
    <section class="card"><h2>Data elsewhere</h2>
      ${elsewhere.length > 0 && html`<div class="options" role="group" aria-label="Data elsewhere">${elsewhere.map(
        (id) => html`<label key=${id} class="option picked" data-test="data-elsewhere">
      <input type="checkbox" checked=${true} onChange=${() => toggle(id)} /><div class="anywhere"><b>${id}</b></div></label>`,
      )}</div>`}
      <form class="inline" onSubmit=${(event) => {
        event.preventDefault();
        if (typed.trim()) add();
      }}><label class="hidden-visually" for="data-elsewhere">Name of a data set, or address of a token file</label>
        <input id="data-elsewhere" class="input" placeholder="ndp://HOST:PORT/NAME#KEY or hf:OWNER/NAME" spellcheck=${false} autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} />
        <button class="button" disabled=${!typed.trim()} data-test="add-elsewhere">Add it</button></form>
      <p class="faint small">A token file of another machine, by the address that <code>sparktune data serve</code> prints there, or a data set of the Hugging Face hub. The first needs that machine's token, which this server finds in <code>SPARKTUNE_NDP_TOKEN</code> or its file <code>ndp-token</code>.</p>
    </section>
    <${ProblemNote} problem=${trouble} />
    <${TaskProgress} task=${task} title="Checking" />
    ${limit && !accepted && html`<div><button type="button" class="button" onClick=${() => set("max-rejected", limit)} data-test="accept-the-rest">Leave the rejected lines out and train on the rest</button></div>`}
    ${result && html`<${Report} result=${accepted ? { ...result, refused: undefined } : result} />`}
  </div>`;
}
