// A page of the user's guide.
import { useRead } from "../parts/load.js";
import { html } from "../parts/dom.js";
import { Head, Loading, ProblemNote } from "../parts/page.js";
import { GuideText } from "../parts/guide-text.js";

const CRUMB = { href: "#/guide", text: "Guide" };

export default function GuidePage({ page, query }) {
  const { data, problem, again } = useRead("GET /api/v1/guide/{page}", { params: { page } }, [page]);
  if (!data)
    return html`<${Head} title="Guide" crumb=${CRUMB} /><${ProblemNote} problem=${problem} again=${again} />${!problem && html`<${Loading} />`}`;
  return html`<${GuideText} text=${data.text} page=${page} crumb=${CRUMB} at=${query.at} />`;
}
