// Uploading data: dropped onto the page or picked, one file after the other, with what was refused and why.
import { upload } from "../api.js";
import { html, useRef, useState } from "./dom.js";
import { bytes, percent } from "./format.js";
import { Icon } from "./icons.js";
import { asProblem } from "./load.js";
import { ProblemNote } from "./page.js";
import { Bar } from "./progress.js";

const KINDS = ".jsonl, .csv, .tsv, .parquet, .txt, .md, also .gz";

/** A place for files, of which `kinds` names those that are meant. `onDone` gets the data set of each file that arrived. */
export function Drop({ onDone, compact = false, kinds = KINDS }) {
  const [over, setOver] = useState(false);
  const [sending, setSending] = useState(null);
  const [problems, setProblems] = useState([]);
  const picker = useRef(null);
  const ending = useRef(null);
  const take = async (files) => {
    setProblems([]);
    ending.current = new AbortController();
    for (const file of files) {
      setSending({ name: file.name, sent: 0, total: file.size });
      try {
        const item = await upload("POST /api/v1/datasets", {
          query: { name: file.name },
          file,
          signal: ending.current.signal,
          onProgress: (sent, total) => setSending({ name: file.name, sent, total }),
        });
        onDone(item);
      } catch (error) {
        if (error.name === "AbortError") break;
        setProblems((before) => [...before, asProblem(error)]);
      }
    }
    setSending(null);
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    take([...event.dataTransfer.files]);
  };
  return html`<div>
    <div class=${`drop ${over ? "over" : ""} ${compact ? "compact" : ""}`} data-test="drop" onDragOver=${(
      event,
    ) => {
      event.preventDefault();
      setOver(true);
    }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <input type="file" multiple class="hidden-visually" tabindex="-1" ref=${picker} aria-label="Files to upload" data-test="file" accept=".jsonl,.json,.csv,.tsv,.parquet,.txt,.md,.gz,.qubgpu"
        onChange=${(event) => {
          take([...event.target.files]);
          event.target.value = "";
        }} />
      ${
        sending
          ? html`<div class="sending"><div><b>${sending.name}</b> <span class="soft">${bytes(sending.sent)} of ${bytes(sending.total)}, ${percent(sending.total ? sending.sent / sending.total : 1)}</span></div>
          <${Bar} share=${sending.total ? sending.sent / sending.total : null} label=${`Upload of ${sending.name}`} />
          <button class="button small" onClick=${() => ending.current.abort()}>Cancel</button></div>`
          : html`<${Icon} name="upload" size=${20} /><div><b>Drop files here</b> or <button type="button" class="link" onClick=${() => picker.current.click()}>choose them</button>
          <div class="faint small">${kinds}. They stay on this machine.</div></div>`
      }
    </div>
    ${problems.map((problem) => html`<${ProblemNote} problem=${problem} />`)}
  </div>`;
}
