// One answer of a model, as it comes: OpenAI's stream of events, read with fetch because EventSource cannot post.
import { Problem, send } from "../api.js";

/**
 * Asks for an answer. `onText` gets `{ text, thinking }` so far. Returns what came with the last event: the usage,
 * the times, and why it ended. Aborting `signal` ends the work on the server too.
 */
export async function complete({ model, messages, options, signal, onText }) {
  const body = { model, messages, stream: true, stream_options: { include_usage: true }, ...options };
  const began = performance.now();
  const response = await send("POST /v1/chat/completions", {
    body,
    signal,
    headers: { Accept: "text/event-stream" },
  });
  const said = { text: "", thinking: "", usage: null, timing: null, reason: null };
  let raw = "";
  let first = null;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Problem({ title: "The answer broke off", detail: chunk.error.message });
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: reasoning } = choice?.delta ?? {};
    if (content || reasoning) first ??= performance.now() - began;
    if (reasoning) said.thinking += reasoning;
    if (content) raw += content;
    if (content || reasoning) {
      const parts = unfolded(raw);
      said.text = parts.text;
      if (parts.thinking) said.thinking = parts.thinking;
      onText({ text: said.text, thinking: said.thinking });
    }
    if (choice?.finish_reason) said.reason = choice.finish_reason;
    if (chunk.usage) said.usage = chunk.usage;
    said.timing = chunk.x_timing ?? chunk.usage?.x_timing ?? said.timing;
  }
  const total = said.timing?.total_ms ?? performance.now() - began;
  const begin = said.timing?.first_token_ms ?? first ?? total;
  const tokens = said.usage?.completion_tokens;
  return {
    ...said,
    first_token_ms: begin,
    total_ms: total,
    tokens,
    tokens_per_s: tokens > 1 && total > begin ? (tokens - 1) / ((total - begin) / 1000) : null,
  };
}

/** The data of each event of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block
        .split(/\r?\n/)
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart())
        .join("\n");
      if (data) yield data;
    }
  }
}

/** Takes a think block at the beginning of an answer out of it; the block may still be open. */
function unfolded(raw) {
  const text = raw.trimStart();
  const close = text.indexOf("</think>");
  if (text.startsWith("<think>")) {
    return close < 0
      ? { thinking: text.slice(7).trim(), text: "" }
      : { thinking: text.slice(7, close).trim(), text: text.slice(close + 8).trimStart() };
  }
  // Templates that open the block in the prompt leave only its end in the answer.
  return close < 0
    ? { thinking: "", text: raw }
    : { thinking: text.slice(0, close).trim(), text: text.slice(close + 8).trimStart() };
}
