//! Shows downloads: one bar for each file on a terminal, plain lines elsewhere.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use sparktune_app::listener::{DownloadEvent as Event, DownloadProgress};
use sparktune_base::units::{bytes, counted};

use crate::output::stderr_can_redraw;

/// Returns bars if standard error is a terminal, otherwise lines on standard error. The Ctrl-C handler sets
/// `cancel`.
pub(crate) fn for_terminal(cancel: Arc<AtomicBool>) -> Box<dyn DownloadProgress + Send> {
    if stderr_can_redraw() {
        Box::new(Bars::new(cancel))
    } else {
        Box::new(Lines::new(std::io::stderr(), cancel))
    }
}

/// One indicatif bar per file, on standard error.
#[derive(Debug)]
pub(crate) struct Bars {
    screen: MultiProgress,
    bars: Mutex<HashMap<String, ProgressBar>>,
    cancel: Arc<AtomicBool>,
}

impl Bars {
    /// Creates bars that draw nothing until the first event.
    pub(crate) fn new(cancel: Arc<AtomicBool>) -> Self {
        Self { screen: MultiProgress::new(), bars: Mutex::default(), cancel }
    }

    fn bar(&self, name: &str) -> ProgressBar {
        let mut bars = lock(&self.bars);
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

impl DownloadProgress for Bars {
    fn on(&self, event: Event<'_>) {
        // A closed terminal must not stop a download.
        let say = |line: String| drop(self.screen.println(line));
        match event {
            Event::Asking { .. } | Event::Begin { .. } | Event::Waiting { .. } | Event::Retry { .. } => {
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
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Plain lines: the start and end of each file, every tenth of it, and every error.
pub(crate) struct Lines<W> {
    out: Mutex<W>,
    files: Mutex<HashMap<String, (u64, u64)>>,
    cancel: Arc<AtomicBool>,
}

impl<W: Write + Send> Lines<W> {
    /// Creates lines written to `out`. Write errors are ignored, because a closed terminal must not stop a
    /// download.
    pub(crate) fn new(out: W, cancel: Arc<AtomicBool>) -> Self {
        Self { out: Mutex::new(out), files: Mutex::default(), cancel }
    }

    fn say(&self, line: &str) {
        drop(writeln!(lock(&self.out), "{line}"));
    }
}

impl<W: Write + Send> DownloadProgress for Lines<W> {
    fn on(&self, event: Event<'_>) {
        match event {
            Event::File { name, have, size } => {
                lock(&self.files).insert(name.into(), (have, size));
            }
            Event::Bytes { name, count } => {
                let mut files = lock(&self.files);
                let Some((have, size)) = files.get_mut(name) else { return };
                let tenth = |bytes: u64| (u128::from(bytes) * 10 / u128::from((*size).max(1))) as u64;
                let before = tenth(*have);
                let now = tenth(*have + count);
                *have += count;
                if now > before && now < 10 {
                    self.say(&format!("{name}: {}0 % of {}", now, bytes(*size)));
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
        Event::Asking { host, repo } => format!("{host}: asking for {repo}"),
        Event::Begin { files: 0, repo, .. } => format!("{repo}: everything is already in the cache"),
        Event::Begin { repo, files, bytes: size } => {
            format!("{repo}: downloading {}, {}", counted(*files as u64, "file"), bytes(*size))
        }
        Event::File { name, have: 0, size } => format!("{name}: {}", bytes(*size)),
        Event::File { name, have, size } => {
            format!("{name}: continuing at {} of {}", bytes(*have), bytes(*size))
        }
        Event::Retry { name, wait, why } => {
            format!("{name}: {why}; next attempt in {} s", wait.as_secs_f32().ceil())
        }
        Event::Waiting { name } => format!("{name}: waiting for another process that is downloading it"),
        Event::Done { name, size } => format!("{name}: done, {}", bytes(*size)),
        _ => return None,
    })
}

fn tail(name: &str, width: usize) -> String {
    // Names are ASCII (`is_plain_path`), so bytes are columns.
    if name.len() <= width { name.into() } else { format!("…{}", &name[name.len() + 1 - width..]) }
}

/// Locks the display. A panic in another thread does not make it unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_tell_each_tenth_once_and_go_on_where_a_fault_left_off() {
        let lines = Lines::new(Vec::new(), Arc::default());
        lines.on(Event::Asking { host: "hub.invalid", repo: "org/name" });
        lines.on(Event::Begin { repo: "org/name", files: 1, bytes: 1000 });
        lines.on(Event::File { name: "f", have: 0, size: 1000 });
        for _ in 0..31 {
            lines.on(Event::Bytes { name: "f", count: 10 });
        }
        lines.on(Event::Retry {
            name: "f",
            wait: Duration::from_secs(1),
            why: "host: the connection was closed",
        });
        lines.on(Event::File { name: "f", have: 310, size: 1000 });
        lines.on(Event::Bytes { name: "f", count: 690 });
        lines.on(Event::Done { name: "f", size: 1000 });
        let text = String::from_utf8(lines.out.into_inner().unwrap()).unwrap();
        assert_eq!(
            text,
            "hub.invalid: asking for org/name\norg/name: downloading 1 file, 1.0 kB\nf: 1.0 kB\nf: 10 % of 1.0 kB\nf: 20 % of 1.0 kB\nf: 30 % of 1.0 kB\n\
             f: host: the connection was closed; next attempt in 1 s\nf: continuing at 310 B of 1.0 kB\nf: done, 1.0 kB\n"
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
    fn long_names_keep_their_end() {
        assert_eq!(tail("model-00001-of-00002.safetensors", 16), "…002.safetensors");
        assert_eq!(tail("config.json", 16), "config.json");
    }
}
