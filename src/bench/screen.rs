//! Cost of the dashboard: the time from a key to its frame, and the bytes that are sent to the terminal.
//!
//! The measured path is the one of the program: the app's `update`, its `view`, the difference to the frame
//! before, and its encoding for a terminal. Only the last step is replaced: the bytes are counted instead of
//! written.

use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Size;
use sparktune_runlog::{CheckpointCommitted, Eval, Event, Kind, Liveness, RunStarted, RunView, Step};
use sparktune_tui::dashboard::Dashboard;
use sparktune_tui::screen::{App, Colours, Input, Next, Terminal, Theme, draw};

use crate::error::BenchError;
use crate::median::median;
use crate::row::{Row, Target};

/// The size of the terminal: a large window.
const SIZE: Size = Size { width: 132, height: 40 };
/// The theme: what most terminals over SSH can show.
const THEME: Theme = Theme { colours: Colours::Indexed, unicode: true };
/// Steps of the shown run.
const STEPS: u64 = 20_000;
/// Ticks of a quarter of a second in which nothing happens: a minute.
const IDLE_TICKS: usize = 240;

pub(crate) fn measure() -> Result<Vec<Row>, BenchError> {
    let cost = measure_dashboard().map_err(BenchError::Output)?;
    let what = format!("dashboard {}×{}, key to frame", cost.size.width, cost.size.height);
    let median = format!("median of {} keys", cost.keys);
    let idle = format!("in {} s", cost.idle_ticks / 4);
    Ok(vec![
        Row::new(what, cost.median_ms, "ms", median).with_target(Target::LessThan(16.0)),
        Row::new("  slowest key", cost.worst_ms, "ms", "").with_target(Target::LessThan(16.0)),
        Row::new("  first frame", cost.first_frame_bytes as f64, "bytes", "every cell"),
        Row::new("  frame after a key", cost.frame_bytes, "bytes", "mean; only cells that changed"),
        Row::new("  written while idle", cost.idle_bytes as f64, "bytes", idle)
            .with_target(Target::AtMost(0.0)),
    ])
}

/// The cost of one screen.
#[derive(Debug)]
struct ScreenCost {
    /// Returns columns and rows.
    size: Size,
    /// Keys that were pressed.
    keys: usize,
    /// Median time from a key to the last byte of its frame, ms.
    median_ms: f64,
    /// Longest of these times, ms.
    worst_ms: f64,
    /// Bytes of the first frame, which is whole.
    first_frame_bytes: u64,
    /// Mean bytes of the frames after it, which hold what changed.
    frame_bytes: f64,
    /// Bytes written while nothing happened.
    idle_bytes: u64,
    /// The duration of the idle phase, in ticks of a quarter of a second; they are simulated without
    /// waiting.
    idle_ticks: usize,
}

/// The dashboard of a run of 20,000 steps at 132×40 in 256 colours, under keys that zoom, pan, move the
/// crosshair and go through the panels.
fn measure_dashboard() -> io::Result<ScreenCost> {
    let c = KeyCode::Char;
    let (left, right) = (KeyCode::Left, KeyCode::Right);
    let round = [
        [c('+'), c('+'), c('h'), c('h'), c('l'), c('c')],
        [left, left, right, c('c'), c('y'), c('y')],
        [c('-'), c('h'), c('0'), c('f'), c('+'), c('0')],
        [KeyCode::Tab, KeyCode::Tab, c('6'), KeyCode::BackTab, c('3'), c('1')],
    ];
    let keys: Vec<KeyEvent> =
        round.iter().flatten().map(|code| KeyEvent::new(*code, KeyModifiers::NONE)).collect();
    let mut dashboard = Dashboard::of_view("bench", long_run(), Liveness::Running);
    measure_screen(&mut dashboard, SIZE, &THEME, &keys.repeat(12), IDLE_TICKS)
}

/// The view of a run with everything that the dashboard draws.
fn long_run() -> RunView {
    let mut view = RunView::default();
    let mut seq = 0;
    let mut log = |kind| {
        seq += 1;
        view.apply(&Event { attempt: 1, seq, time_us: seq * 400_000, kind });
    };
    log(Kind::RunStarted(RunStarted {
        model: "Qwen/Qwen3.5-2B".into(),
        method: "lora".into(),
        total_steps: Some(2 * STEPS),
        ..RunStarted::default()
    }));
    for step in 1..=STEPS {
        let (at, wave) = (step as f64, (step * 7919 % 101) as f64 / 101.0);
        log(Kind::Step(Step {
            step,
            loss_nats: 0.8 + 2.0 / (1.0 + at / 900.0) + 0.3 * wave,
            lr: Some(2e-4),
            grad_norm: Some(0.5 + wave),
            step_ms: Some(400.0 + 20.0 * wave),
            tokens_per_s: Some(3461.0 - 90.0 * wave),
            mem_used_bytes: Some(61 << 30),
            ..Step::default()
        }));
        if step.is_multiple_of(200) {
            log(Kind::Eval(Eval { step, loss_nats: 0.9 + 2.0 / (1.0 + at / 900.0), ..Eval::default() }));
            let name = format!("step-{step:06}");
            log(Kind::CheckpointCommitted(CheckpointCommitted {
                step,
                name,
                ..CheckpointCommitted::default()
            }));
        }
    }
    view
}

/// Draws the app at `size`, presses every key, and then lets `idle_ticks` pass. A key that asks to leave the
/// screen draws an ordinary frame here.
fn measure_screen(
    app: &mut dyn App,
    size: Size,
    theme: &Theme,
    keys: &[KeyEvent],
    idle_ticks: usize,
) -> io::Result<ScreenCost> {
    assert!(!keys.is_empty(), "no key to measure");
    let written = Rc::new(Cell::new(0));
    let mut terminal = Terminal::onto(Counter(written.clone()), size)?;
    app.update(Input::Size(size));
    terminal.draw(|frame| draw(app, frame, theme))?;
    let first_frame_bytes = written.get();

    let mut times = Vec::with_capacity(keys.len());
    for key in keys {
        let pressed = Instant::now();
        if app.update(Input::Key(*key)) != Next::Keep {
            terminal.draw(|frame| draw(app, frame, theme))?;
        }
        times.push(pressed.elapsed().as_secs_f64() * 1e3);
    }
    let before_idling = written.get();
    for _ in 0..idle_ticks {
        if app.update(Input::Tick) == Next::Draw {
            terminal.draw(|frame| draw(app, frame, theme))?;
        }
    }
    let frame_bytes = (before_idling - first_frame_bytes) as f64 / keys.len() as f64;
    Ok(ScreenCost {
        size,
        keys: keys.len(),
        worst_ms: times.iter().copied().fold(0.0, f64::max),
        median_ms: median(times),
        first_frame_bytes,
        frame_bytes,
        idle_bytes: written.get() - before_idling,
        idle_ticks,
    })
}

/// Counts the bytes that a terminal would be sent.
struct Counter(Rc<Cell<u64>>);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set(self.0.get() + bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Frame;

    use super::*;

    /// Shows how many keys were pressed; a `.` changes nothing.
    struct Counted(u32);

    impl App for Counted {
        fn update(&mut self, input: Input) -> Next {
            match input {
                Input::Key(key) if key.code == KeyCode::Char('.') => Next::Keep,
                Input::Key(_) => {
                    self.0 += 1;
                    Next::Draw
                }
                _ => Next::Keep,
            }
        }

        fn view(&self, frame: &mut Frame<'_>, _: &Theme) {
            for row in frame.area().rows() {
                frame.render_widget("ordinary words ".repeat(8), row);
            }
            frame.render_widget(format!("{:>12}", self.0), frame.area());
        }
    }

    fn keys(c: char, n: usize) -> Vec<KeyEvent> {
        vec![KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE); n]
    }

    #[test]
    fn only_what_changed_is_sent_and_an_app_that_keeps_its_frame_sends_nothing() {
        let cost = measure_screen(&mut Counted(0), SIZE, &THEME, &keys('x', 100), 40).unwrap();
        // Every cell once, and little else.
        assert!(cost.first_frame_bytes > 120 * 40 && cost.first_frame_bytes < 2 * 132 * 40, "{cost:?}");
        // One or two digits with their places and the frame's brackets.
        assert!(cost.frame_bytes > 1.0 && cost.frame_bytes < 80.0, "{cost:?}");
        assert!(cost.median_ms > 0.0 && cost.median_ms <= cost.worst_ms, "{cost:?}");
        assert_eq!((cost.keys, cost.idle_bytes, cost.idle_ticks), (100, 0, 40));
        let still = measure_screen(&mut Counted(0), SIZE, &THEME, &keys('.', 10), 0).unwrap();
        assert_eq!(still.frame_bytes, 0.0);
    }

    #[test]
    fn the_dashboard_redraws_little_for_a_key_and_nothing_when_idle() {
        let cost = measure_dashboard().unwrap();
        println!("{cost:?}");
        assert!(cost.keys >= 200 && cost.first_frame_bytes > 132 * 40 / 2, "{cost:?}");
        assert!(cost.frame_bytes > 0.0 && cost.frame_bytes < cost.first_frame_bytes as f64, "{cost:?}");
        assert_eq!(cost.idle_bytes, 0, "{cost:?}");
    }
}
