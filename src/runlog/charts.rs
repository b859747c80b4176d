//! The curves of a run and the marks on them.
//!
//! The table below describes all curves except the losses of the text model: a new chart is one row here, and
//! its field in the event. Screens, the report and TensorBoard show the rows of the table.

use serde::Serialize;

use crate::event::{DeviceSample, GpuSample, HeadEval};
use crate::series::Series;
use crate::step::Step;

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Loss, nats per trained token.
    Nats,
    /// A learning rate.
    LearningRate,
    /// A gradient norm.
    Norm,
    /// Tokens per second.
    TokensPerSecond,
    /// Memory.
    Bytes,
    /// A share, 0 to 100.
    Percent,
    /// Temperature.
    Celsius,
    /// Power.
    Watts,
    /// A clock.
    Megahertz,
}

impl Unit {
    /// Returns the unit as written after a number; empty for plain numbers.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nats => "nats per trained token",
            Unit::LearningRate | Unit::Norm => "",
            Unit::TokensPerSecond => "tokens/s",
            Unit::Bytes => "B",
            Unit::Percent => "%",
            Unit::Celsius => "°C",
            Unit::Watts => "W",
            Unit::Megahertz => "MHz",
        }
    }
}

/// The subject of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The training.
    Training,
    /// The machine.
    Machine,
    /// The training of the MTP head. Its steps are counted from 0 again.
    Head,
}

/// The event that contains a metric's value, and how it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Step(fn(&Step) -> Option<f64>),
    Head(fn(&HeadEval) -> Option<f64>),
    Device(fn(&DeviceSample) -> Option<f64>),
}

/// A metric that is charted over the steps, in addition to the losses of the text model.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name of its field in [`Charts`], for programs.
    pub name: &'static str,
    /// The name, as in the middle of a sentence.
    pub title: &'static str,
    /// What it is called beside the losses of a step, where it belongs there.
    pub short: Option<&'static str>,
    /// The unit.
    pub unit: Unit,
    /// The subject.
    pub about: About,
    /// Returns its curve from those of a run.
    pub series: fn(&Charts) -> &Series,
    /// Its tag in TensorBoard, if it is logged there.
    pub(crate) tag: Option<&'static str>,
    pub(crate) source: Source,
}

impl Metric {
    /// Returns how its value is read from a step, if it is a value of each step.
    pub fn of_step(&self) -> Option<fn(&Step) -> Option<f64>> {
        match self.source {
            Source::Step(read) => Some(read),
            Source::Head(_) | Source::Device(_) => None,
        }
    }
}

/// Declares [`Charts`] with a field, and [`METRICS`] with an entry, for each row.
macro_rules! metrics {
    (@short) => { None };
    (@short $short:literal) => { Some($short) };
    ($($(#[$doc:meta])* $name:ident: $title:literal $(as $short:literal)?, $unit:ident, $about:ident, $tag:expr, $source:expr;)*) => {
        /// The curves of a run, by step. Samples of the machine are assigned to the last step done before
        /// them. Of several GPUs the first is shown, which is the one used for training.
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub struct Charts {
            /// Training loss, nats per trained token.
            pub loss: Series,
            /// Eval loss.
            pub eval_loss: Series,
            $($(#[$doc])* pub $name: Series,)*
        }

        /// The metrics that are charted in addition to the losses, the most informative first.
        pub static METRICS: &[Metric] = &[$(Metric {
            name: stringify!($name),
            title: $title,
            short: metrics!(@short $($short)?),
            unit: Unit::$unit,
            about: About::$about,
            series: |charts| &charts.$name,
            tag: $tag,
            source: $source,
        },)*];

        impl Charts {
            pub(crate) fn step(&mut self, step: &Step) {
                self.loss.push(step.step, step.loss_nats);
                $(if let Source::Step(read) = $source && let Some(value) = read(step) {
                    self.$name.push(step.step, value);
                })*
            }

            /// Adds a sample of the machine that was taken after step `at`.
            pub(crate) fn reading(&mut self, at: u64, sample: &DeviceSample) {
                $(if let Source::Device(read) = $source && let Some(value) = read(sample) {
                    self.$name.push(at, value);
                })*
            }

            /// Adds an evaluation of the MTP head. A later attempt repeats the steps after its checkpoint.
            pub(crate) fn head_eval(&mut self, eval: &HeadEval, discarded: &mut Charts) {
                $(if let Source::Head(read) = $source && let Some(value) = read(eval) {
                    let repeated = match eval.step.checked_sub(1) {
                        Some(before) => self.$name.cut_after(before),
                        None => std::mem::take(&mut self.$name).buckets().to_vec(),
                    };
                    discarded.$name.absorb(repeated);
                    self.$name.push(eval.step, value);
                })*
            }

            /// Moves the values after `step` of the text model to `discarded`.
            pub(crate) fn discard_after(&mut self, step: u64, discarded: &mut Charts) {
                discarded.loss.absorb(self.loss.cut_after(step));
                discarded.eval_loss.absorb(self.eval_loss.cut_after(step));
                $(if !matches!($source, Source::Head(_)) {
                    discarded.$name.absorb(self.$name.cut_after(step));
                })*
            }
        }
    };
}

metrics! {
    /// Tokens per second.
    tokens_per_s: "speed", TokensPerSecond, Training, Some("tokens_per_s"), Source::Step(|step| step.tokens_per_s);
    /// Gradient norm before clipping.
    grad_norm: "gradient norm" as "grad", Norm, Training, Some("grad_norm"), Source::Step(|step| step.grad_norm);
    /// Learning rate.
    lr: "learning rate" as "lr", LearningRate, Training, Some("lr"), Source::Step(|step| step.lr);
    /// Loss of the MTP head on the eval set, by the head's own steps.
    head_loss: "held-out loss of the MTP head", Nats, Head, Some("loss/mtp_eval"), Source::Head(|eval| Some(eval.loss_nats));
    /// Memory used, bytes.
    mem_used_bytes: "trainer memory", Bytes, Machine, Some("mem_used_bytes"),
        Source::Step(|step| step.mem_used_bytes.map(|bytes| bytes as f64));
    /// SM clock of the GPU.
    sm_clock_mhz: "GPU clock", Megahertz, Machine, Some("gpu/sm_clock_mhz"),
        Source::Device(|sample| gpu(sample)?.sm_clock_mhz.map(f64::from));
    /// Temperature of the GPU.
    temperature_celsius: "GPU temperature", Celsius, Machine, Some("gpu/temperature_celsius"),
        Source::Device(|sample| gpu(sample)?.temperature_celsius.map(f64::from));
    /// Power draw of the GPU.
    power_watts: "GPU power", Watts, Machine, Some("gpu/power_watts"), Source::Device(|sample| gpu(sample)?.power_watts);
    /// Share of time with a kernel running on the GPU, percent.
    gpu_busy_percent: "GPU busy", Percent, Machine, None, Source::Device(|sample| gpu(sample)?.busy_percent.map(f64::from));
    /// Share of time in which some task waited for memory (PSI), percent.
    mem_pressure_percent: "memory pressure", Percent, Machine, None,
        Source::Device(|sample| sample.mem_pressure_some_percent);
    /// Load of all CPU cores together, percent.
    cpu_percent: "CPU load", Percent, Machine, None, Source::Device(|sample| sample.cpu_percent);
}

/// Returns the GPU that is used for training.
fn gpu(sample: &DeviceSample) -> Option<&GpuSample> {
    sample.gpus.first()
}

/// A marked point on the time axis.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "mark", rename_all = "snake_case")]
pub enum Mark {
    /// An evaluation that was the best so far.
    Best {
        /// The number of steps trained.
        step: u64,
        /// The loss of the evaluation.
        loss_nats: f64,
    },
    /// A committed checkpoint.
    Checkpoint {
        /// The number of steps trained.
        step: u64,
        /// Whether it had the lowest eval loss so far.
        best: bool,
    },
    /// An attempt continued from here.
    Resumed {
        /// The step of the checkpoint that it continued from.
        step: u64,
        /// The number of the attempt.
        attempt: u32,
    },
}

impl Mark {
    /// Returns the step of the mark.
    pub fn step(&self) -> u64 {
        match *self {
            Mark::Best { step, .. } | Mark::Checkpoint { step, .. } | Mark::Resumed { step, .. } => step,
        }
    }
}
