//! The panel that shows how the time of a step is spent.

use ratatui::text::{Line, Span};
use sparktune_base::units::{UNKNOWN, count, milliseconds, or_unknown, percent};
use sparktune_runlog::StepParts;

use super::Known;
use super::header::bar;
use crate::screen::{Role, Theme};

/// Returns the parts in lines of `width` columns.
pub(super) fn lines(known: &Known, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let view = &known.view;
    let dim = theme.style(Role::Dim);
    let Some(parts) = view.step_parts() else {
        return vec![Line::styled("no step has been measured yet", dim)];
    };
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("a step takes {}", milliseconds(parts.step_ms)), theme.style(Role::Title)),
            Span::styled(format!(", mean of the last {}", count(parts.over_steps)), dim),
        ]),
        Line::default(),
        stacked(&parts, usize::from(width), theme),
        Line::default(),
    ];
    for Part { name, ms, what, glyph, role } in named(&parts, theme) {
        let share = ms.map(|ms| ms / parts.step_ms);
        let mut spans = vec![
            Span::styled(format!("{glyph} "), theme.style(role)),
            Span::raw(format!("{name:<10}")),
            Span::raw(format!("{:>10}", or_unknown(ms, milliseconds))),
            Span::raw(format!("{:>7}  ", or_unknown(share, percent))),
        ];
        let room = usize::from(width).saturating_sub(33);
        if width >= 100 {
            spans.extend(bar(share.unwrap_or(0.0), room.saturating_sub(42).min(40), role, theme));
            spans.push(Span::raw("  "));
        }
        spans.push(Span::styled(what, dim));
        lines.push(Line::from(spans));
    }
    lines.push(Line::default());
    let rest: [(&str, Option<f64>, &str); 2] = [
        ("evaluation", view.last_eval.as_ref().and_then(|e| e.eval_ms), "between steps"),
        ("checkpoint", view.checkpoints.back().and_then(|c| c.commit_ms), "between steps"),
    ];
    for (name, ms, what) in rest {
        lines.push(Line::from(vec![
            Span::raw(format!("  {name:<10}")),
            Span::raw(format!("{:>10}", or_unknown(ms, milliseconds))),
            Span::styled(format!("{:9}{what}", ""), dim),
        ]));
    }
    if let Some(step) = &view.last_step {
        lines.push(Line::styled(
            format!(
                "  the last step had {} tokens, {} of them trained",
                count(step.tokens),
                if step.target_tokens > 0 { count(step.target_tokens) } else { UNKNOWN.to_owned() }
            ),
            dim,
        ));
    }
    lines
}

/// A part of a step. Glyphs differ, so that parts can be distinguished without colours.
struct Part {
    name: &'static str,
    ms: Option<f64>,
    what: &'static str,
    glyph: &'static str,
    role: Role,
}

/// Returns the parts in the order in which they are shown. Only a run of several ranks has an exchange.
fn named(parts: &StepParts, theme: &Theme) -> Vec<Part> {
    let part = |name, ms, what, glyph, role| Part { name, ms, what, glyph, role };
    let rest = match parts.optimizer_ms {
        Some(_) => "forward and backward",
        None => "forward, backward and optimizer",
    };
    let exchange = parts
        .exchange_ms
        .map(|ms| part("exchange", Some(ms), "waiting for other ranks", theme.glyph("░", "e"), Role::Second));
    let mut named = vec![
        part("data", parts.data_ms, "waiting for the next batch", theme.glyph("▒", "d"), Role::Warn),
        part("optimizer", parts.optimizer_ms, "clipping and AdamW", theme.glyph("▞", "o"), Role::Other),
    ];
    named.extend(exchange);
    named.push(part("rest", Some(parts.rest_ms), rest, theme.glyph("█", "f"), Role::Curve));
    named
}

/// Returns one bar of all parts.
fn stacked(parts: &StepParts, width: usize, theme: &Theme) -> Line<'static> {
    let mut spans = Vec::new();
    let (mut sum, mut drawn) = (0.0, 0);
    for Part { ms, glyph, role, .. } in named(parts, theme) {
        sum += ms.unwrap_or(0.0).max(0.0);
        let share = if parts.step_ms > 0.0 { (sum / parts.step_ms).clamp(0.0, 1.0) } else { 0.0 };
        let until = ((share * width as f64).round() as usize).max(drawn);
        spans.push(Span::styled(glyph.repeat(until - drawn), theme.style(role)));
        drawn = until;
    }
    Line::from(spans)
}
