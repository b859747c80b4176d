//! The terminal as a full screen, which is restored whenever and however the program ends.
//!
//! It is restored on drop (also after a panic), before a stop with Ctrl-Z, and by [`restore`] and
//! [`end_by_signal`] for code that ends the process otherwise. A terminal that is gone (closed SSH
//! connection) causes an error at the next write, and is detected by [`Terminal::is_there`].

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::style::Print;
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Position, Rect, Size};
use ratatui::{Frame, TerminalOptions, Viewport};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::low_level::emulate_default_handler;

use super::clipboard;

/// Whether this process has taken the screen.
static HELD: AtomicBool = AtomicBool::new(false);
/// How long a terminal may take to be restored when the process ends at once.
const RESTORED_WITHIN: Duration = Duration::from_secs(1);

/// Returns whether standard input and output are a terminal that can show a full screen.
pub fn can_fill_the_screen() -> bool {
    let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

/// The full screen, of which there is only one at a time; or, with [`Terminal::onto`], an output for the
/// bytes of a screen of some size.
pub struct Terminal<W: Write = BufWriter<Stdout>> {
    /// Never dropped: its own drop shows the cursor, which [`restore`] does, and panics if the terminal is
    /// gone.
    inner: ManuallyDrop<ratatui::Terminal<CrosstermBackend<W>>>,
    /// Whether it has taken the screen and has to restore it.
    took: bool,
}

impl Terminal {
    /// Takes the screen: raw mode, alternate screen, hidden cursor, bracketed paste. The mouse is not
    /// captured, so that text can be selected.
    ///
    /// # Errors
    /// The terminal cannot be set.
    pub fn enter() -> io::Result<Self> {
        // Each frame is a single write.
        let out = BufWriter::with_capacity(64 * 1024, io::stdout());
        let terminal = Self {
            inner: ManuallyDrop::new(ratatui::Terminal::new(CrosstermBackend::new(out))?),
            took: true,
        };
        take()?;
        Ok(terminal)
    }

    /// Returns columns and rows.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn size(&self) -> io::Result<Size> {
        let size = rustix::termios::tcgetwinsize(io::stdout())?;
        // A pseudo-terminal without a size reports 0 × 0.
        let or = |n: u16, usual| if n == 0 { usual } else { n };
        Ok(Size::new(or(size.ws_col, 80), or(size.ws_row, 24)))
    }

    /// Returns whether the terminal still exists.
    pub fn is_there(&self) -> bool {
        rustix::termios::tcgetattr(io::stdin()).is_ok()
    }

    /// Stops the process as Ctrl-Z does; when it is continued, the screen is taken again.
    ///
    /// # Errors
    /// The terminal cannot be set.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        kill_process(getpid(), Signal::TSTP)?;
        take()?;
        self.clear()
    }
}

impl<W: Write> Terminal<W> {
    /// Creates a screen of this size that is written to `out`, without a terminal.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn onto(out: W, size: Size) -> io::Result<Self> {
        let viewport = Viewport::Fixed(Rect::from((Position::ORIGIN, size)));
        let backend = CrosstermBackend::new(out);
        Ok(Self {
            inner: ManuallyDrop::new(ratatui::Terminal::with_options(backend, TerminalOptions { viewport })?),
            took: false,
        })
    }

    /// Draws one frame; only cells that changed are written.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        queue!(self.inner.backend_mut(), BeginSynchronizedUpdate)?;
        self.inner.draw(view)?;
        execute!(self.inner.backend_mut(), EndSynchronizedUpdate)
    }

    /// Rings the terminal's bell, which many terminals show as a mark or a notification.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn ring(&mut self) -> io::Result<()> {
        execute!(self.inner.backend_mut(), Print('\u{7}'))
    }

    /// Puts a text into the terminal's clipboard, where the terminal allows it.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        match clipboard::request(text) {
            Some(request) => execute!(self.inner.backend_mut(), Print(request)),
            None => Ok(()),
        }
    }

    /// Clears the screen, so that the next frame is drawn completely.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn clear(&mut self) -> io::Result<()> {
        // ratatui's own `clear` queries the position of the cursor, and fails if the terminal does not answer
        // in time.
        execute!(self.inner.backend_mut(), Clear(ClearType::All))?;
        // The next frame is then compared with the blank buffer.
        self.inner.swap_buffers();
        Ok(())
    }
}

impl<W: Write> Drop for Terminal<W> {
    fn drop(&mut self) {
        if self.took {
            restore();
        }
    }
}

fn take() -> io::Result<()> {
    HELD.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide)
}

/// Restores the screen, once; does nothing if it was not taken or the terminal is gone.
pub fn restore() {
    if !HELD.swap(false, Ordering::SeqCst) {
        return;
    }
    // Before the writing, which a terminal that takes no more output holds up.
    let _ = disable_raw_mode();
    let mut out = io::stdout();
    let _ = execute!(out, EndSynchronizedUpdate, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = out.flush();
}

/// Restores the screen and ends the process as this signal does where nobody handles it, whatever other
/// threads do.
///
/// A terminal that takes no more output holds up who writes to it, so it is only waited for shortly: lines
/// and echo are on again then, and the rest is as it was.
pub fn end_by_signal(signal: i32) {
    static ENDING: Mutex<()> = Mutex::new(());
    // Two listeners may hear the same signal. The second one must not end what the first one has begun.
    let _one = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    if HELD.load(Ordering::SeqCst) {
        let _ = disable_raw_mode();
        let (sender, restored) = mpsc::channel();
        let restoring = std::thread::Builder::new().spawn(move || {
            restore();
            let _ = sender.send(());
        });
        if restoring.is_ok() {
            let _ = restored.recv_timeout(RESTORED_WITHIN);
        }
    }
    let _ = emulate_default_handler(signal);
}
