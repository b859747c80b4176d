//! The state of the server, the machine and the newest runs as Prometheus reads it.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use sparktune_telemetry::GpuSample;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::runs::{Summary, newest};
use crate::locked::lock;
use crate::problem::{Problem, blocking};
use crate::state::Shared;

/// The number of the newest runs.
const RUNS: usize = 20;
/// The format, with its version.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Metrics for Prometheus
///
/// The server, the machine, and the 20 newest runs. Prometheus sends the token with `authorization:
/// credentials_file:`. The same is at /metrics.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(State(state): State<Shared>) -> Result<impl IntoResponse, Problem> {
    let text = blocking(move || {
        let mut text = Text::default();
        server(&mut text, &state);
        machine(&mut text, &state);
        let (summaries, _) = newest(&state.runs, None, RUNS)?;
        runs(&mut text, &summaries);
        Ok(text.0)
    })
    .await?;
    Ok(([(CONTENT_TYPE, FORMAT)], text))
}

/// The text, metric by metric.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a metric.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP sparktune_{name} {help}\n# TYPE sparktune_{name} {kind}");
    }

    /// Adds a value.
    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "sparktune_{name}{labels} {value}");
    }

    /// Adds a metric of one value.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.metric(name, kind, help);
            self.value(name, &[], value);
        }
    }
}

/// Escapes the text of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn server(text: &mut Text, state: &Shared) {
    let [requests, connections, streams] = state.counters.read().map(|count| Some(count as f64));
    let uptime = Some(state.started.elapsed().as_secs_f64());
    text.single("server_uptime_seconds", "gauge", "Time since the start of the server.", uptime);
    text.single("server_requests_total", "counter", "Requests so far.", requests);
    text.single("server_connections", "gauge", "Open connections.", connections);
    text.single("server_streams", "gauge", "Open streams of events.", streams);
}

/// A metric: its name, its help, and its value of one thing.
type Values<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

fn machine(text: &mut Text, state: &Shared) {
    let sample = lock(&state.sampler).sample();
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let help = "Memory that can be allocated without swapping.";
    text.single("memory_available_bytes", "gauge", help, bytes(sample.mem_available_bytes));
    text.single("memory_total_bytes", "gauge", "Physical memory.", bytes(sample.mem_total_bytes));
    text.single(
        "cpu_percent",
        "gauge",
        "Load of all cores together since the last sample.",
        sample.cpu_percent,
    );
    let values: [Values<GpuSample>; 3] = [
        ("gpu_busy_percent", "Share of time with a kernel running.", |gpu| gpu.busy_percent.map(f64::from)),
        ("gpu_temperature_celsius", "Temperature of the GPU.", |gpu| gpu.temperature_celsius.map(f64::from)),
        ("gpu_power_watts", "Power draw of the GPU.", |gpu| gpu.power_watts),
    ];
    for (name, help, of) in values {
        let known: Vec<_> = sample.gpus.iter().filter_map(|gpu| Some((gpu.index, of(gpu)?))).collect();
        if !known.is_empty() {
            text.metric(name, "gauge", help);
        }
        for (index, value) in known {
            text.value(name, &[("gpu", &index.to_string())], value);
        }
    }
}

fn runs(text: &mut Text, runs: &[Summary]) {
    text.metric("run_state", "gauge", "1, with the state of the run as a label.");
    for run in runs {
        text.value("run_state", &[("run", &run.id), ("state", run.state)], 1.0);
    }
    let values: [Values<Summary>; 6] = [
        ("run_step", "Steps done.", |run| Some(run.step as f64)),
        ("run_steps", "Steps of the whole run.", |run| run.steps_total.map(|steps| steps as f64)),
        ("run_loss_nats", "Moving average of the training loss.", |run| run.loss_nats),
        ("run_best_eval_loss_nats", "Lowest held-out loss.", |run| run.best_eval_nats),
        ("run_tokens_per_second", "Tokens per second.", |run| run.tokens_per_s),
        ("run_eta_seconds", "Remaining time.", |run| run.eta_s),
    ];
    for (name, help, of) in values {
        text.metric(name, "gauge", help);
        for (run, value) in runs.iter().filter_map(|run| Some((run, of(run)?))) {
            text.value(name, &[("run", &run.id)], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_run_cannot_end_its_label() {
        let mut text = Text::default();
        text.value("run_step", &[("run", "a\"} 1\nx\\")], 2.0);
        assert_eq!(text.0, "sparktune_run_step{run=\"a\\\"} 1\\nx\\\\\"} 2\n");
    }
}
