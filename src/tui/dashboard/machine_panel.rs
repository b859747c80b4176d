//! The state of the machine: the newest sample in words, and its curves below.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, or_unknown};
use sparktune_runlog::{About, DeviceSample, GpuSample};

use super::charts_panel::{grid, measured};
use super::{Dashboard, Known};
use crate::screen::{Role, Theme};

pub(super) fn draw(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let lines = lines(dash.shown(), theme);
    let [words, charts] =
        Layout::vertical([Constraint::Length(lines.len() as u16 + 1), Constraint::Fill(1)]).areas(area);
    for (line, row) in lines.iter().zip(words.rows()) {
        buffer.set_line(row.x, row.y, line, row.width);
    }
    let measured = measured(dash.shown(), |metric| metric.about == About::Machine);
    let columns = usize::from(area.width / 40).clamp(1, 4);
    grid(dash, &measured, charts, columns, buffer, theme);
}

fn lines(known: &Known, theme: &Theme) -> Vec<Line<'static>> {
    let Some(sample) = &known.view.device else {
        return vec![Line::styled("the machine has not been measured yet", theme.style(Role::Dim))];
    };
    let mut rows = vec![memory(sample), process(sample), pressure(sample)];
    rows.extend(sample.gpus.iter().flat_map(gpu));
    rows.into_iter()
        .map(|(label, value)| {
            Line::from(vec![Span::styled(format!("{label:<10}"), theme.style(Role::Dim)), Span::raw(value)])
        })
        .collect()
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
