// The quieter tabs of a run: its plan with reasons, the machine, and what it wrote.
import { Empty, Facts, Note } from "../parts/page.js";
import { html } from "../parts/dom.js";
import { bytes, count, moment, percent } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { tell } from "../parts/dialog.js";
import { SettingsTable } from "../parts/settings.js";

export function Plan({ run }) {
  const settings = run.plan?.settings ?? [];
  if (!settings.length)
    return html`<${Empty} icon="plan" title="No plan was written">The run's folder has no plan.toml yet.<//>`;
  return html`<${SettingsTable} settings=${settings} />`;
}

/** The ranks of a run of several machines, as rank 0 saw them last, and the time that a step waits for them. */
function Members({ members, exchange }) {
  if (!members.length) return null;
  return html`<section class="card" data-test="members"><h2>Machines that train together</h2>
    <table class="table fold"><thead><tr><th>Rank</th><th>At</th><th>State</th><th>Share of a step</th><th>Speed</th><th>Latency</th><th class="right">Drops</th></tr></thead>
      <tbody>${members.map(
        (each) => html`<tr key=${each.rank}><th scope="row">${each.rank}</th><td class="anywhere" data-label="at">${each.at}</td>
        <td>${each.is_missing ? html`<b>${each.state}</b>` : each.state}</td><td data-label="share">${each.share}</td><td data-label="speed">${each.speed}</td><td data-label="latency">${each.latency}</td><td class="right number" data-label="drops">${each.drops}</td></tr>`,
      )}</tbody></table>
    <${Facts} rows=${[["Exchange", exchange]]} /></section>`;
}

export function Machine({ view, members, exchange }) {
  const device = view.device;
  const started = view.attempts?.at(-1)?.started ?? {};
  if (!device && !members.length)
    return html`<${Empty} icon="bench" title="Nothing has been measured yet">The trainer measures memory, processor and GPU every few seconds once it trains.<//>`;
  if (!device) return html`<${Members} members=${members} exchange=${exchange} />`;
  const gpus = device.gpus ?? [];
  return html`<div class="stack"><${Members} members=${members} exchange=${exchange} /><div class="cards">
    <section class="card"><h2>Memory</h2><${Facts} rows=${[
      [
        "In use",
        device.mem_total_bytes &&
          `${bytes(device.mem_used_bytes)} of ${bytes(device.mem_total_bytes)}${device.mem_unified ? ", shared by CPU and GPU" : ""}`,
      ],
      ["Can be allocated", bytes(device.mem_available_bytes)],
      [
        "Trainer",
        device.process_rss_bytes &&
          `${bytes(device.process_rss_bytes)}, at most ${bytes(device.process_peak_rss_bytes)} so far`,
      ],
      ["Pressure", pressure(device)],
    ]} /></section>
    <section class="card"><h2>Processor</h2><${Facts} rows=${[
      [
        "Load",
        typeof device.cpu_percent === "number" ? `${Math.round(device.cpu_percent)} % of all cores` : null,
      ],
      ["Device", started.device],
      ["sparktune", started.sparktune],
      ["Last event", moment(view.last_event_us)],
    ]} /></section>
    ${gpus.map(
      (gpu) =>
        html`<section class="card" key=${gpu.index}><h2>GPU ${gpu.index}</h2><${Facts} rows=${[
          ["Busy", of(gpu.busy_percent, "%")],
          ["Temperature", of(gpu.temperature_celsius, "°C")],
          ["Power", of(gpu.power_watts, "W")],
          [
            "Clock",
            gpu.sm_clock_mhz &&
              `${count(gpu.sm_clock_mhz)}${gpu.sm_clock_max_mhz ? ` of ${count(gpu.sm_clock_max_mhz)}` : ""} MHz`,
          ],
          ["Memory", gpu.mem_total_bytes && `${bytes(gpu.mem_used_bytes)} of ${bytes(gpu.mem_total_bytes)}`],
          ["Limited by", gpu.throttle],
        ]} /></section>`,
    )}
    ${gpus.length === 0 && html`<${Note} title="No GPU was measured.">The run trains on the processor, or the driver reports none.<//>`}
  </div></div>`;
}

const of = (value, unit) => (value === undefined || value === null ? null : `${count(value)} ${unit}`);
const pressure = ({ mem_pressure_some_percent: some }) =>
  typeof some === "number" ? `${percent(some / 100, 1)} of the last 10 s waited for memory` : null;

export function Outputs({ run }) {
  const outputs = run.outputs ?? [];
  if (!outputs.length) {
    return html`<${Empty} icon="file" title="No outputs yet">When the run is done, its folder has the tuned model in outputs/merged, the adapter, and SERVE.md, which explains how to serve it.
      A stopped run can be exported from its newest checkpoint.<//>`;
  }
  return html`<div class="stack">
    <table class="table fold"><thead><tr><th>Output</th><th>Kind</th><th class="right">Size</th><th>Where</th></tr></thead>
      <tbody>${outputs.map(
        (
          output,
        ) => html`<tr key=${output.name}><th scope="row">${output.name}</th><td class="soft">${output.kind}</td><td class="right number">${bytes(output.bytes)}</td>
        <td class="whole"><span class="path"><code>${output.path}</code>${output.path && html`<button class="button quiet small icon" aria-label=${`Copy the path of ${output.name}`} onClick=${() => copy(output.path)}><${Icon} name="copy" size=${13} /></button>`}</span></td></tr>`,
      )}</tbody></table>
    <p class="soft">The files are in the run's folder, on the machine that trains. What <b>Compare with base</b> finds becomes part of the report.</p>
  </div>`;
}

/** Copies a text and says so. */
function copy(text) {
  navigator.clipboard.writeText(text).then(
    () => tell({ title: "Copied", text }),
    () => tell({ title: "Not copied", text: "The browser refused access to the clipboard.", kind: "bad" }),
  );
}
