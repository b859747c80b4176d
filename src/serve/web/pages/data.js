// The data sets that can be trained on: those below the folders that the server was given, and uploads.
import { call } from "../api.js";
import { confirm, tell } from "../parts/dialog.js";
import { html, useState } from "../parts/dom.js";
import { ago, bytes, moment } from "../parts/format.js";
import { Drop } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { useRead } from "../parts/load.js";
import { Head, Loading, ProblemNote, Search } from "../parts/page.js";
import { href } from "../routes.js";

export default function Data() {
  const { data, problem, again } = useRead("GET /api/v1/datasets", {}, [], 10000);
  const [search, setSearch] = useState("");
  const arrived = (item) => {
    tell({
      kind: "good",
      title: "Uploaded",
      text: `${item.name}, ${bytes(item.bytes)}. Open it to see what is in it.`,
    });
    again();
  };
  const remove = (item) =>
    confirm({
      title: `Delete ${item.name}?`,
      danger: true,
      button: "Delete",
      text: "The uploaded file is deleted from the server's folder. Runs that were trained on it keep their own copy of its tokens.",
      act: async () => {
        await call("DELETE /api/v1/datasets/{id}", { params: { id: item.id } });
        again();
      },
    });
  const shown = (data?.items ?? []).filter((item) => item.name.toLowerCase().includes(search.toLowerCase()));
  return html`
    <${Head} title="Data" about="One example per line: messages, conversations, instruction and output, prompt and completion, or text. Open a set to check it and to see what would be trained." />
    <${ProblemNote} problem=${problem?.status ? problem : null} again=${again} />
    <div class="stack">
      <${Drop} onDone=${arrived} />
      ${
        !data
          ? !problem && html`<${Loading} what="Reading the folders" />`
          : data.items.length === 0
            ? html`<p class="soft none">No data set yet. Drop a file above, or start the server with
        <code>--data-dir FOLDER</code> to see the files of a folder here.</p>`
            : html`<div>
        ${data.items.length > 8 && html`<div class="filters"><${Search} label="Search data sets" value=${search} onInput=${setSearch} /></div>`}
        <table class="table rows fold"><thead><tr><th>Data set</th><th>Folder</th><th class="right">Size</th><th>Changed</th><th><span class="hidden-visually">Actions</span></th></tr></thead>
          <tbody>${shown.map(
            (item) => html`<tr key=${item.id} data-test="dataset">
            <th scope="row" class="anywhere"><a href=${href(["data", item.id])}>${item.name}</a></th>
            <td class="soft" data-label="in">${item.folder}</td>
            <td class="right number">${bytes(item.bytes)}</td>
            <td class="soft number" title=${moment(item.modified_us)} data-label="changed">${ago(item.modified_us)}</td>
            <td class="right">${item.is_upload && html`<button class="button quiet small icon" aria-label=${`Delete ${item.name}`} onClick=${() => remove(item)}><${Icon} name="trash" size=${14} /></button>`}</td>
          </tr>`,
          )}</tbody></table></div>`
      }
    </div>`;
}
