// The blind arena: two answers to the same prompt, without names. The vote is kept, and only then the names are shown.
import { call } from "../api.js";
import { html, useEffect, useState } from "../parts/dom.js";
import { count, counted, percent } from "../parts/format.js";
import { asProblem, useRead } from "../parts/load.js";
import { Action, Empty, Head, Loading, ProblemNote } from "../parts/page.js";
import { Markdown } from "../parts/markdown.js";
import { useShortcuts } from "../parts/shortcuts.js";
import { promptText, suiteName } from "../parts/suites.js";
import { href, keepQuery } from "../routes.js";

const VOTES = [
  { winner: "left", text: "Left is better", keys: "1" },
  { winner: "tie", text: "Equally good", keys: "2" },
  { winner: "bad", text: "Both bad", keys: "3" },
  { winner: "right", text: "Right is better", keys: "4" },
];

export default function Arena({ query }) {
  const list = useRead("GET /api/v1/comparisons");
  const usable = (list.data?.items ?? []).filter((each) => (each.models ?? []).length > 1);
  const [picked, setPicked] = useState(query.id ?? "");
  const id = picked || usable[0]?.id;
  const pick = (next) => {
    setPicked(next);
    keepQuery({ id: next });
  };
  const head = html`<${Head} title="Blind arena" about="Which answer is better? The names stay hidden until you have voted, and the side of each model is drawn at random every time.">
    ${usable.length > 0 && html`<select class="select model-pick" aria-label="Comparison" value=${id} onChange=${(event) => pick(event.target.value)}>${usable.map((each) => html`<option key=${each.id} value=${each.id}>${suiteName(each.suite)}: ${each.models.map((model) => model.name ?? model).join(", ")}</option>`)}</select>`}<//>`;
  if (!list.data)
    return html`${head}${list.problem ? html`<${ProblemNote} problem=${list.problem} again=${list.again} />` : html`<${Loading} />`}`;
  if (!id)
    return html`${head}<${Empty} icon="arena" title="No answers to judge yet" actions=${html`<a class="button main" href="#/compare">Compare models</a>`}>The arena shows the answers of a comparison of two or more models. Make one first.<//>`;
  return html`${head}<${Ring} key=${id} id=${id} />`;
}

function Ring({ id }) {
  const params = { id };
  const [state, setState] = useState({ blind: null, revealed: null, problem: null });
  const tally = useRead("GET /api/v1/comparisons/{id}/votes", { params }, [id]);
  const next = () =>
    call("GET /api/v1/comparisons/{id}/blind", { params }).then(
      (blind) => setState({ blind, revealed: null, problem: null }),
      (error) => setState((before) => ({ ...before, problem: asProblem(error) })),
    );
  useEffect(() => {
    next();
  }, [id]);
  const { blind, revealed, problem } = state;
  const pair = blind?.pair;
  const vote = async (winner) => {
    if (!pair || revealed) return;
    try {
      const names = await call("POST /api/v1/comparisons/{id}/votes", {
        params,
        body: { prompt: pair.prompt, left: pair.left.token, right: pair.right.token, winner },
      });
      setState((before) => ({ ...before, revealed: { ...names, winner } }));
      tally.again();
    } catch (error) {
      setState((before) => ({ ...before, problem: asProblem(error) }));
    }
  };
  useShortcuts("Arena", [
    ...VOTES.map((each) => ({ keys: each.keys, about: each.text, act: () => vote(each.winner) })),
    { keys: "n", about: "Next pair", act: next },
  ]);
  if (!blind)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${next} />`
      : html`<${Loading} what="Drawing two answers" />`;
  return html`<div class="stack arena">
    <${ProblemNote} problem=${problem} />
    ${
      !pair
        ? html`<${Empty} icon="check" title="Every pair has been judged" actions=${html`<a class="button" href=${href(["compare", id])}>See the comparison</a>`}>Thank you. ${counted(blind.votes, "vote")} so far; the tally is below.<//>`
        : html`
      <section class="card prompt"><h2>Prompt</h2><div class="text">${promptText(pair.question ?? pair)}</div></section>
      <div class="answers n2">${["left", "right"].map(
        (
          side,
        ) => html`<section class=${`card ${revealed?.winner === side ? "won" : ""}`} key=${side} aria-label=${`${side} answer`} data-test=${`arena-${side}`}>
        <h3>${revealed ? html`<span class="live">${revealed[side]}</span>` : side === "left" ? "Left" : "Right"}</h3><${Markdown} text=${pair[side].text || "*nothing*"} /></section>`,
      )}</div>
      <div class="votes" role="group" aria-label="Your vote">${
        revealed
          ? html`<span class="soft" role="status">Kept. ${count(blind.left_to_judge > 0 ? blind.left_to_judge - 1 : 0)} to go.</span><${Action} kind="main" onClick=${next} data-test="arena-next">Next pair<//>`
          : VOTES.map(
              (each) =>
                html`<button class="button" key=${each.winner} data-test=${`vote-${each.winner}`} onClick=${() => vote(each.winner)}>${each.text} <kbd>${each.keys}</kbd></button>`,
            )
      }</div>`
    }
    ${(tally.data?.votes ?? 0) > 0 && html`<section class="card"><div class="card-head"><h2>Tally</h2><span class="faint small">${counted(tally.data.votes, "vote")}</span></div><${Tally} models=${tally.data.models} /></section>`}
  </div>`;
}

function Tally({ models }) {
  return html`<table class="table" data-test="tally"><thead><tr><th>Model</th><th class="right">Won</th><th class="right">Tied</th><th class="right">Lost</th><th class="right">Share won</th></tr></thead>
    <tbody>${[...models]
      .sort((a, b) => b.wins - a.wins)
      .map((model) => {
        const decided = model.wins + model.losses + model.ties;
        return html`<tr key=${model.id}><th scope="row" class="anywhere">${model.name}</th><td class="right number">${count(model.wins)}</td><td class="right number">${count(model.ties)}</td><td class="right number">${count(model.losses)}</td>
        <td class="right number">${decided ? percent((model.wins + model.ties / 2) / decided) : "–"}</td></tr>`;
      })}</tbody></table>`;
}
