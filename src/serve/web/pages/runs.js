// All runs, newest first, as they go on. Several can be picked and laid over each other.
import { call } from "../api.js";
import { html, useCallback, useEffect, useState } from "../parts/dom.js";
import { ago, count, duration, loss, moment, percent } from "../parts/format.js";
import { asProblem, useRead } from "../parts/load.js";
import { Chips, Empty, Head, Loading, ProblemNote, Search, joined } from "../parts/page.js";
import { Bar, Spoken } from "../parts/progress.js";
import { useShortcuts } from "../parts/shortcuts.js";
import { FILTERS, State, barKind, isLive } from "../parts/states.js";
import { href, keepQuery } from "../routes.js";

/** A list with a run at work is read every second, a quiet one every three. */
const every = (data) => (data?.items.some(isLive) ? 1000 : 3000);

/** The most runs of one answer. */
const MOST = 500;

/**
 * Reads this many parts of the list that are older than the run `before`, and the place where the next one begins.
 * `again` reads them once more.
 */
function useOlder(before, parts) {
  const [older, setOlder] = useState({ items: [], next: null, problem: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    const read = async () => {
      const items = [];
      let next = before;
      for (let part = 0; part < parts && next; part += 1) {
        const list = await call("GET /api/v1/runs", { query: { limit: MOST, before: next }, signal });
        items.push(...list.items);
        next = list.next;
      }
      setOlder({ items, next, problem: null });
    };
    read().catch((error) => signal.aborted || setOlder((now) => ({ ...now, problem: asProblem(error) })));
    return () => ending.abort();
  }, [before, parts, round]);
  const again = useCallback(() => setRound((n) => n + 1), []);
  return { ...older, again };
}

export default function Runs({ query }) {
  const [limit, setLimit] = useState(50);
  const [parts, setParts] = useState(0);
  const newest = useRead("GET /api/v1/runs", { query: { limit } }, [limit], every);
  const older = useOlder(newest.data?.next, parts);
  const { data: health } = useRead("GET /api/v1/health");
  const { data } = newest;
  const problem = newest.problem ?? older.problem;
  const again = () => {
    newest.again();
    older.again();
  };
  const [search, setSearch] = useState(query.search ?? "");
  const [filter, setFilter] = useState(query.state ?? "");
  const [picked, setPicked] = useState(() => new Set());
  const look = (next) => {
    setSearch(next);
    keepQuery({ search: next });
  };
  const only = (next) => {
    setFilter(next);
    keepQuery({ state: next });
  };
  const overlay = href("overlay", { ids: [...picked].join(",") });
  useShortcuts("Runs", [
    { keys: "n", about: "New run", act: () => (location.hash = "#/new") },
    { keys: "o", about: "Overlay the picked runs", act: () => picked.size > 1 && (location.hash = overlay) },
  ]);
  if (!data)
    return html`<${Head} title="Runs" />${problem ? html`<${ProblemNote} problem=${problem} again=${again} />` : html`<${Loading} what="Reading the runs" />`}`;
  const states = FILTERS.find(({ value }) => value === filter)?.of;
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const runs = [...data.items, ...older.items];
  const more = () => (limit < MOST ? setLimit(Math.min(limit * 4, MOST)) : setParts(parts + 1));
  const shown = runs.filter(
    (run) =>
      (!states || states.includes(run.state)) &&
      words.every((word) =>
        `${run.id} ${run.name} ${run.model} ${run.method} ${run.state}`.toLowerCase().includes(word),
      ),
  );
  const toggle = (id) => {
    const next = new Set(picked);
    if (!next.delete(id)) next.add(id);
    setPicked(next);
  };
  const live = data.items.filter(isLive);
  return html`
    <${Head} title="Runs" about=${`Every training run in ${health?.runs_dir ?? "the server's folder of runs"}. A run goes on whether or not somebody looks at it.`}>
      ${picked.size > 0 && html`<button class="button quiet" onClick=${() => setPicked(new Set())}>Clear ${picked.size}</button>`}
      ${picked.size > 1 && html`<a class="button" href=${overlay} data-test="overlay">Overlay ${picked.size} runs</a>`}
      <a class="button main" href="#/new" data-test="new-run">New run</a>
    <//>
    <${ProblemNote} problem=${problem?.status ? problem : null} again=${again} />
    <${Spoken} text=${live.length ? `${live.length} running: ${live.map((run) => `${run.name}, ${percent(run.progress)}`).join("; ")}` : "No run is being trained."} ms=${30000} />
    ${
      data.items.length === 0
        ? html`<${Empty} icon="runs" title="No runs yet" actions=${html`<a class="button main" href="#/new">Start a run</a>
        <a class="button" href="#/data">Look at your data</a>`}>
        A run trains a model on your data and writes everything into its own folder. Choose a model and data, accept or change the
        plan, and watch the loss fall here. In a terminal, ./run.sh --demo trains a tiny model in under a minute.<//>`
        : html`
      <div class="filters">
        <${Search} label="Search runs" value=${search} onInput=${look} />
        <${Chips} label="State" choices=${FILTERS} value=${filter} onPick=${only} />
        ${live.length > 0 && html`<span class="faint small">${live.length} running</span>`}
      </div>
      ${
        shown.length === 0
          ? html`<${Empty} icon="search" title="No run matches" actions=${html`<button class="button" onClick=${() => {
              look("");
              only("");
            }}>Show all runs</button>`}>Nothing has “${search || filter}” in its name, model, method or state.<//>`
          : html`
      <table class="table rows fold runs">
        <thead><tr><th class="pick"><span class="hidden-visually">Pick</span></th><th>Run</th><th>State</th><th class="wide">Progress</th><th class="right">Loss</th>
          <th class="right">Best held-out</th><th>Started</th></tr></thead>
        <tbody>${shown.map((run) => html`<${Row} key=${run.id} run=${run} picked=${picked.has(run.id)} toggle=${toggle} />`)}</tbody>
      </table>`
      }
      ${older.next && html`<p class="more"><button class="button" onClick=${more}>Older runs</button></p>`}`
    }`;
}

function Row({ run, picked, toggle }) {
  const at = run.steps_total
    ? `${count(run.step)} of ${count(run.steps_total)}`
    : run.step
      ? `step ${count(run.step)}`
      : "";
  const left =
    isLive(run) && run.eta_s !== null && run.eta_s !== undefined ? `${duration(run.eta_s)} left` : "";
  const rank = run.rank ? `rank ${count(run.rank)}` : "";
  const rate = run.learning_rate ? `learning rate ${run.learning_rate.toExponential()}` : "";
  const about = [run.id === run.name ? "" : run.id, run.model, run.method, rank, rate];
  return html`<tr class=${picked ? "picked" : ""} data-test="run-row" data-run=${run.id}>
    <td class="pick"><input type="checkbox" aria-label=${`Pick ${run.name}`} checked=${picked} onChange=${() => toggle(run.id)} /></td>
    <th class="run-name" scope="row"><a href=${href(["runs", run.id])}><bdi>${run.name}</bdi></a><div class="faint small anywhere">${joined(about)}</div></th>
    <td class="run-state"><${State} state=${run.state} /></td>
    <td class="wide whole"><${Bar} share=${run.progress ?? (run.steps_total ? run.step / run.steps_total : 0)} kind=${barKind(run.state)} label=${`Progress of ${run.name}`} />
      <div class="small soft run-steps"><span>${at}</span><span>${left}</span></div></td>
    <td class="right number" data-label="loss">${loss(run.loss_nats)}</td>
    <td class="right number" data-label="best held-out">${loss(run.best_eval_nats)}</td>
    <td class="number soft" title=${moment(run.started_us)} data-label="started">${ago(run.started_us)}</td>
  </tr>`;
}
