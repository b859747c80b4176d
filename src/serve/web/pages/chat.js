// Chat with one model, or with up to three beside each other. Nothing is kept unless the user says so.
import { call } from "../api.js";
import { confirm, tellProblem } from "../parts/dialog.js";
import { html, useEffect, useRef, useState } from "../parts/dom.js";
import { complete } from "../parts/completion.js";
import { Icon } from "../parts/icons.js";
import { asProblem, useRead } from "../parts/load.js";
import { Empty, Head, Loading, ProblemNote } from "../parts/page.js";
import { useShortcuts } from "../parts/shortcuts.js";
import { remembered } from "../parts/store.js";
import { Kept, useKept } from "./chat-kept.js";
import { Settings, requestOptions } from "./chat-settings.js";
import { Turn } from "./chat-turn.js";

const MOST_COLUMNS = 3;
const fresh = () => ({
  id: [...crypto.getRandomValues(new Uint8Array(8))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join(""),
  turns: [],
});

export default function Chat({ query }) {
  const { data, problem, again } = useRead("GET /api/v1/models");
  const models = data?.items ?? [];
  const [columns, setColumns] = useState(() => [query.model].filter(Boolean));
  const [chat, setChat] = useState(fresh);
  const [settings, setSettings] = useState(() => remembered.get("chat-settings", { system: "" }));
  const [panel, setPanel] = useState(false);
  const kept = useKept();
  const ending = useRef(new Set());
  const latest = useRef(chat);
  latest.current = chat;
  useEffect(() => () => ending.current.forEach((each) => each.abort()), []);
  const used = columns.length
    ? columns
    : [(models.find((model) => model.loaded) ?? models[0])?.id].filter(Boolean);
  const busy = chat.turns.some((turn) => turn.answers.some((answer) => answer?.busy));

  const update = (id, at, column, change) =>
    setChat((before) => {
      if (before.id !== id || !before.turns[at]) return before;
      const turns = before.turns.slice();
      const answers = turns[at].answers.slice();
      answers[column] = { ...answers[column], ...change };
      turns[at] = { ...turns[at], answers };
      return { ...before, turns };
    });

  /** Lets one model answer a turn, after the conversation before it in its own column. */
  const answer = async (turns, at, column) => {
    const { id } = latest.current;
    // A model may have been removed since it answered.
    const model = used[column] ?? turns[at].answers[column]?.model;
    const stop = new AbortController();
    ending.current.add(stop);
    update(id, at, column, {
      model,
      text: "",
      thinking: "",
      busy: true,
      problem: null,
      stats: null,
      stop: () => stop.abort(),
    });
    let drawing = 0;
    let newest = null;
    const onText = (said) => {
      newest = said;
      // At most one drawing per frame, however fast the tokens come.
      drawing ||= requestAnimationFrame(() => {
        drawing = 0;
        update(id, at, column, newest);
      });
    };
    try {
      const done = await complete({
        model,
        messages: messagesOf(settings.system, turns, at, column),
        options: requestOptions(settings),
        signal: stop.signal,
        onText,
      });
      cancelAnimationFrame(drawing);
      update(id, at, column, { text: done.text, thinking: done.thinking, stats: done, busy: false });
    } catch (error) {
      cancelAnimationFrame(drawing);
      update(id, at, column, {
        ...newest,
        busy: false,
        stopped: error.name === "AbortError",
        problem: error.name === "AbortError" ? null : asProblem(error),
      });
    }
    ending.current.delete(stop);
  };

  /** Keeps a conversation after its answers, unless another one was opened or begun meanwhile. */
  const keep = (id) =>
    kept.on &&
    setTimeout(() => {
      if (latest.current.id !== id) return;
      kept.save(latest.current, settings.system, used[0]).catch((error) => tellProblem(asProblem(error)));
    });

  /** Sends what the user wrote, at the end or in place of a former turn, which drops everything after it. */
  const ask = (text, at = chat.turns.length) => {
    if (!text.trim() || !used.length) return;
    const turns = [...chat.turns.slice(0, at), { user: text, answers: used.map(() => null) }];
    const next = { ...chat, turns };
    latest.current = next;
    setChat(next);
    Promise.all(used.map((_, column) => answer(turns, at, column))).then(() => keep(next.id));
  };
  const repeat = (at, column) => {
    const turns = chat.turns.slice(0, at + 1);
    setChat({ ...chat, turns });
    answer(turns, at, column).then(() => keep(chat.id));
  };
  const restart = () => {
    ending.current.forEach((each) => each.abort());
    setChat(fresh());
  };
  const change = (next) => {
    setSettings(next);
    remembered.set("chat-settings", next);
  };
  useShortcuts("Chat", [
    { keys: "n", about: "New conversation", act: restart },
    { keys: "i", about: "Write", act: () => document.querySelector("[data-test=composer]")?.focus() },
    { keys: ",", about: "Settings", act: () => setPanel(!panel) },
  ]);

  if (!data)
    return html`<${Head} title="Chat" />${problem ? html`<${ProblemNote} problem=${problem} again=${again} />` : html`<${Loading} what="Looking for models" />`}`;
  if (!models.length) {
    return html`<${Head} title="Chat" /><${Empty} icon="chat" title="There is no model to talk to" actions=${html`<a class="button main" href="#/new">Start a run</a>`}>
      Finished runs appear here, and models that are already downloaded. You can also name one when the server starts: <code>sparktune serve --model FOLDER</code>.<//>`;
  }
  return html`<div class=${`chat ${panel ? "with-panel" : ""} ${kept.on ? "with-kept" : ""}`}>
    ${
      kept.on &&
      html`<${Kept} kept=${kept} current=${chat.id} onNew=${restart} onOpen=${(opened) => {
        ending.current.forEach((each) => each.abort());
        setChat(opened.chat);
        change({ ...settings, system: opened.system });
        if (models.some((model) => model.id === opened.model)) setColumns([opened.model]);
      }} />`
    }
    <section class="talk" aria-label="Conversation">
      <header class="chat-head"><h1 class="hidden-visually">Chat</h1>
        <div class="chat-models">${used.map(
          (model, column) => html`<span class="model-choice" key=${column}>
          <select class="select" aria-label=${`Model ${column + 1}`} value=${model} data-test=${`chat-model-${column}`} onChange=${(event) => setColumns(used.map((each, at) => (at === column ? event.target.value : each)))}>
            ${models.map((each) => html`<option key=${each.id} value=${each.id}>${each.name}${each.kind ? ` (${each.kind})` : ""}</option>`)}</select>
          ${used.length > 1 && html`<button class="button quiet small icon" aria-label=${`Remove model ${column + 1}`} onClick=${() => setColumns(used.filter((_, at) => at !== column))}><${Icon} name="close" size=${13} /></button>`}</span>`,
        )}
          ${used.length < MOST_COLUMNS && models.length > 1 && html`<button class="button quiet" data-test="add-model" onClick=${() => setColumns([...used, (models.find((model) => !used.includes(model.id)) ?? models[0]).id])}><${Icon} name="add" size=${14} /><span class="wide-only">Add a model beside it</span></button>`}
        </div>
        <div class="actions"><button class="button" data-test="new-chat" onClick=${restart} disabled=${!chat.turns.length}>New</button>
          <button class="button icon" aria-label="Settings" aria-pressed=${panel} data-test="chat-settings" onClick=${() => setPanel(!panel)}><${Icon} name="sliders" /></button></div>
      </header>
      <div class="turns" role="log" aria-label="Messages">
        ${
          chat.turns.length === 0 &&
          html`<div class="greeting"><h2>${used.length > 1 ? "Ask several models the same question" : `Ask ${models.find((model) => model.id === used[0])?.name ?? used[0]}`}</h2>
          <p class="soft">Answers appear as they are generated. ${kept.on ? "Conversations are kept on the server." : "Nothing is kept: the conversation is gone when you leave this page."}</p></div>`
        }
        ${chat.turns.map((turn, at) => html`<${Turn} key=${at} turn=${turn} names=${models} last=${at === chat.turns.length - 1} busy=${busy} onEdit=${(text) => ask(text, at)} onAgain=${(column) => repeat(at, column)} />`)}
        <${Bottom} chat=${chat} />
      </div>
      <${Composer} busy=${busy} onSend=${(text) => ask(text)} onStop=${() => ending.current.forEach((each) => each.abort())} />
    </section>
    ${panel && html`<${Settings} settings=${settings} onChange=${change} kept=${kept} onClose=${() => setPanel(false)} onForget=${() => forget(kept)} />`}
  </div>`;
}

const forget = (kept) =>
  confirm({
    title: "Stop keeping conversations?",
    button: "Stop keeping",
    text: "New conversations are no longer kept. Those already kept stay on the server until you delete them one by one.",
    act: () => kept.turn(false),
  });

/** The messages of one column before an answer. A model that joined later goes on from the first column's answers. */
function messagesOf(system, turns, at, column) {
  const before = turns.slice(0, at).flatMap((turn) => {
    const said = turn.answers[column] ?? turn.answers[0];
    return said?.text
      ? [
          { role: "user", content: turn.user },
          { role: "assistant", content: said.text },
        ]
      : [];
  });
  return [
    ...(system?.trim() ? [{ role: "system", content: system }] : []),
    ...before,
    { role: "user", content: turns[at].user },
  ];
}

/** Keeps the end in view while text comes, unless the reader has scrolled up. */
function Bottom({ chat }) {
  const end = useRef(null);
  useEffect(() => {
    const box = end.current.parentElement;
    if (box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
  }, [chat]);
  return html`<div ref=${end}></div>`;
}

function Composer({ busy, onSend, onStop }) {
  const [text, setText] = useState("");
  const area = useRef(null);
  useEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, 240)}px`;
  }, [text]);
  useEffect(() => {
    // On a phone the keyboard would cover the page at once.
    if (matchMedia("(pointer: fine)").matches) area.current.focus();
  }, []);
  const send = () => {
    if (busy || !text.trim()) return;
    onSend(text);
    setText("");
  };
  return html`<form class="composer" onSubmit=${(event) => {
    event.preventDefault();
    send();
  }}>
    <label class="hidden-visually" for="composer">Message</label>
    <textarea id="composer" class="area" rows="1" placeholder="Write a message" ref=${area} value=${text} data-test="composer" onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        send();
      }}></textarea>
    ${
      busy
        ? html`<button type="button" class="button main icon" aria-label="Stop" data-test="chat-stop" onClick=${onStop}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="button main icon" aria-label="Send" data-test="send" disabled=${!text.trim()}><${Icon} name="send" /></button>`
    }
    <span class="faint small composer-hint">Enter sends, Shift + Enter makes a new line</span>
  </form>`;
}
