//! The event loop of a full screen: waits for a key or a tick, updates the app, and draws when something
//! changed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Size};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::terminal::Terminal;
use super::theme::{Role, Theme};

/// The smallest width in columns at which a screen is drawn.
pub const MIN_WIDTH: u16 = 60;
/// The smallest height in rows at which a screen is drawn.
pub const MIN_HEIGHT: u16 = 16;

/// The interval of [`Input::Tick`].
const TICK: Duration = Duration::from_millis(250);
/// The shortest time between two frames: 10 a second, or 4 over SSH.
const FRAME: Duration = Duration::from_millis(100);
const FRAME_OVER_SSH: Duration = Duration::from_millis(250);

/// An input of an app.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The size of the screen; this is also the first input of all.
    Size(Size),
    /// A quarter of a second has passed. Apps look at files and channels then.
    Tick,
}

/// What the loop does after an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing visible has changed.
    Keep,
    /// Draw a new frame.
    Draw,
    /// End the loop.
    Leave,
}

/// A full screen.
pub trait App {
    /// Takes one input.
    fn update(&mut self, input: Input) -> Next;
    /// Draws the current state.
    fn view(&self, frame: &mut Frame<'_>, theme: &Theme);
    /// Returns whether the app has more work than one tick may do. The next tick then follows at once, after
    /// pending keys.
    fn hurries(&self) -> bool {
        false
    }
    /// Returns, once, whether something has ended that people leave alone meanwhile: the bell then rings.
    fn rings(&mut self) -> bool {
        false
    }
    /// Returns, once, the text that the last key puts into the terminal's clipboard.
    fn copies(&mut self) -> Option<String> {
        None
    }
}

/// The reason why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The app ended the loop.
    ByApp,
    /// A signal requested the process to end, or the terminal is gone.
    Called,
}

/// Runs an app until it leaves, `quit` becomes true, or the terminal is gone.
///
/// # Errors
/// The terminal exists, but cannot be read or drawn on.
pub fn run(terminal: &mut Terminal, theme: &Theme, quit: &AtomicBool, app: &mut dyn App) -> io::Result<Left> {
    match run_until(terminal, theme, quit, app) {
        // Closing the window or losing the connection counts as leaving.
        Err(_) if !terminal.is_there() => Ok(Left::Called),
        ended => ended,
    }
}

fn run_until(
    terminal: &mut Terminal,
    theme: &Theme,
    quit: &AtomicBool,
    app: &mut dyn App,
) -> io::Result<Left> {
    let over_ssh = std::env::var_os("SSH_CONNECTION").is_some();
    let between = if over_ssh { FRAME_OVER_SSH } else { FRAME };
    // This starts to listen for events before the size is read, so that no change of the size in between is
    // lost.
    poll(Duration::ZERO)?;
    let mut next = app.update(Input::Size(terminal.size()?));
    let mut dirty = true;
    let mut drawn: Option<Instant> = None;
    let mut ticked = Instant::now();
    loop {
        if next == Next::Leave {
            return Ok(Left::ByApp);
        }
        dirty |= next == Next::Draw;
        if quit.load(Ordering::SeqCst) {
            return Ok(Left::Called);
        }
        let due = drawn.map_or(Duration::ZERO, |at| between.saturating_sub(at.elapsed()));
        if dirty && due.is_zero() {
            terminal.draw(|frame| draw(app, frame, theme))?;
            drawn = Some(Instant::now());
            dirty = false;
        }
        let hurries = app.hurries();
        let tick = if hurries { Duration::ZERO } else { TICK.saturating_sub(ticked.elapsed()) };
        // Ticks come before keys, so that a key held down does not stop the clock; an app that hurries has a
        // tick after each key.
        next = if tick.is_zero() && !(hurries && poll(Duration::ZERO)?) {
            ticked = Instant::now();
            if !terminal.is_there() {
                return Ok(Left::Called);
            }
            let next = app.update(Input::Tick);
            if app.rings() {
                terminal.ring()?;
            }
            next
        } else if poll(if dirty { tick.min(due) } else { tick })? {
            match read()? {
                Event::Key(key) if key.kind == KeyEventKind::Release => Next::Keep,
                Event::Key(key)
                    if key.code == KeyCode::Char('z') && key.modifiers == KeyModifiers::CONTROL =>
                {
                    terminal.suspend()?;
                    // A terminal tells only processes in its foreground that its size has changed.
                    app.update(Input::Size(terminal.size()?));
                    Next::Draw
                }
                Event::Key(key) => {
                    let next = app.update(Input::Key(key));
                    if let Some(text) = app.copies() {
                        terminal.copy(&text)?;
                    }
                    next
                }
                Event::Paste(text) => app.update(Input::Paste(text)),
                Event::Resize(width, height) => {
                    app.update(Input::Size(Size { width, height }));
                    Next::Draw
                }
                _ => Next::Keep,
            }
        } else {
            Next::Keep
        };
    }
}

/// Draws an app, or the required size if the terminal is too small.
pub fn draw(app: &dyn App, frame: &mut Frame<'_>, theme: &Theme) {
    let area = frame.area();
    if area.width >= MIN_WIDTH && area.height >= MIN_HEIGHT {
        app.view(frame, theme);
    } else {
        too_small(frame, theme);
    }
    if !theme.unicode {
        spell_out(frame.buffer_mut());
    }
}

/// Replaces our own characters that a terminal without Unicode cannot show. Other text is not changed.
fn spell_out(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let ascii = match cell.symbol() {
            "–" | "—" | "−" => "-",
            "·" => "|",
            "…" => "~",
            "×" => "x",
            "÷" => "/",
            "→" => ">",
            "≈" => "~",
            "°" => " ",
            "↑" => "^",
            "↓" => "v",
            "≤" => "<",
            _ => continue,
        };
        cell.set_symbol(ascii);
    }
}

fn too_small(frame: &mut Frame<'_>, theme: &Theme) {
    let area = frame.area();
    let lines = vec![
        Line::styled("the screen is too small", theme.style(Role::Title)),
        Line::raw(format!("{} × {} here, {MIN_WIDTH} × {MIN_HEIGHT} needed", area.width, area.height)),
        Line::raw("enlarge it, or use --plain"),
    ];
    let place = area.centered_vertically(Constraint::Length(3.min(area.height)));
    frame.render_widget(Paragraph::new(lines).centered(), place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::picture::{self, NO_COLOUR, TRUE_COLOUR, drawn};
    use crate::screen::{Binding, help, hints, key, rows};

    const KEYS: &[Binding<()>] = &[
        Binding {
            keys: &[key(KeyCode::Char('q'))],
            shown: "q",
            help: "leave; the run continues",
            hint: Some("leave"),
            action: (),
        },
        Binding {
            keys: &[key(KeyCode::Up), key(KeyCode::Down)],
            shown: "↑ ↓",
            help: "step through the list",
            hint: Some("choose"),
            action: (),
        },
    ];

    struct Help;

    impl App for Help {
        fn update(&mut self, _: Input) -> Next {
            Next::Draw
        }

        fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
            let area = frame.area();
            frame.render_widget(hints(KEYS, area.width, theme), area.rows().next_back().unwrap_or(area));
            help(frame, area, theme, &[("on every page", rows(KEYS)), ("here", vec![("⏎", "choose")])]);
        }
    }

    #[test]
    fn the_help_shows_every_key_of_its_tables() {
        picture::check("help", &mut Help);
    }

    #[test]
    fn a_screen_that_is_too_small_says_what_it_needs_and_60_by_16_is_enough() {
        picture::check_text("too-small", &picture::text(&drawn(&mut Help, 50, 12, &TRUE_COLOUR)));
        for (width, height) in [(1, 1), (3, 2), (59, 16), (60, 15)] {
            let buffer = drawn(&mut Help, width, height, &NO_COLOUR);
            assert!(!picture::text(&buffer).contains("leave; the run"), "{width}×{height}");
        }
        assert!(picture::text(&drawn(&mut Help, 60, 16, &NO_COLOUR)).contains("leave; the run continues"));
    }
}
