// A chart over steps: the range of each column, the average on top, and the marks of chart-marks.js. The drawing
// is uPlot's; this file gives it data, colours, zoom, keys, and words for those who cannot see it.
import { drawMarks } from "./chart-marks.js";
import { digitsOf, logLabels, stepRange, valueRange } from "./chart-scale.js";
import { html, useEffect, useRef } from "./dom.js";
import { count, figure } from "./format.js";
import { useStore } from "./store.js";
import { colour, theme } from "./theme.js";

let library;

/** Loads uPlot, which is a script and no module, when the first chart is drawn. */
export function plotLibrary() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/vendor/uPlot.iife.min.js";
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("The script that draws charts could not be loaded."));
    document.head.append(script);
  });
  return library;
}

/** A colour with an opacity, for canvases. */
export const faded = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);

/**
 * Draws `data`, columns for uPlot whose first is the steps, in the way that `lines` describes: `{ name, colour,
 * width, opacity, band }`, one per column after the first. `range` is the zoom into the `whole`, `[first, last]`
 * or null; `onRange` gets a new one. `read(at)` returns the words for a column.
 */
export function Chart({
  title,
  unit = "",
  data,
  lines,
  marks = {},
  format = figure,
  height = 150,
  range,
  whole,
  onRange,
  log = false,
  read,
  sync,
  empty = "No values yet.",
}) {
  const place = useRef(null);
  const words = useRef(null);
  const plot = useRef(null);
  const now = useRef({});
  const colours = useStore(theme);
  now.current = { data, marks, range, whole, onRange, format, read };
  const shape = JSON.stringify([lines.map((line) => [line.name, line.colour]), log, height]);

  useEffect(() => {
    let gone = false;
    let watcher;
    const element = place.current;
    plotLibrary().then((uPlot) => {
      if (gone) return;
      const settings = options(uPlot, { lines, height, log, sync, width: element.clientWidth, now, words });
      const made = new uPlot(settings, now.current.data, element);
      plot.current = made;
      // A plot that is taken away loses its size, which is no reason to draw it.
      watcher = new ResizeObserver(() => {
        if (!gone && element.clientWidth) made.setSize({ width: element.clientWidth, height });
      });
      watcher.observe(element);
    });
    return () => {
      gone = true;
      watcher?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, colours]);
  useEffect(() => {
    plot.current?.setData(data, true);
  });

  const steps = data[0];
  const last = steps.length ? steps[steps.length - 1] : null;
  const label =
    last === null
      ? `${title}: ${empty}`
      : `${title}, over steps ${count(steps[0])} to ${count(last)}. ${now.current.read?.(steps.length - 1)?.text ?? ""}`;
  return html`<figure class="chart" data-test=${`chart-${title}`}>
    <figcaption class="chart-head"><h2>${title}</h2>${unit && html`<span class="faint small">${unit}</span>`}<span class="at" ref=${words}>${last === null ? "" : shown(now.current.read?.(steps.length - 1))}</span></figcaption>
    <div class="plot" ref=${place} tabindex="0" role="img" aria-label=${label} onKeyDown=${(event) => keys(event, plot.current, now.current)}
      style=${{ height: `${height}px` }}></div>
  </figure>`;
}

const shown = (said) =>
  said ? html`${said.at && `${said.at} `}<b>${said.value}</b>${said.more && ` ${said.more}`}` : "";

function options(uPlot, { lines, height, log, sync, width, now, words }) {
  const ink = { axis: colour("faint"), grid: colour("line"), paper: colour("paper") };
  const say = (at) => {
    const said = now.current.read?.(at);
    if (!said || !words.current) return;
    // Written past the view library: this follows the pointer.
    words.current.replaceChildren(
      said.at ? `${said.at} ` : "",
      Object.assign(document.createElement("b"), { textContent: said.value }),
      said.more ? ` ${said.more}` : "",
    );
  };
  let pressed = false;
  return {
    width,
    height,
    padding: [6, 16, 0, 0],
    legend: { show: false },
    pxAlign: 0,
    focus: { alpha: 1 },
    cursor: {
      y: false,
      points: { show: lines.length < 4, size: 6 },
      drag: { x: true, y: false, setScale: false },
      sync: sync ? { key: sync, setSeries: false, scales: ["x", null] } : undefined,
      bind: {
        dblclick: () => () => now.current.onRange?.(null),
        mousedown: (u, target, handler) => (event) => {
          pressed = true;
          return handler(event);
        },
      },
    },
    scales: {
      x: {
        time: false,
        range: (u, low, high) => stepRange({ ...now.current.marks, range: now.current.range }, low, high),
      },
      y: {
        distr: log ? 3 : 1,
        range: (u, low, high) => {
          const steps = [u.scales.x.min, u.scales.x.max];
          return valueRange({ evals: now.current.marks.evals, log, steps }, low, high);
        },
      },
    },
    axes: [
      {
        stroke: ink.axis,
        grid: { show: false },
        ticks: { stroke: ink.grid, width: 1, size: 4 },
        size: 24,
        gap: 3,
        font: font(),
        values: (u, splits) => splits.map((at) => (Number.isInteger(at) ? count(at) : "")),
      },
      {
        stroke: ink.axis,
        grid: { stroke: ink.grid, width: 1 },
        ticks: { show: false },
        gap: 6,
        font: font(),
        size: axisSize,
        ...(log ? { splits: (u, axis, low, high) => logLabels(low, high), filter: (u, splits) => splits } : {}),
        values: (u, splits) => {
          const digits = digitsOf(splits);
          const texts = splits.map((at) => (at === null ? "" : now.current.format(at, digits)));
          // Of labels that read the same, the first stands for all.
          return texts.map((text, at) => (text === texts[at - 1] ? "" : text));
        },
      },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.name,
        spanGaps: false,
        width: line.width ?? 1.75,
        points: { show: (u, at) => onlyOne(u, at) && { size: 4 } },
        stroke: faded(colour(line.colour), line.opacity ?? 1),
      })),
    ],
    bands: lines.flatMap((line, at) =>
      line.band ? [{ series: [at + 1, at + 2], fill: faded(colour(line.colour), line.band) }] : [],
    ),
    hooks: {
      setCursor: [
        (u) => {
          const at = u.cursor.idx;
          if (at !== null && at !== undefined) say(at);
          else say(u.data[0].length - 1);
        },
      ],
      setSelect: [
        (u) => {
          if (!pressed || u.select.width < 4) return;
          pressed = false;
          const [first, last] = [
            u.posToVal(u.select.left, "x"),
            u.posToVal(u.select.left + u.select.width, "x"),
          ];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (last - first >= 2) now.current.onRange?.([Math.max(0, Math.floor(first)), Math.ceil(last)]);
        },
      ],
      draw: [(u) => drawMarks(u, now.current.marks)],
    },
  };
}

const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;

// The axis is as wide as its longest label, but never jumps by a pixel or two while numbers change.
function axisSize(u, values) {
  const longest = Math.max(0, ...(values ?? []).map((text) => text?.length ?? 0));
  return Math.max(36, 14 + longest * 6.4);
}

const onlyOne = (u, at) =>
  u.data[0].length === 1 || u.data[at].filter((value) => value !== null).length === 1;

/** Arrow keys move through the columns, + and - zoom around the one that is read, 0 and Esc show everything. */
function keys(event, u, { data, range, whole, onRange }) {
  const steps = data[0];
  if (!u || !steps.length || event.ctrlKey || event.metaKey) return;
  // The columns may have become fewer since the pointer moved, by a zoom that read them anew.
  const at = Math.min(u.cursor.idx ?? steps.length - 1, steps.length - 1);
  const to = {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    Home: 0,
    End: steps.length - 1,
    PageUp: at - 50,
    PageDown: at + 50,
  }[event.key];
  if (to !== undefined) {
    const clamped = Math.min(steps.length - 1, Math.max(0, to));
    u.setCursor({ left: u.valToPos(steps[clamped], "x"), top: 10 });
  } else if (event.key === "+" || event.key === "-") {
    const [begin, end] = whole ?? [steps[0], steps[steps.length - 1]];
    const [first, last] = range ?? [begin, end];
    const half = ((last - first) / 2) * (event.key === "+" ? 0.5 : 2);
    const middle = u.cursor.idx === null || u.cursor.idx === undefined ? (first + last) / 2 : steps[at];
    if (half < 1) return;
    // The window stays within the steps there are.
    const from = Math.max(begin, Math.min(middle - half, end - half * 2));
    const until = Math.min(end, from + half * 2);
    onRange?.(
      event.key === "-" && from <= begin && until >= end ? null : [Math.floor(from), Math.ceil(until)],
    );
  } else if (event.key === "0" || (event.key === "Escape" && range)) {
    onRange?.(null);
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}
