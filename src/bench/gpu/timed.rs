//! How one op is compared with the CPU and timed.
//!
//! Enters: an op with its inputs, its work and the types that training gives it ([`Timed`]). Leaves: a
//! [`Case`], which a meter turns into a row for each pass. This file must not know which ops there are, nor
//! at which sizes they are measured: that is `cases`.

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor};
use sparktune_kernels::Op;
use sparktune_kernels::measuring::{
    CudaTensor, Line, OnCuda, copy, dims, distance, host_primitive as on_host, into_tensor, random_through,
    worst_lines,
};
use sparktune_kernels::work::{self, Work};

use super::meter::{Measured, Meter, Pace, bytes};

/// The largest allowed relative L2 distance of bf16 results (`kernels/NOTES.md`, "Tolerances"): of values,
/// and of gradients.
const VALUE: f64 = 1e-2;
const GRADIENT: f64 = 2e-2;
/// The FLOPs that one comparison may take on the CPU: an op that takes more is compared with fewer tokens.
const CPU_FLOPS: f64 = 4e10;
/// The duration of measuring each direction of an op.
pub(super) const PACE: Pace = Pace { queue_s: 0.03, times: 5 };

type Measure = Box<dyn FnOnce(&Meter) -> Vec<Measured>>;

/// An op at a shape, still to be measured.
pub(super) struct Case {
    /// The op.
    pub(super) name: &'static str,
    /// At which sizes.
    pub(super) shape: String,
    measure: Measure,
}

impl Case {
    pub(super) fn new(
        name: &'static str,
        shape: String,
        measure: impl FnOnce(&Meter) -> Vec<Measured> + 'static,
    ) -> Self {
        Self { name, shape, measure: Box::new(measure) }
    }

    /// Compares and times it, forward and backward.
    pub(super) fn measure(self, meter: &Meter) -> Vec<Measured> {
        (self.measure)(meter)
    }
}

/// The distance of some results from the CPU's.
#[derive(Default)]
struct Compared {
    /// The worst relative L2 distance; NaN counts as the largest.
    error: f64,
    /// The worst row and the worst column.
    worst: Option<[Line; 2]>,
}

impl Compared {
    fn add(&mut self, found: &Tensor<2>, expected: &Tensor<2>) {
        let error = f64::from(distance(found, expected));
        let is_no_worse = error <= self.error || self.error.is_nan();
        self.error = if is_no_worse { self.error } else { error };
        let lines = worst_lines(found, expected);
        let worse = |(old, new): (Line, Line)| if new.distance > old.distance { new } else { old };
        self.worst = Some(
            self.worst.map_or(lines, |[row, column]| [worse((row, lines[0])), worse((column, lines[1]))]),
        );
    }
}

/// How the passes of an op move bytes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Usual,
    /// Reads as many numbers of its input as it writes.
    Gather,
    /// Its result is one number; the gradient is formed in the forward pass.
    Scalar,
}

/// The borders of a pack that is timed: one example, the most work there can be.
fn alone(tokens: usize) -> Vec<u32> {
    vec![0, tokens as u32]
}

/// The borders of a pack that is compared: several examples, one of them a single token.
fn packed(tokens: usize) -> Vec<u32> {
    let mut borders = vec![0, tokens / 5, tokens / 5 + 1, tokens / 2, tokens];
    borders.dedup();
    borders.into_iter().map(|border| border as u32).collect()
}

/// Makes the op and its inputs, on the CPU, for a pack with these borders.
type Make<O, const N: usize> = Box<dyn Fn(&[u32]) -> (O, [Tensor<2>; N])>;

/// An op of [`Op`], forward and backward.
pub(super) struct Timed<O, const N: usize, const M: usize> {
    pub(super) kind: Kind,
    pub(super) tokens: usize,
    /// The types that the inputs have in training.
    pub(super) dtypes: [DType; N],
    /// The gradients that are computed.
    pub(super) wanted: [bool; N],
    /// FLOPs that both passes cannot do without; those of `work` where the kernels do no others.
    pub(super) useful_flops: Option<[f64; 2]>,
    pub(super) work: Work,
    pub(super) make: Make<O, N>,
}

impl<O: Op<N, M>, const N: usize, const M: usize> Timed<O, N, M> {
    /// FLOPs of both passes.
    fn flops(&self) -> [f64; 2] {
        let Work { forward, backward } = &self.work;
        self.useful_flops.unwrap_or([forward, backward].map(|launches| work::flops(launches)))
    }

    /// Returns the number of tokens that the CPU can compute in acceptable time.
    fn compared_tokens(&self) -> usize {
        let share = CPU_FLOPS / self.flops().iter().sum::<f64>().max(CPU_FLOPS);
        let tokens = (share * self.tokens as f64) as usize;
        tokens.clamp(self.tokens.min(64), self.tokens)
    }

    /// Compares the values, and the gradients, with the CPU's.
    fn errors(&self, meter: &Meter, tokens: usize) -> [Compared; 2] {
        let (op, inputs) = (self.make)(&packed(tokens));
        let fits = op.fits(inputs.each_ref().map(Tensor::dims));
        assert!(fits, "the kernels do not take these sizes");
        let (values, saved) = Op::forward(&op, inputs.clone().map(on_host), self.wanted);
        let values = values.map(Tensor::from_primitive::<Flex>);
        let (found, found_saved) = OnCuda::forward(&op, self.upload(meter, inputs), self.wanted);
        let mut of_values = Compared::default();
        for (found, value) in found.iter().zip(&values) {
            of_values.add(&to_host(found.clone()), value);
        }

        let d_values = values.map(|value| random(99, value.dims()[0], value.dims()[1]));
        let expected = Op::backward(&op, saved, d_values.clone().map(on_host), self.wanted);
        let mut dtypes = found.iter().map(|found| found.dtype);
        let d_found = d_values.map(|d_value| meter.upload(d_value, dtypes.next().expect("a type for each")));
        let gradients = OnCuda::backward(&op, found_saved, d_found, self.wanted);
        let mut of_gradients = Compared::default();
        for (i, (found, expected)) in gradients.into_iter().zip(expected).enumerate() {
            if self.wanted[i] {
                let found = to_host(found.expect("a gradient that was asked for"));
                let expected =
                    Tensor::from_primitive::<Flex>(expected.expect("a gradient that was asked for"));
                of_gradients.add(&found, &expected);
            }
        }
        [of_values, of_gradients]
    }

    fn upload(&self, meter: &Meter, inputs: [Tensor<2>; N]) -> [CudaTensor; N] {
        let mut dtypes = self.dtypes.into_iter();
        inputs.map(|input| meter.upload(input, dtypes.next().expect("a type for each input")))
    }

    /// Compares it with `compared` tokens, and times it with all.
    fn measure(
        self,
        meter: &Meter,
        name: &str,
        shape: String,
        tolerances: [f64; 2],
        compared: usize,
    ) -> Vec<Measured> {
        let [of_values, of_gradients] = self.errors(meter, compared);
        meter.clean();

        let (op, inputs) = (self.make)(&alone(self.tokens));
        let inputs = self.upload(meter, inputs);
        let sum = |tensors: &[CudaTensor]| tensors.iter().map(bytes).sum::<f64>();
        let input_bytes = sum(&inputs);
        let places: Vec<[CudaTensor; N]> = (0..meter.places(input_bytes))
            .map(|i| if i == 0 { inputs.clone() } else { inputs.each_ref().map(copy) })
            .collect();
        let place = |turn: usize| &places[turn % places.len()];
        let forward = |turn: usize| OnCuda::forward(&op, place(turn).clone(), self.wanted);
        let (values, saved) = forward(0);
        let value_bytes = sum(&values);
        let forward_s = meter.seconds(PACE, |turn| drop(forward(turn)));

        let d_values = values.map(|value| {
            let (rows, columns) = dims(&value);
            meter.upload(random(98, rows, columns), value.dtype)
        });
        let gradients = OnCuda::backward(&op, saved, d_values.clone(), self.wanted);
        let gradient_bytes = sum(&gradients.into_iter().flatten().collect::<Vec<_>>());
        let (mut forward_bytes, mut backward_bytes) =
            (input_bytes + value_bytes, input_bytes + value_bytes + gradient_bytes);
        let mut backward_s = None;
        match self.kind {
            Kind::Scalar => forward_bytes += gradient_bytes,
            kind => {
                if kind == Kind::Gather {
                    (forward_bytes, backward_bytes) = (2.0 * value_bytes, value_bytes + gradient_bytes);
                }
                let states: Vec<_> =
                    (0..places.len()).map(|turn| (forward(turn).1, d_values.each_ref().map(copy))).collect();
                backward_s = Some(meter.seconds(PACE, |turn| {
                    let (saved, d_values) = &states[turn % states.len()];
                    drop(OnCuda::backward(&op, saved.clone(), d_values.clone(), self.wanted));
                }));
            }
        }
        let note =
            if compared < self.tokens { format!("compared with {compared} tokens") } else { String::new() };
        let [forward_flops, backward_flops] = self.flops();
        let Work { forward: forward_work, backward: backward_work } = self.work;
        let forward = Measured {
            name: name.to_owned(),
            shape: shape.clone(),
            error: of_values.error,
            worst: of_values.worst,
            tolerance: tolerances[0],
            seconds: Some(forward_s),
            bytes: forward_bytes,
            flops: forward_flops,
            work: forward_work,
            note: note.clone(),
        };
        let in_forward = if backward_s.is_none() { "formed in the forward pass" } else { "" };
        let backward = Measured {
            name: format!("{name} backward"),
            shape,
            error: of_gradients.error,
            worst: of_gradients.worst,
            tolerance: tolerances[1],
            seconds: backward_s,
            bytes: backward_bytes,
            flops: backward_flops,
            work: backward_work,
            note: [in_forward, &note]
                .into_iter()
                .filter(|words| !words.is_empty())
                .collect::<Vec<_>>()
                .join("; "),
        };
        vec![forward, backward]
    }

    pub(super) fn case(self, name: &'static str, shape: String) -> Case
    where
        O: 'static,
    {
        self.case_within([VALUE, GRADIENT], name, shape)
    }

    /// Adds a case whose values and gradients may differ more from the CPU's.
    pub(super) fn case_within(self, tolerances: [f64; 2], name: &'static str, shape: String) -> Case
    where
        O: 'static,
    {
        let words = shape.clone();
        Case::new(name, shape, move |meter| {
            let compared = self.compared_tokens();
            self.measure(meter, name, words, tolerances, compared)
        })
    }

    /// Adds a case that is compared with all its tokens, which must not be too much for the CPU.
    pub(super) fn case_whole(self, name: &'static str, shape: String) -> Case
    where
        O: 'static,
    {
        let words = shape.clone();
        Case::new(name, shape, move |meter| {
            let all = self.tokens;
            self.measure(meter, name, words, [VALUE, GRADIENT], all)
        })
    }
}

/// An op whose inputs all get a gradient, and that does no FLOPs beyond those of its launches.
pub(super) fn usual<O: Op<N, M>, const N: usize, const M: usize>(
    tokens: usize,
    dtypes: [DType; N],
    work: Work,
    make: impl Fn(&[u32]) -> (O, [Tensor<2>; N]) + 'static,
) -> Timed<O, N, M> {
    let make = Box::new(make);
    Timed { kind: Kind::Usual, tokens, dtypes, wanted: [true; N], useful_flops: None, work, make }
}

/// Numbers around zero that bf16 has, so that both sides start from the same.
pub(super) fn random(seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    scaled(1.0, seed, rows, columns)
}

/// The same numbers times `by`, truncated to bf16. Large weights are generated this way, because tensor
/// operations on them would take long.
pub(super) fn scaled(by: f32, seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    random_through(seed, rows, columns, |x| f32::from_bits((x * by).to_bits() & 0xFFFF_0000))
}

pub(super) fn to_host(tensor: CudaTensor) -> Tensor<2> {
    Tensor::from_data(into_tensor(tensor).into_data().convert::<f32>(), &Device::flex())
}
