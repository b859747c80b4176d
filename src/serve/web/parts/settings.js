// The settings of a plan: each with its value, where it comes from, and why; to read, or to change.
import { html, useState } from "./dom.js";
import { sentence, words } from "./format.js";
import { Search } from "./page.js";

/** Groups settings by their heading, in their order. */
export function grouped(settings) {
  const groups = new Map();
  for (const setting of settings) {
    const heading = setting.heading ?? headingOf(setting.key);
    if (!groups.has(heading)) groups.set(heading, []);
    groups.get(heading).push(setting);
  }
  return [...groups];
}

/** Settings of a run come with their keys alone, whose first part says what they are about. */
const headingOf = (key) => (key?.includes(".") ? sentence(words(key.split(".")[0])) : "Run");

/** The name of a setting: that of its flag, otherwise the last part of its key. */
const nameOf = (setting) => words(setting.name ?? setting.key.split(".").at(-1)).replaceAll("-", " ");

const chosen = (origin) => origin && !["built-in", "default"].includes(origin);

/** Where a value comes from; what somebody chose stands out. */
export const Origin = ({ origin }) =>
  html`<span class=${`origin ${chosen(origin) ? "live" : "faint"}`}>${origin}</span>`;

/** A reason, in which what stands between backticks is code. */
export const Reason = ({ text }) =>
  String(text ?? "")
    .split(/`([^`]+)`/)
    .map((part, at) => (at % 2 === 1 ? html`<code>${part}</code>` : part));

/** All settings to read, with a search. */
export function SettingsTable({ settings }) {
  const [search, setSearch] = useState("");
  const looked = search.toLowerCase();
  const shown = settings.filter((setting) =>
    `${nameOf(setting)} ${setting.value} ${setting.reason}`.toLowerCase().includes(looked),
  );
  return html`<div class="filters"><${Search} label="Search settings and reasons" value=${search} onInput=${setSearch} /></div>
    ${grouped(shown).map(
      ([heading, rows]) => html`<section class="settings" key=${heading}><h2>${heading}</h2>
      <table class="table settings-table"><thead class="hidden-visually"><tr><th>Setting</th><th>Value</th><th>Origin</th><th>Reason</th></tr></thead>
        <tbody>${rows.map(
          (setting) => html`<tr key=${setting.key ?? setting.name}><th scope="row">${nameOf(setting)}</th>
          <td class="value">${shownValue(setting.value)}</td><td><${Origin} origin=${setting.origin} /></td><td class="reason"><${Reason} text=${setting.reason} /></td></tr>`,
        )}</tbody></table></section>`,
    )}
    ${shown.length === 0 && html`<p class="soft">No setting matches.</p>`}`;
}

const shownValue = (value) => (value === "" || value === null || value === undefined ? "–" : String(value));

/**
 * One setting to change. `row` describes it, `planned` is what the plan has for it, `typed` what the user typed;
 * an empty field leaves the decision to the plan.
 */
export function SettingField({ row, planned, typed, problem, onType }) {
  const id = `setting-${row.name}`;
  const recommended = shownValue(planned?.recommended ?? planned?.value);
  const described = `${id}-why`;
  const common = { id, "aria-describedby": described, "aria-invalid": Boolean(problem), "data-test": id };
  const input =
    row.type === "choice" || row.type === "bool"
      ? html`<select class="select" ...${common} value=${typed ?? ""} onChange=${(event) => onType(event.target.value)}>
      <option value="">${typed ? "as recommended" : recommended}</option>
      ${choices(row).map((choice) => html`<option key=${choice.value} value=${choice.value}>${choice.text}</option>`)}</select>`
      : html`<input class="input" ...${common} type="text" inputmode=${["number", "whole"].includes(row.type) ? "decimal" : "text"} autocomplete="off" spellcheck=${false}
        placeholder=${recommended} value=${typed ?? ""} onInput=${(event) => onType(event.target.value)} />`;
  return html`<div class=${`field setting ${typed ? "is-set" : ""}`}>
    <label for=${id} title=${[row.decides, row.expects].filter(Boolean).join(" Takes ")}>${words(row.name).replaceAll("-", " ")}${row.range && html`<span class="faint small range"> ${rangeWords(row.range)}</span>`}</label>
    ${input}
    <div id=${described} class="hint ${problem ? "bad" : ""}">${problem ? html`${problem.what} ${problem.advice}` : html`<${Reason} text=${planned?.reason ?? row.decides} />`}</div>
  </div>`;
}

const choices = (row) =>
  row.type === "bool"
    ? [
        { value: "true", text: "yes" },
        { value: "false", text: "no" },
      ]
    : (row.choices ?? []).map((choice) =>
        typeof choice === "string"
          ? { value: choice, text: choice }
          : { value: choice.value, text: choice.text ?? choice.value },
      );

function rangeWords(range) {
  if (typeof range === "string") return range;
  const { min, max } = Array.isArray(range) ? { min: range[0], max: range[1] } : range;
  const small = (value) => (Math.abs(value) >= 1e6 ? value.toExponential(0).replace("+", "") : String(value));
  // A range without a practical end says nothing.
  if (typeof min !== "number" || typeof max !== "number" || max > 1e9) return "";
  return `${small(min)} to ${small(max)}`;
}
