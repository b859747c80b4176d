// Requests to the server: JSON in and out, problems as errors, long work as tasks, live events.
// Every endpoint is named as in the OpenAPI document (`GET /api/v1/runs/{id}`), so that a test can check it.
import { sentence } from "./parts/format.js";
import { store } from "./parts/store.js";

/** What went wrong, as the server says it: what, where, and what to do. */
export class Problem extends Error {
  constructor({ title, detail, where, advice, status }) {
    super(detail || title || "The request failed.");
    this.name = "Problem";
    this.title = title || "The request failed";
    this.detail = detail && detail !== title ? detail : "";
    this.where = where || "";
    this.advice = advice || "";
    this.status = status ?? 0;
  }
}

/** "ok", "lost" while the server does not answer, or "locked" when it does not know this browser. */
export const connection = store("ok");

const LOST = {
  title: "The server does not answer",
  detail: "The connection to sparktune is lost.",
  advice: "This page tries again by itself. If the server has ended, start it with: sparktune serve",
};

/** Turns `GET /api/v1/runs/{id}` with its parameters into a method and an address. */
export function address(endpoint, params = {}, query = {}) {
  const [method, template] = endpoint.split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name] ?? ""));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") search.append(name, value);
  }
  return { method, url: search.size ? `${path}?${search}` : path };
}

/** Sends a request and returns the response. A response that is an error is thrown as a Problem. */
export async function send(endpoint, { params, query, body, raw, signal, headers = {} } = {}) {
  const { method, url } = address(endpoint, params, query);
  const options = {
    method,
    signal,
    headers: { Accept: "application/json", ...headers },
    credentials: "same-origin",
  };
  if (raw !== undefined) options.body = raw;
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Problem(LOST);
  }
  if (response.status === 401) connection.set("locked");
  else if (connection.get() !== "ok") connection.set("ok");
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** Sends a request and returns its JSON, or null if there is none. */
export async function call(endpoint, options) {
  const response = await send(endpoint, options);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

async function problemOf(response) {
  return told(parsed(await response.text().catch(() => "")), response.status);
}

/** What the server says as a Problem. Its `title` only names the status, so what happened is its `detail`. */
function told(said, status) {
  // OpenAI's shape has its message in `error`.
  const what = said?.detail || said?.error?.message || said?.title || `The server answered ${status}.`;
  return new Problem({ title: sentence(what), where: said?.where, advice: said?.advice, status });
}

let probing = false;

/** Notes that the server did not answer, and asks until it does. */
function lost() {
  if (connection.get() === "ok") connection.set("lost");
  suspect();
}

/** Asks whether the server still answers. A stream may have ended for another reason. */
function suspect() {
  if (probing) return;
  probing = true;
  const probe = async (wait) => {
    try {
      const response = await fetch(address("GET /api/v1/health").url, {
        credentials: "same-origin",
        cache: "no-store",
      });
      probing = false;
      connection.set(response.status === 401 ? "locked" : "ok");
    } catch {
      if (connection.get() === "ok") connection.set("lost");
      setTimeout(() => probe(Math.min(wait * 1.5, 5000)), wait);
    }
  };
  setTimeout(() => probe(500), 100);
}

/** The states in which a task has ended. */
const ENDED = ["done", "failed", "cancelled"];

/**
 * Waits for a task and returns its result. `onUpdate` gets the task as it proceeds. An aborted `signal` ends the
 * waiting, not the task; `cancelTask` ends that. What is not a task is returned as it is.
 */
export async function finish(task, { onUpdate, signal } = {}) {
  if (!task || typeof task.state !== "string" || !task.id || !task.kind) return task;
  let current = task;
  for (let misses = 0; !ENDED.includes(current.state);) {
    onUpdate?.(current);
    await pause(misses ? 1000 : 300, signal);
    try {
      current = await call("GET /api/v1/tasks/{id}", { params: { id: task.id }, signal });
      misses = 0;
    } catch (error) {
      // The task goes on while the server cannot be reached; a server that has forgotten it says so.
      if (!(error instanceof Problem) || error.status !== 0 || ++misses > 600) throw error;
    }
  }
  onUpdate?.(current);
  if (current.state === "done") return current.result;
  if (current.state === "cancelled")
    throw new Problem({ title: "Cancelled", detail: "This was cancelled before it was done." });
  throw told(current.error ?? { title: "It failed" }, current.error?.status ?? 0);
}

/**
 * Sends a request that starts a task, and waits for it. Nobody else waits for this task, so an aborted `signal` ends it
 * too: a plan or a check that was replaced by another one would otherwise take one of the server's few places.
 */
export async function work(endpoint, options = {}) {
  const task = await call(endpoint, options);
  try {
    return await finish(task, options);
  } catch (error) {
    if (options.signal?.aborted && task?.kind) cancelTask(task.id).catch(() => {});
    throw error;
  }
}

/** Asks the server to end a task. */
export const cancelTask = (id) => call("DELETE /api/v1/tasks/{id}", { params: { id } });

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const ended = () => reject(new DOMException("The waiting was ended.", "AbortError"));
    if (signal?.aborted) ended();
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", ended);
      resolve();
    }, ms);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        ended();
      },
      { once: true },
    );
  });
}

/**
 * Follows events from a position on; `on` has a function for each name of an event, which gets its data. A broken connection is
 * opened again from the last event. While the tab is hidden it is closed, because a browser holds at most six to
 * one server. Returns the function that ends it.
 */
export function follow(endpoint, { params, from, on }) {
  let source = null;
  let last = from;
  let wait = 500;
  let timer = 0;
  const open = () => {
    if (document.hidden) return;
    source = new EventSource(address(endpoint, params, { from: last }).url);
    for (const [name, act] of Object.entries(on)) {
      source.addEventListener(name, (message) => {
        wait = 500;
        if (message.lastEventId) last = message.lastEventId;
        act(JSON.parse(message.data));
      });
    }
    source.onopen = () => connection.get() === "lost" && connection.set("ok");
    source.onerror = () => {
      close();
      suspect();
      timer = setTimeout(open, wait);
      wait = Math.min(wait * 2, 8000);
    };
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const visibility = () => {
    close();
    open();
  };
  document.addEventListener("visibilitychange", visibility);
  open();
  return () => {
    document.removeEventListener("visibilitychange", visibility);
    close();
  };
}

/** Sends a file and tells how much of it is sent: fetch cannot do that. Returns the JSON of the answer. */
export function upload(endpoint, { query, file, onProgress, signal }) {
  const { method, url } = address(endpoint, {}, query);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.setRequestHeader("Accept", "application/json");
    request.upload.onprogress = (event) => onProgress?.(event.loaded, event.total);
    request.onload = () => {
      const said = parsed(request.responseText);
      if (request.status < 300) resolve(said);
      else
        reject(
          new Problem({ title: `The server answered ${request.status}`, ...said, status: request.status }),
        );
    };
    // A server that refuses a file may close the connection before it has read all of it.
    request.onerror = () => {
      suspect();
      reject(
        new Problem({
          title: "The upload broke off",
          detail: `${file.name} was not sent completely.`,
          advice:
            "It may be larger than the server accepts, or the connection was lost. Files below a --data-dir folder need no upload.",
        }),
      );
    };
    signal?.addEventListener(
      "abort",
      () => {
        request.abort();
        reject(new DOMException("The upload was cancelled.", "AbortError"));
      },
      { once: true },
    );
    request.send(file);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
