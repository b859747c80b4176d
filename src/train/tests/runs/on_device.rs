//! Runs on a CUDA device, or the emulated one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sparktune_kernels::cublaslt;
use sparktune_kernels::testing::cuda_device;
use sparktune_runlog::{Kind, Outcome, RunDir};
use sparktune_train::{BeforeFirstRun, TileFile, TrainOptions, train, train_with};

use crate::{bytes, events, fixture, losses, run_on, stops_change_nothing, warnings};

const CUDA: &str = r#"device = "cuda""#;
/// With the vendor's library, whose bits may be others.
const AUTO: &str = "device = \"cuda\"\nproducts = \"auto\"";
/// Held by tests that count what the library does in this process.
static OF_LIBRARY: Mutex<()> = Mutex::new(());
/// What the kernels take.
const LORA: &str = r#"{ kind = "lora", rank = 8, alpha = 16.0, rslora = false }"#;
const ON: &str = "a GPU, driver 1, this build";

/// The device's queue holds a step ahead, its weights are rounded masters.
#[test]
fn a_stopped_run_continues_bit_for_bit() {
    if cuda_device().is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    stops_change_nothing(CUDA, root.path(), LORA, "none", 3);
}

/// Also of a run that is stopped and continued: its plan says that it is trained with fp8.
#[test]
fn a_run_with_fp8_tells_at_start_and_end_what_it_makes_of_the_loss() {
    if cuda_device().is_none() {
        return;
    }
    let fp8 = format!("{CUDA}\nfp8 = true");
    let root = tempfile::tempdir().unwrap();
    let evaluated = stops_change_nothing(&fp8, root.path(), LORA, "none", 2);
    let alone = run_on(&fp8, root.path(), LORA, "none", 1, false);
    std::fs::remove_file(alone.data().join("eval.qubgpu")).unwrap();
    train(&alone, &AtomicBool::new(false)).unwrap();
    for (run, steps, with_eval) in [(evaluated, 2, true), (alone, 1, false)] {
        let events = events(&run);
        let told = events.iter().filter_map(|kind| match kind {
            Kind::Fp8Loss(losses) => Some(losses.clone()),
            _ => None,
        });
        let told: Vec<_> = told.collect();
        assert_eq!(told.iter().map(|losses| losses.step).collect::<Vec<_>>(), [0, steps]);
        for losses in &told {
            let (fp8, bf16) = (losses.fp8_nats.unwrap(), losses.bf16_nats.unwrap());
            assert!((1e-5..1e-2).contains(&(fp8 / bf16 - 1.0).abs()), "{losses:?}");
            assert_eq!(losses.held_out, with_eval);
        }
        // An evaluation is of what is exported, which is bf16.
        let evaluated = events.iter().rev().find_map(|kind| match kind {
            Kind::Eval(eval) => Some(eval.loss_nats),
            _ => None,
        });
        assert_eq!(evaluated, with_eval.then(|| told[1].bf16_nats.unwrap()));
        // The first step is taken in fp8.
        let first = events.iter().find_map(|kind| match kind {
            Kind::Step(step) => Some(step.loss_nats),
            _ => None,
        });
        if !with_eval {
            let (first, told) = (first.unwrap(), told[0].fp8_nats.unwrap());
            assert!((first / told - 1.0).abs() < 1e-6, "{first} for {told}");
        }
        assert!(
            events
                .iter()
                .any(|kind| matches!(kind, Kind::RunStarted(s) if s.device.contains("fp8 (not lossless)")))
        );
    }
}

/// The self-tests come before the first run and not before the second; a device that fails them trains
/// nothing.
#[test]
fn the_first_run_tests_the_device_and_tells_its_memory() {
    if cuda_device().is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let tested = |run: &RunDir| {
        let is_test = |kind: &Kind| matches!(kind, Kind::Phase(phase) if phase.phase == "self-test");
        events(run).iter().filter(|kind| is_test(kind)).count()
    };
    let passed = root.path().join("passed");
    let with = |model: &Path| TrainOptions {
        before_first_run: Some(BeforeFirstRun { model: model.into(), on: ON.into(), passed: passed.clone() }),
        ..TrainOptions::default()
    };

    // A model without numbers: no two logits are equal.
    let broken = root.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::copy(fixture().join("config.json"), broken.join("config.json")).unwrap();
    let mut weights = std::fs::read(fixture().join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    weights[header..].fill(0xff);
    std::fs::write(broken.join("model.safetensors"), weights).unwrap();
    let refused = run_on(CUDA, root.path(), LORA, "none", 1, false);
    let error = train_with(&refused, &AtomicBool::new(false), &with(&broken)).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(
        error.to_string().contains("not exact on a GPU") && error.to_string().contains("doctor"),
        "{error}"
    );
    assert!(!passed.exists() && losses(&refused).is_empty());

    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/demo/model");
    for expected in [3, 0] {
        let run = run_on(CUDA, root.path(), LORA, "none", 1, false);
        train_with(&run, &AtomicBool::new(false), &with(&demo)).unwrap();
        assert_eq!(tested(&run), expected);
        assert_eq!(std::fs::read_to_string(&passed).unwrap(), format!("{ON}\n"));
        let events = events(&run);
        let Some(Kind::RunFinished(finished)) = events.last() else { panic!("{events:?}") };
        let of_steps = events.iter().filter_map(|kind| match kind {
            Kind::Step(step) => Some(step.mem_used_bytes.unwrap()),
            _ => None,
        });
        let most = of_steps.max().unwrap();
        assert!(most > 0 && finished.mem_peak_bytes >= Some(most), "{most} {:?}", finished.mem_peak_bytes);
    }
}

/// A run with tiles remembered at `path`.
fn with_tiles(path: &Path) -> TrainOptions {
    let tiles = TileFile { on: ON.into(), path: path.into() };
    TrainOptions { tiles: Some(tiles), ..TrainOptions::default() }
}

/// Progress of the measuring of tiles: products done, and how many there are, each beside the steps done
/// before.
fn measured(run: &RunDir) -> Vec<(u64, u64, u64)> {
    let (mut steps, mut measured) = (0, Vec::new());
    for kind in events(run) {
        match kind {
            Kind::Step(step) => steps = step.step,
            Kind::Progress(progress) if progress.phase == "tiles" => {
                assert_eq!(progress.unit, "products");
                measured.push((steps, progress.done, progress.total.unwrap()));
            }
            _ => (),
        }
    }
    measured
}

#[test]
fn tiles_are_measured_once_for_a_device_and_no_bit_of_a_run_depends_on_it() {
    use std::os::unix::fs::PermissionsExt;
    if cuda_device().is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(".tiles");
    let options = with_tiles(&path);
    let trained = |options: &TrainOptions| {
        let run = run_on(CUDA, root.path(), LORA, "none", 2, false);
        train_with(&run, &AtomicBool::new(false), options).unwrap();
        run
    };
    let without = trained(&TrainOptions::default());
    assert_eq!(measured(&without), []);

    std::fs::write(&path, "another GPU\nlinear_forward 64,64 1 9 16,64,64,1,4,4\n").unwrap();
    let first = trained(&options);
    let is_told = |kind: Kind| match kind {
        Kind::Phase(phase) => phase.detail.is_some_and(|d| d.contains("another GPU, driver or build")),
        _ => false,
    };
    assert!(events(&first).into_iter().any(is_told));
    let told = measured(&first);
    let total = told.len() as u64;
    // Between the first two steps.
    let expected: Vec<_> = (0..total).map(|done| (1, done, total)).collect();
    assert!(total > 8 && told == expected, "{told:?}");
    let file = std::fs::read_to_string(&path).unwrap();
    let lines = file.strip_prefix(&format!("{ON}\n")).unwrap();
    assert_eq!(lines.lines().count(), told.len(), "{file}");
    for kernel in [
        "linear_forward ",
        "linear_backward_input ",
        "linear_backward_weight ",
        "lora_linear_forward ",
        "lora_linears_backward_input ",
    ] {
        assert!(lines.lines().any(|line| line.starts_with(kernel)), "{kernel} in {file}");
    }
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let second = trained(&options);
    assert_eq!(measured(&second), []);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
    for run in [&first, &second] {
        assert_eq!(losses(run), losses(&without));
        let weights = "merged/model.safetensors";
        assert!(bytes(run, weights) == bytes(&without, weights));
    }
}

#[test]
fn a_stop_while_tiles_are_measured_keeps_those_that_are() {
    if cuda_device().is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(".tiles");
    let options = with_tiles(&path);
    let run = run_on(CUDA, root.path(), LORA, "none", 3, false);
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let finished = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) && measured(&run).len() < 3 {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::SeqCst);
        });
        let finished = train_with(&run, &stop, &options);
        ended.store(true, Ordering::SeqCst);
        finished.unwrap()
    });
    assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, 1));
    let lines = || std::fs::read_to_string(&path).unwrap().lines().count() as u64 - 1;
    let (kept, of_model) = (lines(), measured(&run)[0].2);
    assert!(2 <= kept && kept < of_model, "{kept} of {of_model}");

    assert_eq!(train_with(&run, &AtomicBool::new(false), &options).unwrap().outcome, Outcome::Completed);
    let rest = measured(&run).last().unwrap().2;
    assert!(rest < of_model && lines() == kept + rest, "{rest} of {of_model} after {kept}");
    assert_eq!(losses(&run).len(), 3);
}

/// Loads the stand-in for the vendor's library on the emulated device, or the library of a GPU. Returns its
/// version; `None` where there is none.
fn library() -> Option<usize> {
    let device = cuda_device()?;
    let stand_in =
        std::env::var_os("CUDA_PATH").map(|path| Path::new(&path).join("cublaslt/libcublasLt.so.13"));
    let from: Vec<_> = stand_in.into_iter().filter(|path| path.exists()).collect();
    cublaslt::seek(&device, &from)
}

/// The record of who computes the products of a run's text model.
fn record(run: &RunDir) -> String {
    std::fs::read_to_string(run.path().join("products")).unwrap()
}

/// The products that a record decides about, without what it decides.
fn decided(record: &str) -> Vec<String> {
    let lines = record.lines().skip(1).filter(|line| !line.ends_with(" refused"));
    lines.map(|line| line.split_once(" by ").unwrap().0.to_owned()).collect()
}

#[test]
fn a_run_decides_about_the_library_before_its_first_step_and_continues_bit_for_bit() {
    let Some(version) = library() else { return };
    let _one_at_a_time = OF_LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(".tiles");
    let options = with_tiles(&path);
    let new = |device: &str, steps| run_on(device, root.path(), LORA, "none", steps, false);
    let go_on = |run: &RunDir, stop: bool| train_with(run, &AtomicBool::new(stop), &options).unwrap();
    let weights = |run: &RunDir| bytes(run, "merged/model.safetensors");

    let first = new(AUTO, 1);
    assert_eq!(go_on(&first, false).outcome, Outcome::Completed);
    let found = record(&first);
    let (of, lines) = found.split_once('\n').unwrap();
    assert!(of.starts_with(&format!("{version} ")) && of.len() > 10, "{of}");
    let told = measured(&first);
    let all = decided(&found);
    assert!(told.iter().all(|(steps, ..)| *steps == 0), "before the first step: {told:?}");
    assert_eq!(told.last().unwrap().2, all.len() as u64);
    // Another run takes no decision from the tiles that are known now, and measures as many products. A stop
    // meanwhile decides nothing.
    assert!(!std::fs::read_to_string(&path).unwrap().contains(" by "));
    let another = new(AUTO, 1);
    let stopped = go_on(&another, true);
    assert_eq!((stopped.outcome, stopped.steps), (Outcome::Stopped, 0));
    assert_eq!(measured(&another), [(0, 0, all.len() as u64)]);
    assert!(!another.path().join("products").exists());
    let by_library = format!(" by {version}:");
    if !lines.contains(&by_library) {
        // Only a GPU may find our kernels the faster ones everywhere.
        return;
    }
    // The stand-in's first two algorithms leave out half of each sum, and differ each time. The second word
    // of an algorithm is its kind.
    let name = "6c743a656d756c61";
    let of_kind = |kind| format!("{name}{kind:016x}");
    assert!(!found.contains(&of_kind(4)) && !found.contains(&of_kind(3)), "{found}");

    // To have measured changes nothing.
    let follows = |steps, record: &str| {
        let run = new(AUTO, steps);
        let lines = record.lines().filter(|line| !line.ends_with(" refused"));
        std::fs::write(
            run.path().join("products"),
            lines.map(|line| format!("{line}\n")).collect::<String>(),
        )
        .unwrap();
        run
    };
    let before = cublaslt::products();
    let same = follows(1, &found);
    assert_eq!(go_on(&same, false).outcome, Outcome::Completed);
    assert!(cublaslt::products() > before);
    assert_eq!((losses(&same), record(&same)), (losses(&first), found.clone()));
    assert!(weights(&same) == weights(&first));

    // Ours have other bits, and a run with nothing else records nothing.
    let before = cublaslt::products();
    let own = new(CUDA, 1);
    assert_eq!(go_on(&own, false).outcome, Outcome::Completed);
    assert_eq!(cublaslt::products(), before);
    assert!(!own.path().join("products").exists());
    assert!(weights(&first) != weights(&own));

    // Another one it refuses for odd numbers of tokens.
    let particular = found.replace(&of_kind(0), &of_kind(1));
    let (whole, parts) = (follows(3, &particular), follows(3, &particular));
    assert_eq!(go_on(&whole, false).outcome, Outcome::Completed);
    while go_on(&parts, true).outcome == Outcome::Stopped && losses(&parts).len() < 3 {}
    assert_eq!(go_on(&parts, false).outcome, Outcome::Completed);
    assert_eq!(losses(&whole), losses(&parts));
    assert!(weights(&whole) == weights(&parts));
    assert_eq!(record(&parts), record(&whole));
    assert_eq!(found.contains(name), record(&whole).contains(" refused\n"), "{}", record(&whole));
}

#[test]
fn a_record_of_another_library_or_gpu_is_refused_and_gone_on_with_only_if_that_is_accepted() {
    let Some(version) = library() else { return };
    let _one_at_a_time = OF_LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tempfile::tempdir().unwrap();
    let options = with_tiles(&root.path().join(".tiles"));
    let run = run_on(AUTO, root.path(), LORA, "none", 2, false);
    let path = run.path().join("products");
    let line = |by: usize| format!("linear_forward 64,64 1 9 by own:{by}\n");
    let found = cublaslt::version_in_words(version);
    for (record, why) in [
        (
            format!("120804 a GPU\n{}", line(120_804)),
            format!("that was cuBLASLt 12.8.4, and cuBLASLt {found} was found"),
        ),
        (format!("{version} NVIDIA Nothing\n{}", line(version)), "that was on NVIDIA Nothing, and".into()),
        ("meas".into(), "the record of who computes them is damaged".into()),
    ] {
        std::fs::write(&path, &record).unwrap();
        let error = train_with(&run, &AtomicBool::new(false), &options).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(&why) && told.contains("resume --accept-changes"), "{told}");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), record, "nothing is changed");
    }
    let before = cublaslt::products();
    let accepting = TrainOptions { accept_changes: true, ..options.clone() };
    let stopped = train_with(&run, &AtomicBool::new(true), &accepting).unwrap();
    assert_eq!((stopped.outcome, stopped.steps), (Outcome::Stopped, 1));
    let told = warnings(&run).into_iter().find(|warning| warning.contains("cuBLASLt")).unwrap();
    let expected = "from here on sparktune's kernels compute all of them";
    assert!(told.contains("is damaged") && told.contains(expected), "{told}");
    // It stays so, without being asked again.
    assert_eq!(record(&run), "own\n");
    let done = train_with(&run, &AtomicBool::new(false), &options).unwrap();
    assert_eq!((done.outcome, cublaslt::products()), (Outcome::Completed, before));
}
