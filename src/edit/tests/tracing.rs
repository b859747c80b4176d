//! Tracing puts back what it says, where it says.

use super::{fixtures, ids, model};
use crate::trace::{Prompt, Trace, traced};

const LENGTH: usize = 7;

fn trace_of(folder: &str) -> Trace {
    let prompt = Prompt {
        fact: 0,
        prompt: "p".into(),
        subject: "s".into(),
        ids: ids(40, 9, LENGTH as u32),
        tokens: vec![String::new(); LENGTH],
        range: 2..4,
    };
    let model = model(&fixtures().join(folder));
    traced(&model, prompt, 3.0, &|id| id.to_string(), &mut |_, _| true).unwrap()
}

#[test]
fn what_is_put_back_is_the_clean_pass_and_what_the_subject_cannot_reach_stays_in_every_family() {
    let folders = ["qwen35/checkpoint_trained_bf16", "others/qwen3", "others/gemma3", "others/llama"];
    for folder in folders {
        let trace = trace_of(folder);
        let layers = trace.state.len();
        let near = |one: f64, other: f64| (one - other).abs() < 1e-4 * other.max(1e-3);
        // Behind the last layer the last token alone decides, and it is whole again.
        assert!(near(trace.state[layers - 1][LENGTH - 1], trace.clean), "{folder}: {trace:?}");
        assert!(trace.corrupted < 0.98 * trace.clean, "{folder}: the noise takes something");
        for layer in 0..layers {
            for map in [&trace.state, &trace.mlp, &trace.mixer] {
                // Before the subject nothing has noise.
                assert!(near(map[layer][0], trace.corrupted), "{folder}, layer {layer}");
                assert!(near(map[layer][1], trace.corrupted), "{folder}, layer {layer}");
                assert!(map[layer].iter().all(|p| (0.0..=1.0).contains(p)));
            }
        }
        for token in 2..LENGTH - 1 {
            assert!(near(trace.state[layers - 1][token], trace.corrupted), "{folder}: read by no other");
        }
        assert_eq!(trace.best.token, 3);
        assert_eq!(trace_of(folder), trace, "the same numbers each time");
    }
}

#[test]
fn tracing_stops_when_somebody_asks() {
    let prompt = Prompt {
        fact: 0,
        prompt: "p".into(),
        subject: "s".into(),
        ids: ids(40, 9, 4),
        tokens: vec![String::new(); 4],
        range: 0..1,
    };
    let model = model(&fixtures().join("others/qwen3"));
    let stopped = traced(&model, prompt, 1.0, &|_| String::new(), &mut |done, _| done < 2);
    assert!(stopped.unwrap_err().is_stop());
}
