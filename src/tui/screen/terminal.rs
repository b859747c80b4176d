//! The terminal as a whole screen: taken over, and given back in every way a program can end.
//!
//! Given back on drop (which a panic runs too), before a stop with Ctrl-Z, and by [`restore`] for whoever
//! ends the process otherwise. A terminal that went away (closed SSH connection) is an error of the next
//! write, or seen by [`Terminal::is_there`].

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Position, Rect, Size};
use ratatui::{Frame, TerminalOptions, Viewport};
use rustix::process::{Signal, getpid, kill_process};

/// Whether this process holds the screen.
static HELD: AtomicBool = AtomicBool::new(false);

/// Whether standard input and output are a terminal that can show a full screen.
pub fn can_fill_the_screen() -> bool {
    let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

/// The whole screen, one at a time; or, with [`Terminal::onto`], what a screen of some size would be sent.
pub struct Terminal<W: Write = BufWriter<Stdout>> {
    /// Never dropped: its own drop shows the cursor, which [`restore`] does, and panics where the terminal
    /// is gone.
    inner: ManuallyDrop<ratatui::Terminal<CrosstermBackend<W>>>,
    /// It took the screen and has to give it back.
    took: bool,
}

impl Terminal {
    /// Takes the screen: raw mode, alternate screen, no cursor, pastes as one. The mouse stays the terminal's
    /// own, so that text can be selected.
    ///
    /// # Errors
    /// The terminal cannot be set.
    pub fn enter() -> io::Result<Self> {
        // A frame is one write.
        let out = BufWriter::with_capacity(64 * 1024, io::stdout());
        let terminal = Self {
            inner: ManuallyDrop::new(ratatui::Terminal::new(CrosstermBackend::new(out))?),
            took: true,
        };
        take()?;
        Ok(terminal)
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn size(&self) -> io::Result<Size> {
        let size = rustix::termios::tcgetwinsize(io::stdout())?;
        // A pseudo-terminal that nobody gave a size has 0 × 0.
        let or = |n: u16, usual| if n == 0 { usual } else { n };
        Ok(Size::new(or(size.ws_col, 80), or(size.ws_row, 24)))
    }

    /// Whether the terminal still exists.
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
    /// A screen of this size that goes to `out`; no terminal is taken.
    ///
    /// # Errors
    /// `out` refuses.
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

    /// Forgets what is on the screen, so that the next frame is drawn whole.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn clear(&mut self) -> io::Result<()> {
        // ratatui's own `clear` asks the terminal where its cursor is, and fails where no answer comes in
        // time.
        execute!(self.inner.backend_mut(), Clear(ClearType::All))?;
        // What the next frame is compared with is then the buffer that is blank.
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

/// Gives the screen back as it was, once; does nothing when it is not held. A terminal that went away needs
/// nothing.
pub fn restore() {
    if !HELD.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    let _ = execute!(out, EndSynchronizedUpdate, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
}
