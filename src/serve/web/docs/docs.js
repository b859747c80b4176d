// The page of the API, drawn from the OpenAPI document: every endpoint with its parameters, bodies and answers, and a
// form that sends it. The browser's cookie is the session, so nothing has to be typed twice.
import { html, render, useEffect, useMemo, useState } from "/parts/dom.js";
import { Search } from "/parts/page.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

function Docs() {
  const [spec, setSpec] = useState(null);
  const [problem, setProblem] = useState("");
  const [search, setSearch] = useState("");
  useEffect(() => {
    fetch("/api/v1/openapi.json", { credentials: "same-origin" })
      .then(async (response) => {
        if (!response.ok)
          throw new Error(
            response.status === 401
              ? "This page needs its token: open the address with ?token= that sparktune serve printed."
              : `The server answered ${response.status}.`,
          );
        setSpec(await response.json());
      })
      .catch((error) => setProblem(error.message));
  }, []);
  const groups = useMemo(() => grouped(spec, search.toLowerCase()), [spec, search]);
  if (problem)
    return html`<main class="page narrow"><div class="note bad" role="alert">${problem}</div></main>`;
  if (!spec) return html`<p class="loading" role="status">Reading the document …</p>`;
  return html`<div class="docs">
    <nav aria-label="Endpoints"><a class="brand" href="/"><img src="/icon.svg" alt="" />sparktune</a>
      ${groups.map(([tag, operations]) => html`<div key=${tag}><h2>${tag}</h2>${operations.map((each) => html`<a class="op" href=${`#${each.id}`} key=${each.id} onClick=${() => open(each.id)}><span class=${`method ${each.method}`}>${each.method.toUpperCase()}</span>${short(each.path)}</a>`)}</div>`)}</nav>
    <main id="main" tabindex="-1"><h1>${spec.info.title} API <span class="faint">${spec.info.version}</span></h1>
      <p>${spec.info.description} Programs send <code>Authorization: Bearer TOKEN</code>; this page uses the browser's session. The document is at <a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
      <${Search} label="Search endpoints" value=${search} onInput=${setSearch} />
      ${groups.map(([tag, operations]) => html`<section key=${tag} aria-label=${tag}><h2>${tag}</h2>${operations.map((each) => html`<${Operation} key=${each.id} operation=${each} document=${spec} />`)}</section>`)}
      ${groups.length === 0 && html`<p>No endpoint matches.</p>`}</main></div>`;
}

const short = (path) => path.replace(/^\/api\/v1/, "") || path;

/** The operations by tag that match a search. */
function grouped(spec, search) {
  const groups = new Map();
  for (const [path, item] of Object.entries(spec?.paths ?? {})) {
    for (const method of METHODS.filter((each) => item[each])) {
      const operation = item[method];
      if (
        search &&
        !`${method} ${path} ${operation.summary ?? ""} ${operation.description ?? ""}`
          .toLowerCase()
          .includes(search)
      )
        continue;
      const tag = operation.tags?.[0] ?? "others";
      if (!groups.has(tag)) groups.set(tag, []);
      const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map((each) =>
        resolved(spec, each),
      );
      groups.get(tag).push({
        ...operation,
        id: `${method}${path.replace(/[^a-z0-9]+/gi, "-")}`,
        method,
        path,
        parameters,
      });
    }
  }
  return [...groups].sort(([a], [b]) => a.localeCompare(b));
}

/** Opens an operation that the navigation leads to. */
function open(id) {
  document.getElementById(id)?.setAttribute("open", "");
}

function resolved(spec, schema, depth = 0) {
  if (!schema?.$ref || depth > 20) return schema;
  return resolved(
    spec,
    schema.$ref
      .slice(2)
      .split("/")
      .reduce((at, name) => at?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], spec),
    depth + 1,
  );
}

function Operation({ operation, document: spec }) {
  const [shown, setShown] = useState(false);
  const body = Object.entries(resolved(spec, operation.requestBody)?.content ?? {})[0];
  return html`<details class="operation" id=${operation.id} onToggle=${(event) => setShown(event.target.open)}>
    <summary><span class=${`method ${operation.method}`}>${operation.method.toUpperCase()}</span><code>${operation.path}</code><span>${operation.summary ?? ""}</span></summary>
    ${
      shown &&
      html`<div>
      ${operation.description && html`<p>${operation.description}</p>`}
      ${operation.parameters.length > 0 && html`<div><h3>Parameters</h3><div class="schema">${operation.parameters.map((each) => html`<div key=${each.name}><span class="name">${each.name}</span> <span class="type">${typeOf(spec, each.schema)}</span> <span class="said">${each.in}${each.required ? ", required" : ""}. ${each.description ?? ""}</span></div>`)}</div></div>`}
      ${body && html`<div><h3>Body <span class="faint small">${body[0]}</span></h3><div class="schema"><${Schema} document=${spec} schema=${body[1].schema} /></div></div>`}
      ${Object.entries(operation.responses ?? {}).map(([status, response]) => {
        const answer = resolved(spec, response);
        const content = Object.entries(answer.content ?? {})[0];
        return html`<div key=${status}><h3>${status} <span class="faint small">${answer.description}${content ? `, ${content[0]}` : ""}</span></h3>${content?.[1]?.schema && html`<div class="schema"><${Schema} document=${spec} schema=${content[1].schema} /></div>`}</div>`;
      })}
      <${Try} operation=${operation} body=${body} document=${spec} />
    </div>`
    }
  </details>`;
}

/** A schema as names and types; one that contains itself is only named the second time. */
function Schema({ document: spec, schema, seen = [] }) {
  const name = schema?.$ref?.split("/").at(-1);
  const full = resolved(spec, schema) ?? {};
  if (name && seen.includes(name)) return html`<span class="type">${name}</span>`;
  const inside = name ? [...seen, name] : seen;
  const all = full.allOf
    ? Object.assign({}, ...full.allOf.map((each) => resolved(spec, each)?.properties ?? {}))
    : {};
  const properties = { ...all, ...full.properties };
  if (Object.keys(properties).length) {
    return html`<div class="inner">${Object.entries(properties).map(
      ([
        key,
        value,
      ]) => html`<div key=${key}><span class="name">${key}</span>${full.required?.includes(key) ? "" : "?"} <span class="type">${typeOf(spec, value)}</span> <span class="said">${value.description ?? ""}</span>
      ${inside.length < 5 && nested(spec, value) && html`<${Schema} document=${spec} schema=${nested(spec, value)} seen=${inside} />`}</div>`,
    )}</div>`;
  }
  if (full.type === "array")
    return html`<span class="type">list of</span> <${Schema} document=${spec} schema=${full.items} seen=${inside} />`;
  return html`<span class="type">${typeOf(spec, schema)}</span> <span class="said">${full.description ?? ""}</span>`;
}

/** The object inside a property: itself, the items of a list, or the one alternative that is not null. */
function nested(spec, schema) {
  const full = resolved(spec, schema) ?? {};
  const inner =
    full.type === "array"
      ? full.items
      : ((full.oneOf ?? full.anyOf)?.find((each) => resolved(spec, each)?.properties) ?? schema);
  return resolved(spec, inner)?.properties ? inner : null;
}

function typeOf(spec, schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const some = schema.oneOf ?? schema.anyOf;
  if (some) return some.map((each) => typeOf(spec, each)).join(" | ");
  if (schema.type === "array") return `${typeOf(spec, schema.items)}[]`;
  return [schema.type].flat().join(" | ");
}

/** A form that sends the request and shows the answer. */
function Try({ operation, body, document: spec }) {
  const [values, setValues] = useState({});
  const [text, setText] = useState(() =>
    body?.[0] === "application/json" ? JSON.stringify(example(spec, body[1].schema), null, 2) : "",
  );
  const [answer, setAnswer] = useState(null);
  const [busy, setBusy] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    setAnswer(null);
    const path = operation.path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? ""));
    const query = new URLSearchParams(
      operation.parameters
        .filter((each) => each.in === "query" && values[each.name])
        .map((each) => [each.name, values[each.name]]),
    );
    const began = performance.now();
    const ending = new AbortController();
    try {
      const response = await fetch(query.size ? `${path}?${query}` : path, {
        method: operation.method.toUpperCase(),
        signal: ending.signal,
        credentials: "same-origin",
        ...(body && text ? { body: text, headers: { "Content-Type": body[0] } } : {}),
      });
      const head = `${response.status} ${response.statusText}, ${Math.round(performance.now() - began)} ms`;
      const read = await beginning(response, ending, (so) => setAnswer({ head, text: so }));
      setAnswer({ head, text: pretty(read) });
    } catch (error) {
      setAnswer({ head: "No answer", text: error.message });
    }
    setBusy(false);
  };
  return html`<form class="try" onSubmit=${send}>
    ${
      operation.parameters.length > 0 &&
      html`<div class="fields">${operation.parameters.map(
        (
          each,
        ) => html`<div class="field" key=${each.name}><label for=${`${operation.id}-${each.name}`}>${each.name}</label>
      <input class="input" id=${`${operation.id}-${each.name}`} required=${each.in === "path"} value=${values[each.name] ?? ""} onInput=${(event) => setValues({ ...values, [each.name]: event.target.value })} /></div>`,
      )}</div>`
    }
    ${body && html`<div class="field"><label for=${`${operation.id}-body`}>Body</label><textarea class="area mono" id=${`${operation.id}-body`} rows="6" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></div>`}
    <div><button class="button main" disabled=${busy}>${busy ? "Sending …" : "Send"}</button></div>
    ${answer && html`<div role="status"><b>${answer.head}</b><pre class="answer-box">${answer.text}</pre></div>`}
  </form>`;
}

/** Reads an answer up to 100,000 characters or, of a stream that does not end, five seconds. */
async function beginning(response, ending, onText) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const timer = setTimeout(() => ending.abort(), 5000);
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      text += value;
      if (text.length > 100000) {
        ending.abort();
        break;
      }
      onText(text);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    text += "\n… the stream goes on; the page stopped reading.";
  } finally {
    clearTimeout(timer);
  }
  return text;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A body to begin with: each required field with a value of its type. */
function example(spec, schema, depth = 0) {
  const full = resolved(spec, schema) ?? {};
  if (full.example !== undefined) return full.example;
  if (full.enum) return full.enum[0];
  if (full.properties && depth < 4)
    return Object.fromEntries(
      Object.entries(full.properties)
        .filter(([name]) => full.required?.includes(name))
        .map(([name, value]) => [name, example(spec, value, depth + 1)]),
    );
  const type = [full.type].flat()[0];
  return { array: [], string: "", integer: 0, number: 0, boolean: false, object: {} }[type] ?? null;
}

const place = document.getElementById("app");
place.textContent = "";
render(html`<${Docs} />`, place);
