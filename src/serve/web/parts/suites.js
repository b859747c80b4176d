// Suites of prompts and their prompts, in words.
import { textOf } from "./messages.js";

/** A suite by its name. */
export const suiteName = (suite) => (typeof suite === "string" ? suite : (suite?.name ?? "own prompts"));

/** The prompt as a reader sees it: the last question, with what was said before it. */
export function promptText(prompt) {
  if (prompt.prompt) return prompt.prompt;
  const messages = prompt.messages ?? [];
  return messages.length === 1
    ? textOf(messages[0])
    : messages.map((message) => `${message.role}: ${textOf(message)}`).join("\n");
}
