// The turns of a conversation in OpenAI's form, which others may have written.

/** What a turn says: a text, or the texts of its parts. A part that is no text is named. */
export function textOf({ content }) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .map((part) => (typeof part?.text === "string" ? part.text : `[${part?.type ?? "part"}]`))
    .join("\n");
}
