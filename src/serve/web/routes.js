// All pages: their address, their place in the navigation, and the endpoints that each uses. A test fails if one of
// these endpoints is not in the OpenAPI document, or if a page uses one that is not named here. A new page is a row.

/** What every page uses: the frame around it, tasks, lost connections. */
export const SHARED = [
  "GET /api/v1/health",
  "GET /api/v1/machine/sample",
  "POST /api/v1/logout",
  "GET /api/v1/tasks",
  "GET /api/v1/tasks/{id}",
  "DELETE /api/v1/tasks/{id}",
];

/** The rows with `nav` are in the navigation, in this order; `go` is the key after "g". */
export const ROUTES = [
  {
    path: "runs",
    module: "./pages/runs.js",
    nav: { title: "Runs", icon: "runs", group: "Train", go: "r" },
    endpoints: ["GET /api/v1/runs"],
  },
  {
    path: "runs/:id",
    module: "./pages/run.js",
    within: "runs",
    endpoints: [
      "GET /api/v1/runs/{id}",
      "GET /api/v1/runs/{id}/events",
      "GET /api/v1/runs/{id}/series",
      "GET /api/v1/runs/{id}/samples",
      "GET /api/v1/runs/{id}/report",
      "POST /api/v1/runs/{id}/stop",
      "POST /api/v1/runs/{id}/resume",
      "POST /api/v1/runs/{id}/export",
      "DELETE /api/v1/runs/{id}",
    ],
  },
  {
    path: "overlay",
    module: "./pages/overlay.js",
    within: "runs",
    endpoints: ["GET /api/v1/runs/{id}", "GET /api/v1/runs/{id}/series"],
  },
  {
    path: "data",
    module: "./pages/data.js",
    nav: { title: "Data", icon: "data", group: "Train", go: "d" },
    endpoints: ["GET /api/v1/datasets", "POST /api/v1/datasets", "DELETE /api/v1/datasets/{id}"],
  },
  {
    path: "data/:id",
    module: "./pages/dataset.js",
    within: "data",
    endpoints: [
      "GET /api/v1/datasets",
      "GET /api/v1/catalog",
      "POST /api/v1/datasets/{id}/check",
      "GET /api/v1/datasets/{id}/examples",
      "GET /api/v1/datasets/{id}/rejected",
    ],
  },
  {
    path: "plan",
    module: "./pages/plan.js",
    nav: { title: "Plan", icon: "plan", group: "Train", go: "p" },
    endpoints: [
      "GET /api/v1/catalog",
      "GET /api/v1/datasets",
      "GET /api/v1/settings",
      "GET /api/v1/presets",
      "PUT /api/v1/presets/{name}",
      "POST /api/v1/plan",
    ],
  },
  {
    path: "new",
    module: "./pages/new.js",
    nav: { title: "New run", icon: "add", group: "Train", go: "n" },
    endpoints: [
      "GET /api/v1/machine",
      "POST /api/v1/doctor",
      "GET /api/v1/catalog",
      "POST /api/v1/models/check",
      "POST /api/v1/fetches",
      "GET /api/v1/datasets",
      "POST /api/v1/datasets",
      "POST /api/v1/datasets/{id}/check",
      "GET /api/v1/settings",
      "GET /api/v1/presets",
      "POST /api/v1/plan",
      "POST /api/v1/runs",
    ],
  },
  {
    path: "chat",
    module: "./pages/chat.js",
    nav: { title: "Chat", icon: "chat", group: "Try", go: "c" },
    endpoints: [
      "GET /api/v1/models",
      "POST /v1/chat/completions",
      "GET /api/v1/chats",
      "GET /api/v1/chats/{id}",
      "PUT /api/v1/chats/{id}",
      "DELETE /api/v1/chats/{id}",
      "GET /api/v1/chats/export",
    ],
  },
  {
    path: "compare",
    module: "./pages/compare.js",
    nav: { title: "Compare", icon: "compare", group: "Try", go: "m" },
    endpoints: [
      "GET /api/v1/models",
      "GET /api/v1/suites",
      "GET /api/v1/comparisons",
      "POST /api/v1/comparisons",
    ],
  },
  {
    path: "compare/:id",
    module: "./pages/comparison.js",
    within: "compare",
    endpoints: ["GET /api/v1/comparisons/{id}"],
  },
  {
    path: "arena",
    module: "./pages/arena.js",
    nav: { title: "Blind arena", icon: "arena", group: "Try", go: "a" },
    endpoints: [
      "GET /api/v1/comparisons",
      "GET /api/v1/comparisons/{id}/blind",
      "GET /api/v1/comparisons/{id}/votes",
      "POST /api/v1/comparisons/{id}/votes",
    ],
  },
  {
    path: "knowledge",
    module: "./pages/knowledge.js",
    nav: { title: "Knowledge", icon: "knowledge", group: "Try", go: "k" },
    endpoints: [
      "GET /api/v1/knowledge",
      "GET /api/v1/knowledge/models/{id}",
      "DELETE /api/v1/knowledge/models/{id}",
      "POST /api/v1/knowledge/models/{id}/patches",
      "GET /api/v1/knowledge/models/{id}/patches/{patch}",
      "POST /api/v1/knowledge/models/{id}/undo",
      "POST /api/v1/knowledge/edits",
      "GET /api/v1/knowledge/edits/{id}",
      "DELETE /api/v1/knowledge/edits/{id}",
      "POST /api/v1/knowledge/edits/{id}/keep",
      "POST /api/v1/knowledge/traces",
      "GET /api/v1/suites",
      "GET /api/v1/knowledge/measurements",
      "POST /api/v1/knowledge/measurements",
      "DELETE /api/v1/knowledge/measurements/{id}",
      "GET /api/v1/datasets",
      "POST /api/v1/datasets",
      "POST /v1/completions",
      "POST /v1/chat/completions",
    ],
  },
  {
    path: "benchmarks",
    module: "./pages/benchmarks.js",
    nav: { title: "Benchmarks", icon: "bench", group: "Machine", go: "b" },
    endpoints: ["GET /api/v1/benchmarks", "POST /api/v1/benchmarks", "GET /api/v1/benchmarks/{id}"],
  },
  {
    path: "protocol-lab",
    module: "./pages/protocol-lab.js",
    nav: { title: "Protocol lab", icon: "packet", group: "Machine", go: "l" },
    endpoints: [
      "GET /api/v1/packets/codes",
      "POST /api/v1/packets",
      "POST /api/v1/packets/inspect",
      "POST /api/v1/packets/flips",
      "GET /api/v1/packets/sizes",
      "POST /api/v1/packets/rates",
    ],
  },
  {
    path: "white-paper",
    module: "./pages/white-paper.js",
    nav: { title: "White paper", icon: "report", group: "Machine", go: "w" },
    endpoints: ["GET /api/v1/white-paper", "GET /api/v1/white-paper/file"],
  },
  {
    path: "guide",
    module: "./pages/guide.js",
    nav: { title: "Guide", icon: "guide", group: "Machine", go: "h" },
    endpoints: ["GET /api/v1/guide"],
  },
  {
    path: "guide/:page",
    module: "./pages/guide-page.js",
    within: "guide",
    endpoints: ["GET /api/v1/guide/{page}"],
  },
];

/** Reads an address like "#/runs/NAME?tab=samples". */
export function read(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const query = Object.fromEntries(new URLSearchParams(search));
  for (const route of ROUTES) {
    const names = route.path.split("/");
    if (names.length !== parts.length) continue;
    if (!names.every((name, at) => name.startsWith(":") || name === parts[at])) continue;
    const args = Object.fromEntries(
      names.flatMap((name, at) => (name.startsWith(":") ? [[name.slice(1), parts[at]]] : [])),
    );
    return { route, args, query };
  }
  return null;
}

/** Makes an address from parts and a query. */
export function href(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${[parts].flat().map(encodeURIComponent).join("/")}${search.size ? `?${search}` : ""}`;
}

/** Changes the query of the present address without a new entry in the history. */
export function keepQuery(query) {
  const [path, search = ""] = location.hash.split("?");
  const merged = new URLSearchParams(search);
  for (const [name, value] of Object.entries(query)) {
    if (value) merged.set(name, value);
    else merged.delete(name);
  }
  history.replaceState(null, "", merged.size ? `${path}?${merged}` : path);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
