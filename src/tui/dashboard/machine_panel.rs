//! The state of the machine: the newest sample in words, the ranks of a run of several machines with the time
//! that a step waits for them, and the machine's curves below.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use sparktune_app::members_of_run::{COLUMNS, MemberRow, exchange, members};
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, or_unknown};
use sparktune_runlog::{About, DeviceSample, GpuSample};

use super::charts_panel::{grid, measured};
use super::{Dashboard, Known};
use crate::screen::{Role, Theme};

pub(super) fn draw(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let known = dash.shown();
    let mut lines = lines(known, theme);
    lines.extend(exchange(&known.view).map(|words| labelled("exchange", words, theme)));
    let left = usize::from(area.height.saturating_sub(LEAST_CHARTS)).saturating_sub(lines.len() + 1);
    lines.extend(ranks(&members(&known.view), left, theme));
    let [words, charts] =
        Layout::vertical([Constraint::Length(lines.len() as u16 + 1), Constraint::Fill(1)]).areas(area);
    for (line, row) in lines.iter().zip(words.rows()) {
        buffer.set_line(row.x, row.y, line, row.width);
    }
    let measured = measured(known, |metric| metric.about == About::Machine);
    let columns = usize::from(area.width / 40).clamp(1, 4);
    grid(dash, &measured, charts, columns, buffer, theme);
}

/// The rows that are left for the curves, however many ranks there are.
const LEAST_CHARTS: u16 = 6;

/// Returns the table of the ranks in at most `most` lines; nothing for a run of one process.
fn ranks(rows: &[MemberRow], most: usize, theme: &Theme) -> Vec<Line<'static>> {
    if rows.is_empty() || most < 2 {
        return Vec::new();
    }
    let shown = if rows.len() < most { rows.len() } else { most - 2 };
    let texts: Vec<[String; 7]> = rows[..shown].iter().map(MemberRow::columns).collect();
    let width = |column: usize| {
        let widest = texts.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(COLUMNS[column].len()) + 2
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |texts: [&str; 7]| -> String {
        let padded = texts.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
        padded.collect::<String>().trim_end().to_owned()
    };
    let mut lines = vec![Line::styled(line(COLUMNS), theme.style(Role::Dim))];
    for (row, texts) in rows.iter().zip(&texts) {
        let role = if row.is_missing { Role::Warn } else { Role::Text };
        lines.push(Line::styled(line(texts.each_ref().map(String::as_str)), theme.style(role)));
    }
    if shown < rows.len() {
        lines.push(Line::styled(format!("and {} more", rows.len() - shown), theme.style(Role::Dim)));
    }
    lines
}

fn lines(known: &Known, theme: &Theme) -> Vec<Line<'static>> {
    let Some(sample) = &known.view.device else {
        return vec![Line::styled("the machine has not been measured yet", theme.style(Role::Dim))];
    };
    let mut rows = vec![memory(sample), process(sample), pressure(sample)];
    rows.extend(sample.gpus.iter().flat_map(gpu));
    let is_over = known.liveness.is_some_and(|liveness| !liveness.is_live());
    let words = "the machine as it was last measured, before the trainer ended";
    let head = is_over.then(|| Line::styled(words, theme.style(Role::Dim)));
    let rows = rows.into_iter().map(|(label, value)| labelled(&label, value, theme));
    head.into_iter().chain(rows).collect()
}

fn labelled(label: &str, value: String, theme: &Theme) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{label:<10}"), theme.style(Role::Dim)), Span::raw(value)])
}

fn memory(sample: &DeviceSample) -> (String, String) {
    let unified = if sample.mem_unified { ", shared by CPU and GPU" } else { "" };
    let words = format!(
        "{} used of {}, {} available{unified}",
        or_unknown(sample.mem_used_bytes, bytes),
        or_unknown(sample.mem_total_bytes, bytes),
        or_unknown(sample.mem_available_bytes, bytes),
    );
    ("memory".to_owned(), words)
}

fn process(sample: &DeviceSample) -> (String, String) {
    let words = format!(
        "{} resident, at most {} so far",
        or_unknown(sample.process_rss_bytes, bytes),
        or_unknown(sample.process_peak_rss_bytes, bytes),
    );
    ("trainer".to_owned(), words)
}

fn pressure(sample: &DeviceSample) -> (String, String) {
    let percent = |value| or_unknown(value, |p: f64| format!("{p:.0} %"));
    let words = format!(
        "{} busy; waiting for memory: some tasks {}, all tasks {}",
        percent(sample.cpu_percent),
        percent(sample.mem_pressure_some_percent),
        percent(sample.mem_pressure_full_percent),
    );
    ("CPU".to_owned(), words)
}

fn gpu(gpu: &GpuSample) -> Vec<(String, String)> {
    let words = format!(
        "{} busy, {}, {}, {} of {}, memory {} of {}",
        or_unknown(gpu.busy_percent, |v| format!("{v} %")),
        or_unknown(gpu.temperature_celsius, |v| format!("{v} °C")),
        or_unknown(gpu.power_watts, |v| format!("{v:.0} W")),
        or_unknown(gpu.sm_clock_mhz, |v| v.to_string()),
        or_unknown(gpu.sm_clock_max_mhz, |v| format!("{v} MHz")),
        or_unknown(gpu.mem_used_bytes, bytes),
        or_unknown(gpu.mem_total_bytes, bytes),
    );
    let mut rows = vec![(format!("GPU {}", gpu.index), words)];
    if let Some(throttle) = &gpu.throttle {
        rows.push((String::new(), format!("its clocks are limited by {}", escape(throttle))));
    }
    rows
}
