//! The top of the screen: the run, its state, its progress, and when it will finish with the basis of that
//! estimate.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::{bytes, count, counted, duration, loss, milliseconds, or_unknown};
use sparktune_runlog::{Eta, Liveness, Outcome, RunView};
use unicode_width::UnicodeWidthStr;

use super::compare::Other;
use super::{Dashboard, Known, Tab};
use crate::held_out::base_to_best;
use crate::plain::standing;
use crate::screen::{Role, Theme};
use crate::state::State;
use crate::wrap::{cut, wrap};

/// A change of the estimated finish below this share of the remaining time is not shown.
const SAME: f64 = 0.03;

/// Below this many columns, words are left out.
const NARROW: u16 = 72;

/// Draws `left` and `right` in one row. The right text is always complete; the left one is cut where
/// necessary.
pub(super) fn row(left: Vec<Span<'_>>, right: Vec<Span<'_>>, area: Rect, buffer: &mut Buffer) {
    let (left, right) = (Line::from(left), Line::from(right));
    let wide = right.width() as u16;
    let room = area.width.saturating_sub(wide + u16::from(wide > 0));
    buffer.set_line(area.x, area.y, &left, room);
    if left.width() > usize::from(room) && room > 0 {
        buffer.set_string(
            area.x + room - 1,
            area.y,
            "…",
            left.spans.last().map(|s| s.style).unwrap_or_default(),
        );
    }
    if wide <= area.width {
        buffer.set_line(area.right() - wide, area.y, &right, wide);
    }
}

/// Draws the run's name and its state in one word.
pub(super) fn name(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let state = state(dash);
    let left = vec![Span::styled(escape(&dash.here.name).into_owned(), theme.style(Role::Title))];
    let mut right = Vec::new();
    if dash.frozen.is_some() {
        right.push(Span::styled("frozen", theme.style(Role::Warn)));
        right.push(Span::raw("  "));
    }
    right.push(Span::styled(state.label(theme), theme.style(state.role)));
    row(left, right, area, buffer);
}

fn state(dash: &Dashboard) -> State {
    match dash.shown().liveness {
        None if dash.here.trouble.is_none() => State::READING,
        liveness => State::of(liveness),
    }
}

/// Draws the model, method, device, attempt and running time.
pub(super) fn model(known: &Known, live: bool, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let view = &known.view;
    let Some(attempt) = view.attempts.back() else { return };
    let started = &attempt.started;
    let method = if started.method == "lora" { "LoRA" } else { started.method.as_str() };
    let parts = [started.model.as_str(), method, started.device.as_str()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).map(escape).collect();
    let now = view.last_event_us.max(known.now_us.filter(|_| live)).unwrap_or(0);
    let since = now.saturating_sub(attempt.started_us);
    let time = duration(since as f64 / 1e6);
    let time = if live { format!("{time} so far") } else { format!("took {time}") };
    let right = if attempt.number > 1 { format!("attempt {}, {time}", attempt.number) } else { time };
    let dim = theme.style(Role::Dim);
    row(vec![Span::styled(parts.join(" · "), dim)], vec![Span::styled(right, dim)], area, buffer);
}

/// Returns a bar of `width` cells, filled to `share`.
pub(super) fn bar(share: f64, width: usize, role: Role, theme: &Theme) -> Vec<Span<'static>> {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let halves = (share * (width * 2) as f64).round() as usize;
    let full = theme.glyph("━", "=").repeat(halves / 2);
    let half = if halves % 2 == 1 { theme.glyph("╸", "-") } else { "" };
    let rest = theme.glyph("─", ".").repeat(width - halves.div_ceil(2));
    vec![
        Span::styled(format!("{full}{half}"), theme.style(role)),
        Span::styled(rest, theme.style(Role::Line)),
    ]
}

/// Draws the phase, a progress bar, and the progress in words.
pub(super) fn progress(known: &Known, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let view = &known.view;
    let (phase, share, words) = how_far(view);
    let phase = cut(&phase, usize::from(area.width / 3));
    let room = usize::from(area.width).saturating_sub(phase.width() + words.width() + 4);
    let ended = view.outcome() == Some(Outcome::Completed);
    let role = if ended { Role::Good } else { Role::Accent };
    let mut left = vec![Span::styled(format!("{phase}  "), theme.style(Role::Title))];
    if let Some(share) = share {
        left.extend(bar(share, room, role, theme));
    }
    row(left, vec![Span::raw(words)], area, buffer);
}

/// Returns the phase, the completed share if it is known, and the progress in words.
fn how_far(view: &RunView) -> (String, Option<f64>, String) {
    let phase = view.phase.as_ref().map_or("", |phase| phase.phase.as_str());
    let share = |done: u64, total: u64| (total > 0).then(|| done as f64 / total as f64);
    let percent = |share: Option<f64>| share.map(|s| format!(" · {:.0} %", (s * 100.0).floor()));
    if let Some(progress) = &view.progress {
        let amount = |n: u64| if progress.unit == "bytes" { bytes(n) } else { count(n) };
        let share = progress.total.and_then(|total| share(progress.done, total));
        let of = progress.total.map(|total| format!(" of {}", amount(total))).unwrap_or_default();
        let unit =
            if progress.unit == "bytes" { String::new() } else { format!(" {}", escape(&progress.unit)) };
        let words = format!("{}{of}{unit}{}", amount(progress.done), percent(share).unwrap_or_default());
        return (escape(&progress.phase).into_owned(), share, words);
    }
    if view.attempts.is_empty() {
        return (String::new(), None, String::new());
    }
    let (done, total) = (view.steps_done(), view.total_steps());
    let share = total.and_then(|total| share(done, total));
    let epochs = view.attempts.back().and_then(|attempt| attempt.started.epochs);
    let epoch = view.last_step.as_ref().and_then(|step| step.epoch).map(|epoch| {
        format!(" · epoch {epoch:.2}{}", epochs.map(|all| format!(" of {all}")).unwrap_or_default())
    });
    let words = format!(
        "step {}/{}{}{}",
        count(done),
        or_unknown(total, count),
        percent(share).unwrap_or_default(),
        epoch.unwrap_or_default()
    );
    let phase = match view.outcome() {
        Some(_) => "ended".into(),
        None => escape(phase),
    };
    (phase.into_owned(), share, words)
}

/// Draws the remaining time with its formula and its drift. Before and after training it draws the current
/// activity.
pub(super) fn eta(known: &Known, live: bool, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let view = &known.view;
    let dim = theme.style(Role::Dim);
    let spans = if let Some(finished) = view.finished() {
        let losses = format!(
            "loss {} · eval {}",
            or_unknown(finished.final_loss_nats, loss),
            or_unknown(finished.eval_loss_nats, loss)
        );
        let best = base_to_best(view).map(|best| format!(" · {best}"));
        vec![Span::raw(losses), Span::styled(best.unwrap_or_default(), dim)]
    } else if let (Some(step), false) = (&view.last_step, live) {
        // No time is left to show while no trainer is running.
        let checkpoint = view.checkpoints.back().map(|checkpoint| escape(&checkpoint.name).into_owned());
        let words = format!(" · last checkpoint {}", or_unknown(checkpoint, |name| name));
        vec![Span::raw(format!("last loss {}", loss(step.loss_nats))), Span::styled(words, dim)]
    } else if let (Some(eta), true) = (view.eta(), trains(view)) {
        let over = format!(" (last {})", count(eta.over_steps));
        let after = match eta.after_s {
            after_s if after_s < 1.0 => String::new(),
            after_s => format!(" + {} for head and outputs", duration(after_s)),
        };
        let formula = format!(
            " = {} × {}{}{after}",
            counted(eta.steps_left, "step"),
            milliseconds(eta.ms_per_step),
            if area.width < NARROW || !after.is_empty() { "" } else { &over }
        );
        let left = Span::styled(format!("{} left", duration(eta.seconds)), theme.style(Role::Title));
        let formula = Span::styled(formula, dim);
        // What it is later or sooner than is said where there is room for it.
        let room = usize::from(area.width).saturating_sub(left.width() + formula.width());
        let drifts = [" than first estimated", ""].map(|than| drift(&eta, than, theme));
        let drift = drifts.into_iter().find(|drift| drift.width() <= room);
        [left, formula].into_iter().chain(drift).collect()
    } else {
        let detail = view.phase.as_ref().and_then(|phase| phase.detail.as_deref()).unwrap_or_default();
        let waits = trains(view) && view.total_steps().is_some();
        let honest = if waits { "; the time left will be known after two steps" } else { "" };
        vec![Span::styled(format!("{}{honest}", escape(detail)), dim)]
    };
    row(spans, Vec::new(), area, buffer);
}

fn trains(view: &RunView) -> bool {
    view.phase.as_ref().is_none_or(|phase| matches!(phase.phase.as_str(), "train" | "eval"))
}

fn drift(eta: &Eta, than: &str, theme: &Theme) -> Span<'static> {
    let Some(drift) = eta.drift_s else { return Span::raw("") };
    let much = (eta.seconds * SAME).max(10.0);
    if drift.abs() < much {
        return Span::styled(", on schedule", theme.style(Role::Dim));
    }
    let (word, role) = if drift > 0.0 { ("later", Role::Warn) } else { ("sooner", Role::Good) };
    Span::styled(format!(", {} {word}{than}", duration(drift.abs())), theme.style(role))
}

/// Draws the numbers of the panels. The open one is marked, and new warnings are counted.
pub(super) fn tabs(dash: &Dashboard, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let mut spans = Vec::new();
    for (i, tab) in Tab::ALL.into_iter().enumerate() {
        let open = tab == dash.tab;
        let style = theme.style(if open { Role::Selected } else { Role::Dim });
        let (name, gap) = (format!("{} {}", i + 1, tab.word()), if area.width < NARROW { "" } else { " " });
        spans.push(Span::styled(format!("{gap}{name}{gap}"), style));
        if gap.is_empty() {
            spans.push(Span::raw(" "));
        }
        let new = dash.new_warnings();
        if tab == Tab::Events && new > 0 {
            spans.push(Span::styled(format!("{} new ", count(new)), theme.style(Role::Warn)));
        }
    }
    row(spans, Vec::new(), area, buffer);
}

/// Returns the current messages, most important first, in lines of at most `width` columns.
pub(super) fn banner(dash: &Dashboard, width: u16) -> Vec<(Role, String)> {
    let mut sentences: Vec<(Role, String)> = Vec::new();
    let known = dash.shown();
    if let Some(trouble) = &dash.here.trouble {
        sentences.push((Role::Bad, trouble.clone()));
    }
    if dash.here.behind {
        sentences.push((Role::Accent, format!("reading the log: {} so far", bytes(dash.here.bytes))));
    }
    if let Some(said) = &dash.said {
        sentences.push((Role::Warn, said.clone()));
    }
    for ask in &dash.asks {
        sentences.push(ask.words(dash.here.may_be_live()));
    }
    if let Some(liveness) = known.liveness {
        sentences.extend(state_in_words(dash, known, liveness));
    }
    if dash.new_warnings() > 0
        && let Some(warning) = known.newest_warning()
    {
        sentences.push((Role::Warn, format!("{}: {}", warning.kind, warning.text)));
    }
    if dash.frozen.is_some() {
        let at = count(known.view.steps_done());
        sentences.push((Role::Accent, format!("frozen at step {at}; space shows the newest step again")));
    }
    for Other { reading: other, .. } in &dash.others {
        let name = escape(&other.name);
        if let Some(trouble) = &other.trouble {
            sentences.push((Role::Warn, format!("{name}: {trouble}")));
        } else if other.behind {
            sentences.push((Role::Other, format!("reading {name}: {} so far", bytes(other.bytes))));
        }
    }
    let lines = |(role, text): (Role, String)| {
        wrap(&text, usize::from(width)).into_iter().map(move |line| (role, line))
    };
    sentences.into_iter().flat_map(lines).collect()
}

/// Returns a state that needs an explanation: what happened and what to do.
fn state_in_words(dash: &Dashboard, known: &Known, liveness: Liveness) -> Option<(Role, String)> {
    let sentence = standing(&dash.here.argument, liveness, &known.view);
    let attempt = known.view.attempts.back().map_or(1, |attempt| attempt.number);
    let log = || {
        let inside = format!("logs/trainer-{attempt:04}.log");
        dash.here.place(|run| run.trainer_log(attempt), &inside)
    };
    match liveness {
        Liveness::Running => None,
        Liveness::NotStarted => Some((Role::Dim, sentence)),
        Liveness::Gone => Some((Role::Bad, sentence)),
        Liveness::Stalled { .. } => {
            let run = &dash.here.argument;
            let end = known.trainer.as_ref().map(|trainer| {
                format!("; if it does not respond, end {trainer} and run `{} resume {run}`", program_name())
            });
            let end = end.unwrap_or_default();
            Some((Role::Warn, format!("{sentence}. Its log: {}. s asks it to stop{end}", log())))
        }
        Liveness::Crashed => {
            let torn = match known.unfinished_bytes {
                0 => String::new(),
                bytes => format!("; its last line is incomplete ({} bytes)", count(bytes as u64)),
            };
            Some((Role::Bad, format!("{sentence}. Its log: {}{torn}", log())))
        }
        Liveness::Finished { outcome } if outcome.is_complete() => {
            let outputs = known.view.finished().map(|f| f.outputs.as_slice()).unwrap_or_default();
            let serve = outputs.iter().any(|output| output.ends_with("SERVE.md"));
            let how = serve.then(|| {
                format!(
                    "; t talks to the model, v shows how to serve it ({})",
                    dash.here.place(|r| r.outputs().join("SERVE.md"), "outputs/SERVE.md")
                )
            });
            let role = if outcome == Outcome::Completed { Role::Good } else { Role::Bad };
            Some((role, format!("{sentence}{}", how.unwrap_or_default())))
        }
        Liveness::Finished { outcome } => {
            let role = if outcome == Outcome::Failed { Role::Bad } else { Role::Warn };
            Some((role, sentence))
        }
    }
}
