//! Writes the events for TensorBoard, as `tensorboard/events.out.tfevents.…` in the run folder.
//!
//! A file is a sequence of TFRecords, each the protobuf `Event` of TensorFlow's `event.proto`; the few fields
//! that are used are written here by hand. A resumed attempt begins with `SessionLog.START` at its first
//! step, at which TensorBoard drops what the attempt before had logged from there on.
//!
//! Enters: the kinds of events and their times. Records are buffered and written about once a second. Records
//! that cannot be written are counted and reported; training never waits for them. An incomplete record is
//! truncated again, because TensorBoard would stop reading there.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sparktune_base::files::{create_private_folder, private_file};

use crate::charts::{METRICS, Metric, Source};
use crate::clock::now_us;
use crate::error::{Doing, Result, in_words};
use crate::event::{DeviceSample, Kind, Sample};
use crate::proto::{Message, record};
use crate::run_dir::RunDir;
use crate::step::Step;

const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The file of one attempt.
#[derive(Debug)]
pub(crate) struct TensorBoard {
    out: Whole<File>,
    path: PathBuf,
    pending: Vec<u8>,
    pending_records: u64,
    flushed: Instant,
    /// The last step, which samples of the machine and warnings are assigned to.
    step: u64,
    /// The number of samples at this step so far: each one has a tag of its own.
    samples: (u64, u32),
    lost: u64,
    /// The number of lost records that were not reported yet.
    unsaid: u64,
}

impl TensorBoard {
    /// Creates the attempt's file, and the folder if there is none.
    pub(crate) fn create(run: &RunDir, attempt: u32) -> Result<Self> {
        let folder = run.tensorboard();
        create_private_folder(&folder).doing("create", &folder)?;
        let now_us = now_us();
        // TensorBoard reads the files of a folder in the order of their names.
        let path =
            folder.join(format!("events.out.tfevents.{:010}.sparktune.{attempt:04}.v2", now_us / 1_000_000));
        let file = private_file().append(true).create_new(true).open(&path).doing("create", &path)?;
        let mut board = TensorBoard {
            out: Whole { out: file, len: 0, broken: false },
            path,
            pending: Vec::new(),
            pending_records: 0,
            flushed: Instant::now(),
            step: 0,
            samples: (0, 0),
            lost: 0,
            unsaid: 0,
        };
        board.push(now_us, 0, |event| event.text(3, "brain.Event:2"));
        Ok(board)
    }

    /// Takes one event. Returns the text of a warning when records could not be written, and when writing
    /// works again.
    pub(crate) fn log(&mut self, kind: &Kind, time_us: u64) -> Option<String> {
        match kind {
            Kind::RunStarted(started) => {
                self.step = started.resumed_from_step.unwrap_or(0);
                let first = started.resumed_from_step.map_or(0, |done| done + 1);
                self.push(time_us, first, |event| event.message(7, |session| session.whole(1, 1)));
            }
            Kind::Step(step) => self.scalars(time_us, step),
            Kind::Eval(eval) => {
                self.summary(time_us, eval.step, |values| scalar(values, "loss/eval", eval.loss_nats));
            }
            Kind::HeadEval(eval) => {
                let read = |metric: &Metric| match metric.source {
                    Source::Head(read) => metric.tag.zip(read(eval)),
                    Source::Step(_) | Source::Device(_) => None,
                };
                self.summary(time_us, eval.step, |values| {
                    METRICS.iter().filter_map(read).for_each(|(tag, value)| scalar(values, tag, value));
                });
            }
            Kind::DeviceSample(sample) => self.reading(time_us, sample),
            Kind::Sample(sample) => self.sample(time_us, sample),
            Kind::Warning(warning) => {
                let step = warning.step.unwrap_or(self.step);
                self.summary(time_us, step, |values| text(values, "warnings", &verbatim(&warning.message)));
            }
            _ => {}
        }
        let now = kind.is_durable() || self.flushed.elapsed() >= FLUSH_EVERY;
        if now { self.flush() } else { None }
    }

    fn scalars(&mut self, time_us: u64, step: &Step) {
        self.step = step.step;
        self.summary(time_us, step.step, |values| {
            scalar(values, "loss/train", step.loss_nats);
            for metric in METRICS {
                if let (Some(tag), Source::Step(read)) = (metric.tag, metric.source) {
                    read(step).into_iter().for_each(|value| scalar(values, tag, value));
                }
            }
        });
    }

    fn reading(&mut self, time_us: u64, sample: &DeviceSample) {
        let read = |metric: &Metric| match metric.source {
            Source::Device(read) => metric.tag.zip(read(sample)),
            Source::Step(_) | Source::Head(_) => None,
        };
        let readings: Vec<(&str, f64)> = METRICS.iter().filter_map(read).collect();
        if !readings.is_empty() {
            self.summary(time_us, self.step, |values| {
                readings.iter().for_each(|(tag, value)| scalar(values, tag, *value));
            });
        }
    }

    fn sample(&mut self, time_us: u64, sample: &Sample) {
        let nth = if self.samples.0 == sample.step { self.samples.1 + 1 } else { 1 };
        self.samples = (sample.step, nth);
        let markdown =
            format!("Prompt\n\n{}\nAnswer\n\n{}", verbatim(&sample.prompt), verbatim(&sample.text));
        self.summary(time_us, sample.step, |values| text(values, &format!("samples/{nth}"), &markdown));
    }

    fn summary(&mut self, time_us: u64, step: u64, fill: impl FnOnce(&mut Message)) {
        self.push(time_us, step, |event| event.message(5, fill));
    }

    fn push(&mut self, time_us: u64, step: u64, fill: impl FnOnce(&mut Message)) {
        let mut event = Message::default();
        event.double(1, time_us as f64 / 1e6);
        event.whole(2, step);
        fill(&mut event);
        record(&mut self.pending, event.bytes());
        self.pending_records += 1;
    }

    /// Writes the buffered records. Without any, it is not known whether writing works.
    pub(crate) fn flush(&mut self) -> Option<String> {
        if self.pending.is_empty() {
            return None;
        }
        self.flushed = Instant::now();
        let records = std::mem::take(&mut self.pending_records);
        let written = self.out.append(&self.pending);
        self.pending.clear();
        match written {
            Err(error) => {
                self.lost += records;
                self.unsaid += records;
                // One warning is returned each time that writing begins to fail.
                (self.unsaid == records).then(|| {
                    format!(
                        "cannot write {} for TensorBoard: {}; training continues, but the charts there will have a gap",
                        self.path.display(),
                        in_words(&error)
                    )
                })
            }
            Ok(()) => {
                let unsaid = std::mem::take(&mut self.unsaid);
                (unsaid > 0).then(|| {
                    format!("the {unsaid} records before this one could not be written for TensorBoard; the charts there have a gap")
                })
            }
        }
    }

    /// Returns the number of records that could not be written.
    #[cfg(test)]
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for TensorBoard {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A file that contains only complete appends.
#[derive(Debug)]
struct Whole<F> {
    out: F,
    len: u64,
    /// Whether an incomplete record could not be truncated, so that later records would not be read.
    broken: bool,
}

/// The operations of a file that [`Whole`] needs.
trait Cut: Write {
    fn cut_to(&mut self, len: u64) -> io::Result<()>;
}

impl Cut for File {
    fn cut_to(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}

impl<F: Cut> Whole<F> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an unfinished record is at its end"));
        }
        let written = self.out.write_all(bytes);
        match &written {
            Ok(()) => self.len += bytes.len() as u64,
            Err(_) => self.broken = self.out.cut_to(self.len).is_err(),
        }
        written
    }
}

/// Adds a value to a summary.
fn scalar(values: &mut Message, tag: &str, value: f64) {
    values.message(1, |entry| {
        entry.text(1, tag);
        entry.float(2, value as f32);
    });
}

/// Adds a text to a summary, which TensorBoard renders as Markdown without HTML.
fn text(values: &mut Message, tag: &str, markdown: &str) {
    values.message(1, |entry| {
        entry.text(1, tag);
        entry.message(8, |tensor| {
            tensor.whole(1, 7); // DT_STRING
            tensor.message(2, |shape| shape.message(2, |dim| dim.whole(1, 1)));
            tensor.text(8, markdown);
        });
        entry.message(9, |metadata| {
            metadata.message(1, |plugin| plugin.text(1, "text"));
            metadata.whole(4, 2); // DATA_CLASS_TENSOR
        });
    });
}

/// Returns Markdown that shows a text unchanged. The text comes from data and models, and TensorBoard only
/// removes HTML: control characters and those that change the direction of text are escaped.
fn verbatim(text: &str) -> String {
    let mut markdown = String::new();
    for line in text.lines() {
        markdown.push_str("    ");
        for c in line.chars() {
            let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if turns || (c.is_control() && c != '\t') {
                markdown.extend(c.escape_unicode());
            } else {
                markdown.push(c);
            }
        }
        markdown.push('\n');
    }
    markdown
}

#[cfg(test)]
mod tests;
