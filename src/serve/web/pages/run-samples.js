// What the model says as it is trained: one column per question, the base's answer first.
import { html, useEffect, useState } from "../parts/dom.js";
import { count, counted } from "../parts/format.js";
import { useRead } from "../parts/load.js";
import { Empty, Loading, ProblemNote } from "../parts/page.js";

export function Samples({ id, events }) {
  const { data, problem, again } = useRead("GET /api/v1/runs/{id}/samples", { params: { id } }, [id]);
  const [at, setAt] = useState(0);
  const fresh = events.filter((event) => event.kind === "sample").length;
  useEffect(() => {
    if (fresh) again();
  }, [fresh]);
  if (!data)
    return problem
      ? html`<${ProblemNote} problem=${problem} again=${again} />`
      : html`<${Loading} what="Reading the samples" />`;
  const items = data.items.filter((sample) => !sample.discarded);
  const prompts = [...new Set(items.map((sample) => sample.prompt))];
  if (!prompts.length) {
    return html`<${Empty} icon="chat" title="No samples yet">At each evaluation the model answers a few questions of the held-out set, so that you can read what the loss means.
      The first answers are the base model's. The settings sample-count and sample-max-tokens decide how many and how long.<//>`;
  }
  const question = Math.min(at, prompts.length - 1);
  const answers = items
    .filter((sample) => sample.prompt === prompts[question])
    .sort((a, b) => a.step - b.step);
  return html`<div class="samples">
    <nav class="sample-list" aria-label="Questions">${prompts.map(
      (
        prompt,
        number,
      ) => html`<button key=${prompt} class="sample-pick" aria-current=${number === question ? "true" : undefined}
      onClick=${() => setAt(number)}><span class="faint">${number + 1}</span><span>${tidy(prompt)}</span></button>`,
    )}</nav>
    <div class="stack">
      <div class="card prompt"><h2>Question</h2><div class="text">${spoken(prompts[question])}</div></div>
      ${answers.map(
        (
          sample,
          number,
        ) => html`<article class=${`card answer ${sample.step === 0 ? "of-base" : ""}`} key=${sample.step} data-test="sample">
        <h3>${sample.step === 0 ? "Base model" : `Step ${count(sample.step)}`} <span class="faint small">${counted(sample.tokens, "token")}${number === answers.length - 1 && number > 0 ? ", the newest" : ""}</span></h3>
        <div class="text">${answered(sample.text) || html`<i class="faint">nothing: the answer ended at once</i>`}</div></article>`,
      )}
    </div>
  </div>`;
}

const MARKS = /<\|[^|\s]{1,36}\|>|<(?:start|end)_of_turn>|<bos>|<eos>|<\/?s>|\[\/?INST\]/g;
const END = /\s*(?:<\|(?:im_end|endoftext|eot_id|end_of_text)\|>|<end_of_turn>|<eos>|<\/s>)\s*$/;
const BEHIND_MARK = "\0";
const SPEAKERS = ["system", "developer", "user", "assistant", "model"];

/** What is said in a prompt, without the marks of its template; the speakers are named if there are several. */
function spoken(prompt) {
  const plain = prompt.replace(MARKS, `\n${BEHIND_MARK}`);
  if (plain === prompt) return prompt;
  const turns = [["", []]];
  for (const whole of plain.split("\n")) {
    const line = whole.replace(BEHIND_MARK, "");
    if (line !== whole && SPEAKERS.includes(line.trim())) turns.push([line.trim(), []]);
    else if (!["<think>", "</think>"].includes(line.trim())) turns.at(-1)[1].push(line);
  }
  const said = turns.map(([who, lines]) => [who, lines.join("\n").trim()]).filter(([, text]) => text);
  if (said.length < 2) return said[0]?.[1] ?? prompt;
  return said.map(([who, text]) => (who ? `${who}: ${text}` : text)).join("\n");
}

/** An answer without the mark that ends it. */
const answered = (text) => text.replace(END, "") || text;

/** The last line of a prompt says most: the question. */
const tidy = (prompt) => spoken(prompt).trim().split("\n").at(-1);
