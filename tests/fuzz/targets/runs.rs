//! The files of a run folder.

use std::cell::RefCell;

use sparktune_app::chat::history::Earlier;
use sparktune_app::models::{ModelKind, OpenableModel};
use sparktune_data::Report;
use sparktune_runlog::{
    Checkpoints, ControlInbox, Event, EventTailer, Kind, Lease, Limit, RunDir, RunView, RunsRoot,
};

use super::{empty_folder, file, folder, is_a_sentence, parts, says_why};

thread_local! {
    /// A run of this thread, whose trainer it is.
    static RUN: RefCell<Option<(RunDir, Lease)>> = const { RefCell::new(None) };
}

fn with_run(visit: impl FnOnce(&RunDir, &Lease)) {
    RUN.with_borrow_mut(|kept| {
        let (run, lease) = kept.get_or_insert_with(|| {
            let run = RunsRoot::new(empty_folder("runs")).create("model", "lora").expect("a run can be made");
            let lease = Lease::acquire(&run).expect("nobody else trains it");
            (run, lease)
        });
        visit(run, lease);
    });
}

/// The events of two attempts, followed from the beginning, at a glance, and line by line.
pub(super) fn events(input: &[u8]) {
    let attempts: [&[u8]; 2] = parts(input);
    with_run(|run, _| {
        for (attempt, bytes) in (1..).zip(attempts) {
            std::fs::write(run.event_file(attempt), bytes).expect("the file can be written");
        }
        let mut tailer = EventTailer::new(run);
        let mut view = RunView::default();
        let mut seen = 0;
        let polled = tailer.poll_with(Limit::NONE, |event, line| {
            seen += 1;
            view.apply(&event);
            assert_eq!(Event::parse(line).as_ref(), Ok(&event), "a line is read in one way");
            if !matches!(event.kind, Kind::Unknown(_)) {
                let written = event.to_line().expect("a known event can be written");
                let again = Event::parse(written.trim_end().as_bytes()).expect("what we wrote can be read");
                // Not every number is equal to itself.
                assert_eq!(again.to_line().ok(), Some(written));
            }
        });
        let lines = input.split(|byte| *byte == b'\n').count();
        assert!(seen <= lines, "{seen} events in {lines} lines");
        match polled {
            Ok(polled) => polled.notices.iter().for_each(|notice| says_why(notice)),
            Err(error) => says_why(&error),
        }
        let (replayed, glanced) = (RunView::replay(run), RunView::glance(run));
        if let Ok(replayed) = &replayed {
            assert_eq!(replayed.steps_done(), view.steps_done(), "a replay shows what was followed");
        }
        for view in [Ok(view), replayed, glanced].into_iter().flatten() {
            let best = (view.best(), view.best_eval().cloned(), view.total_steps(), view.exported_step());
            let speed = (view.mem_peak_bytes(), view.tokens_per_s(), view.eta(), view.step_parts());
            drop((best, speed, view.marks(), view.liveness(run).ok()));
        }
    });
}

/// The manifest of a checkpoint, and two of its files.
pub(super) fn checkpoint(input: &[u8]) {
    let [manifest, state, weights] = parts(input);
    with_run(|run, lease| {
        let mut checkpoints = Checkpoints::new(run);
        let folder = run.checkpoints().join("step-000009");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("the folder can be removed");
        }
        let writer = checkpoints.begin(9, lease).expect("a checkpoint can be begun");
        for (name, bytes) in [("state.json", state), ("weights.safetensors", weights)] {
            std::fs::write(writer.path().join(name), bytes).expect("the file can be written");
        }
        writer.commit().expect("a checkpoint can be committed");
        assert!(Checkpoints::new(run).verify(9).is_ok(), "what was committed is sound");
        let path = folder.join("manifest.json");
        let written = std::fs::read(&path).expect("a checkpoint has a manifest");
        if manifest.is_empty() {
            return;
        }
        std::fs::write(&path, manifest).expect("the file can be written");
        let same = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
        match Checkpoints::new(run).verify(9) {
            Ok(_) => assert_eq!(same(manifest), same(&written), "a manifest that is not of these files"),
            Err(error) => says_why(&error),
        }
        let found = Checkpoints::new(run).newest_valid().expect("the folder can be listed");
        assert_eq!(found.skipped.len() + usize::from(found.checkpoint.is_some()), 1);
    });
}

/// A request to the trainer, and the line that a trainer leaves in its lock.
pub(super) fn control(input: &[u8]) {
    let [request, holder] = parts(input);
    with_run(|run, lease| {
        let inbox = ControlInbox::new(lease);
        let path = run.control().join("x.json");
        std::fs::write(&path, request).expect("the file can be written");
        let incoming = inbox.poll().expect("the folder can be listed");
        incoming.ignored.iter().for_each(|reason| says_why(reason));
        assert_eq!(incoming.requests.len() + incoming.ignored.len(), 1);
        for request in &incoming.requests {
            assert_eq!(request.id, "x");
            inbox.acknowledge(request).expect("a request can be removed");
        }
        assert!(!path.exists(), "each request is answered once");
        std::fs::remove_dir_all(run.control()).expect("the folder can be removed");
        std::fs::create_dir(run.control()).expect("the folder can be made");
        let other = RunsRoot::new(run.path()).path().join("other");
        std::fs::create_dir_all(other.join("events")).expect("the folder can be made");
        std::fs::write(other.join("lease.lock"), holder).expect("the file can be written");
        std::fs::write(other.join("provenance.json"), holder).expect("the file can be written");
        if let Ok(other) = RunDir::open(&other) {
            drop(Lease::holder_of(&other));
            if let Err(error) = other.read_provenance::<serde_json::Value>() {
                is_a_sentence(&error);
            }
        }
    });
}

/// The report on the data of a run, and a conversation that was kept with it.
pub(super) fn data(input: &[u8]) {
    let [report, conversation] = parts(input);
    if let Ok(report) = serde_json::from_slice::<Report>(report) {
        let written = serde_json::to_vec(&report).expect("a report is JSON");
        let again: Report = serde_json::from_slice(&written).expect("what we wrote can be read");
        assert_eq!(serde_json::to_vec(&again).ok(), Some(written), "another report");
        drop((
            report.to_string(),
            report.findings(),
            report.map_hint(),
            report.exceeds(0.1),
            report.lines_to_correct(),
        ));
    }
    let path = file("run/chats/1-0000.jsonl", conversation);
    let run = OpenableModel {
        id: "run:a".to_owned(),
        name: "a".to_owned(),
        kind: ModelKind::Run,
        base: None,
        parameters: None,
        path: folder().join("run"),
    };
    for path in [Some(&*path), None] {
        match Earlier::read(std::slice::from_ref(&run), path) {
            Ok(earlier) => assert!(!earlier.turns.is_empty() && earlier.turns.len().is_multiple_of(2)),
            Err(failure) => is_a_sentence(&failure),
        }
    }
}
