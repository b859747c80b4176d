//! Launches of `lora_linear.cuh`, with the products of its low ranks from `linear`.

use burn::tensor::DType;

use super::{LoraLinears, Parameters};
use crate::cublaslt::{self, Form};
use crate::cuda::{CudaTensor, GroupOnCuda, Kernel, LAYERS, as_bf16, dims, empty, sizes, stacked};
use crate::dropout;
use crate::fp8;
use crate::linear::cuda::{
    Columns, Gradient, Product, aligned, device, product, product_into, product_shared_out, writable,
};
use crate::linear::tile::{APART, Tile, WIDE};
use crate::linear::tuning::{self, GATED_INPUT, GATED_OUTPUT, Problem};
use crate::silu_mul::cuda::{gradients as silu_gradients, product as silu_product};
use crate::weight::{GradientSum, add_all_on_cuda, add_on_cuda};

const SOURCE: &str = "lora_linear/lora_linear.cuh";

/// Returns the columns of each adapter's rank in `u` and `du`: first and count.
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
        let Parameters { weights, a, .. } = self.parameters(inputs);
        aligned(inputs[0][1])
            && weights.iter().all(|weight| writable(weight[0]))
            && a.iter().all(|a| aligned(a[0]))
    }

    fn forward(&self, inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        self.results(inputs, wanted, false)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>> {
        let d_x = |d_y: &[Gradient],
                   weights: &[CudaTensor],
                   d_u: &CudaTensor,
                   a: &[CudaTensor],
                   b: &[CudaTensor]| {
            let in_the_sum = self.masks.is_empty().then(|| (d_u, &a[0]));
            let d_x = if self.fp8 && weights.iter().any(fp8::takes) {
                fp8::input_gradient(d_y, weights, in_the_sum)
            } else {
                input_gradient(d_y, weights, in_the_sum)
            };
            if !self.masks.is_empty() {
                let ranks = ranks(b);
                let of_masked = a.iter().zip(&ranks).map(|(a, (first, rank))| {
                    product(Product::Input, Columns::new(d_u, *first, *rank), a, 1.0)
                });
                dropout::cuda::add_on_cuda(&d_x, &of_masked.collect::<Vec<_>>(), &self.masks);
            }
            d_x
        };
        let (d_x, others) = self.gradients(saved, d_outputs, wanted, d_x);
        std::iter::once(d_x).chain(others).collect()
    }
}

impl LoraLinears {
    /// Returns the results, and what the backward pass needs. If the layers are `gated`, gate and up,
    /// `silu(gate) ⊙ up` is one result more.
    pub(crate) fn results(
        &self,
        inputs: Vec<CudaTensor>,
        wanted: &[bool],
        gated: bool,
    ) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let inputs: Vec<_> = inputs.into_iter().map(as_bf16).collect();
        let (x, Parameters { weights, a, b }) = (&inputs[0], self.parameters(&inputs));
        let ranks = ranks(b);
        // Without dropout all `A` have the same input, so they are one matrix.
        let (a, u) = if self.masks.is_empty() {
            let a = stacked(a);
            let u = product(Product::Forward, x, &a, self.scale);
            (vec![a], u)
        } else {
            let u = empty(x, [dims(x).0, ranks.iter().map(|(_, rank)| rank).sum()], DType::BF16);
            for ((a, mask), (first, rank)) in a.iter().zip(&self.masks).zip(&ranks) {
                let (masked, to) = (mask.on_cuda(x), Columns::new(&u, *first, *rank));
                product_into(Product::Forward, &masked, a, self.scale, to, false);
            }
            (a.to_vec(), u)
        };
        let rounded = self.fp8.then(|| fp8::input(x, weights)).flatten();
        let mut outputs = Vec::with_capacity(weights.len() + usize::from(gated));
        for (weight, place) in weights.iter().zip(self.places()) {
            let adapter = place.map(|adapter| {
                let (first, rank) = ranks[adapter];
                (Columns::new(&u, first, rank), &b[adapter])
            });
            match (&rounded, adapter) {
                (Some(x), adapter) if fp8::takes(weight) => outputs.push(fp8::output(x, weight, adapter)),
                (_, adapter) if gated && outputs.len() == 1 => {
                    let [up, product] = gated_output(x, weight, adapter, &outputs[0]);
                    outputs.extend([up, product]);
                }
                (_, Some((u, b))) => outputs.push(output(x, weight, u, b)),
                (_, None) => outputs.push(product(Product::Forward, x, weight, 1.0)),
            }
        }
        if gated && outputs.len() == 2 {
            outputs.push(silu_product(&outputs[0], &outputs[1]));
        }
        if !wanted.contains(&true) {
            return (outputs, Vec::new());
        }
        let saved = [x, &u].into_iter().chain(weights).chain(b).chain(&a).cloned().collect();
        (outputs, saved)
    }

    /// Returns what `d_x` makes of the gradients of the outputs and the weights, of `d_u`, and of all `A` and
    /// `B`, if it is wanted, and the gradients of the parameters.
    fn gradients<T>(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
        d_x: impl FnOnce(&[Gradient], &[CudaTensor], &CudaTensor, &[CudaTensor], &[CudaTensor]) -> T,
    ) -> (Option<T>, Vec<Option<CudaTensor>>) {
        let d_y: Vec<_> = d_outputs.into_iter().map(Gradient::new).collect();
        let [x, u, parameters @ ..] = &saved[..] else { unreachable!("forward saves two and more") };
        let layers_of = self.layers();
        let (weights, adapters) = parameters.split_at(d_y.len());
        let (b, a) = adapters.split_at(layers_of.len());
        let ranks = ranks(b);
        let d_u = empty(u, [dims(u).0, dims(u).1], DType::BF16);
        for ((layer, b), (first, rank)) in layers_of.iter().zip(b).zip(&ranks) {
            let to = Columns::new(&d_u, *first, *rank);
            product_into(Product::Input, d_y[*layer].columns(), b, self.scale, to, false);
        }
        let d_x = wanted[0].then(|| d_x(&d_y, weights, &d_u, a, b));
        let wants = self.parameters(wanted);
        let d_weight = |d_y: &Gradient| product(Product::Weight, d_y.columns(), x, 1.0);
        let d_weights = d_y.iter().zip(wants.weights).map(|(d_y, wanted)| wanted.then(|| d_weight(d_y)));
        let d_as = if !wants.a.contains(&true) {
            vec![None; ranks.len()]
        } else if self.masks.is_empty() {
            let shapes: Vec<_> = ranks.iter().map(|(_, rank)| [*rank, dims(x).1]).collect();
            add_all_on_cuda(&self.a_sums, &d_u, &shapes, |to, added| product_shared_out(&d_u, x, to, added))
        } else {
            let d_a = |adapter: usize| {
                let ((first, rank), masked) = (ranks[adapter], self.masks[adapter].on_cuda(x));
                let d_u = Columns::new(&d_u, first, rank);
                add_weight_gradient(self.a_sums[adapter].as_ref(), d_u, (&masked).into())
            };
            (0..ranks.len()).map(|adapter| wants.a[adapter].then(|| d_a(adapter)).flatten()).collect()
        };
        // `u` already includes the scale.
        let d_b = |adapter: usize| {
            let (first, rank) = ranks[adapter];
            let (d_y, u) = (d_y[layers_of[adapter]].columns(), Columns::new(u, first, rank));
            add_weight_gradient(self.b_sums[adapter].as_ref(), d_y, u)
        };
        let d_bs = (0..b.len()).map(|adapter| wants.b[adapter].then(|| d_b(adapter)).flatten());
        (d_x, d_weights.chain(d_as).chain(d_bs).collect())
    }

    /// Returns the gradients of gate and up, where the layer's input is `silu(gate) ⊙ up`, and those of the
    /// parameters.
    pub(crate) fn gated_backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        gate_and_up: [&CudaTensor; 2],
        wanted: &[bool],
    ) -> (Vec<CudaTensor>, Vec<Option<CudaTensor>>) {
        if self.fp8 || !self.masks.is_empty() {
            let mut all = self.backward(saved, vec![d_output], wanted).into_iter();
            let d_x = all.next().flatten().expect("it is wanted");
            return (silu_gradients(gate_and_up, d_x).into(), all.collect());
        }
        let (d_x, others) = self.gradients(saved, vec![d_output], wanted, |d_y, weights, d_u, a, _| {
            gated_input_gradient(&d_y[0], &weights[0], Some((d_u, &a[0])), gate_and_up)
        });
        (d_x.expect("it is wanted").into(), others)
    }
}

/// Adds the gradient `d_yᵀ x` of a matrix to its sum. Returns the gradient if there is no sum.
fn add_weight_gradient(sum: Option<&GradientSum>, d_y: Columns, x: Columns) -> Option<CudaTensor> {
    add_on_cuda(sum, |total| {
        let Some(total) = total else { return product(Product::Weight, d_y, x, 1.0) };
        product_into(Product::Weight, d_y, x, 1.0, Columns::from(&total), true);
        total
    })
}

/// Computes `x Wᵀ + u Bᵀ`, rounded once. By the library it is rounded twice: it adds to `u Bᵀ`, which our
/// kernel has written.
pub(crate) fn output(x: &CudaTensor, weight: &CudaTensor, u: Columns, b: &CudaTensor) -> CudaTensor {
    let ((m, k), (n, _), rank) = (dims(x), dims(weight), u.count);
    let y = empty(x, [m, n], DType::BF16);
    let (estimated, _) = device(x).choose(&WIDE, [m, n, k + rank], 1);
    let problem = Problem { kernel: "lora_linear_forward", sizes: vec![n, k, rank], splits: 1, tokens: m };
    if let Some([algorithm]) = tuning::algorithms(&problem, x).as_deref() {
        product_into(Product::Forward, u, b, 1.0, Columns::from(&y), false);
        cublaslt::multiply(Form::forward([m, n, k]), *algorithm, 1.0, x, weight, &y, true);
        return y;
    }
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

/// Returns the tile of a product of these sizes with silu·mul at its end, or [`APART`] where two launches are
/// faster, or where the vendor's library, whose products have no such end, may compute it.
fn gated_tile(kernel: &'static str, on: &CudaTensor, [m, n, k]: [usize; 3], rank: usize) -> Tile {
    if tuning::may_use_library() {
        return APART;
    }
    let (estimated, _) = device(on).choose(&WIDE, [m, n, k + rank], 1);
    tuning::tile(Problem { kernel, sizes: vec![n, k, rank], splits: 1, tokens: m }, estimated)
}

/// Computes up, `x Wᵀ + u Bᵀ`, and `silu(gate) ⊙ up`, each rounded once: in one launch, or in two if that was
/// measured to be faster, with the same bits.
pub(crate) fn gated_output(
    x: &CudaTensor,
    weight: &CudaTensor,
    adapter: Option<(Columns, &CudaTensor)>,
    gate: &CudaTensor,
) -> [CudaTensor; 2] {
    let ((m, k), (n, _)) = (dims(x), dims(weight));
    let rank = adapter.map_or(0, |(u, _)| u.count);
    let tile = gated_tile(GATED_OUTPUT, gate, [m, n, k], rank);
    if tile == APART {
        let up = match adapter {
            None => product(Product::Forward, x, weight, 1.0),
            Some((u, b)) => output(x, weight, u, b),
        };
        let product = silu_product(gate, &up);
        return [up, product];
    }
    let (up, product) = (empty(x, [m, n], DType::BF16), empty(x, [m, n], DType::BF16));
    // Without an adapter, any buffers can be passed.
    let (u, b) = adapter.unwrap_or((Columns::new(x, 0, 0), weight));
    let [m32, n32, k32, rank32] = [m, n, k, rank].map(|size| size as u32);
    Kernel::new(SOURCE, GATED_OUTPUT)
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads())
        .read(x)
        .read(weight)
        .read(u.of)
        .read(b)
        .read(gate)
        .write(&up)
        .write(&product)
        .launch(sizes![m32, n32, k32, rank32, dims(u.of).1 as u32, u.first as u32, tile.group(k)]);
    [up, product]
}

/// Computes `Σ dy_i W_i`, plus `du A` for layers with adapters, summed in f32 and rounded once. By the
/// library it is rounded after each term.
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
    // The library gets whole matrices only: a gradient with padding is ours.
    if d_y.iter().all(|d_y| d_y.outputs == dims(d_y.columns().of).1)
        && let Some(algorithms) = tuning::algorithms(&problem, &d_x)
    {
        if let Some((d_u, a)) = adapters {
            product_into(Product::Input, d_u, a, 1.0, Columns::from(&d_x), false);
        }
        for (layer, (d_y, weight)) in d_y.iter().zip(weights).enumerate() {
            let (form, added) = (Form::input([m, n, d_y.outputs]), layer > 0 || adapters.is_some());
            cublaslt::multiply(form, algorithms[layer], 1.0, d_y.columns().of, weight, &d_x, added);
        }
        return d_x;
    }
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

/// Computes the gradients of gate and up from the gradient `d_y W + du A` of `silu(gate) ⊙ up`, which is
/// rounded once: in one launch, or in two if that was measured to be faster, with the same bits.
pub(crate) fn gated_input_gradient(
    d_y: &Gradient,
    weight: &CudaTensor,
    adapter: Option<(&CudaTensor, &CudaTensor)>,
    [gate, up]: [&CudaTensor; 2],
) -> [CudaTensor; 2] {
    let ((m, n), k) = (dims(gate), d_y.outputs);
    let rank = adapter.map_or(0, |(d_u, _)| dims(d_u).1);
    let tile = gated_tile(GATED_INPUT, gate, [m, n, k], rank);
    if tile == APART {
        let d_x = match adapter {
            None => product(Product::Input, d_y.columns(), weight, 1.0),
            some => input_gradient(std::slice::from_ref(d_y), std::slice::from_ref(weight), some),
        };
        return silu_gradients([gate, up], d_x);
    }
    let (d_gate, d_up) = (empty(gate, [m, n], DType::BF16), empty(gate, [m, n], DType::BF16));
    // Without an adapter, any buffers can be passed.
    let (d_u, a) = adapter.unwrap_or((gate, weight));
    let columns = d_y.columns();
    let [m32, n32, k32, rank32, pitch] = [m, n, k, rank, dims(columns.of).1].map(|size| size as u32);
    Kernel::new(SOURCE, GATED_INPUT)
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads())
        .read(columns.of)
        .read(weight)
        .read(d_u)
        .read(a)
        .read(gate)
        .read(up)
        .write(&d_gate)
        .write(&d_up)
        .launch(sizes![m32, n32, k32, rank32, pitch, tile.group(k + rank)]);
    [d_gate, d_up]
}
