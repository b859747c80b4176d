// The user's guide: what each page explains.
import { useRead } from "../parts/load.js";
import { html } from "../parts/dom.js";
import { Head, Loading, ProblemNote } from "../parts/page.js";
import { GuideText } from "../parts/guide-text.js";

export default function Guide() {
  const { data, problem, again } = useRead("GET /api/v1/guide");
  if (!data)
    return html`<${Head} title="Guide" /><${ProblemNote} problem=${problem} again=${again} />${!problem && html`<${Loading} />`}`;
  return html`<${GuideText} text=${data.text} page="" />`;
}
