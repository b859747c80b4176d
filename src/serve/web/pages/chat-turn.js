// One turn of a conversation: what the user wrote, and the answer of each model beside the others.
import { html, useState } from "../parts/dom.js";
import { tell } from "../parts/dialog.js";
import { count, counted, figure, milliseconds, percent } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Markdown } from "../parts/markdown.js";
import { ProblemNote } from "../parts/page.js";

export function Turn({ turn, names, last, busy, onEdit, onAgain }) {
  const [edited, setEdited] = useState(null);
  const send = () => {
    onEdit(edited);
    setEdited(null);
  };
  return html`<article class="turn">
    <div class="said-user" data-test="user-message">
      ${
        edited === null
          ? html`<div class="bubble">${turn.user}</div>
        <button class="button quiet small icon" aria-label="Edit and ask again" disabled=${busy} onClick=${() => setEdited(turn.user)}><${Icon} name="edit" size=${13} /></button>`
          : html`<form class="edit" onSubmit=${(event) => {
              event.preventDefault();
              send();
            }}><textarea class="area" aria-label="Your message" rows="3" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea>
          <div class="actions"><button type="button" class="button small" onClick=${() => setEdited(null)}>Cancel</button><button class="button small main">Ask again</button></div></form>`
      }
    </div>
    <div class=${`answers n${turn.answers.length}`}>${turn.answers.map(
      (answer, column) =>
        answer &&
        html`<${Answer} key=${column} answer=${answer} shown=${turn.answers.length > 1}
      name=${names.find((model) => model.id === answer.model)?.name ?? answer.model} last=${last} busy=${busy} onAgain=${() => onAgain(column)} />`,
    )}</div>
  </article>`;
}

function Answer({ answer, shown, name, last, busy, onAgain }) {
  const { text, thinking, stats, problem, stopped } = answer;
  return html`<section class="answer-of" aria-label=${`Answer of ${name}`} aria-busy=${answer.busy} data-test="answer">
    ${shown && html`<h3 class="soft small">${name}</h3>`}
    ${thinking && html`<details class="thinking" open=${!text}><summary>${answer.busy && !text ? "Thinking …" : "Thought"}</summary><div class="thought">${thinking}</div></details>`}
    ${text ? html`<${Markdown} text=${text} />` : answer.busy && !thinking && html`<span class="waiting" aria-label="Waiting for the first token"><i></i><i></i><i></i></span>`}
    ${!text && !answer.busy && !problem && html`<p class="note" data-test="no-answer">${whyEmpty(answer)}</p>`}
    <${ProblemNote} problem=${problem} />
    ${
      !answer.busy &&
      html`<footer class="answer-foot">
      <span class="faint small" data-test="answer-stats">${stopped ? "stopped" : statsWords(stats)}</span>
      ${text && html`<button class="button quiet small icon" aria-label="Copy the answer" onClick=${() => navigator.clipboard.writeText(text).then(() => tell({ title: "Copied" }))}><${Icon} name="copy" size=${13} /></button>`}
      ${last && html`<button class="button quiet small icon" aria-label="Answer again" data-test="regenerate" disabled=${busy} onClick=${onAgain}><${Icon} name="again" size=${13} /></button>`}
    </footer>`
    }
  </section>`;
}

/** Why there is no text, and what to do about it. */
function whyEmpty({ thinking, stopped, stats }) {
  if (stopped)
    return thinking ? "Stopped while the model was thinking." : "Stopped before the first token.";
  const tokens = stats?.tokens ? ` of ${counted(stats.tokens, "token")}` : "";
  const without = "In the settings, “Thinking: off” asks for an answer at once.";
  if (stats?.reason === "length")
    return thinking
      ? `The answer reached its limit${tokens} while the model was still thinking. “Longest answer” in the settings raises the limit. ${without}`
      : `The answer reached its limit${tokens} before it had any text. “Longest answer” in the settings raises it.`;
  return thinking
    ? `The model stopped after thinking and gave no answer. Small models, and models trained without reasoning, sometimes do that. ${without}`
    : "The model ended its answer at once, before any text. Another temperature or seed may give one.";
}

/** Speed, length and what the drafts were worth. */
function statsWords(stats) {
  if (!stats) return "";
  const { drafted_tokens: drafted, accepted_tokens: accepted } = stats.usage ?? {};
  return [
    stats.tokens ? counted(stats.tokens, "token") : "",
    stats.tokens_per_s ? `${figure(stats.tokens_per_s)} tokens/s` : "",
    stats.first_token_ms ? `first after ${milliseconds(stats.first_token_ms)}` : "",
    drafted ? `${percent(accepted / drafted)} of drafts accepted` : "",
    stats.reason === "length" ? "cut at the limit" : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
