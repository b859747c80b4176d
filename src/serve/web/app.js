// The frame: navigation, the page of the present address, what is told when the server is away.
import { call, connection } from "./api.js";
import { Messages, tellProblem } from "./parts/dialog.js";
import { html, render, useEffect, useRef, useState } from "./parts/dom.js";
import { bytes } from "./parts/format.js";
import { Icon } from "./parts/icons.js";
import { asProblem, useRead } from "./parts/load.js";
import { Empty, Head, Loading, ProblemNote } from "./parts/page.js";
import { Bar } from "./parts/progress.js";
import { addShortcuts, listen, showShortcuts } from "./parts/shortcuts.js";
import { useStore } from "./parts/store.js";
import { nextTheme, theme } from "./parts/theme.js";
import { ROUTES, href, read } from "./routes.js";

const NAV = ROUTES.filter((route) => route.nav);

function App() {
  const [place, setPlace] = useState(() => read(location.hash || "#/runs"));
  const [open, setOpen] = useState(false);
  const connected = useStore(connection);
  const main = useRef(null);
  useEffect(() => {
    const move = () => {
      setPlace(read(location.hash || "#/runs"));
      setOpen(false);
      window.scrollTo(0, 0);
      // A reader of the screen starts at the new page, not at the link that led to it.
      main.current?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", move);
    return () => removeEventListener("hashchange", move);
  }, []);
  useEffect(() => {
    if (!open) return undefined;
    const close = (event) => event.key === "Escape" && setOpen(false);
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [open]);
  return html`
    <div class=${`frame ${open ? "open" : ""}`}>
      <a class="skip" href=${location.hash || "#/runs"} onClick=${(event) => {
        event.preventDefault();
        main.current.focus();
      }}>Skip to the page</a>
      <div class="top">
        <a class="brand" href="#/runs"><img src="/icon.svg" alt="" />sparktune</a>
        <button class="button quiet icon" aria-label="Menu" aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name=${open ? "close" : "menu"} /></button>
      </div>
      <button class="scrim" aria-label="Close the menu" tabindex="-1" onClick=${() => setOpen(false)}></button>
      <${Side} current=${place?.route.within ?? place?.route.path} />
      <main class="page" id="main" tabindex="-1" ref=${main}>
        ${connected === "locked" ? html`<${Locked} />` : html`<${Place} place=${place} key=${JSON.stringify([place?.route.path, place?.args])} />`}
      </main>
    </div>
    <${Messages} />
    <div role="status" aria-live="assertive">${
      connected === "lost" &&
      html`<div class="lost" data-test="lost"><span class="spin"></span>
      <span><b>The server does not answer.</b> <span class="soft">Trying again …</span></span></div>`
    }</div>`;
}

function Side({ current }) {
  const chosen = useStore(theme);
  let group = "";
  return html`<div class="side" id="side">
    <a class="brand" href="#/runs"><img src="/icon.svg" alt="" />sparktune</a>
    <nav aria-label="Pages">
      ${NAV.map(({ path, nav }) => {
        const heading =
          nav.group === group ? null : html`<div class="side-group">${(group = nav.group)}</div>`;
        return html`${heading}<a class="entry" key=${path} href=${href(path)} aria-current=${path === current ? "page" : undefined}
          data-test=${`nav-${path}`}><${Icon} name=${nav.icon} />${nav.title}</a>`;
      })}
    </nav>
    <div class="side-foot">
      <${MachineNow} />
      <div class="tools">
        <button class="button quiet small icon" title=${`Colours: ${chosen.title}`} aria-label=${`Colours: ${chosen.title}. Change`} data-test="theme"
          onClick=${nextTheme}><${Icon} name=${chosen.icon} size=${15} /></button>
        <button class="button quiet small icon" title="Keyboard shortcuts" aria-label="Keyboard shortcuts" onClick=${showShortcuts}><${Icon} name="help" size=${15} /></button>
        <a class="button quiet small icon" title="API" aria-label="The API, for programs" href="/api/docs/"><${Icon} name="code" size=${15} /></a>
        <button class="button quiet small icon" title="Log out" aria-label="Log out" onClick=${leave} data-test="logout"><${Icon} name="leave" size=${15} /></button>
      </div>
    </div>
  </div>`;
}

/** Memory and load of the machine at this moment. */
function MachineNow() {
  const { data } = useRead("GET /api/v1/machine/sample", {}, [], 3000);
  if (!data?.mem_total_bytes) return null;
  const used = data.mem_used_bytes ?? data.mem_total_bytes - data.mem_available_bytes;
  const gpu = data.gpus?.[0];
  return html`<div class="machine-now">
    <div>${bytes(used)} of ${bytes(data.mem_total_bytes)} in use</div>
    <${Bar} share=${used / data.mem_total_bytes} kind=${used / data.mem_total_bytes > 0.92 ? "warn" : "still"} label="Memory of this machine" />
    <div>${gpu?.busy_percent !== undefined && `GPU ${gpu.busy_percent} % · `}${data.cpu_percent !== undefined && data.cpu_percent !== null && `CPU ${Math.round(data.cpu_percent)} %`}</div>
  </div>`;
}

/** Loads the module of a page and draws it. */
function Place({ place }) {
  const [page, setPage] = useState(null);
  useEffect(() => {
    if (!place) return;
    import(place.route.module).then(
      (module) => setPage(() => module.default),
      (error) => setPage(() => () => html`<${ProblemNote} problem=${asProblem(error)} />`),
    );
  }, [place?.route]);
  if (!place) {
    return html`<${Head} title="Not found" /><${Empty} icon="search" title="There is no such page" actions=${html`<a class="button" href="#/runs">All runs</a>`}>
      The address ${location.hash} leads nowhere.<//>`;
  }
  if (!page) return html`<${Loading} what="Loading" />`;
  const Page = page;
  return html`<${Page} ...${place.args} query=${place.query} />`;
}

function Locked() {
  return html`<${Head} title="Locked" /><${Empty} icon="leave" title="This page needs its token">
    Open the address with ?token= that sparktune serve printed when it started; this browser then remembers it. If you have logged out
    or the token has changed, the terminal in which the server runs shows the current address.<//>`;
}

async function leave() {
  try {
    await call("POST /api/v1/logout", { body: {} });
    connection.set("locked");
  } catch (error) {
    tellProblem(asProblem(error));
  }
}

addShortcuts("Everywhere", [
  ...NAV.map(({ path, nav }) => ({
    keys: `g ${nav.go}`,
    about: nav.title,
    act: () => (location.hash = href(path)),
  })),
  { keys: "/", about: "Search on this page", act: () => document.querySelector("[data-search]")?.focus() },
  { keys: "t", about: "Light, dark or as the system", act: nextTheme },
  { keys: "?", about: "These shortcuts", act: showShortcuts },
]);
listen();
const place = document.getElementById("app");
place.textContent = "";
render(html`<${App} />`, place);
