// What an edit came to: shares with their intervals, and the change of the loss.
import { html } from "../parts/dom.js";
import { NONE, count, percent } from "../parts/format.js";
import { Interval } from "../parts/interval.js";

const SHARES = [
  ["efficacy", "Efficacy", "the prompts are answered with the targets"],
  ["generalisation", "Generalisation", "so are the same in other words"],
  ["locality", "Locality", "answers about something else stay"],
  ["portability", "Portability", "what follows from the facts is answered"],
];

const signed = (share) => `${share < 0 ? "−" : "+"}${(Math.abs(share) * 100).toFixed(2)}`;

const inWords = (share) => `${percent(share.value, 1)} (${count(share.hits)} of ${count(share.of)})`;

/** The layers of an edit in words. */
export const inLayers = (layers = []) => `in ${layers.length === 1 ? "layer" : "layers"} ${layers.join(", ")}`;

/** The relative change of the loss in words. */
export function drift(loss) {
  if (!loss) return NONE;
  const range = loss.interval ? ` (${signed(loss.interval[0])} to ${signed(loss.interval[1])})` : "";
  return `${signed(loss.drift)} %${range}`;
}

export function Scores({ scores }) {
  if (!scores) return html`<p class="soft">It was not judged.</p>`;
  const about = (name, text) => {
    if (name !== "locality") return text;
    if (scores.locality_of_text) return "held-out text is continued as before; no fact has neighbours";
    return scores.locality ? text : `${text}; not judged, for no fact has neighbours`;
  };
  return html`<table class="table k-scores" data-test="k-scores"><caption class="hidden-visually">Scores with 95 % intervals, by what the model writes</caption><tbody>
    ${SHARES.map(
      ([name, title, text]) => html`<tr key=${name}><th scope="row">${title}<div class="faint small">${about(name, text)}</div></th>
      <td><${Interval} value=${scores[name]} words=${scores[name] && inWords(scores[name])} /></td></tr>`,
    )}
    <tr><th scope="row">Loss<div class="faint small">its change on held-out text</div></th><td>${drift(scores.loss)}${scores.loss && html` <span class="faint small">${count(scores.loss.tokens)} tokens</span>`}</td></tr>
    ${
      scores.suite &&
      html`<tr data-test="k-suite-score"><th scope="row">Suite<div class="faint small">prompts of <bdi>${scores.suite.name}</bdi> that pass; before the edit ${inWords(scores.suite.before)}</div></th>
      <td><${Interval} value=${scores.suite.after} words=${inWords(scores.suite.after)} /></td></tr>`
    }
  </tbody></table>`;
}

/** The scores in one line, for lists. */
export function inShort(scores) {
  const one = (name) => `${name} ${scores?.[name] ? percent(scores[name].value, 1) : NONE}`;
  return [one("efficacy"), one("generalisation"), one("locality"), `loss ${drift(scores?.loss)}`].join(", ");
}
