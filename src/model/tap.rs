//! Access to the MLPs of a model from outside: their keys and values for a sequence, and outputs that are
//! changed on the way.

use burn::tensor::Tensor;

use crate::codebook::Codebook;
use crate::decoder::Model;
use crate::layer::{MlpTap, Residual};
use crate::linear::Linear;
use crate::packed_sequence::PackedSequence;

impl Model {
    /// Returns what the MLP of a layer computes for a sequence. The layers behind it are not computed.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn mlp_at(&self, layer: usize, sequence: &PackedSequence) -> MlpTap {
        let ropes = self.rope_tables(&sequence.position_ids);
        let mut residual = Residual::from(self.embed(&sequence.input_ids));
        for before in &self.layers[..layer] {
            residual = before.forward(residual, sequence, &ropes);
        }
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
        let mut residual = Residual::from(self.embed(&sequence.input_ids));
        for (i, layer) in self.layers.iter().enumerate() {
            residual = layer.forward_tapped(residual, sequence, &ropes, &mut |mlp| tap(i, mlp));
        }
        self.final_norm(residual)
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
