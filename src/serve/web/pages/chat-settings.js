// How answers are drawn, and what the model is told before every conversation.
import { html } from "../parts/dom.js";
import { Icon } from "../parts/icons.js";

/** The parameters of sampling, as the API names them. An empty field leaves it to the server, which then takes `usual`; of a model, what its makers
 * recommend in `generation_config.json`. */
const FIELDS = [
  {
    name: "temperature",
    label: "Temperature",
    hint: "0 always takes the most likely token",
    min: 0,
    max: 2,
    step: 0.05,
    usual: "the model's",
  },
  {
    name: "top_p",
    label: "Top-p",
    hint: "only the most likely tokens that together reach this share",
    min: 0,
    max: 1,
    step: 0.01,
    usual: "the model's",
  },
  { name: "top_k", label: "Top-k", hint: "only this many of the most likely tokens; 0 means all", min: 0, max: 1000, step: 1, usual: "the model's" },
  {
    name: "min_p",
    label: "Min-p",
    hint: "only tokens at least this likely, relative to the most likely one",
    min: 0,
    max: 1,
    step: 0.01,
    usual: "the model's",
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    hint: "discourages repeating any token",
    min: -2,
    max: 2,
    step: 0.1,
    usual: "0",
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    hint: "discourages tokens more, the more often they were used",
    min: -2,
    max: 2,
    step: 0.1,
    usual: "0",
  },
  { name: "max_completion_tokens", label: "Longest answer", hint: "in tokens", min: 1, max: 131072, step: 1, usual: "as memory allows" },
  {
    name: "seed",
    label: "Seed",
    hint: "the same seed gives the same answer",
    min: 0,
    max: 4294967295,
    step: 1,
    usual: "random",
  },
];

/** The settings as fields of a request. */
export function requestOptions(settings) {
  const options = {};
  for (const { name } of FIELDS) {
    const value = settings[name];
    if (value !== undefined && value !== "" && Number.isFinite(Number(value))) options[name] = Number(value);
  }
  if (settings.thinking === "off") options.reasoning_effort = "none";
  if (settings.stop) options.stop = settings.stop.split("\n").filter(Boolean).slice(0, 4);
  return options;
}

export function Settings({ settings, onChange, kept, onClose, onForget }) {
  const set = (name, value) => onChange({ ...settings, [name]: value });
  const changed =
    settings.thinking || FIELDS.some(({ name }) => settings[name] !== undefined && settings[name] !== "");
  return html`<aside class="chat-panel" aria-label="Settings of the chat">
    <div class="card-head"><h2>Settings</h2><button class="button quiet small icon" aria-label="Close the settings" onClick=${onClose}><${Icon} name="close" size=${14} /></button></div>
    <div class="field"><label for="system">System prompt</label><textarea id="system" class="area" rows="4" placeholder="What the model is told before every conversation" value=${settings.system ?? ""} data-test="system"
      onInput=${(event) => set("system", event.target.value)}></textarea></div>
    <div class="field"><label for="chat-thinking">Thinking</label><select id="chat-thinking" class="select" value=${settings.thinking ?? ""} data-test="thinking" onChange=${(event) => set("thinking", event.target.value)}>
      <option value="">as the template decides</option><option value="off">off</option></select>
      <span class="hint">whether the model thinks before it answers, if its template has a switch for that</span></div>
    ${FIELDS.map(
      (
        field,
      ) => html`<div class="field" key=${field.name}><label for=${`chat-${field.name}`}>${field.label}</label>
      <input id=${`chat-${field.name}`} class="input" type="number" min=${field.min} max=${field.max} step=${field.step} placeholder=${field.usual} value=${settings[field.name] ?? ""} onInput=${(event) => set(field.name, event.target.value)} />
      <span class="hint">${field.hint}</span></div>`,
    )}
    <div class="field"><label for="chat-stop">Stop at</label><textarea id="chat-stop" class="area mono" rows="2" placeholder="one text per line" value=${settings.stop ?? ""} onInput=${(event) => set("stop", event.target.value)}></textarea></div>
    ${changed && html`<button class="button small" onClick=${() => onChange({ system: settings.system })}>Reset to defaults</button>`}
    <div class="keep"><label class="check"><input type="checkbox" checked=${kept.on} data-test="keep-chats" onChange=${(event) => (event.target.checked ? kept.turn(true) : onForget())} />Keep conversations</label>
      <p class="hint faint small">On this machine, as JSON Lines that can be trained on. Off unless you turn it on.</p></div>
  </aside>`;
}
