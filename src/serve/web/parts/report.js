// What a check says of data: whether it can be trained on, figures, sentences, and the lengths of the examples.
import { html } from "./dom.js";
import { count, percent } from "./format.js";
import { Histogram } from "./histogram.js";
import { Figures, Note } from "./page.js";

/** The report: figures, sentences, and the histogram of lengths. */
export function Report({ result }) {
  const { report, sentences = [], refused } = result;
  const lengths = report.lengths;
  const figures = [
    ["Examples", count(report.examples), report.split ? `${count(report.split.eval_examples)} held out` : ""],
    [
      "Rejected",
      count(report.rejected),
      report.lines ? percent(report.rejected / Math.max(1, report.lines - (report.blank_lines ?? 0)), 1) : "",
    ],
    report.tokens && ["Tokens", count(report.tokens.total), `${percent(report.tokens.target_share)} trained`],
    lengths && ["Mean length", count(lengths.mean), lengths.unit],
    lengths && ["Longest", count(lengths.max), `99 % up to ${count(lengths.p99)}`],
  ];
  return html`<div class="stack" data-test="report">
    ${refused ? html`<${Note} kind="bad" title="This data cannot be trained on as it is.">${refused}<//>` : html`<${Note} kind="good" title="This data can be trained on.">${report.rejected ? " The rejected lines are left out." : ""}<//>`}
    <div class="card"><${Figures} items=${figures} /></div>
    <div class="cards wide">
      ${sentences.length > 0 && html`<section class="card"><h2>What the check says</h2><ul class="sentences">${sentences.map((line) => html`<li class=${line.startsWith(" ") ? "inner" : ""}>${line.trim()}</li>`)}</ul></section>`}
      ${
        lengths &&
        html`<section class="card"><div class="card-head"><h2>Lengths</h2><span class="faint small">examples by ${lengths.unit}; each bin is twice as wide as the one before</span></div>
        <${Histogram} lengths=${lengths} />
        <p class="soft small">Half of the examples have at most ${count(lengths.p50)} ${lengths.unit}, 90 % at most ${count(lengths.p90)}, 99 % at most ${count(lengths.p99)}.</p></section>`
      }
    </div>
  </div>`;
}
