//! How far the logits of a written checkpoint are from those of the model in memory.
//!
//! A second model beside the trained one may not fit into memory. The written one is therefore computed with
//! one of its layers in memory at a time.

use burn::tensor::{Device, Tensor};

use crate::checkpoint::Checkpoint;
use crate::decoder::{Model, embed, load_embedding, load_lm_head, scores};
use crate::error::ModelError;
use crate::layer::{DecoderLayer, Residual};
use crate::layer_loader::LayerLoader;
use crate::mtp::{Mtp, Pairs};
use crate::norm::Norm;
use crate::packed_sequence::PackedSequence;
use crate::rope_tables::Ropes;

/// The logits of a sequence, row-major.
struct Logits {
    model: Vec<f32>,
    /// Those of the MTP head, if it is compared.
    mtp: Option<Vec<f32>>,
}

/// Returns the relative L2 distance between the logits of the written checkpoint and those of the model in
/// memory. With `mtp`, it is the maximum of this and the distance for the MTP head.
///
/// `go_on` is asked before each layer.
///
/// # Errors
/// When a tensor cannot be loaded, or [`ModelError::Stopped`] when `go_on` says no.
pub(super) fn logits_distance(
    written: &Checkpoint,
    model: &Model,
    mtp: Option<&Mtp>,
    probe: &PackedSequence,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<f64, ModelError> {
    let expected = in_memory(&model.frozen(), mtp, probe);
    let found = layer_by_layer(written, model.device(), mtp.is_some(), probe, go_on)?;
    let plain = distance(&expected.model, &found.model);
    Ok(match expected.mtp.zip(found.mtp) {
        Some((expected, found)) => {
            let head = distance(&expected, &found);
            // `max` would hide a NaN.
            if head > plain || head.is_nan() { head } else { plain }
        }
        None => plain,
    })
}

/// Returns the length of the difference in units of the length of what is expected. It is 0 for equal numbers
/// even if all of them are 0, as the logits of a run that diverged can be.
fn distance(expected: &[f32], found: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = expected.iter().zip(found).map(|(a, b)| square(a - b)).sum();
    if difference == 0.0 {
        return 0.0;
    }
    let norm: f64 = expected.iter().map(|a| square(*a)).sum();
    (difference / norm).sqrt()
}

fn in_memory(model: &Model, mtp: Option<&Mtp>, probe: &PackedSequence) -> Logits {
    let hidden = model.hidden(probe);
    let mtp = mtp.map(|mtp| model.logits(mtp.hidden(model, hidden.clone(), probe)));
    Logits { model: model.logits(hidden), mtp }
}

/// Computes what [`in_memory`] computes, in the same order of operations.
fn layer_by_layer(
    checkpoint: &Checkpoint,
    device: &Device,
    with_mtp: bool,
    probe: &PackedSequence,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Logits, ModelError> {
    let mut may_go_on = || if go_on() { Ok(()) } else { Err(ModelError::Stopped) };
    let config = checkpoint.config();
    let pairs = with_mtp.then(|| Pairs::new(probe));
    may_go_on()?;
    let (x, next_embedding) = {
        let table = load_embedding(checkpoint, device)?;
        let of_next = |pairs: &Pairs| embed(config, &table, &pairs.next_tokens.input_ids);
        (embed(config, &table, &probe.input_ids), pairs.as_ref().map(of_next))
    };
    let ropes = Ropes::new(config);
    let tables = ropes.tables(&probe.position_ids);
    let mut residual = Residual::from(x);
    for (i, spec) in config.layers.iter().enumerate() {
        may_go_on()?;
        let path = format!("layers.{i}");
        let layer = DecoderLayer::load(LayerLoader { checkpoint, spec, path: &path, device })?;
        residual = layer.forward(residual, probe, &tables);
    }
    let [hidden, _] = residual.normed(&Norm::load(checkpoint, &config.norm, None, device)?);
    let mtp_hidden = match pairs.zip(next_embedding) {
        Some((pairs, next_embedding)) => {
            may_go_on()?;
            let tables = ropes.tables(&pairs.next_tokens.position_ids);
            let mtp = Mtp::load(checkpoint, device)?;
            Some(mtp.forward(next_embedding, hidden.clone(), &pairs, &tables))
        }
        None => None,
    };
    may_go_on()?;
    let head = match load_lm_head(checkpoint, device)? {
        Some(head) => head,
        None => load_embedding(checkpoint, device)?,
    };
    let logits = |hidden: Tensor<2>| scores(hidden, head.tensor());
    Ok(Logits { mtp: mtp_hidden.map(logits), model: logits(hidden) })
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn equal_logits_are_no_distance_apart_and_nothing_hides_a_nan() {
        assert_eq!(distance(&[0.0; 4], &[0.0; 4]), 0.0);
        assert_eq!(distance(&[2.0, 0.0], &[2.0, 1.0]), 0.5);
        assert_eq!(distance(&[0.0], &[1.0]), f64::INFINITY);
        assert!(distance(&[f32::NAN], &[f32::NAN]).is_nan() && distance(&[0.0], &[f32::NAN]).is_nan());
    }
}
