// The white paper: QubGPU's claims beside what was measured. The server sends it as blocks, of which the file is made too.
import { address } from "../api.js";
import { html } from "../parts/dom.js";
import { LineChart } from "../parts/line-chart.js";
import { useRead } from "../parts/load.js";
import { Head, Loading, ProblemNote } from "../parts/page.js";

const VERDICTS = {
  holds: ["holds", "good"],
  in_part: ["holds in part", "warn"],
  does_not_hold: ["does not hold", "bad"],
  not_measured: ["not measured", ""],
};

export default function WhitePaper() {
  const paper = useRead("GET /api/v1/white-paper");
  const file = address("GET /api/v1/white-paper/file").url;
  const { data } = paper;
  if (!data)
    return html`<${Head} title="White paper" /><${ProblemNote} problem=${paper.problem} again=${paper.again} />
      ${!paper.problem && html`<${Loading} />`}`;
  const jump = (id) => document.getElementById(`paper-${id}`)?.scrollIntoView({ behavior: "smooth" });
  return html`
    <${Head} title=${data.title} name="White paper" about=${data.about}><a class="button" href=${file} target="_blank" data-test="paper-file">One file</a><//>
    <div class="paper" data-test="paper">
      <nav aria-label="Contents"><ol>${data.sections.map((section) => html`<li key=${section.id}><button class="link" onClick=${() => jump(section.id)}>${section.title}</button></li>`)}</ol></nav>
      ${data.sections.map(
        (section) => html`<section key=${section.id} id=${`paper-${section.id}`}><h2>${section.title}</h2>
        ${section.blocks.map((block, at) => html`<${Block} key=${at} block=${block} />`)}</section>`,
      )}
    </div>`;
}

function Block({ block }) {
  switch (block.kind) {
    case "text":
      return html`<p>${block.text}</p>`;
    case "list":
      return html`<ul>${block.items.map((item) => html`<li key=${item}>${item}</li>`)}</ul>`;
    case "code":
      return html`<figure>${block.caption && html`<figcaption>${block.caption}</figcaption>`}<pre>${block.text}</pre></figure>`;
    case "table":
      return html`<figure><figcaption>${block.caption}</figcaption><div class="scroll"><table class="table"><thead><tr>${block.head.map((cell, at) => html`<th key=${at} class=${at ? "right" : ""}>${cell}</th>`)}</tr></thead>
        <tbody>${block.rows.map(([first, ...rest]) => html`<tr key=${first}><th scope="row">${first}</th>${rest.map((cell, at) => html`<td key=${at} class="right number">${cell}</td>`)}</tr>`)}</tbody></table></div></figure>`;
    case "chart":
      return html`<${LineChart} chart=${block} />`;
    case "verdicts":
      return html`<div class="stack">${block.items.map((item) => html`<${Verdict} key=${item.id} item=${item} />`)}</div>`;
    default:
      return null;
  }
}

function Verdict({ item }) {
  const [words, kind] = VERDICTS[item.verdict] ?? [item.verdict, ""];
  return html`<article class="card paper-verdict" data-test="verdict"><h3><span class=${`pill ${kind}`}>${words}</span> ${item.claim}</h3>
    <dl><dt>the same work</dt><dd>${item.fair}</dd><dt>as QubGPU counts</dt><dd>${item.published}</dd></dl><p class="soft">${item.why}</p></article>`;
}
