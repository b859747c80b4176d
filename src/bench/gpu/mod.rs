//! Measures on a CUDA device, in sections of rows, each reported as soon as it is known. `tests/gpu/rows.py`
//! describes the fields of a row.
//!
//! A failed measurement becomes a row with the error, and the next one is tried; a measurement for which no
//! time is left becomes a row too. This module must not know files: the caller writes the rows.

mod cases;
mod decoding;
mod meter;
mod on_demand;
mod products;
mod steps;
mod timed;
mod watch;
mod whole;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use cases::{Shape, cases};
use meter::{Measured, Meter};
use products::{Layout, Operands, TOLERANCE};
use serde_json::{Map, Value, json};
use sparktune_kernels::cublaslt::seek;
pub use sparktune_kernels::probe;
use sparktune_kernels::work::Ceilings;
use sparktune_plan::architecture::MixerSpec;
use sparktune_plan::products::{PACK, Product, RANK, products, shapes};
use sparktune_plan::{MachineFacts, ModelConfig, Probe, Products};
use timed::Case;

/// The model sizes whose kernels and training steps are measured, starting with the one that speeds are
/// promised for.
const SIZES: [&str; 2] = ["2B", "0.8B"];

/// One row: the measured values by field.
pub type Row = Map<String, Value>;

/// The time limit of a section. Measurements that would exceed it are left out instead of being interrupted.
struct Clock {
    ends: Option<Instant>,
    longest: Duration,
}

impl Clock {
    fn has_room(&self) -> bool {
        self.ends.is_none_or(|ends| Instant::now() + self.longest < ends)
    }

    fn done(&mut self, began: Instant) {
        self.longest = self.longest.max(began.elapsed());
    }
}

/// Measures on one device.
pub struct Bench<'a> {
    device: Device,
    /// Whether the sizes are only for trying this out, so that the times mean nothing.
    is_tiny: bool,
    /// By whom the products of steps are computed.
    products: Products,
    clock: Clock,
    report: &'a mut dyn FnMut(Row),
}

impl<'a> Bench<'a> {
    /// Measures on the first CUDA device. What would not end within `limit` is left out. With `is_tiny`
    /// everything is done once, at sizes that an emulated device can take. The products of steps are computed
    /// as in a run whose plan says `products`. Rows go to `report`.
    ///
    /// # Errors
    /// When there is no CUDA device, in words.
    pub fn new(
        limit: Option<Duration>,
        is_tiny: bool,
        products: Products,
        report: &'a mut dyn FnMut(Row),
    ) -> Result<Self, String> {
        // A tenth is reserved for ending.
        let ends = limit.map(|limit| Instant::now() + limit.mul_f64(0.9));
        let device = first_device()?;
        Ok(Self { device, is_tiny, products, clock: Clock { ends, longest: Duration::ZERO }, report })
    }

    /// Returns the version of the vendor's library if steps may use it and there is one.
    fn library(&self) -> Option<usize> {
        (self.products == Products::Auto).then(|| seek(&self.device, &[])).flatten()
    }

    fn meter(&self) -> Meter {
        Meter::new(self.device.clone(), self.is_tiny)
    }

    /// Reports the rows of one measurement. `head` contains the fields that identify it, in case it fails.
    fn measure(&mut self, head: Row, measure: impl FnOnce() -> Vec<Row>) {
        let began = Instant::now();
        let rows = if self.clock.has_room() {
            caught(measure).unwrap_or_else(|why| vec![with(head, "failed", why)])
        } else {
            vec![with(head, "skipped", "no time is left")]
        };
        self.clock.done(began);
        rows.into_iter().for_each(&mut *self.report);
    }

    /// Measures every op at the training shapes: its error against the CPU's path, and its time against its
    /// floor.
    pub fn kernels(&mut self) {
        let meter = self.meter();
        let [copy, product] = self.peaks(&meter);
        let ceilings =
            copy.zip(product).map(|(bytes_per_s, flops_per_s)| Ceilings { bytes_per_s, flops_per_s });
        for case in all_cases(self.is_tiny) {
            let head = row(json!({"name": case.name, "shape": case.shape}));
            self.measure(head, || {
                let measured = case.measure(&meter);
                meter.clean();
                measured.iter().map(|measured| kernel_row(measured, ceilings)).collect()
            });
        }
    }

    /// Measures the bytes per second of a copy and the FLOP/s of our largest matrix product, and reports a
    /// row for each. A probe measures the same.
    fn peaks(&mut self, meter: &Meter) -> [Option<f64>; 2] {
        type Peak = (&'static str, &'static str, fn(&Meter) -> Measured, fn(&Measured) -> f64);
        let peaks: [Peak; 2] = [
            ("copy", "GB/s", Meter::copy, |measured| measured.bytes),
            ("matrix product", "TFLOP/s", Meter::largest_product, |measured| measured.flops),
        ];
        peaks.map(|(name, unit, measure, work)| {
            let mut rate = None;
            self.measure(row(json!({"name": name})), || {
                let measured = measure(meter);
                meter.clean();
                let per_s = measured.seconds.map(|seconds| work(&measured) / seconds);
                rate = per_s.filter(|_| measured.error <= measured.tolerance);
                let value = per_s.map(|rate| rate / if unit == "GB/s" { 1e9 } else { 1e12 });
                vec![with(with(kernel_row(&measured, None), "value", value), "unit", unit)]
            });
            rate
        })
    }

    /// Measures two rates of this device in about two seconds.
    ///
    /// # Errors
    /// The failure, in words.
    pub fn probe(&mut self) -> Result<Probe, String> {
        let meter = self.meter();
        match self.peaks(&meter) {
            [Some(bytes_per_s), Some(flops_per_s)] => {
                Ok(Probe { bf16_tflops: flops_per_s / 1e12, copy_gb_per_s: bytes_per_s / 1e9 })
            }
            _ => Err("the device did not copy or multiply correctly".into()),
        }
    }

    /// Measures the matrix products of training all sizes, by our own kernel and by the vendor's library
    /// where there is one, and holds both against the largest product of our kernel.
    pub fn gemm(&mut self) {
        let products = if self.is_tiny { tiny_products() } else { products() };
        let most = |count: fn(&Product) -> usize| products.iter().map(count).max().unwrap_or(0);
        let (left, right) = (most(|p| p.m * p.k), most(|p| p.k * p.n));
        let meter = self.meter();
        let operands = match caught(|| Operands::new(&meter, left, right)) {
            Ok(operands) => operands,
            Err(why) => return (self.report)(with(row(json!({"name": "operands"})), "failed", why)),
        };
        let largest = (!self.is_tiny).then(|| caught(|| meter.largest_product()).ok()).flatten();
        let ceiling = largest.and_then(|largest| largest.seconds.map(|seconds| largest.flops / seconds));
        for Product { name, m, n, k, layout } in products {
            let head = row(json!({"name": name, "m": m, "n": n, "k": k, "layout": layout}));
            self.measure(head.clone(), || {
                let way = match layout {
                    "NT" => Layout::Nt,
                    "NN" => Layout::Nn,
                    _ => Layout::Tn,
                };
                let timed = operands.measure(&meter, way, [m, n, k]);
                meter.clean();
                let micros = |seconds: f64| seconds * 1e6;
                let (estimated, estimated_s) = &timed.tiles[0];
                let tiles: Vec<Value> = timed
                    .tiles
                    .iter()
                    .map(|(tile, seconds)| json!({"tile": tile, "time_us": micros(*seconds)}))
                    .collect();
                let measured = row(json!({
                    "time_us": micros(timed.seconds),
                    "tflops": timed.flops / timed.seconds / 1e12,
                    "error": timed.error,
                    "tolerance": TOLERANCE,
                    "errors": timed.differing,
                    "estimated_tile": estimated,
                    "estimated_time_us": micros(*estimated_s),
                    "tiles": tiles,
                    "share_of_ceiling": ceiling.map(|ceiling| timed.flops / timed.seconds / ceiling),
                    "note": timed.tiling(),
                }));
                let own: Row = head.clone().into_iter().chain(measured).collect();
                let of_library = timed.library.map(|library| {
                    let measured = row(json!({
                        "computed_by": "library",
                        "time_us": micros(library.seconds),
                        "tflops": timed.flops / library.seconds / 1e12,
                        "error": library.error,
                        "tolerance": TOLERANCE,
                        "share_of_ceiling": ceiling.map(|ceiling| timed.flops / library.seconds / ceiling),
                        "of_own_time": library.seconds / timed.seconds,
                        "note": format!("cuBLASLt {}, the algorithm that training would take", library.version),
                    }));
                    head.into_iter().chain(measured).collect()
                });
                std::iter::once(own).chain(of_library).collect()
            });
        }
    }

    /// Measures training steps of the size that speeds are promised for, compares losses with the CPU's, and
    /// measures the other sizes. `machine` decides whether layers are recomputed, as it does for a plan.
    pub fn steps(&mut self, machine: &MachineFacts) {
        let (promised, others) = SIZES.split_at(1);
        let load = |_: &str| steps::Load::of(PACK);
        steps::speeds(self, machine, promised, load);
        // A small model takes less time than a large one.
        self.clock.longest = Duration::ZERO;
        steps::curves(self);
        if !self.is_tiny {
            steps::speeds(self, machine, others, load);
        }
    }

    /// Measures training steps of all five sizes, by LoRA and, where the memory suffices, in full.
    pub fn sizes(&mut self, machine: &MachineFacts) {
        on_demand::sizes(self, machine);
    }

    /// Measures steps of the MTP head's training.
    pub fn head(&mut self) {
        on_demand::head(self);
    }

    /// Measures the same step in plain tensor operations, in our kernels, without recompute, and with fewer
    /// targets, and compares the losses.
    pub fn ladder(&mut self) {
        on_demand::ladder(self);
    }

    /// Writes a random model into `folder`, which is created, and loss and gradients of it next to it, for a
    /// comparison with another program.
    pub fn whole(&mut self, folder: &Path) {
        whole::whole(self, folder);
    }
}

/// Formats a row for people: its name, its time, its error, and its note.
pub fn line(row: &Row) -> String {
    let text = |field: &str| row.get(field).and_then(Value::as_str);
    let number = |field: &str| row.get(field).and_then(Value::as_f64);
    let mut words: Vec<String> =
        [text("name"), text("shape"), text("layout")].into_iter().flatten().map(str::to_owned).collect();
    for (field, unit) in [("time_us", "µs"), ("tflops", "TFLOP/s"), ("tokens_per_s", "tokens/s")] {
        words.extend(number(field).map(|value| format!("{value:.1} {unit}")));
    }
    if let Some(tolerance) = number("tolerance") {
        let error = number("error").map_or("not a number".into(), |error| format!("{error:.1e}"));
        words.push(format!("error {error}, allowed {tolerance:.0e}"));
    }
    words.extend(text("note").filter(|note| !note.is_empty()).map(str::to_owned));
    for word in ["failed", "skipped"] {
        words.extend(text(word).map(|why| format!("{word}: {why}")));
    }
    format!("{}\n", words.join(", "))
}

/// Returns the fields of a JSON object.
fn row(value: Value) -> Row {
    match value {
        Value::Object(fields) => fields,
        other => unreachable!("{other} is no object"),
    }
}

fn with(mut row: Row, field: &str, value: impl Into<Value>) -> Row {
    row.insert(field.to_owned(), value.into());
    row
}

/// Returns the first CUDA device.
///
/// # Errors
/// There is none, in words.
pub(crate) fn first_device() -> Result<Device, String> {
    let found = caught(|| Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().into_iter().next())?;
    found.ok_or_else(|| "no CUDA device responds".to_owned())
}

/// Returns the result of `f`, or the explanation of the panic of the device's runtime.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        sparktune_telemetry::device_failure(message).unwrap_or_else(|| message.to_owned())
    })
}

/// Returns the row of a measured op, with its floor if the ceilings are known.
fn kernel_row(measured: &Measured, ceilings: Option<Ceilings>) -> Row {
    let Measured { name, shape, error, worst, tolerance, seconds, bytes, flops, work, note } = measured;
    let work: Vec<[f64; 2]> = work.iter().map(|launch| [launch.bytes, launch.flops]).collect();
    let floor_s = ceilings.map(|ceilings| ceilings.floor_s(*bytes, *flops));
    let lines = worst.iter().flatten().zip(["row", "column"]).flat_map(|(line, what)| {
        [(format!("worst_{what}"), json!(line.index)), (format!("worst_{what}_error"), json!(line.distance))]
    });
    let head = row(json!({"name": name, "shape": shape, "error": error, "tolerance": tolerance}));
    let rest = row(json!({
        "time_us": seconds.map(|seconds| seconds * 1e6),
        "bytes": bytes,
        "flops": flops,
        "work": work,
        "floor_us": floor_s.filter(|_| seconds.is_some()).map(|floor| floor * 1e6),
        "share_of_floor": floor_s.zip(*seconds).map(|(floor, seconds)| floor / seconds),
        "note": note,
    }));
    head.into_iter().chain(lines).chain(rest).collect()
}

/// Returns the cases of all sizes, op by op, each once.
fn all_cases(is_tiny: bool) -> Vec<Case> {
    let shapes: Vec<Shape> = if is_tiny {
        vec![kernel_shape(&steps::tiny_config(), 96, 8)]
    } else {
        sized(&SIZES).into_iter().map(|(_, config)| kernel_shape(&config, PACK, RANK)).collect()
    };
    let mut of_shapes: Vec<_> =
        shapes.into_iter().map(|shape| cases(shape).into_iter().chain(decoding::cases(shape))).collect();
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    loop {
        let one_of_each: Vec<Case> = of_shapes.iter_mut().filter_map(Iterator::next).collect();
        if one_of_each.is_empty() {
            return all;
        }
        all.extend(one_of_each.into_iter().filter(|case| seen.insert((case.name, case.shape.clone()))));
    }
}

/// Returns the configs of these sizes.
fn sized(sizes: &[&'static str]) -> Vec<(&'static str, ModelConfig)> {
    let all = shapes();
    sizes.iter().filter_map(|size| all.iter().find(|(name, _)| name == size).cloned()).collect()
}

fn kernel_shape(config: &ModelConfig, tokens: usize, rank: usize) -> Shape {
    let (mut attention, mut delta_net) = (None, None);
    for layer in &config.layers {
        match &layer.mixer {
            MixerSpec::Attention(spec) => attention = Some(spec),
            MixerSpec::GatedDeltaNet(spec) => delta_net = Some(spec),
        }
    }
    let (attention, delta_net) = attention.zip(delta_net).expect("a config of Qwen3.5");
    Shape {
        tokens,
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.layers[0].intermediate_size,
        num_attention_heads: attention.num_attention_heads,
        num_key_value_heads: attention.num_key_value_heads,
        head_dim: attention.head_dim,
        rotary_dim: attention.rope.rotary_dim,
        linear_num_key_heads: delta_net.num_key_heads,
        linear_num_value_heads: delta_net.num_value_heads,
        linear_head_dim: delta_net.value_head_dim,
        linear_conv_kernel_dim: delta_net.conv_kernel_dim,
        rank,
    }
}

fn tiny_products() -> Vec<Product> {
    let product = |layout| Product { name: format!("tiny {layout}"), m: 48, n: 40, k: 72, layout };
    ["NT", "NN", "TN"].map(product).to_vec()
}

#[cfg(test)]
mod launches;
#[cfg(test)]
mod long;
#[cfg(test)]
mod on_device;
#[cfg(test)]
mod tests;
