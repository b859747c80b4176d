//! The loss of a given continuation is the one that training computes.

use burn::tensor::Device;
use sparktune_model::{Checkpoint, Model, PackedSequence};

use super::{engine, qwen35};
use crate::sequence::PREFILL;

#[test]
fn the_score_of_a_continuation_is_the_loss_of_training() {
    let engine = engine("checkpoint", 0);
    let checkpoint = Checkpoint::open(&qwen35("checkpoint")).unwrap();
    let model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
    let ids: Vec<u32> = (0..PREFILL as u32 + 90).map(|i| (i * 37 + 11) % 200).collect();
    // The border lies in the first piece, at its end, behind it, and before the last token.
    for prompt in [1, 20, PREFILL - 1, PREFILL, PREFILL + 1, ids.len() - 1] {
        let mask: Vec<bool> = (0..ids.len()).map(|t| t >= prompt).collect();
        let expected = model.loss_sum(&PackedSequence::new(&ids, &[0, ids.len() as u32], &mask)).nats();
        let found = engine.score(&ids[..prompt], &ids[prompt..], None).unwrap();
        let tokens = (ids.len() - prompt) as f64;
        assert!((found - expected).abs() / tokens < 2e-5, "behind {prompt}: {found}, not {expected}");
    }
}

#[test]
fn texts_that_are_scored_together_have_the_losses_that_each_has_alone() {
    let engine = engine("checkpoint", 0);
    let ids: Vec<u32> = (0..PREFILL as u32 + 90).map(|i| (i * 37 + 11) % 200).collect();
    let texts = [&ids[..2], &ids[5..120], &ids[..], &ids[100..300], &ids[300..330]];
    let found = engine.score_all(&texts).unwrap();
    for (text, found) in texts.iter().zip(found) {
        let alone = engine.score(&text[..1], &text[1..], None).unwrap();
        assert!((found - alone).abs() / (text.len() as f64) < 2e-5, "{found}, not {alone}");
    }
    assert!(
        engine.score_all(&[&ids[..5], &[1, 4_000_000]]).unwrap_err().to_string().contains("token 4000000")
    );
    assert!(engine.score_all(&[&ids[..1]]).unwrap_err().to_string().contains("no tokens"));
}

#[test]
fn what_cannot_be_scored_is_refused_in_words() {
    let engine = engine("checkpoint", 0);
    let refusal = |prompt: &[u32], continuation: &[u32], adapter| {
        engine.score(prompt, continuation, adapter).unwrap_err().to_string()
    };
    assert!(refusal(&[], &[1], None).contains("no tokens"));
    assert!(refusal(&[1], &[], None).contains("no tokens"));
    assert!(refusal(&[1], &[4_000_000], None).contains("token 4000000"));
    assert!(refusal(&[1], &vec![1; 1 << 20], None).contains("read at once"));
    assert!(refusal(&[1], &[1], Some("other")).contains("no adapter `other`"));
}
