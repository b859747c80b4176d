// Dialogs and short messages. Both belong to the whole page, so any part can ask or tell.
import { html, useEffect, useRef } from "./dom.js";
import { Icon } from "./icons.js";
import { Action, ProblemNote } from "./page.js";
import { store, useStore } from "./store.js";

const asked = store(null);
const told = store([]);
let number = 0;

/**
 * Asks for confirmation. `act` does the work while the dialog stays; a problem is shown in it. Returns whether it
 * was done.
 */
export function confirm({ title, text, button, danger = false, act, body }) {
  return new Promise((resolve) =>
    asked.set({ title, text, button, danger, act, body, resolve, problem: null }),
  );
}

/** Opens a dialog with a content of its own, which gets `close`. */
export function show(title, content, wide = true) {
  return new Promise((resolve) => asked.set({ title, content, wide, resolve }));
}

/** Tells something in passing: `{ title, text, kind }`. */
export function tell(message) {
  const shown = { ...message, id: ++number };
  told.set([...told.get().slice(-3), shown]);
  setTimeout(() => dismiss(shown.id), message.kind === "bad" ? 12000 : 5000);
}

/** Tells a problem in passing. */
export const tellProblem = (problem) =>
  tell({
    kind: "bad",
    title: problem.title,
    text: [problem.detail, problem.where, problem.advice].filter(Boolean).join(" "),
  });

const dismiss = (id) => told.set(told.get().filter((message) => message.id !== id));

/** The place of dialogs and messages, once per page. */
export function Messages() {
  const dialog = useStore(asked);
  const messages = useStore(told);
  return html`
    ${dialog && html`<${Dialog} key=${dialog.title} dialog=${dialog} />`}
    <div class="toasts" role="status" aria-live="polite">
      ${messages.map(
        (message) => html`<div class="toast" key=${message.id}>
        <div><b class=${message.kind ?? ""}>${message.title}</b>${message.text && html`<div class="soft">${message.text}</div>`}</div>
        <button class="button quiet small icon" aria-label="Dismiss" onClick=${() => dismiss(message.id)}><${Icon} name="close" size=${13} /></button>
      </div>`,
      )}
    </div>`;
}

function Dialog({ dialog }) {
  const element = useRef(null);
  useEffect(() => {
    element.current.showModal();
  }, []);
  const close = (answer) => {
    // This gives the focus back to what had it; an open dialog that is only taken away would lose it.
    element.current?.close();
    dialog.resolve(answer);
    asked.set(null);
  };
  const act = async () => {
    await dialog.act?.();
    close(true);
  };
  return html`<dialog ref=${element} class=${dialog.wide ? "wide" : ""} aria-labelledby="dialog-title" onCancel=${(
    event,
  ) => {
    event.preventDefault();
    close(false);
  }} onClick=${(event) => event.target === element.current && close(false)}>
    <h2 id="dialog-title">${dialog.title}</h2>
    ${
      dialog.content
        ? dialog.content(close)
        : html`
      <p>${dialog.text}</p>
      ${dialog.body}
      <${ProblemNote} problem=${dialog.problem} />
      <div class="actions">
        <button type="button" class="button" onClick=${() => close(false)}>Cancel</button>
        <${Action} kind=${`main ${dialog.danger ? "danger" : ""}`} onClick=${act} onProblem=${(problem) => asked.set({ ...dialog, problem })}
          data-test="confirm">${dialog.button}<//>
      </div>`
    }
  </dialog>`;
}
