//! The loss chart, and as many side charts as fit.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::units::{count, loss, or_unknown};
use sparktune_runlog::{About, METRICS, Mark as RunMark, Metric, Series, Unit};

use super::{Dashboard, Known};
use crate::chart::{Chart, Curve, Mark, MarkKind, Shape, Window, say, summary};
use crate::held_out::zero_line;
use crate::screen::{Role, Theme};
use crate::wrap::cut;

/// The number of columns from which side charts are shown.
const WIDE: u16 = 110;
/// The smallest height of a side chart in rows.
const SIDE_ROWS: u16 = 6;

/// Returns the approximate width of the loss chart in cells.
pub(super) fn cells(width: u16) -> u64 {
    u64::from(if width >= WIDE { width - side_width(width) } else { width }.saturating_sub(8).max(1))
}

fn side_width(width: u16) -> u16 {
    // Very wide screens have two columns of side charts.
    if width >= 180 { width * 9 / 20 } else { width * 7 / 20 }
}

pub(super) fn draw(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let known = dash.shown();
    let sides = measured(known, |_| true);
    if area.width < WIDE || sides.is_empty() {
        return loss_chart(dash, area, buffer, theme);
    }
    let [main, side_area] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(side_width(area.width))]).areas(area);
    loss_chart(dash, main, buffer, theme);
    let columns = if area.width >= 180 { 2 } else { 1 };
    grid(dash, &sides, side_area, columns, buffer, theme);
}

/// Returns the metrics accepted by `asked` that were measured in this run.
pub(super) fn measured(known: &Known, asked: impl Fn(&Metric) -> bool) -> Vec<&'static Metric> {
    METRICS.iter().filter(|metric| asked(metric) && !(metric.series)(&known.view.charts).is_empty()).collect()
}

/// Draws side charts in `columns` columns, as many as fit.
pub(super) fn grid(
    dash: &Dashboard,
    sides: &[&Metric],
    area: Rect,
    columns: usize,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let rows = usize::from(area.height / SIDE_ROWS).min(sides.len().div_ceil(columns));
    let heights = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    for (places, sides) in heights.iter().zip(sides.chunks(columns)) {
        let places = Layout::horizontal(vec![Constraint::Fill(1); columns]).split(*places);
        for (place, side) in places.iter().zip(sides) {
            side_chart(dash, side, *place, buffer, theme);
        }
    }
}

fn side_chart(dash: &Dashboard, side: &Metric, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let known = dash.shown();
    let (kept, discarded) = ((side.series)(&known.view.charts), (side.series)(&known.view.discarded));
    let curve =
        |series, role| Curve { name: "", buckets: Series::buckets(series), shape: Shape::Envelope, role };
    // The steps of the head are not those of the window.
    let window = match (side.about, kept.buckets().last()) {
        (About::Head, Some(last)) => Window { from: 0, to: last.last_step.max(1) },
        _ => dash.window(),
    };
    let mut chart = Chart {
        title: Line::default(),
        unit: side.unit,
        window,
        log: false,
        curves: vec![curve(discarded, Role::Discarded), curve(kept, Role::Curve)],
        marks: Vec::new(),
        level: None,
        crosshair: dash.crosshair().filter(|_| side.about != About::Head),
        empty: "not measured",
    };
    let value = match chart.steps_at_crosshair(area) {
        Some((first, last)) => summary(kept.buckets(), first, last).and_then(|all| all.mean()),
        None => kept.buckets().last().map(|bucket| bucket.last),
    };
    chart.title = Line::from(vec![
        Span::styled(side.title, theme.style(Role::Dim)),
        Span::styled(format!(" {}", or_unknown(value, |v| say(side.unit, v))), theme.style(Role::Title)),
    ]);
    chart.draw(area, buffer, theme);
}

fn loss_chart(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let known = dash.shown();
    let (charts, discarded) = (&known.view.charts, &known.view.discarded);
    let base = known.view.base_eval.as_ref().filter(|eval| eval.loss_nats.is_finite());
    let others: Vec<_> = dash.shown_others().map(|(name, known, role)| (short(name), known, role)).collect();
    // The title names the curves that the legend leaves out.
    let mut curves = vec![
        curve("replaced", &discarded.loss, Shape::Envelope, Role::Discarded),
        curve("", &charts.loss, Shape::Envelope, Role::Curve),
    ];
    for (name, other, role) in &others {
        curves.push(curve(name, &other.view.charts.loss, Shape::Average, *role));
    }
    for (_, other, role) in &others {
        curves.push(curve("", &other.view.charts.eval_loss, Shape::Points, *role));
    }
    curves.push(curve("", &charts.loss, Shape::Average, Role::Average));
    curves.push(curve("", &charts.eval_loss, Shape::Points, Role::Eval));
    let mut chart = Chart {
        title: Line::default(),
        unit: Unit::Nats,
        window: dash.window(),
        log: dash.log,
        curves,
        marks: marks(known),
        // A zoomed chart is for details, which a distant line would flatten.
        level: base.filter(|_| dash.zoom.is_whole()).map(|eval| (eval.loss_nats, zero_line(&known.view))),
        crosshair: dash.crosshair(),
        empty: if known.view.attempts.is_empty() { "nothing logged yet" } else { "no step yet" },
    };
    chart.title = match chart.steps_at_crosshair(area) {
        Some((first, last)) => at_crosshair(dash, first, last, theme),
        None => newest(dash, chart.window, theme),
    };
    chart.draw(area, buffer, theme);
}

fn curve<'a>(name: &'a str, series: &'a Series, shape: Shape, role: Role) -> Curve<'a> {
    Curve { name, buckets: series.buckets(), shape, role }
}

/// Returns the run's name without its date.
fn short(name: &str) -> String {
    let rest = name.split_once("Z-").map_or(name, |(_, rest)| rest);
    cut(&escape(rest), 24)
}

/// Returns the marks of a run. Only the newest of the best checkpoints is marked as the best.
fn marks(known: &Known) -> Vec<Mark> {
    let all = known.view.marks();
    let best = all.iter().rev().find_map(|mark| match mark {
        RunMark::Checkpoint { step, best: true } => Some(*step),
        _ => None,
    });
    all.iter()
        .filter_map(|mark| match mark {
            RunMark::Checkpoint { step, .. } if Some(*step) == best => Some((*step, MarkKind::Best)),
            RunMark::Checkpoint { step, .. } => Some((*step, MarkKind::Checkpoint)),
            RunMark::Resumed { step, .. } => Some((*step, MarkKind::Resume)),
            RunMark::Best { .. } => None,
        })
        .map(|(step, kind)| Mark { step, kind })
        .collect()
}

fn newest(dash: &Dashboard, window: Window, theme: &Theme) -> Line<'static> {
    let view = &dash.shown().view;
    let mut spans = Vec::new();
    let mut add = |shape: Shape, role: Role, words: String, of: Role| {
        let glyph = shape.glyph(role, theme);
        let gap = if spans.is_empty() { "" } else { " " };
        spans.push(Span::styled(format!("{gap}{glyph} "), theme.style(role)));
        spans.push(Span::styled(words, theme.style(of)));
    };
    let last = or_unknown(view.last_step.as_ref().map(|step| step.loss_nats), loss);
    add(Shape::Envelope, Role::Curve, format!("loss {last}"), Role::Title);
    if let Some(average) = view.loss_ema {
        add(Shape::Average, Role::Average, format!("avg {}", loss(average)), Role::Average);
    }
    if let Some(eval) = &view.last_eval {
        add(Shape::Points, Role::Eval, format!("eval {}", loss(eval.loss_nats)), Role::Eval);
    }
    let mut how = Vec::new();
    if dash.log {
        how.push("log".to_owned());
    }
    if !dash.zoom.is_whole() {
        how.push(format!("{}–{}", count(window.from), count(window.to)));
    }
    if !dash.zoom.follows() {
        how.push("f follows".to_owned());
    }
    if !how.is_empty() {
        spans.push(Span::styled(format!(" ({})", how.join(", ")), theme.style(Role::Accent)));
    }
    Line::from(spans)
}

/// Lists everything measured in the steps under the crosshair.
fn at_crosshair(dash: &Dashboard, first: u64, last: u64, theme: &Theme) -> Line<'static> {
    let known = dash.shown();
    let charts = &known.view.charts;
    let at = |series: &Series| summary(series.buckets(), first, last);
    let mean = |series: &Series| at(series).and_then(|all| all.mean());
    let steps = if first == last { count(first) } else { format!("{}–{}", count(first), count(last)) };
    let mut spans = vec![Span::styled(format!("step {steps}"), theme.style(Role::Accent))];
    match at(&charts.loss) {
        Some(all) if all.count > 1 => {
            let middle = or_unknown(all.mean(), loss);
            spans.push(Span::styled(
                format!(" loss {} ≤ {middle} ≤ {}", loss(all.min), loss(all.max)),
                theme.style(Role::Title),
            ));
        }
        Some(all) => spans
            .push(Span::styled(format!(" loss {}", or_unknown(all.mean(), loss)), theme.style(Role::Title))),
        None => spans.push(Span::styled(" no loss here", theme.style(Role::Dim))),
    }
    if let Some(bad) = at(&charts.loss).map(|all| all.nonfinite).filter(|n| *n > 0) {
        spans.push(Span::styled(format!(" {} NaN or inf", count(bad)), theme.style(Role::Bad)));
    }
    if let Some(eval) = mean(&charts.eval_loss) {
        spans.push(Span::styled(format!(" eval {}", loss(eval)), theme.style(Role::Eval)));
    }
    for (_, other, role) in dash.shown_others() {
        if let Some(value) = mean(&other.view.charts.loss) {
            spans.push(Span::styled(format!(" other {}", loss(value)), theme.style(role)));
        }
        if let Some(value) = mean(&other.view.charts.eval_loss) {
            spans.push(Span::styled(format!(" eval {}", loss(value)), theme.style(role)));
        }
    }
    // From the end of the table: the learning rate stands next to the losses.
    for metric in METRICS.iter().rev() {
        if let Some(short) = metric.short
            && let Some(value) = mean((metric.series)(charts))
        {
            spans.push(Span::styled(format!(" {short} {}", say(metric.unit, value)), theme.style(Role::Dim)));
        }
    }
    Line::from(spans)
}
