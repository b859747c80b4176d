// Conversations that are kept on the server, which they are only if the user chose so. They are `messages`, so that
// they can be trained on.
import { address, call } from "../api.js";
import { confirm } from "../parts/dialog.js";
import { html, useRef, useState } from "../parts/dom.js";
import { ago } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useRead } from "../parts/load.js";
import { textOf } from "../parts/messages.js";
import { remembered } from "../parts/store.js";

/** Whether conversations are kept, and the list of them. */
export function useKept() {
  const [on, setOn] = useState(() => remembered.get("keep-chats", false));
  const wanted = useRef(on);
  wanted.current = on;
  const list = useRead(on ? "GET /api/v1/chats" : null, {}, [on]);
  const turn = (next) => {
    setOn(next);
    remembered.set("keep-chats", next || undefined);
  };
  const save = async (chat, system, model) => {
    // It may have been switched off while the answer was generated.
    if (!wanted.current) return;
    const messages = messagesOf(chat, system);
    if (!messages.some((message) => message.role === "assistant")) return;
    const title = (chat.turns[0]?.user ?? "").trim().replace(/\s+/g, " ").slice(0, 60);
    await call("PUT /api/v1/chats/{id}", { params: { id: chat.id }, body: { title, model, messages } });
    list.again();
  };
  return { on, turn, save, list };
}

/** The first column of a conversation as messages. */
function messagesOf(chat, system) {
  const turns = chat.turns.flatMap((turn) =>
    turn.answers[0]?.text
      ? [
          { role: "user", content: turn.user },
          { role: "assistant", content: turn.answers[0].text },
        ]
      : [],
  );
  return [...(system?.trim() ? [{ role: "system", content: system }] : []), ...turns];
}

/** Messages as a conversation of this page. */
function chatOf({ id, messages, model }) {
  const turns = [];
  let system = "";
  for (const message of messages) {
    const { role } = message;
    const content = textOf(message);
    if (role === "system") system = content;
    else if (role === "user") turns.push({ user: content, answers: [null] });
    else if (role === "assistant" && turns.length)
      turns[turns.length - 1].answers[0] = { model, text: content, thinking: "", busy: false };
  }
  return { chat: { id, turns }, system, model };
}

export function Kept({ kept, current, onOpen, onNew }) {
  const items = kept.list.data?.items ?? [];
  const open = async (id) => onOpen(chatOf(await call("GET /api/v1/chats/{id}", { params: { id } })));
  const remove = (item) =>
    confirm({
      title: "Delete this conversation?",
      danger: true,
      button: "Delete",
      text: item.title,
      act: async () => {
        await call("DELETE /api/v1/chats/{id}", { params: { id: item.id } });
        kept.list.again();
        if (item.id === current) onNew();
      },
    });
  return html`<nav class="kept" aria-label="Kept conversations">
    <h2>Conversations</h2>
    ${items.length === 0 && html`<p class="faint small">A conversation appears here with its first answer.</p>`}
    <ul>${items.map(
      (
        item,
      ) => html`<li key=${item.id} class=${item.id === current ? "current" : ""}><button class="open" onClick=${() => open(item.id)} aria-current=${item.id === current ? "true" : undefined}>
      <span class="clip">${item.title || "untitled"}</span><span class="faint small">${ago(item.modified_us)}</span></button>
      <button class="button quiet small icon" aria-label=${`Delete ${item.title}`} onClick=${() => remove(item)}><${Icon} name="trash" size=${13} /></button></li>`,
    )}</ul>
    ${items.length > 0 && html`<a class="small" href=${address("GET /api/v1/chats/export").url} download="conversations.jsonl">Save all as JSON Lines</a>`}
  </nav>`;
}
