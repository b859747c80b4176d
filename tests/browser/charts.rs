//! Charts, which a canvas draws: whatever the values and the zoom are, they are drawn without an error, and
//! the axes have few labels. Below the charts of several runs are the settings in which the runs differ.

use serde_json::json;

use crate::chromium::Page;
use crate::server::Server;

/// Draws a chart for each combination of values, scale and zoom, and counts them. uPlot's own logarithmic
/// labels have no end from 0.0953 on.
const DRAW: &str = r#"(async () => {
  const { Chart, plotLibrary } = await import("/parts/chart.js");
  const { html, render } = await import("/parts/dom.js");
  await plotLibrary();
  const place = document.createElement("div");
  place.style.width = "600px";
  document.body.append(place);
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const curves = [
    [0.0953, 0.5, 0.2], [0.00951, 1, 0.3], [0.95, 3, 1.2], [1.37, 1.3701, 1.37], [1e-9, 1e9, 1], [7, 7, 7],
    [0, 1, 2], [-1, 1, 0], [null, null, null], [1e-300, 1e300, 1], [38.6e9, 38.600000001e9, 38.6e9], [], [5],
  ];
  const zooms = [null, [1, 2], [2, 2], [3, 1], [NaN, NaN], [0, Infinity], [1000, 2000], [-5, 1e12]];
  const lines = [{ name: "a", colour: "accent" }];
  let drawn = 0;
  for (const values of curves)
    for (const range of zooms)
      for (const log of [false, true]) {
        const marks = { evals: values.length ? [{ step: 0, loss_nats: 2.5 }, { step: 2, loss_nats: values[1] ?? null }] : [] };
        const data = [values.map((_, at) => at + 1), values];
        render(null, place);
        render(html`<${Chart} title="c" data=${data} lines=${lines} marks=${marks} range=${range} log=${log} />`, place);
        await frame();
        // A frame that is late does not wait for what draws the chart.
        for (let more = 0; more < 60 && !place.querySelector("canvas"); more += 1) await frame();
        drawn += place.querySelectorAll("canvas").length;
      }
  render(null, place);
  place.remove();
  return { drawn, wanted: curves.length * zooms.length * 2 };
})()"#;

#[test]
fn charts_of_any_values_and_zooms_are_drawn_with_few_labels() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|place| drop(place.old_run()));
    page.open(&server.url());
    page.see("old");
    let drawn = page.eval(DRAW);
    assert_eq!(drawn["drawn"], drawn["wanted"], "{drawn}");
    page.is_well(server.port);
    let labels = r#"(async () => {
      const { digitsOf, logLabels } = await import("/parts/chart-scale.js");
      let [most, fewest] = [0, 99];
      for (let at = 0; at < 20000; at += 1) {
        const low = 10 ** (Math.sin(at) * 20), high = low * (1 + 10 ** (Math.cos(at * 7) * 9));
        const labels = logLabels(low, high);
        if (labels.some((label, i) => !(label >= low * 0.999999 && label <= high * 1.000001) || label <= labels[i - 1])) return [low, high];
        most = Math.max(most, labels.length);
        fewest = Math.min(fewest, labels.length);
      }
      return { most, fewest, close: digitsOf([1.45, 1.4525]) };
    })()"#;
    assert_eq!(page.eval(labels), json!({"most": 11, "fewest": 2, "close": 4}));
}

/// Whether the zoom has at least 2 steps and few more.
const CLOSE: &str = r#"(() => {
  const words = document.querySelector("[data-test=reset-zoom]")?.previousElementSibling?.innerText ?? "";
  const [, first, last] = /^steps ([0-9,]+) to ([0-9,]+)$/.exec(words) ?? [];
  const steps = Number(last?.replaceAll(",", "")) - Number(first?.replaceAll(",", ""));
  return steps >= 2 && steps < 40;
})()"#;

/// The pointer is on the last column when a zoom leaves fewer columns: the next zoom is still one of numbers.
#[test]
fn the_keyboard_zooms_a_chart_of_a_long_run_in_and_out() {
    let Some(mut page) = Page::start() else { return };
    let mut run = String::new();
    let server = Server::start(|place| {
        let folder = place.old_run();
        run = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let step = |step: u64| {
            json!({"v": 1, "attempt": 1, "seq": step + 1, "time_us": step * 1000, "kind": "step", "step": step,
                "loss_nats": 0.0953 + 1.0 / step as f64, "target_tokens": 1, "tokens": 2})
        };
        let started =
            json!({"v": 1, "attempt": 1, "seq": 1, "time_us": 1, "kind": "run_started", "total_steps": 9000});
        let lines =
            std::iter::once(started).chain((1..=9000).map(step)).map(|event| event.to_string() + "\n");
        std::fs::write(folder.join("events/0001.jsonl"), lines.collect::<String>()).unwrap();
    });
    page.open(&server.url());
    page.go(&format!("#/runs/{run}"));
    page.wait("the curve", "!!document.querySelector('[data-test=chart-Loss] canvas')");
    page.eval("document.querySelector('[data-test=chart-Loss] .plot').focus()");
    let zoomed =
        "document.querySelector('[data-test=reset-zoom]')?.previousElementSibling?.innerText ?? 'all'";
    for scale in ["linear", "logarithmic"] {
        page.key("End");
        for key in ["+", "+", "+", "ArrowLeft", "+", "+", "-", "+", "+", "+", "+", "+", "+", "+"] {
            page.key(key);
            page.listen(std::time::Duration::from_millis(60));
            let words = page.eval(zoomed);
            assert!(!words.to_string().contains('–'), "{scale} {key} {words}");
        }
        page.wait("a close look", CLOSE);
        page.picture(&format!("zoom-{scale}"));
        page.key("0");
        page.wait("all steps", "!document.querySelector('[data-test=reset-zoom]')");
        page.press("Log scale");
        page.eval("document.querySelector('[data-test=chart-Loss] .plot').focus()");
    }
    page.is_well(server.port);
}

#[test]
fn the_overlay_names_the_settings_in_which_its_runs_differ() {
    let Some(mut page) = Page::start() else { return };
    let faster = "20261123T174755Z-faster-lora-c691";
    let mut run = String::new();
    let server = Server::start(|place| {
        let original = place.old_run();
        let copied = original.with_file_name(faster);
        std::fs::rename(&original, &copied).unwrap();
        let plan = std::fs::read_to_string(copied.join("plan.toml")).unwrap();
        let changed = plan.replace("value = \"2e-3\"", "value = \"4e-3\"");
        assert_ne!(plan, changed);
        std::fs::write(copied.join("plan.toml"), changed).unwrap();
        run = place.old_run().file_name().unwrap().to_str().unwrap().to_owned();
    });
    page.open(&server.url());
    page.go(&format!("#/overlay?ids={run},{faster}"));
    page.wait("the settings", "!!document.querySelector('[data-test=differences]')");
    let rows = "[...document.querySelectorAll('[data-test=differences] tbody tr')]
        .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))";
    assert_eq!(page.eval(rows), json!([["optimizer learning rate", "2e-3", "4e-3"]]));
    page.is_well(server.port);
}
