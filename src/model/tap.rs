//! Access to the layers of a model from outside: keys and values of MLPs for a sequence, outputs that are
//! changed on the way, and adapters of single layers.

use burn::tensor::Tensor;

use crate::codebook::Codebook;
use crate::decoder::Model;
use crate::layer::{MlpTap, Residual, Spot};
use crate::linear::{Linear, Lora};
use crate::packed_sequence::PackedSequence;
use crate::rope_tables::RopeTables;

impl Model {
    /// Returns what the MLP of a layer computes for a sequence. The layers behind it are not computed.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn mlp_at(&self, layer: usize, sequence: &PackedSequence) -> MlpTap {
        let ropes = self.rope_tables(&sequence.position_ids);
        let residual = self.residual_before(layer, sequence, &ropes);
        let mut found = None;
        self.layers[layer].forward_tapped(residual, sequence, &ropes, &mut |tap| {
            let output = tap.output_TH.clone();
            found = Some(tap);
            output
        });
        found.expect("a layer has an MLP")
    }

    /// Returns the hidden states after the final norm, `[T, H]`, like [`hidden`](Self::hidden). The output of
    /// the MLP of each layer is what `tap` returns for the layer's number.
    pub fn hidden_tapped(
        &self,
        sequence: &PackedSequence,
        tap: &mut dyn FnMut(usize, MlpTap) -> Tensor<2>,
    ) -> Tensor<2> {
        let ropes = self.rope_tables(&sequence.position_ids);
        let mut residual = Residual::from(self.embeddings(sequence));
        for (i, layer) in self.layers.iter().enumerate() {
            residual = layer.forward_tapped(residual, sequence, &ropes, &mut |mlp| tap(i, mlp));
        }
        self.final_norm(residual)
    }

    /// Returns the embeddings of a sequence, `[T, H]`: what [`run_watched`](Self::run_watched) begins with.
    pub fn embeddings(&self, sequence: &PackedSequence) -> Tensor<2> {
        self.embed(&sequence.input_ids)
    }

    /// Runs the layers from `first` on, on the residual `stream` before it, `[T, H]`. Each output that is
    /// added to the stream, and the stream behind each layer, is what `watch` returns for it. Returns the
    /// hidden states after the final norm, `[T, H]`.
    pub fn run_watched(
        &self,
        sequence: &PackedSequence,
        first: usize,
        mut stream: Tensor<2>,
        watch: &mut dyn FnMut(usize, Spot, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let ropes = self.rope_tables(&sequence.position_ids);
        for (i, layer) in self.layers.iter().enumerate().skip(first) {
            let residual = Residual::from(stream);
            let residual =
                layer.forward_watched(residual, sequence, &ropes, &mut |spot, x| watch(i, spot, x));
            stream = watch(i, Spot::State, residual.sum());
        }
        self.final_norm(Residual::from(stream))
    }

    /// Returns the residual stream before a layer, `[T, H]`. That layer and those after it are not computed.
    ///
    /// # Panics
    /// When there are fewer layers before it.
    pub fn stream_before(&self, layer: usize, sequence: &PackedSequence) -> Tensor<2> {
        let ropes = self.rope_tables(&sequence.position_ids);
        self.residual_before(layer, sequence, &ropes).sum()
    }

    pub(crate) fn residual_before(
        &self,
        layer: usize,
        sequence: &PackedSequence,
        ropes: &RopeTables,
    ) -> Residual {
        let mut residual = Residual::from(self.embed(&sequence.input_ids));
        for layer in &self.layers[..layer] {
            residual = layer.forward(residual, sequence, ropes);
        }
        residual
    }

    /// Puts an adapter of scale 1 on the `down_proj` of a layer: `A` `[rank, I]` and `B` `[H, rank]`, row by
    /// row.
    ///
    /// # Panics
    /// When there is no such layer, or the sizes are others.
    pub fn set_down_proj_lora(&mut self, layer: usize, rank: usize, [a, b]: [Vec<f32>; 2]) {
        let device = self.device().clone();
        let linear = &mut self.layers[layer].mlp.down_proj;
        let [out, input] = [linear.weight.shape()[0], linear.weight.shape()[1]];
        assert_eq!([a.len(), b.len()], [rank * input, out * rank], "the adapter of layer {layer} fits it");
        let path = linear.path().to_owned();
        linear.lora = Some(Lora::new(&path, 1.0, rank, [a, b], &device));
    }

    /// Returns the layer `down_proj` of an MLP.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn down_proj(&self, layer: usize) -> &Linear {
        &self.layers[layer].mlp.down_proj
    }

    /// Like [`down_proj`](Self::down_proj), to change it.
    ///
    /// # Panics
    /// The same.
    pub fn down_proj_mut(&mut self, layer: usize) -> &mut Linear {
        &mut self.layers[layer].mlp.down_proj
    }

    /// Puts a codebook of corrections beside the MLP of a layer, or takes it away. It works in every forward
    /// pass, has no gradient, and is no part of the weights.
    ///
    /// # Panics
    /// When there is no such layer, or its width is another.
    pub fn set_codebook(&mut self, layer: usize, codebook: Option<Codebook>) {
        let width = self.config().hidden_size;
        let fits = codebook.as_ref().is_none_or(|codebook| codebook.width() == width);
        assert!(fits, "the codebook of layer {layer} has another width than the model, {width}");
        self.layers[layer].mlp.codebook = codebook.map(Into::into);
    }
}
