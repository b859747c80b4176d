// The same prompt to a model without and with an edit, side by side and greedily, so that only the edit differs.
import { call } from "../api.js";
import { complete } from "../parts/completion.js";
import { html, useEffect, useRef, useState } from "../parts/dom.js";
import { asProblem } from "../parts/load.js";
import { Chips, ProblemNote } from "../parts/page.js";

const WAYS = [
  { value: "raw", text: "Continue the text" },
  { value: "chat", text: "Ask in a chat" },
];
const TOKENS = 24;
const CHAT_TOKENS = 160;

/** `without` and `edited` are `{ id, name }`; `without` may be missing where the base cannot be opened. */
export function Try({ without, edited, first = "" }) {
  const [prompt, setPrompt] = useState(first ?? "");
  const [way, setWay] = useState("raw");
  const [said, setSaid] = useState(null);
  const ending = useRef(null);
  useEffect(() => () => ending.current?.abort(), []);
  const columns = [without, edited].filter(Boolean);
  const id = `k-try-${edited.id.replace(/\W/g, "-")}`;
  const ask = async (event) => {
    event.preventDefault();
    ending.current?.abort();
    ending.current = new AbortController();
    const { signal } = ending.current;
    setSaid({ prompt, way, answers: columns.map(() => ({ text: "", busy: true })) });
    const put = (at, answer) =>
      !signal.aborted &&
      setSaid((before) => ({ ...before, answers: before.answers.map((each, place) => (place === at ? answer : each)) }));
    await Promise.all(
      columns.map((model, at) =>
        answerOf(model.id, prompt, way, signal, (text) => put(at, { text, busy: true })).then(
          (text) => put(at, { text }),
          (error) => put(at, { text: "", problem: asProblem(error) }),
        ),
      ),
    );
  };
  const isBusy = said?.answers.some((answer) => answer.busy) ?? false;
  return html`<section class="card" aria-labelledby=${id}><div class="card-head"><h3 id=${id}>Try it with and without</h3>
      <div class="actions"><${Chips} label="How the prompt is read" choices=${WAYS} value=${way} onPick=${setWay} /></div></div>
    <form class="inline" onSubmit=${ask}>
      <input class="input" aria-label="Prompt to try" data-test="k-try" value=${prompt} onInput=${(event) => setPrompt(event.target.value)} />
      <button type="submit" class="button main" disabled=${!prompt.trim() || isBusy} data-test="k-ask">Ask</button></form>
    ${!without && html`<p class="faint small">The base cannot be opened here, so only the edited model answers. Start the server with --model and its folder.</p>`}
    ${
      said &&
      html`<div class=${`answers n${columns.length} k-after`} aria-live="polite">${columns.map(
        (model, at) => html`<section key=${model.id} class="answer-of" aria-label=${`Answer ${model.name}`} data-test=${at + 1 === columns.length ? "k-with" : "k-without"}>
        <h4><bdi>${model.name}</bdi></h4><${Said} prompt=${said.way === "raw" ? said.prompt : ""} answer=${said.answers[at]} /></section>`,
      )}</div>`
    }
  </section>`;
}

function Said({ prompt, answer }) {
  if (answer.problem) return html`<${ProblemNote} problem=${answer.problem} />`;
  return html`<p class="text anywhere"><span class="faint">${prompt}</span><span data-test="k-said">${answer.text}</span>${answer.busy && html`<span class="spin"></span>`}</p>`;
}

async function answerOf(model, prompt, way, signal, onText) {
  if (way === "raw") {
    const body = { model, prompt, max_tokens: TOKENS, temperature: 0 };
    const answer = await call("POST /v1/completions", { body, signal });
    return answer.choices[0].text;
  }
  const messages = [{ role: "user", content: prompt }];
  const options = { temperature: 0, max_tokens: CHAT_TOKENS };
  const said = await complete({ model, messages, options, signal, onText: ({ text }) => onText(text) });
  return said.text || "(nothing but thoughts)";
}
