//! The way from data to a run by requests alone: upload, check, examples, plan, start. Training is short, on
//! the demo's model.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{LONG, Server};
use crate::sparktune::chat;

/// Chats, and a line that is none.
fn chats(count: usize) -> String {
    (0..count).map(|i| chat(i).to_string() + "\n").collect::<String>() + "{oops\n"
}

/// The demo's answers, for a few steps.
fn answers(data: &str, steps: u32) -> Value {
    json!({"model": "dir:demo", "data": [data], "max-steps": steps.to_string(), "max-rejected": "0.1", "sample-count": 0,
        "mtp": "none", "device": "cpu", "pack-length": 256, "rank": 4, "grad-accum-steps": 2})
}

#[test]
fn data_is_uploaded_checked_shown_planned_and_trained_on() {
    let server = Server::start(|_| {});
    let data = chats(40);
    let uploaded = server
        .send("POST", "/datasets?name=mine.jsonl", "application/octet-stream", data.as_bytes())
        .is(201)
        .json();
    assert_eq!(uploaded["id"], "uploads:mine.jsonl");
    assert_eq!((uploaded["bytes"].as_u64(), &uploaded["is_upload"]), (Some(data.len() as u64), &json!(true)));
    let again = server.send("POST", "/datasets?name=mine.jsonl", "application/octet-stream", b"{}").is(409);
    assert!(again.json()["advice"].as_str().unwrap().contains("another name"));
    let listed = server.get("/datasets").is(200).json();
    assert!(
        listed["items"].as_array().unwrap().iter().any(|item| item["id"] == "uploads:mine.jsonl"),
        "{listed}"
    );

    let id = "uploads%3Amine.jsonl";
    server.get(&format!("/datasets/{id}/report")).is(404);
    let checked = server.result(server.post(&format!("/datasets/{id}/check"), &json!({"model": "dir:demo"})));
    assert_eq!((&checked["report"]["examples"], &checked["report"]["rejected"]), (&json!(40), &json!(1)));
    assert!(checked["refused"].as_str().unwrap().contains("1 of 41 lines was rejected"), "{checked}");
    assert!(checked["report"]["tokens"]["total"].as_u64().unwrap() > 500);
    assert!(
        !checked.to_string().contains(server.place.path().to_str().unwrap()),
        "no path is told: {checked}"
    );
    let report = server.get(&format!("/datasets/{id}/report")).is(200).json();
    assert_eq!((&report["is_current"], &report["check_id"]), (&json!(true), &checked["check_id"]));
    let rejected = server.get(&format!("/datasets/{id}/rejected?limit=5")).is(200).json();
    assert_eq!((rejected["total"].as_u64(), rejected["items"][0]["line"].as_u64()), (Some(1), Some(41)));
    assert_eq!(
        (&rejected["items"][0]["text"], &rejected["items"][0]["source"]),
        (&json!("{oops"), &json!("uploads:mine.jsonl"))
    );

    let path = format!("/datasets/{id}/examples?model=dir:demo&offset=1&limit=2");
    let examples = server.result(server.get(&path));
    assert_eq!((examples["total"].as_u64(), examples["next"].as_str()), (Some(40), Some("3")));
    let first = &examples["items"][0];
    assert_eq!((first["number"].as_u64(), first["line"].as_u64()), (Some(2), Some(2)));
    let text = |trained: bool| -> String {
        let pieces = first["pieces"].as_array().unwrap().iter().filter(|piece| piece["trained"] == trained);
        pieces.map(|piece| piece["text"].as_str().unwrap()).collect()
    };
    let (question, reply) =
        (chat(1)["messages"][0]["content"].clone(), chat(1)["messages"][1]["content"].clone());
    assert!(
        text(true).contains(reply.as_str().unwrap()) && !text(true).contains(question.as_str().unwrap()),
        "{first}"
    );
    assert!(text(false).contains(question.as_str().unwrap()));
    server.get(&path).is(200);
    // Examples are rendered 200 at a time. This line has more of them.
    let exchange = ["user", "assistant"].map(|role| json!({"role": role, "content": "x"}));
    let long = json!({"messages": vec![exchange; 250].concat()}).to_string();
    server.send("POST", "/datasets?name=long.jsonl", "application/octet-stream", long.as_bytes()).is(201);
    let turns =
        "/datasets/uploads%3Along.jsonl/examples?model=dir:demo&split-turns=true&max-example-tokens=4096";
    let examples = server.result(server.get(&format!("{turns}&limit=1")));
    assert_eq!((examples["total"].as_u64(), examples["next"].as_str()), (None, Some("1")));
    let examples = server.result(server.get(&format!("{turns}&offset=240&limit=100")));
    assert_eq!((examples["total"].as_u64(), examples["next"].as_str()), (Some(250), None));

    let asked = json!({"answers": answers("uploads:mine.jsonl", 3)});
    let plan = server.result(server.post("/plan", &asked));
    assert_eq!(plan["problems"], json!([]), "{plan}");
    assert_eq!((&plan["plan"]["method"]["rank"], plan["eta"]["steps"].as_u64()), (&json!(4), Some(3)));
    let row = |plan: &Value, name: &str| {
        plan["settings"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&row(&plan, "rank")["origin"], &row(&plan, "data")["value"]),
        (&json!("flag"), &json!("uploads:mine.jsonl"))
    );
    assert!(row(&plan, "learning-rate")["reason"].as_str().unwrap().len() > 10);
    assert!(
        plan["memory"]["needed_bytes"].as_u64().unwrap() > 0
            && plan["command"].as_str().unwrap().contains("--rank 4")
    );

    let run = server.result(server.post("/runs", &asked))["run"].as_str().unwrap().to_owned();
    let folder = server.runs().join(&run);
    assert!(folder.join("plan.toml").is_file());
    // The server may die, and the run goes on.
    drop_server_and_wait_for_the_end(server, &folder);
}

/// Kills the server while the run trains, and waits until the run is complete.
fn drop_server_and_wait_for_the_end(mut server: Server, folder: &std::path::Path) {
    server.restart();
    let begun = Instant::now();
    let finished = || {
        let events = fs::read_to_string(folder.join("events/0001.jsonl")).unwrap_or_default();
        events
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|e| e["kind"] == "run_finished")
    };
    while finished().is_none() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(finished().unwrap()["outcome"], "completed");
    // What was uploaded and checked is still there.
    let report = server.get("/datasets/uploads%3Amine.jsonl/report").is(200).json();
    assert_eq!(report["report"]["examples"], 40);
    server.send("DELETE", "/datasets/uploads%3Amine.jsonl", "application/json", b"").is(204);
    server.get("/datasets/uploads%3Amine.jsonl/report").is(404);
}

#[test]
fn a_plan_with_other_settings_is_made_at_once() {
    let server = Server::start(|_| {});
    let plan = |answers: Value| server.post("/plan", &json!({"answers": answers, "preset": "demo"}));
    let base = json!({"model": "dir:demo", "data": "demo:train.jsonl"});
    assert_eq!(server.result(plan(base))["problems"], json!([]));
    // The time of its work, which does not depend on what else the machine does.
    let mut times = Vec::new();
    for rank in [2, 4, 8, 16, 32] {
        let begun = server.time_on_processors();
        let other =
            plan(json!({"model": "dir:demo", "data": "demo:train.jsonl", "rank": rank})).is(200).json();
        times.push(server.time_on_processors() - begun);
        assert_eq!(other["plan"]["method"]["rank"], rank);
        let row =
            other["settings"].as_array().unwrap().iter().find(|row| row["name"] == "rank").unwrap().clone();
        assert_eq!((&row["recommended"], &row["origin"]), (&json!("8"), &json!("flag")), "the preset says 8");
    }
    println!("what-if: {times:?}");
    assert!(times.iter().min().unwrap() < &Duration::from_millis(500), "{times:?}");
    // Another way of reading needs the data again.
    server.result(plan(json!({"model": "dir:demo", "data": "demo:train.jsonl", "train-on": "last"})).is(202));
    // Without data, ordinary chats are assumed, and nothing can be started.
    let assumed = server.result(server.post("/plan", &json!({"answers": {"model": "dir:demo"}})));
    assert_eq!(assumed["problems"][0]["setting"], "data");
    assert!(assumed["memory"]["needed_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn what_is_wrong_with_answers_is_told_for_each_setting() {
    let server = Server::start(|_| {});
    let wrong = json!({"answers": {"model": "dir:demo", "data": ["demo:train.jsonl", "demo:none.jsonl"], "rank": "many",
        "learning-rat": 1, "chat-template": "/etc/passwd", "runs-dir": "/tmp", "from": "../x", "epochs": [{}]},
        "preset": "/etc/passwd"});
    let plan = server.post("/plan", &wrong).is(200).json();
    let problems = plan["problems"].as_array().unwrap();
    let mut settings: Vec<&str> =
        problems.iter().map(|problem| problem["setting"].as_str().unwrap()).collect();
    settings.sort_unstable();
    assert_eq!(
        settings,
        ["chat-template", "data", "epochs", "from", "learning-rat", "preset", "rank", "runs-dir"]
    );
    let refused = server.post("/runs", &wrong).is(400).json();
    assert!(
        refused["detail"].as_str().unwrap().contains("(and 7 more)") && refused["advice"].is_string(),
        "{refused}"
    );
    assert!(
        !server.runs().read_dir().is_ok_and(|mut runs| runs.any(|run| !run
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')))
    );
    // A start that fails says so as the command line does.
    let task = server.ended(
        server.post("/runs", &json!({"answers": {"model": "org/missing", "data": "demo:train.jsonl"}})),
    );
    assert_eq!(task["state"], "failed");
    assert!(task["error"]["detail"].as_str().unwrap().contains("org/missing"), "{task}");
    server.post("/plan", &json!({"answer": {}})).is(422);
}

#[test]
fn requests_name_data_and_models_by_ids_that_lead_nowhere_else() {
    let server = Server::start(|place| {
        place.write("secret.jsonl", "secret");
        place.write("data/mine.jsonl", chat(0).to_string());
        symlink("../secret.jsonl", place.join("data/link.jsonl")).unwrap();
        symlink("..", place.join("data/up")).unwrap();
    });
    let listed = server.get("/datasets").is(200).json().to_string();
    assert!(listed.contains("data:mine.jsonl") && !listed.contains("link.jsonl"), "{listed}");
    for id in [
        "..%2Fsecret.jsonl",
        "data%3A..%2Fsecret.jsonl",
        "data%3A..%3Asecret.jsonl",
        "data%3Alink.jsonl",
        "data%3Aup%3Asecret.jsonl",
        "%2Fetc%2Fpasswd",
        "data%3A%00",
        "data:%2e%2e:secret.jsonl",
        "uploads%3A..%3A..%3Arates.toml",
    ] {
        for (method, path) in
            [("GET", "report"), ("GET", "rejected"), ("GET", "examples?model=dir:demo"), ("POST", "check")]
        {
            let answer =
                server.send(method, &format!("/datasets/{id}/{path}"), "application/json", b"{}").is(404);
            assert!(!String::from_utf8_lossy(&answer.body).contains("secret\""), "{id}");
        }
        server.send("DELETE", &format!("/datasets/{id}"), "application/json", b"").is(404);
    }
    server.send("DELETE", "/datasets/data%3Amine.jsonl", "application/json", b"").is(409);
    assert!(server.place.join("data/mine.jsonl").is_file() && server.place.join("secret.jsonl").is_file());
    for name in ["..%2Fx.jsonl", "%2Ftmp%2Fx.jsonl", ".x.jsonl", "x.py", "a%3Ab.jsonl", ""] {
        server.send("POST", &format!("/datasets?name={name}"), "application/octet-stream", b"{}").is(400);
    }
    for model in ["/etc", "..", "~", "./data", "data", "dir:../data", "dir:none"] {
        let answer = server.post("/models/check", &json!({"model": model}));
        assert!(matches!(answer.status, 400 | 404), "{model}: {answer:?}");
    }
    for (name, toml, status) in [
        ("mine", "[method]\nrank = 8\n", 200),
        ("mine", "[method]\nrank = 8\n", 409),
        ("%20spaced%20", "[method]\nrank = 8\n", 200),
        ("default", "seed = 1\n", 400),
        ("..%2Fmine", "seed = 1\n", 404),
        ("paths", "[data]\ntrain = [\"/etc/passwd\"]\n", 400),
        ("broken", "no toml", 400),
    ] {
        server
            .send(
                "PUT",
                &format!("/presets/{name}"),
                "application/json",
                json!({"toml": toml}).to_string().as_bytes(),
            )
            .is(status);
    }
    let preset = server.get("/presets/mine").is(200).json();
    assert_eq!((&preset["is_builtin"], &preset["toml"]), (&json!(false), &json!("[method]\nrank = 8\n")));
}

#[test]
fn an_upload_that_is_cut_off_or_too_long_leaves_nothing() {
    let server = Server::start(|_| {});
    let head = |length: u64| {
        format!(
            "POST /api/v1/datasets?name=big.jsonl HTTP/1.1\r\nHost: localhost:{}\r\nAuthorization: Bearer {}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n",
            server.port, server.token
        )
    };
    let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    socket.write_all(head(1000).as_bytes()).unwrap();
    socket.write_all(b"{\"half\": ").unwrap();
    drop(socket);
    let announced = server.send_head(&head(1 << 50)).is(413);
    assert!(announced.json()["advice"].as_str().unwrap().contains("--data-dir"));
    let uploads = server.runs().join(".serve/uploads");
    let begun = Instant::now();
    // The writer notices a moment later that the client has left.
    while fs::read_dir(&uploads).is_ok_and(|mut files| files.next().is_some()) {
        assert!(begun.elapsed() < LONG, "{:?}", fs::read_dir(&uploads).unwrap().collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(20));
    }
    server.send("POST", "/datasets?name=big.jsonl", "application/octet-stream", b"{}\n").is(201);
}
