//! How a run ends, and how it goes on from a checkpoint that the user names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sparktune_runlog::{Checkpoints, Kind, Lease, Outcome, RunDir, RunView};
use sparktune_train::{Length, TrainOptions, Weights, prolong, train, train_with};

use crate::{FULL, LORA, bytes, events, export, head_steps, losses, outputs, run, stopped_when};

#[test]
fn the_bases_loss_is_measured_once_and_is_that_of_the_untrained_model() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "none", 3, false);
    // The first attempt ends before its first checkpoint, so the second one begins from the base again.
    let reserve = TrainOptions { reserve_bytes: Some(u64::MAX / 2), ..TrainOptions::default() };
    assert_eq!(train_with(&run, &AtomicBool::new(false), &reserve).unwrap().steps, 0);
    train(&run, &AtomicBool::new(false)).unwrap();
    let bases: Vec<f64> = events(&run)
        .into_iter()
        .filter_map(|kind| match kind {
            Kind::Eval(eval) if eval.step == 0 => Some(eval.loss_nats),
            _ => None,
        })
        .collect();
    // The fixture is untrained: its loss is near that of guessing among 512 tokens.
    assert!(bases.len() == 1 && (bases[0] - 512_f64.ln()).abs() < 1.0, "{bases:?}");
    let view = RunView::replay(&run).unwrap();
    let (best_step, best) = view.best().unwrap();
    assert_eq!((best_step, view.base_eval.unwrap().loss_nats), (3, bases[0]));
    assert_ne!(best, bases[0], "the base is not the best");
    let little =
        |kind: &Kind| matches!(kind, Kind::Warning(w) if w.message.contains("the eval set is too small"));
    assert_eq!(events(&run).iter().filter(|kind| little(kind)).count(), 1, "told once in both attempts");
}

#[test]
fn a_run_whose_loss_diverges_is_not_completed_and_says_why() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), FULL, "none", 12, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    std::fs::write(run.plan(), plan.replace("learning_rate = 5e-3", "learning_rate = 5.0")).unwrap();
    let finished = train(&run, &AtomicBool::new(false)).unwrap();
    assert_eq!(finished.outcome, Outcome::Diverged, "{:?}", finished.eval_loss);
    assert!(run.outputs().join("merged/model.safetensors").is_file());
    let view = RunView::replay(&run).unwrap();
    let reason = view.finished().unwrap().reason.clone().unwrap();
    assert!(reason.contains("far above") && reason.contains("--learning-rate"), "{reason}");
    let warned = view.warnings.iter().filter(|w| w.what.message.starts_with("training diverges")).count();
    assert_eq!(warned, 1);
}

#[test]
fn a_run_that_goes_back_to_a_named_checkpoint_trains_the_same_steps_again() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "none", 7, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    std::fs::write(run.plan(), plan.replace("keep = 2", "keep = 9")).unwrap();
    train(&run, &AtomicBool::new(false)).unwrap();
    assert_eq!(Checkpoints::new(&run).steps().unwrap(), [5, 6, 7]);
    let (before, outputs) = (losses(&run), bytes(&run, "merged/model.safetensors"));

    export(&run, Weights::Step(5)).unwrap();
    assert_ne!(bytes(&run, "step-000005/merged/model.safetensors"), outputs);
    assert_eq!(bytes(&run, "merged/model.safetensors"), outputs, "the last weights stay");
    let error = export(&run, Weights::Step(4)).unwrap_err().to_string();
    assert!(error.contains("no checkpoint of step 4; choose one of these steps: 5, 6, 7"), "{error}");

    let lease = Lease::acquire(&run).unwrap();
    assert_eq!(Checkpoints::new(&run).go_back_to(5, &lease).unwrap().len(), 2);
    drop(lease);
    assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    assert_eq!(RunView::replay(&run).unwrap().attempts.back().unwrap().started.resumed_from_step, Some(5));
    assert_eq!(losses(&run), before, "bit for bit");
    assert!(run.checkpoints().join("later-step-000007/weights.safetensors").is_file());
    assert!(run.checkpoints().join("step-000007/weights.safetensors").is_file());
}

/// Returns the learning rates of the steps, in order, each by its last attempt.
fn rates(run: &RunDir) -> BTreeMap<u64, f64> {
    let steps = events(run).into_iter().filter_map(|event| match event {
        Kind::Step(step) => Some((step.step, step.lr?)),
        _ => None,
    });
    steps.collect()
}

#[test]
fn a_completed_run_that_is_made_longer_has_the_rates_of_its_new_length_and_resumes_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    let before = RefCell::new(Vec::new());
    let made_longer = |stops: bool| {
        let run = run(&root.path().join(stops.to_string()), LORA, "trained", 7, false);
        train(&run, &AtomicBool::new(false)).unwrap();
        *before.borrow_mut() = bytes(&run, "merged/model.safetensors");
        let error = prolong(&run, Length { epochs: None, max_steps: Some(7) }).unwrap_err().to_string();
        assert!(error.contains("has trained 7 steps already"), "{error}");
        let prolonged = prolong(&run, Length { epochs: None, max_steps: Some(12) }).unwrap();
        assert_eq!((prolonged.from_step, prolonged.steps_before, prolonged.steps), (7, 7, 12));
        assert!(!prolonged.set_aside.is_empty(), "the head is trained again");
        if stops {
            let finished = train(&run, &AtomicBool::new(true)).unwrap();
            assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, 8));
        }
        run
    };
    let longer = |stops: bool| {
        // The head of the shorter run was trained on other weights, and nothing serves it any more.
        let of_shorter_run = AtomicUsize::new(0);
        let make = || {
            let run = made_longer(true);
            of_shorter_run.store(head_steps(&run), Ordering::SeqCst);
            run
        };
        let is_time = |run: &RunDir| head_steps(run) > of_shorter_run.load(Ordering::SeqCst);
        let run = if stops {
            let (run, _) = stopped_when(make, is_time);
            assert_eq!(outputs(&run), ["SERVE.md", "adapter", "adapter-causal-lm", "merged"]);
            let page = String::from_utf8(bytes(&run, "SERVE.md")).unwrap();
            assert!(
                page.contains("vllm serve ./merged ") || page.contains("vllm serve ./merged\n"),
                "{page}"
            );
            run
        } else {
            made_longer(false)
        };
        assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
        assert!(run.outputs().join("merged-mtp").is_dir());
        assert_ne!(bytes(&run, "merged/model.safetensors"), *before.borrow());
        run
    };
    let (whole, stopped) = (longer(false), longer(true));
    assert_eq!(losses(&whole).len(), 12);
    assert_eq!(losses(&whole), losses(&stopped), "bit for bit");
    assert_eq!(bytes(&whole, "merged/model.safetensors"), bytes(&stopped, "merged/model.safetensors"));

    let rates = rates(&whole);
    // Warm-up rounds to one step of either length. Then it is the half cosine of 11 steps, from its 6th on.
    let expected = 5e-3 * (0.1 + 0.9 * 0.5 * (1.0 + (std::f64::consts::PI * 6.0 / 11.0).cos()));
    assert!((rates[&8] - expected).abs() < 1e-12, "{} {expected}", rates[&8]);
    assert!(rates[&7] < rates[&8] && rates[&12] < rates[&8]);
    let told = events(&whole).into_iter().any(|event| {
        matches!(event, Kind::Phase(phase) if phase.detail.as_deref().is_some_and(|detail| detail.contains("12 steps instead of 7")))
    });
    assert!(told);
    // Weights of the time before are still exported.
    export(&whole, Weights::Best).unwrap();
}
