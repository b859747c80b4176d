//! Runs through the API.

use std::time::{Duration, Instant};

use serde_json::json;
use sparktune_runlog::{Event, Kind, Lease, MemberSample, MemberSamples, RunDir, RunStarted, Step};

use super::client::{Server, append};

/// Returns the line of a step.
pub(super) fn line(attempt: u32, seq: u64, step: u64) -> String {
    let kind = Kind::Step(Step { step, loss_nats: 1.0 / step as f64, tokens: 10, ..Step::default() });
    Event { attempt, seq, time_us: seq, kind }.to_line().unwrap()
}

/// Creates a run whose first event is its start, and the others are steps.
pub(super) fn run_with_steps(server: &Server, name: &str, steps: u64) -> RunDir {
    let path = server.runs_dir().join(name);
    std::fs::create_dir_all(path.join("events")).unwrap();
    let run = RunDir::open(&path).unwrap();
    run.write_plan("seed = 1\n").unwrap();
    let started = RunStarted { model: "<img src=x>".into(), total_steps: Some(100), ..RunStarted::default() };
    let first = Event { attempt: 1, seq: 1, time_us: 1, kind: Kind::RunStarted(started) };
    let mut text = first.to_line().unwrap();
    (1..=steps).for_each(|step| text.push_str(&line(1, step + 1, step)));
    append(&run.event_file(1), text.as_bytes());
    run
}

const NAME: &str = "20260101T000000Z-mine-lora-0001";

#[test]
fn the_list_has_the_newest_first_and_continues_where_it_ended() {
    let server = Server::start();
    assert_eq!(server.json("/api/v1/runs"), json!({"items": [], "next": null}));
    for day in 1..=5 {
        run_with_steps(&server, &format!("2026010{day}T000000Z-mine-lora-0001"), day);
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/runs?limit=2".to_owned();
    loop {
        let page = server.json(&path);
        let items = page["items"].as_array().unwrap();
        seen.extend(items.iter().map(|run| run["step"].as_u64().unwrap()));
        assert!(items.iter().all(|run| run["name"] == "mine" && run["state"] == "crashed"), "{page}");
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/runs?limit=2&before={next}");
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
    assert_eq!(server.ask("GET /api/v1/runs?limit=x", "").status, 400);
}

#[test]
fn the_time_left_includes_the_head_that_follows_the_steps() {
    let server = Server::start();
    let run = run_with_steps(&server, NAME, 10);
    let _lease = Lease::acquire(&run).unwrap();
    // By this plan the head takes 128 times as long as a step, which takes 1.5 s with what lies between.
    let plan = include_str!("../../../tests/fixtures/run-261c35e/run/plan.toml");
    std::fs::write(run.plan(), plan).unwrap();
    let kind = Kind::Step(Step { step: 99, loss_nats: 1.0, step_ms: Some(1500.0), ..Step::default() });
    let event = Event { attempt: 1, seq: 12, time_us: 12, kind };
    append(&run.event_file(1), event.to_line().unwrap().as_bytes());
    let detail = server.json(&format!("/api/v1/runs/{NAME}"));
    let listed = server.json("/api/v1/runs")["items"][0].clone();
    for left in [&detail["eta"]["seconds"], &detail["eta_s"], &listed["eta_s"]] {
        assert!(left.as_f64().is_some_and(|left| (190.0..200.0).contains(&left)), "{left}: {detail}");
    }
}

#[test]
fn a_run_is_read_once_and_then_only_what_is_new() {
    let server = Server::start();
    let run = run_with_steps(&server, NAME, 10);
    let read = server.json(&format!("/api/v1/runs/{NAME}"));
    assert_eq!(
        (&read["position"], &read["step"], &read["state"]),
        (&json!("1.11"), &json!(10), &json!("crashed"))
    );
    assert_eq!(read["model"], "<img src=x>");
    let _lease = Lease::acquire(&run).unwrap();
    append(&run.event_file(1), line(1, 12, 11).as_bytes());
    std::thread::sleep(Duration::from_millis(300));
    let read = server.json(&format!("/api/v1/runs/{NAME}"));
    assert_eq!(
        (&read["position"], &read["step"], &read["state"]),
        (&json!("1.12"), &json!(11), &json!("running"))
    );
    let curves =
        server.json(&format!("/api/v1/runs/{NAME}/series?metrics=loss_nats,lr&points=4&first_step=4"));
    assert_eq!(curves["series"]["loss_nats"]["steps"], json!([4, 6, 8, 10]));
    assert_eq!(curves["series"]["loss_nats"]["max"][0], json!(0.25));
    assert!(curves["series"]["lr"].is_null(), "{curves}");
}

#[test]
fn the_ranks_of_a_run_are_told_with_the_time_that_a_step_waits_for_them() {
    let server = Server::start();
    let read = |name: &str, exchange_ms, ranks: &[MemberSample]| {
        let run = run_with_steps(&server, name, 1);
        let step = Step { step: 2, step_ms: Some(1400.0), exchange_ms, ..Step::default() };
        let samples = (!ranks.is_empty())
            .then(|| Kind::MemberSamples(MemberSamples { step: 2, ranks: ranks.to_vec() }));
        for (seq, kind) in (3..).zip([Kind::Step(step)].into_iter().chain(samples)) {
            let event = Event { attempt: 1, seq, time_us: seq, kind };
            append(&run.event_file(1), event.to_line().unwrap().as_bytes());
        }
        server.json(&format!("/api/v1/runs/{name}"))
    };
    let alone = read(NAME, None, &[]);
    assert_eq!((&alone["members"], &alone["exchange"]), (&json!([]), &json!(null)));
    assert_eq!(alone["view"]["step_parts"]["step_ms"], 1400.0, "{alone}");
    let other = MemberSample { rank: 1, place: "10.0.0.2".into(), ..MemberSample::default() };
    let ranks = [MemberSample::default(), other];
    let together = read("20260102T000000Z-mine-lora-0001", Some(120.0), &ranks);
    assert_eq!(together["members"][1]["at"], "10.0.0.2", "{together}");
    assert_eq!(together["exchange"], "a step waits 120 ms of its 1.40 s (8.6 %), mean of the last 1");
}

#[test]
fn events_begin_after_any_position_and_are_live_at_once() {
    let server = Server::start();
    let run = run_with_steps(&server, NAME, 200);
    let events = format!("/api/v1/runs/{NAME}/events");
    let mut all = server.follow(&events);
    all.wait_for("id: 1.201\n");
    assert!(all.seen.contains("id: 1.1\n") && all.seen.contains("text/event-stream"));
    all.wait_for("\"state\":\"crashed\"");
    let mut later = server.follow(&format!("{events}?from=1.150"));
    later.wait_for("id: 1.201\n");
    assert!(later.seen.contains("id: 1.151\n") && !later.seen.contains("id: 1.150\n"));
    let _lease = Lease::acquire(&run).unwrap();
    append(&run.event_file(1), line(1, 202, 201).as_bytes());
    let begun = Instant::now();
    for stream in [&mut all, &mut later] {
        stream.wait_for("id: 1.202\n");
        stream.wait_for("\"state\":\"running\"");
    }
    // Far more than the time between two looks, because the machine may be busy.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // The next attempt continues the same stream.
    append(&run.event_file(2), line(2, 1, 101).as_bytes());
    all.wait_for("id: 2.1\n");
    assert_eq!(server.ask(&format!("GET {events}?from=x"), "").status, 400);
    assert_eq!(server.ask(&format!("GET {events}?from=1"), "").status, 400);
}

#[test]
fn what_the_state_of_a_run_does_not_allow_is_a_conflict_with_advice() {
    let server = Server::start();
    let run = run_with_steps(&server, NAME, 1);
    assert_eq!(server.ask(&format!("POST /api/v1/runs/{NAME}/stop"), "").status, 409);
    let lease = Lease::acquire(&run).unwrap();
    for request in ["POST /api/v1/runs/{}/resume", "DELETE /api/v1/runs/{}"] {
        let answer = server.ask(&request.replace("{}", NAME), "");
        assert_eq!(answer.status, 409, "{request}: {}", answer.body);
    }
    drop(lease);
    let deleted = server.ask(&format!("DELETE /api/v1/runs/{NAME}"), "");
    assert!(deleted.status == 200 && deleted.body.contains("freed_bytes"), "{}", deleted.body);
    assert!(!run.path().exists());
    assert_eq!(server.ask(&format!("GET /api/v1/runs/{NAME}"), "").status, 404);
}

#[test]
fn a_stop_that_is_refused_is_not_sent_and_one_that_is_cancelled_is_not_waited_for() {
    let server = Server::start();
    let run = run_with_steps(&server, NAME, 1);
    std::fs::create_dir(run.control()).unwrap();
    let _lease = Lease::acquire(&run).unwrap();
    let mut tasks = Vec::new();
    loop {
        let answer = server.ask(&format!("POST /api/v1/runs/{NAME}/stop"), "");
        if answer.status == 429 {
            break;
        }
        assert_eq!(answer.status, 202, "{}", answer.body);
        let task: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        tasks.push(format!("/api/v1/tasks/{}", task["id"].as_str().unwrap()));
    }
    assert_eq!(std::fs::read_dir(run.control()).unwrap().count(), tasks.len());
    for task in &tasks {
        assert_eq!(server.ask(&format!("DELETE {task}"), "").status, 202);
    }
    let begun = Instant::now();
    while tasks.iter().any(|task| server.json(task)["state"] != "cancelled") {
        assert!(begun.elapsed() < Duration::from_secs(240), "{}", server.json(&tasks[0]));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_dir(run.control()).unwrap().count(), tasks.len(), "the requests stand");
}

#[test]
fn prometheus_reads_the_state_of_the_runs() {
    let server = Server::start();
    run_with_steps(&server, NAME, 3);
    for path in ["/metrics", "/api/v1/metrics"] {
        let answer = server.ask(&format!("GET {path}"), "");
        assert!(answer.header("content-type").unwrap().starts_with("text/plain"), "{}", answer.head);
        let line = format!("sparktune_run_state{{run=\"{NAME}\",state=\"crashed\"}} 1\n");
        assert!(answer.body.contains(&line), "{}", answer.body);
        assert!(
            answer.body.contains(&format!("sparktune_run_step{{run=\"{NAME}\"}} 3\n")),
            "{}",
            answer.body
        );
    }
}
