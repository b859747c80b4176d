//! The gauges that are always visible.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;
use sparktune_base::units::{bytes, count, or_unknown};
use sparktune_runlog::{Bucket, RunView, Unit};
use unicode_width::UnicodeWidthStr;

use super::header::{bar, row};
use crate::chart::{say, sparkline};
use crate::screen::{Role, Theme};

/// The smallest width of a gauge in columns.
const WIDTH: u16 = 25;

struct Gauge<'a> {
    label: &'static str,
    value: String,
    /// The short form of the value, for narrow gauges.
    brief: String,
    meter: Meter<'a>,
}

enum Meter<'a> {
    /// A share of a whole, drawn as a meter. A large share may be a warning.
    Share {
        share: f64,
        warn: f64,
        bad: f64,
    },
    Course(&'a [Bucket]),
}

/// Returns the gauges for everything that was measured, the most important first. What the machine did when
/// the trainer ended says nothing of it now, so without a trainer only figures of the run are shown.
fn gauges(view: &RunView, live: bool) -> Vec<Gauge<'_>> {
    let charts = &view.charts;
    let gauge = |label, value: String, meter| Gauge { label, brief: value.clone(), value, meter };
    let speed = or_unknown(view.tokens_per_s(), |rate: f64| count(rate.round() as u64));
    let mut gauges = vec![gauge("tok/s", speed, Meter::Course(charts.tokens_per_s.buckets()))];
    if !live {
        let last = || view.last_step.as_ref().and_then(|step| step.mem_used_bytes);
        let peak = or_unknown(view.mem_peak_bytes().or_else(last), bytes);
        gauges.push(gauge("memory, at most", peak, Meter::Course(charts.mem_used_bytes.buckets())));
        return gauges;
    }
    let device = view.device.clone().unwrap_or_default();
    let percent = |n: Option<f64>| or_unknown(n, |n| say(Unit::Percent, n));
    gauges.push(match (device.mem_used_bytes, device.mem_total_bytes) {
        (Some(used), Some(total)) if total > 0 => Gauge {
            label: "memory",
            value: of(&bytes(used), &bytes(total)),
            brief: bytes(used),
            meter: Meter::Share { share: used as f64 / total as f64, warn: 0.9, bad: 0.96 },
        },
        _ => gauge(
            "memory",
            or_unknown(view.last_step.as_ref().and_then(|s| s.mem_used_bytes), bytes),
            Meter::Course(charts.mem_used_bytes.buckets()),
        ),
    });
    if let Some(gpu) = device.gpus.first() {
        let clock = gpu.sm_clock_mhz.map(|mhz| format!(" {mhz} MHz")).unwrap_or_default();
        let busy = gpu.busy_percent.map(f64::from);
        gauges.push(gauge("GPU", format!("{}{clock}", percent(busy)), share(busy.unwrap_or(0.0), 2.0, 2.0)));
    }
    let cpu = device.cpu_percent;
    gauges.push(gauge("CPU", percent(cpu), share(cpu.unwrap_or(0.0), 2.0, 2.0)));
    let pressure = device.mem_pressure_some_percent;
    gauges.push(gauge("memory pressure", percent(pressure), share(pressure.unwrap_or(0.0), 0.05, 0.2)));
    gauges
}

/// Formats `47.5 of 99.2 GB`. A unit that both numbers share is written once.
fn of(used: &str, total: &str) -> String {
    let unit = |text: &str| text.rsplit_once(' ').map(|(_, unit)| unit.to_owned());
    let short = used.split(' ').next().filter(|_| unit(used) == unit(total));
    format!("{} of {total}", short.unwrap_or(used))
}

fn share(percent: f64, warn: f64, bad: f64) -> Meter<'static> {
    Meter::Share { share: percent / 100.0, warn, bad }
}

/// Draws as many gauges as fit, in one row, or in two rows with meters.
pub(super) fn draw(view: &RunView, live: bool, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let gauges = gauges(view, live);
    let n = (area.width / WIDTH).clamp(1, gauges.len() as u16);
    let wide = (area.width + 2) / n;
    for (i, gauge) in (0..).zip(gauges.iter().take(usize::from(n))) {
        let place = Rect { x: area.x + i * wide, width: wide - 2, ..area }.intersection(area);
        let label = vec![Span::styled(gauge.label, theme.style(Role::Dim))];
        let fits = gauge.label.width() + 1 + gauge.value.width() <= usize::from(place.width);
        let value = if fits { gauge.value.clone() } else { gauge.brief.clone() };
        row(label, vec![Span::styled(value, theme.style(Role::Title))], place, buffer);
        if area.height < 2 {
            continue;
        }
        let below = Rect { y: place.y + 1, height: 1, ..place };
        let meter = match gauge.meter {
            Meter::Share { share, warn, bad } => {
                let role = match share {
                    _ if share >= bad => Role::Bad,
                    _ if share >= warn => Role::Warn,
                    _ => Role::Accent,
                };
                bar(share, usize::from(below.width), role, theme)
            }
            Meter::Course(buckets) => {
                let course = sparkline(buckets, usize::from(below.width), theme.unicode);
                vec![Span::styled(course, theme.style(Role::Curve))]
            }
        };
        row(meter, Vec::new(), below, buffer);
    }
}
