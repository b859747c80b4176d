//! Comparisons and the arena through the API.

use serde_json::{Value, json};
use sparktune_compare::{
    Answer, CodeRuns, Comparison, ModelAnswers, ModelRef, PromptShown, Summary, VERSION,
};
use sparktune_sampling::SamplingParams;

use super::client::Server;

const ID: &str = "1800000000-arithmetic-0001";

/// Keeps a comparison of two models, whose answers to the last prompt are the same.
fn keep(server: &Server, prompts: usize) {
    let prompt = |number: usize| PromptShown {
        id: number.to_string(),
        messages: json!([{"role": "user", "content": "<script>alert(1)</script>"}]),
        reference: None,
        sampling: SamplingParams::default(),
        checks: Vec::new(),
    };
    let answer = |prompt: usize, name: &str| {
        let text = if prompt + 1 == prompts { "the same".into() } else { format!("<b>{}</b>", name.len()) };
        Answer { prompt: prompt.to_string(), text, ..Answer::default() }
    };
    let model = |name: &str| ModelAnswers {
        model: ModelRef { id: format!("run:{name}"), name: name.into() },
        answers: (0..prompts).map(|prompt| answer(prompt, name)).collect(),
        generating_ms: 1.0,
        load_ms: 1.0,
        summary: Summary::default(),
    };
    let mut comparison = Comparison {
        version: VERSION,
        id: ID.into(),
        created_us: 1_800_000_000_000_000,
        suite: "arithmetic".into(),
        about: String::new(),
        judge: None,
        code: CodeRuns::NotNeeded,
        at_a_time: 1,
        notes: Vec::new(),
        prompts: (0..prompts).map(prompt).collect(),
        models: vec![model("before"), model("afterwards")],
        differences: Vec::new(),
    };
    comparison.summarise();
    let folder = server.runs_dir().join(".comparisons");
    std::fs::create_dir_all(server.runs_dir()).unwrap();
    sparktune_base::files::create_private_folder(&folder).unwrap();
    std::fs::write(folder.join(format!("{ID}.json")), serde_json::to_vec(&comparison).unwrap()).unwrap();
}

#[test]
fn a_comparison_has_the_answers_of_all_models() {
    let server = Server::start();
    keep(&server, 2);
    let listed = server.json("/api/v1/comparisons");
    assert_eq!(
        (&listed["items"][0]["id"], &listed["items"][0]["prompts"]),
        (&json!(ID), &json!(2)),
        "{listed}"
    );
    let read = server.json(&format!("/api/v1/comparisons/{ID}"));
    let texts =
        ["/models/0/answers/0/text", "/models/1/answers/0/text"].map(|place| read.pointer(place).unwrap());
    assert_eq!(texts, ["<b>6</b>", "<b>10</b>"]);
    assert_eq!(read["models"][1]["id"], "run:afterwards");
    assert_eq!(server.ask("GET /api/v1/comparisons/other", "").status, 404);
    let suites = server.json("/api/v1/suites");
    assert!(suites["items"].as_array().unwrap().iter().any(|suite| suite["name"] == "coding"), "{suites}");
    // A suite is a name of one, and never a file.
    let answer = server.ask("POST /api/v1/comparisons", r#"{"models":["dir:demo"],"suite":"/etc/passwd"}"#);
    assert!(answer.status == 404 && answer.body.contains("no suite"), "{}", answer.body);
    let answer = server.ask("POST /api/v1/comparisons", r#"{"models":["dir:../x"],"suite":"arithmetic"}"#);
    assert_eq!(answer.status, 404, "{}", answer.body);
    let answer = server.ask("POST /api/v1/comparisons", r#"{"models":[],"suite":"arithmetic"}"#);
    assert!(answer.status == 400 && answer.body.contains("advice"), "{}", answer.body);
    assert_eq!(server.ask(&format!("DELETE /api/v1/comparisons/{ID}"), "").status, 204);
    assert_eq!(server.json("/api/v1/comparisons")["items"], json!([]));
}

#[test]
fn a_vote_is_blind_kept_and_counted_once_for_each_pair() {
    let server = Server::start();
    keep(&server, 2);
    let blind = server.ask(&format!("GET /api/v1/comparisons/{ID}/blind"), "").body;
    assert!(!blind.contains("before") && !blind.contains("afterwards"), "{blind}");
    let blind: Value = serde_json::from_str(&blind).unwrap();
    // The answers to the other prompt are the same.
    assert_eq!((&blind["left_to_judge"], &blind["pair"]["prompt"]), (&json!(1), &json!(0)));
    let pair = &blind["pair"];
    let vote = json!({"prompt": 0, "left": pair["left"]["token"], "right": pair["right"]["token"], "winner": "left"});
    let forged =
        json!({"prompt": 0, "left": "run:before", "right": pair["right"]["token"], "winner": "left"});
    let path = format!("POST /api/v1/comparisons/{ID}/votes");
    assert_eq!(server.ask(&path, &forged.to_string()).status, 409);
    let mut same = vote.clone();
    same["right"] = same["left"].clone();
    assert_eq!(server.ask(&path, &same.to_string()).status, 400);
    // A vote of a later version, and one of which a power cut has left a part.
    let odd = "{\"time_us\":1,\"prompt\":0,\"ranking\":[2,1]}\n{\"time_us\":";
    let file = server.runs_dir().join(format!(".serve/votes/{ID}.jsonl"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, odd).unwrap();
    let revealed = server.ask(&path, &vote.to_string());
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.starts_with(&format!("{odd}\n")) && kept.lines().count() == 3, "{kept}");
    assert_eq!(revealed.status, 200, "{}", revealed.body);
    let revealed: Value = serde_json::from_str(&revealed.body).unwrap();
    let winner = if pair["left"]["text"] == "<b>6</b>" { "before" } else { "afterwards" };
    assert_eq!(revealed["left"], winner);
    let again = server.ask(&path, &vote.to_string());
    assert!(again.status == 409 && again.body.contains("judged already"), "{}", again.body);
    let votes = server.json(&format!("/api/v1/comparisons/{ID}/votes"));
    let of = |name: &str| {
        votes["models"].as_array().unwrap().iter().find(|model| model["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&votes["votes"], &of(winner)["wins"], &of(winner)["losses"]),
        (&json!(1), &json!(1), &json!(0))
    );
    let after = server.json(&format!("/api/v1/comparisons/{ID}/blind"));
    assert_eq!((&after["pair"], &after["votes"]), (&Value::Null, &json!(1)));
}

#[test]
fn two_servers_of_the_same_runs_lose_no_vote_and_count_none_twice() {
    let one = Server::start();
    keep(&one, 25);
    let other = Server::beside(&one);
    let judge_all = |server: &Server| {
        let mut counted = 0;
        loop {
            let pair = server.json(&format!("/api/v1/comparisons/{ID}/blind"))["pair"].take();
            if pair.is_null() {
                return counted;
            }
            let vote = json!({"prompt": pair["prompt"], "left": pair["left"]["token"], "right": pair["right"]["token"], "winner": "tie"});
            match server.ask(&format!("POST /api/v1/comparisons/{ID}/votes"), &vote.to_string()).status {
                200 => counted += 1,
                status => assert_eq!(status, 409, "the other server was faster, or nothing else"),
            }
        }
    };
    let counted: i32 = std::thread::scope(|scope| {
        let judges = [&one, &other, &one, &other].map(|server| scope.spawn(move || judge_all(server)));
        judges.map(|judge| judge.join().unwrap()).iter().sum()
    });
    assert_eq!((counted, &one.json(&format!("/api/v1/comparisons/{ID}/votes"))["votes"]), (24, &json!(24)));
}
