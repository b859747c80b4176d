//! Launches of `lora_linear.cuh`, with the products of its low ranks from `linear`.

use burn::tensor::DType;

use super::{LoraLinears, parameters};
use crate::cuda::{CudaTensor, GroupOnCuda, Kernel, LAYERS, as_bf16, dims, empty, sizes, stacked};
use crate::fp8;
use crate::linear::cuda::{
    Columns, Gradient, Product, aligned, device, product, product_into, product_shared_out, writable,
};
use crate::linear::tile::WIDE;
use crate::linear::tuning::{self, Problem};
use crate::weight::{add_all_on_cuda, add_on_cuda};

const SOURCE: &str = "lora_linear/lora_linear.cuh";

/// Returns the columns of each layer's rank in `u` and `du`: first and count.
fn ranks(b: &[CudaTensor]) -> Vec<(usize, usize)> {
    let mut first = 0;
    let place = |b| {
        let rank = dims(b).1;
        first += rank;
        (first - rank, rank)
    };
    b.iter().map(place).collect()
}

impl GroupOnCuda for LoraLinears {
    fn fits(&self, inputs: &[[usize; 2]]) -> bool {
        let [weights, a, _] = parameters(inputs);
        aligned(inputs[0][1])
            && weights.iter().all(|weight| writable(weight[0]))
            && a.iter().all(|a| aligned(a[0]))
    }

    fn forward(&self, inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let inputs: Vec<_> = inputs.into_iter().map(as_bf16).collect();
        let (x, [weights, a, b]) = (&inputs[0], parameters(&inputs));
        let a = stacked(a);
        let u = product(Product::Forward, x, &a, self.scale);
        let rounded = self.fp8.then(|| fp8::input(x, weights)).flatten();
        let outputs = weights
            .iter()
            .zip(b)
            .zip(ranks(b))
            .map(|((weight, b), (first, rank))| (weight, b, Columns::new(&u, first, rank)))
            .map(|(weight, b, u)| match &rounded {
                Some(x) if fp8::takes(weight) => fp8::output(x, weight, Some((u, b))),
                _ => output(x, weight, u, b),
            })
            .collect();
        if !wanted.contains(&true) {
            return (outputs, Vec::new());
        }
        let saved = [x, &a, &u].into_iter().chain(weights).chain(b).cloned().collect();
        (outputs, saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>> {
        let d_y: Vec<_> = d_outputs.into_iter().map(Gradient::new).collect();
        let [x, a, u, parameters @ ..] = &saved[..] else { unreachable!("forward saves three and more") };
        let (weights, b) = parameters.split_at(d_y.len());
        let ranks = ranks(b);
        let d_u = empty(u, [dims(u).0, dims(u).1], DType::BF16);
        for ((d_y, b), (first, rank)) in d_y.iter().zip(b).zip(&ranks) {
            let to = Columns::new(&d_u, *first, *rank);
            product_into(Product::Input, d_y.columns(), b, self.scale, to, false);
        }
        let d_x = wanted[0].then(|| {
            if self.fp8 && weights.iter().any(fp8::takes) {
                fp8::input_gradient(&d_y, weights, Some((&d_u, a)))
            } else {
                input_gradient(&d_y, weights, Some((&d_u, a)))
            }
        });
        let [wants_weight, wants_a, wants_b] = super::parameters(wanted);
        let d_weights = d_y.iter().zip(wants_weight);
        let d_weight = |d_y: &Gradient| product(Product::Weight, d_y.columns(), x, 1.0);
        let d_weights = d_weights.map(|(d_y, wanted)| wanted.then(|| d_weight(d_y)));
        let d_as = if wants_a.contains(&true) {
            let shapes: Vec<_> = ranks.iter().map(|(_, rank)| [*rank, dims(x).1]).collect();
            add_all_on_cuda(&self.a_sums, &d_u, &shapes, |to, added| product_shared_out(&d_u, x, to, added))
        } else {
            vec![None; ranks.len()]
        };
        // `u` already includes the scale.
        let d_b = |layer: usize| {
            let (first, rank) = ranks[layer];
            let (d_y, u) = (d_y[layer].columns(), Columns::new(u, first, rank));
            add_on_cuda(self.b_sums[layer].as_ref(), |total| {
                let Some(total) = total else { return product(Product::Weight, d_y, u, 1.0) };
                product_into(Product::Weight, d_y, u, 1.0, Columns::from(&total), true);
                total
            })
        };
        let d_bs = (0..b.len()).map(|layer| wants_b[layer].then(|| d_b(layer)).flatten());
        std::iter::once(d_x).chain(d_weights).chain(d_as).chain(d_bs).collect()
    }
}

/// Computes `x Wᵀ + u Bᵀ`, rounded once.
pub(crate) fn output(x: &CudaTensor, weight: &CudaTensor, u: Columns, b: &CudaTensor) -> CudaTensor {
    let ((m, k), (n, _), rank) = (dims(x), dims(weight), u.count);
    let y = empty(x, [m, n], DType::BF16);
    let (estimated, _) = device(x).choose(&WIDE, [m, n, k + rank], 1);
    let problem = Problem { kernel: "lora_linear_forward", sizes: vec![n, k, rank], splits: 1, tokens: m };
    let tile = tuning::tile(problem, estimated);
    let [m32, n32, k32, rank32] = [m, n, k, rank].map(|size| size as u32);
    Kernel::new(SOURCE, "lora_linear_forward")
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads())
        .read(x)
        .read(weight)
        .read(u.of)
        .read(b)
        .write(&y)
        .launch(sizes![m32, n32, k32, rank32, dims(u.of).1 as u32, u.first as u32, n32, 0u32, tile.group(k)]);
    y
}

/// Computes `Σ dy_i W_i`, plus `du A` for layers with adapters, summed in f32 and rounded once.
pub(crate) fn input_gradient(
    d_y: &[Gradient],
    weights: &[CudaTensor],
    adapters: Option<(&CudaTensor, &CudaTensor)>,
) -> CudaTensor {
    let some = d_y[0].columns().of;
    let (m, n) = (dims(some).0, dims(&weights[0]).1);
    let rank = adapters.map_or(0, |(d_u, _)| dims(d_u).1);
    let of_layers = |size: fn(&Gradient) -> usize| -> [u32; LAYERS] {
        std::array::from_fn(|layer| d_y.get(layer).map_or(0, |d_y| size(d_y) as u32))
    };
    let outputs = of_layers(|d_y| d_y.outputs);
    let depth = outputs.iter().sum::<u32>() as usize;
    let d_x = empty(some, [m, n], DType::BF16);
    let (estimated, _) = device(&d_x).choose(&WIDE, [m, n, depth + rank], 1);
    let sizes = [n, rank].into_iter().chain(d_y.iter().map(|d_y| d_y.outputs)).collect();
    let problem = Problem { kernel: "lora_linears_backward_input", sizes, splits: 1, tokens: m };
    let tile = tuning::tile(problem, estimated);
    let mut kernel = Kernel::new(SOURCE, "lora_linears_backward_input")
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads());
    // For missing layers and adapters, any buffers can be passed.
    for layer in 0..LAYERS {
        let layer = layer.min(d_y.len() - 1);
        kernel = kernel.read(d_y[layer].columns().of).read(&weights[layer]);
    }
    let (d_u, a) = adapters.unwrap_or((some, &weights[0]));
    let mut sizes = sizes![m as u32, n as u32, rank as u32, tile.group(depth), 0u32];
    // The columns of `dy` that are read, their pitch, and their start.
    let pitches = of_layers(|d_y| dims(d_y.columns().of).1);
    outputs.into_iter().chain(pitches).chain([0; LAYERS]).for_each(|size| sizes.push(size));
    kernel.read(d_u).read(a).write(&d_x).launch(sizes);
    d_x
}
