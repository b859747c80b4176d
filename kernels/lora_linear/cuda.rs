//! Launches of `lora_linear.cuh`, with the products of its low rank from `linear`.

use super::LoraLinear;
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty, like, sizes};
use crate::linear::cuda::{Product, aligned, device, product};
use crate::linear::tile::WIDE;
use burn::tensor::DType;

const SOURCE: &str = "lora_linear/lora_linear.cuh";

impl OnCuda<4> for LoraLinear {
    fn fits(&self, [x, weight, a, _]: [[usize; 2]; 4]) -> bool {
        aligned(x[1]) && aligned(weight[0]) && aligned(a[0])
    }

    fn forward(&self, inputs: [CudaTensor; 4], wanted: [bool; 4]) -> (CudaTensor, Vec<CudaTensor>) {
        let [x, weight, a, b] = inputs.map(as_bf16);
        let ((m, k), (n, _), (rank, _)) = (dims(&x), dims(&weight), dims(&a));
        let u = product(Product::Forward, &x, &a, self.scale);
        let y = empty(&x, [m, n], DType::BF16);
        let (tile, _) = device(&x).choose(&WIDE, [m, n, k + rank], 1);
        let [m32, n32, k32, rank32] = [m, n, k, rank].map(|size| size as u32);
        Kernel::new(SOURCE, "lora_linear_forward")
            .define("TILE", tile)
            .blocks(tile.blocks(m, n))
            .threads(tile.threads())
            .read(&x)
            .read(&weight)
            .read(&u)
            .read(&b)
            .write(&y)
            .launch(sizes![m32, n32, k32, rank32, rank32, 0u32, n32, 0u32, tile.group(k)]);
        let saved = if wanted.contains(&true) { vec![x, weight, a, b, u] } else { Vec::new() };
        (y, saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        wanted: [bool; 4],
    ) -> [Option<CudaTensor>; 4] {
        let [x, weight, a, b, u] = &saved[..] else { unreachable!("forward saves five tensors") };
        let d_y = as_bf16(d_output);
        let d_u = product(Product::Input, &d_y, b, self.scale);
        let d_x = wanted[0].then(|| self.d_x(x, weight, a, &d_y, &d_u));
        let d_weight = wanted[1].then(|| product(Product::Weight, &d_y, x, 1.0));
        let d_a = wanted[2].then(|| product(Product::Weight, &d_u, x, 1.0));
        // `u` carries the scale.
        let d_b = wanted[3].then(|| product(Product::Weight, &d_y, u, 1.0));
        [d_x, d_weight, d_a, d_b]
    }
}

impl LoraLinear {
    /// `dy W + du A`, rounded once.
    fn d_x(
        &self,
        x: &CudaTensor,
        weight: &CudaTensor,
        a: &CudaTensor,
        d_y: &CudaTensor,
        d_u: &CudaTensor,
    ) -> CudaTensor {
        let ((m, outputs), (_, n), (rank, _)) = (dims(d_y), dims(weight), dims(a));
        let d_x = like(x);
        let (tile, _) = device(x).choose(&WIDE, [m, n, outputs + rank], 1);
        let [m32, n32, outputs32, rank32] = [m, n, outputs, rank].map(|size| size as u32);
        let mut kernel = Kernel::new(SOURCE, "lora_linears_backward_input")
            .define("TILE", tile)
            .blocks(tile.blocks(m, n))
            .threads(tile.threads());
        // One layer of four; any buffers will do for those that are not there.
        for _ in 0..4 {
            kernel = kernel.read(d_y).read(weight);
        }
        kernel.read(d_u).read(a).write(&d_x).launch(sizes![
            m32,
            n32,
            rank32,
            tile.group(outputs),
            0u32,
            outputs32,
            0u32,
            0u32,
            0u32,
            outputs32,
            0u32,
            0u32,
            0u32,
            0u32,
            0u32,
            0u32,
            0u32
        ]);
        d_x
    }
}
