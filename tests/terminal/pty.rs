//! A process in a terminal: its screen, its keys, and how it leaves the terminal behind.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use rustix::process::{Pid, Signal, kill_process};

/// The longest wait for anything. It only ends a test that would otherwise hang: a test that passes is never
/// this slow, even on a machine that others use.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Columns and rows.
pub(crate) type Size = (u16, u16);

pub(crate) struct Pty {
    child: Box<dyn Child + Send + Sync>,
    master: Option<Box<dyn MasterPty + Send>>,
    writer: Option<Box<dyn Write + Send>>,
    reader: Option<JoinHandle<()>>,
    shown: Arc<Shown>,
    /// The terminal's settings before the process had it.
    before: String,
}

/// What the process has written.
struct Shown {
    output: Mutex<Output>,
    changed: Condvar,
}

struct Output {
    screen: vt100::Parser,
    raw: Vec<u8>,
    /// A frame has begun and not ended: a terminal that a person looks at would not show a part of it.
    is_drawing: bool,
    ended: bool,
    /// The reader lets go with the next bytes.
    hang_up: bool,
}

/// How a process left its terminal.
pub(crate) struct Left {
    pub status: ExitStatus,
    /// What is on the screen.
    pub text: String,
    /// Every byte it wrote.
    pub raw: Vec<u8>,
}

impl Pty {
    /// Starts a program in a new terminal of this size, with these variables and no others.
    pub(crate) fn spawn<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = S>,
        folder: &Path,
        env: &[(String, String)],
        (cols, rows): Size,
    ) -> Self {
        let size = PtySize { rows, cols, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(folder);
        command.env_clear();
        for (name, value) in env {
            command.env(name, value);
        }
        let before = settings(&*pair.master);
        let mut from = pair.master.try_clone_reader().unwrap();
        let writer = pair.master.take_writer().unwrap();
        let child = pair.slave.spawn_command(command).unwrap();
        // Now only the process holds it: when that has ended, reading ends.
        drop(pair.slave);
        let shown = Arc::new(Shown {
            output: Mutex::new(Output {
                screen: vt100::Parser::new(rows, cols, 0),
                raw: Vec::new(),
                is_drawing: false,
                ended: false,
                hang_up: false,
            }),
            changed: Condvar::new(),
        });
        let into = shown.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 16 * 1024];
            loop {
                let read = from.read(&mut bytes).unwrap_or(0);
                let mut output = into.lock();
                output.screen.process(&bytes[..read]);
                // A mark may begin in what was read before.
                let from = output.raw.len().saturating_sub(FRAME_BEGINS.len() - 1);
                output.raw.extend_from_slice(&bytes[..read]);
                let begins = last_mark(&output.raw[from..]);
                output.is_drawing = begins.unwrap_or(output.is_drawing);
                output.ended = read == 0 || output.hang_up;
                into.changed.notify_all();
                if output.ended {
                    return;
                }
            }
        });
        Self { child, master: Some(pair.master), writer: Some(writer), reader: Some(reader), shown, before }
    }

    fn master(&self) -> &dyn MasterPty {
        &**self.master.as_ref().unwrap()
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) {
        let writer = self.writer.as_mut().unwrap();
        writer.write_all(keys.as_bytes()).unwrap();
        writer.flush().unwrap();
    }

    pub(crate) fn resize(&mut self, (cols, rows): Size) {
        self.shown.lock().screen.screen_mut().set_size(rows, cols);
        self.master().resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        self.child.process_id().and_then(|pid| Pid::from_raw(pid as i32)).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// What the screen shows now, or, while a frame is being drawn, once it is whole.
    pub(crate) fn text(&self) -> String {
        let begun = Instant::now();
        let mut output = self.shown.lock();
        while output.is_drawing && !output.ended && begun.elapsed() < LONG {
            output = self.shown.changed.wait_timeout(output, LONG).unwrap().0;
        }
        output.screen.screen().contents()
    }

    /// Waits until the screen shows this.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait_until(&format!("\"{text}\""), |shown| shown.contains(text));
    }

    /// Waits until the screen is as wanted.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        if !self.shows_within(LONG, wanted) {
            let ended = if self.shown.lock().ended { "the process ended, and" } else { "waited long, and" };
            panic!("{ended} the screen did not show {what}:\n{}", self.text());
        }
    }

    /// Whether the screen is as wanted before so much time has passed or the process has ended.
    pub(crate) fn shows_within(&self, time: Duration, wanted: impl Fn(&str) -> bool) -> bool {
        let begun = Instant::now();
        let mut output = self.shown.lock();
        loop {
            let is_whole = !output.is_drawing || output.ended;
            if is_whole && wanted(&output.screen.screen().contents()) {
                return true;
            }
            let left = time.saturating_sub(begun.elapsed());
            if output.ended || left.is_zero() {
                return false;
            }
            output = self.shown.changed.wait_timeout(output, left).unwrap().0;
        }
    }

    /// Whether the process has taken the terminal for a full screen: no echo, no lines.
    pub(crate) fn is_taken(&self) -> bool {
        settings(self.master()) != self.before && self.shown.lock().screen.screen().alternate_screen()
    }

    /// Whether the process has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end of the process and checks that the terminal is as it was before.
    #[track_caller]
    pub(crate) fn left(mut self) -> Left {
        let status = self.wait_for_end();
        self.reader.take().unwrap().join().unwrap();
        let output = self.shown.lock();
        let screen = output.screen.screen();
        let text = screen.contents();
        assert_eq!(
            settings(self.master()),
            self.before,
            "lines and echo are on again; the screen is\n{text}"
        );
        assert!(!screen.alternate_screen(), "the alternate screen is left");
        assert!(!screen.hide_cursor(), "the cursor is shown");
        assert!(!screen.bracketed_paste(), "pastes are plain again");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse was never taken");
        let colours = (screen.fgcolor(), screen.bgcolor());
        assert_eq!(colours, (vt100::Color::Default, vt100::Color::Default), "colours are reset");
        assert!(
            !(screen.bold() || screen.dim() || screen.inverse() || screen.underline()),
            "attributes are reset"
        );
        let raw = output.raw.clone();
        drop(output);
        Left { status, text, raw }
    }

    #[track_caller]
    fn wait_for_end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LONG, "the process does not end; the screen is\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Closes the terminal under the process, as a lost connection does, and waits for its end.
    #[track_caller]
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        // The reader holds the terminal too, until there is something to read: a new size makes a screen
        // draw.
        self.shown.lock().hang_up = true;
        let (rows, cols) = self.shown.lock().screen.screen().size();
        self.resize((cols + 1, rows));
        self.reader.take().unwrap().join().unwrap();
        drop(self.master.take());
        // Its last words are ^J and ^D, which mean nothing to a full screen.
        drop(self.writer.take());
        self.wait_for_end()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // A test that failed leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap()
    }
}

/// What stands before and after each frame of a full screen. The kernel may pass a frame on in pieces.
const FRAME_BEGINS: &[u8] = b"\x1b[?2026h";
const FRAME_ENDS: &[u8] = b"\x1b[?2026l";

/// Returns whether the last mark in these bytes begins a frame, if there is a mark.
fn last_mark(bytes: &[u8]) -> Option<bool> {
    let mark = |eight: &[u8]| match eight {
        FRAME_BEGINS => Some(true),
        FRAME_ENDS => Some(false),
        _ => None,
    };
    bytes.windows(FRAME_BEGINS.len()).rev().find_map(mark)
}

#[test]
fn a_frame_is_whole_at_its_last_mark() {
    assert_eq!(last_mark(b"\x1b[?2026hdrawn"), Some(true));
    assert_eq!(last_mark(b"\x1b[?2026hdrawn\x1b[?2026l and more"), Some(false));
    assert_eq!(last_mark(b"\x1b[?202"), None);
}

/// All settings of the terminal, in words that can be compared.
fn settings(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

impl Left {
    /// Fails unless the process ended by itself with this code.
    #[track_caller]
    pub(crate) fn exits(self, code: u32) -> Self {
        let ended = (self.status.exit_code(), self.status.signal().map(str::to_owned));
        assert_eq!(ended, (code, None), "the screen is\n{}", self.text);
        self
    }

    /// Whether a sequence that sets a colour was ever written.
    pub(crate) fn has_colour(&self) -> bool {
        let text = String::from_utf8_lossy(&self.raw);
        text.split("\x1b[").skip(1).any(|sequence| {
            let end = sequence.find(|c: char| !(c.is_ascii_digit() || c == ';' || c == ':'));
            let Some((parameters, rest)) = end.map(|end| sequence.split_at(end)) else { return false };
            let is_colour = |n: u32| matches!(n, 30..=38 | 40..=48 | 90..=97 | 100..=107);
            rest.starts_with('m') && parameters.split([';', ':']).any(|n| n.parse().is_ok_and(is_colour))
        })
    }
}
