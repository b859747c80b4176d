//! What a download tells while it runs, and two ways to show it: bars on a terminal, lines elsewhere.
//!
//! The callback is the whole interface: the wizard implements [`Progress`] and needs neither indicatif nor a terminal.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressStyle};

use crate::Error;

/// One thing that happened. File names are plain paths (checked before any event), safe to print.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The plan is made and the transfer begins.
    Begin {
        /// `org/name@revision`.
        repo: &'a str,
        /// Files that will be fetched.
        files: usize,
        /// Bytes that will be fetched.
        bytes: u64,
    },
    /// A file begins, or goes on after a fault, at `have` of `size` bytes.
    File {
        /// Name in the repository.
        name: &'a str,
        /// Bytes already on disk.
        have: u64,
        /// Bytes in all.
        size: u64,
    },
    /// More bytes of a file are on disk.
    Bytes {
        /// Name in the repository.
        name: &'a str,
        /// How many more.
        count: u64,
    },
    /// A fault that may pass; the next attempt follows after `wait`.
    Retry {
        /// Name in the repository, or the host for questions about it.
        name: &'a str,
        /// Pause before the next attempt.
        wait: Duration,
        /// What happened.
        why: &'a str,
    },
    /// Another process is fetching this file.
    Waiting {
        /// Name in the repository.
        name: &'a str,
    },
    /// A file is whole, checked and in its place.
    Done {
        /// Name in the repository.
        name: &'a str,
        /// Its size.
        size: u64,
    },
}

/// Listens to a download and may stop it. Called from several threads.
pub trait Progress: Sync {
    /// Something happened.
    fn on(&self, event: Event<'_>);

    /// Asked before every read and during every pause; `true` ends the download with [`Error::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }
}

/// Silence.
impl Progress for () {
    fn on(&self, _: Event<'_>) {}
}

/// Bars where standard error is a terminal, lines on standard error where it is not. `cancel` is set by whoever handles
/// Ctrl-C.
pub fn for_terminal(cancel: Arc<AtomicBool>) -> Box<dyn Progress + Send> {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if std::io::stderr().is_terminal() && !dumb {
        Box::new(Bars::new(cancel))
    } else {
        Box::new(Lines::new(std::io::stderr(), cancel))
    }
}

/// One indicatif bar per file, on standard error.
#[derive(Debug)]
pub struct Bars {
    screen: MultiProgress,
    bars: Mutex<HashMap<String, ProgressBar>>,
    cancel: Arc<AtomicBool>,
}

impl Bars {
    /// Draws nothing until the first event.
    pub fn new(cancel: Arc<AtomicBool>) -> Self {
        Self { screen: MultiProgress::new(), bars: Mutex::default(), cancel }
    }

    fn bar(&self, name: &str) -> ProgressBar {
        let mut bars = held(&self.bars);
        let make = || {
            let template = "{msg:32!} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(template).expect("a template of known keys");
            let bar = self.screen.add(ProgressBar::no_length().with_style(style));
            bar.set_message(tail(name, 32));
            bar
        };
        bars.entry(name.into()).or_insert_with(make).clone()
    }
}

impl Progress for Bars {
    fn on(&self, event: Event<'_>) {
        // A screen that is gone is no reason to stop a download.
        let say = |line: String| drop(self.screen.println(line));
        match event {
            Event::Begin { .. } | Event::Waiting { .. } | Event::Retry { .. } => {
                if let Some(line) = line_for(&event) {
                    say(line);
                }
            }
            Event::File { name, have, size } => {
                let bar = self.bar(name);
                bar.set_length(size);
                bar.set_position(have);
                bar.reset_eta();
            }
            Event::Bytes { name, count } => self.bar(name).inc(count),
            Event::Done { name, .. } => self.bar(name).finish(),
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Plain lines: start and end of each file, each tenth of it, and every fault.
pub struct Lines<W> {
    out: Mutex<W>,
    files: Mutex<HashMap<String, (u64, u64)>>,
    cancel: Arc<AtomicBool>,
}

impl<W: Write + Send> Lines<W> {
    /// Writes to `out`; a failing `out` is ignored, as a closed terminal must not stop a download.
    pub fn new(out: W, cancel: Arc<AtomicBool>) -> Self {
        Self { out: Mutex::new(out), files: Mutex::default(), cancel }
    }

    fn say(&self, line: &str) {
        drop(writeln!(held(&self.out), "{line}"));
    }
}

impl<W: Write + Send> Progress for Lines<W> {
    fn on(&self, event: Event<'_>) {
        match event {
            Event::File { name, have, size } => {
                held(&self.files).insert(name.into(), (have, size));
            }
            Event::Bytes { name, count } => {
                let mut files = held(&self.files);
                let Some((have, size)) = files.get_mut(name) else { return };
                let tenth = |bytes: u64| (u128::from(bytes) * 10 / u128::from((*size).max(1))) as u64;
                let before = tenth(*have);
                let now = tenth(*have + count);
                *have += count;
                if now > before && now < 10 {
                    self.say(&format!("{name}: {}0 % of {}", now, DecimalBytes(*size)));
                }
                return;
            }
            _ => {}
        }
        if let Some(line) = line_for(&event) {
            self.say(&line);
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

fn line_for(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Begin { files: 0, repo, .. } => format!("{repo}: everything is in the cache"),
        Event::Begin { repo, files: 1, bytes } => {
            format!("{repo}: fetching 1 file, {}", DecimalBytes(*bytes))
        }
        Event::Begin { repo, files, bytes } => {
            format!("{repo}: fetching {files} files, {}", DecimalBytes(*bytes))
        }
        Event::File { name, have: 0, size } => format!("{name}: {}", DecimalBytes(*size)),
        Event::File { name, have, size } => {
            format!("{name}: continues at {} of {}", DecimalBytes(*have), DecimalBytes(*size))
        }
        Event::Retry { name, wait, why } => {
            format!("{name}: {why}; next attempt in {} s", wait.as_secs_f32().ceil())
        }
        Event::Waiting { name } => format!("{name}: another process is fetching it, waiting"),
        Event::Done { name, size } => format!("{name}: done, {}", DecimalBytes(*size)),
        Event::Bytes { .. } => return None,
    })
}

fn tail(name: &str, width: usize) -> String {
    // Names are ASCII (`is_plain_path`), so bytes are columns.
    if name.len() <= width { name.into() } else { format!("…{}", &name[name.len() + 1 - width..]) }
}

/// A poisoned display is still a display.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listener together with the stop flag that files fetched side by side share.
pub(crate) struct Watch<'a> {
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    quiet: bool,
}

impl<'a> Watch<'a> {
    pub fn new(progress: &'a dyn Progress, stop: &'a AtomicBool) -> Self {
        Self { progress, stop, quiet: false }
    }

    /// For questions that nobody watches.
    pub fn silent() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { progress: &(), stop: &NEVER, quiet: true }
    }

    /// The same, cancellable but not shown: for the small files that a plan reads before the transfer begins.
    pub fn quiet(of: &Self) -> Self {
        Self { quiet: true, ..*of }
    }

    pub fn on(&self, event: Event<'_>) {
        if !self.quiet {
            self.progress.on(event);
        }
    }

    pub fn waiting(&self, name: &str) {
        self.on(Event::Waiting { name });
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) || self.progress.cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Sleeps in short pieces, so that cancelling does not wait for the pause to end.
    pub fn pause(&self, time: Duration) -> Result<(), Error> {
        const PIECE: Duration = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            self.check()?;
            let piece = left.min(PIECE);
            std::thread::sleep(piece);
            left -= piece;
        }
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_each_tenth_once_and_go_on_where_a_fault_left_off() {
        let lines = Lines::new(Vec::new(), Arc::default());
        lines.on(Event::Begin { repo: "org/name", files: 1, bytes: 1000 });
        lines.on(Event::File { name: "f", have: 0, size: 1000 });
        for _ in 0..31 {
            lines.on(Event::Bytes { name: "f", count: 10 });
        }
        lines.on(Event::Retry {
            name: "f",
            wait: Duration::from_secs(1),
            why: "host: the connection was cut",
        });
        lines.on(Event::File { name: "f", have: 310, size: 1000 });
        lines.on(Event::Bytes { name: "f", count: 690 });
        lines.on(Event::Done { name: "f", size: 1000 });
        let text = String::from_utf8(lines.out.into_inner().unwrap()).unwrap();
        assert_eq!(
            text,
            "org/name: fetching 1 file, 1.00 kB\nf: 1.00 kB\nf: 10 % of 1.00 kB\nf: 20 % of 1.00 kB\nf: 30 % of 1.00 kB\n\
             f: host: the connection was cut; next attempt in 1 s\nf: continues at 310 B of 1.00 kB\nf: done, 1.00 kB\n"
        );
    }

    #[test]
    fn bars_follow_a_file_through_a_fault() {
        let cancel = Arc::new(AtomicBool::new(false));
        let bars = Bars::new(cancel.clone());
        bars.screen.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        bars.on(Event::File { name: "f", have: 10, size: 100 });
        bars.on(Event::Bytes { name: "f", count: 30 });
        assert_eq!((bars.bar("f").position(), bars.bar("f").length()), (40, Some(100)));
        bars.on(Event::File { name: "f", have: 0, size: 100 });
        bars.on(Event::Bytes { name: "f", count: 100 });
        bars.on(Event::Done { name: "f", size: 100 });
        assert!(bars.bar("f").is_finished() && bars.bar("f").position() == 100);
        assert!(!bars.cancelled());
        cancel.store(true, Ordering::Relaxed);
        assert!(bars.cancelled());
    }

    #[test]
    fn a_cancelled_pause_ends_at_once() {
        let stop = AtomicBool::new(true);
        let watch = Watch::new(&(), &stop);
        assert!(matches!(watch.pause(Duration::from_secs(3600)), Err(Error::Cancelled)));
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(tail("model-00001-of-00002.safetensors", 16), "…002.safetensors");
        assert_eq!(tail("config.json", 16), "config.json");
    }
}
