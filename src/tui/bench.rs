//! What a screen costs: the time from a key to its frame, and the bytes that go over the line.
//!
//! The way measured is the one that runs: the app's `update`, its `view`, the difference to the frame before, and its
//! encoding for a terminal. Only the last step, handing the bytes to the system, is a count instead.

use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Instant;

use crossterm::event::KeyEvent;
use ratatui::layout::Size;

use crate::screen::{App, Input, Next, Terminal, Theme, draw};

/// The cost of one screen.
#[derive(Debug, Clone, PartialEq)]
pub struct ScreenCost {
    /// Columns and rows.
    pub size: Size,
    /// Keys pressed.
    pub keys: usize,
    /// Time from a key to the last byte of its frame, ms; half of the keys took less.
    pub median_ms: f64,
    /// The longest of these times, ms.
    pub worst_ms: f64,
    /// Bytes of the first frame, which is whole.
    pub first_frame_bytes: u64,
    /// Mean bytes of the frames after it, which hold what changed.
    pub frame_bytes: f64,
    /// Bytes written while nothing happened.
    pub idle_bytes: u64,
    /// For how long nothing happened, ticks of a quarter of a second; they are not waited for.
    pub idle_ticks: usize,
}

/// Draws the app at `size`, presses every key (a key that wants to leave is an ordinary frame here), then lets `idle_ticks` pass.
///
/// # Errors
/// An error of the encoding; the counting itself cannot fail.
///
/// # Panics
/// Without any key there is nothing to measure.
pub fn measure_screen(
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
    times.sort_by(f64::total_cmp);
    let before_idling = written.get();
    for _ in 0..idle_ticks {
        if app.update(Input::Tick) == Next::Draw {
            terminal.draw(|frame| draw(app, frame, theme))?;
        }
    }
    #[allow(clippy::cast_precision_loss)]
    let frame_bytes = (before_idling - first_frame_bytes) as f64 / keys.len() as f64;
    Ok(ScreenCost {
        size,
        keys: keys.len(),
        median_ms: times[times.len() / 2],
        worst_ms: times[times.len() - 1],
        first_frame_bytes,
        frame_bytes,
        idle_bytes: written.get() - before_idling,
        idle_ticks,
    })
}

/// Counts what a terminal would be sent.
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
    use super::*;
    use crossterm::event::{KeyCode, KeyModifiers};
    use ratatui::Frame;

    const THEME: Theme = Theme { colours: crate::screen::Colours::Indexed, unicode: true };
    const SIZE: Size = Size { width: 132, height: 40 };

    /// Shows how many keys it has seen; a `.` changes nothing.
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
}
