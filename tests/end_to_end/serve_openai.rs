//! OpenAI's API on a real server with small models: answers, streams, errors, limits, and clients that leave.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::server::{Server, wait_until};
use crate::sparktune::{Done, Place, checkpoint};

const CHAT: &str = "/v1/chat/completions";
const MODEL: &str = "dir:checkpoint";

fn serve(place: &Place) -> Server {
    Server::start(place, &["--model", checkpoint().to_str().unwrap()])
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Say something"}], "temperature": 0, "max_tokens": 12});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An answer that would take minutes.
fn long_chat() -> Value {
    chat(json!({"n": 8, "max_tokens": 3000, "ignore_eos": true, "temperature": 1, "stream": true}))
}

/// What `generate` says: its text, and each token with its log-probability.
fn generated(done: &Done) -> (String, Vec<(String, f64)>) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for line in done.out.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["event"] == "text" {
            text.push_str(line["text"].as_str().unwrap());
            for token in line["tokens"].as_array().unwrap() {
                let spelled = line["spelled"].as_array().unwrap().iter().find(|pair| pair[0] == token["id"]);
                tokens.push((
                    spelled.unwrap()[1].as_str().unwrap().to_owned(),
                    token["logprob"].as_f64().unwrap(),
                ));
            }
        }
    }
    (text, tokens)
}

fn told(choice: &Value) -> Vec<(String, f64)> {
    let content = choice["logprobs"]["content"].as_array().unwrap().iter();
    content.map(|t| (t["token"].as_str().unwrap().to_owned(), t["logprob"].as_f64().unwrap())).collect()
}

#[test]
fn answers_are_those_of_generate_for_a_base_and_a_run_that_share_a_worker() {
    let (place, run) = Place::with_finished_run();
    let server = serve(&place);
    let id = format!("run:{}", run.file_name().unwrap().to_str().unwrap());
    let base = checkpoint();
    for (folder, id) in [(base.to_str().unwrap(), MODEL), (run.to_str().unwrap(), id.as_str())] {
        let flags = [
            "--prompt",
            "Say something",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--logprobs",
            "1",
            "--json",
        ];
        let done = place.sparktune([&["generate", folder], &flags[..]].concat()).exits(0);
        let (text, tokens) = generated(&done);
        let whole =
            server.post(CHAT, &chat(json!({"model": id, "logprobs": true, "top_logprobs": 1}))).has(200);
        let choice = &whole["choices"][0];
        assert_eq!(told(choice), tokens, "{whole}");
        assert_eq!(whole["usage"]["completion_tokens"], tokens.len());
        let message = &choice["message"];
        let (reasoning, content) = (message["reasoning_content"].as_str(), message["content"].as_str());
        let same = [reasoning, content].into_iter().flatten().collect::<String>();
        assert_eq!(same.replace("</think>", "").trim(), text.replace("</think>", "").trim(), "{message}");

        // A stream is the same, piece by piece, and the template's variables have their effect.
        let more = json!({"model": id, "stream": true, "stream_options": {"include_usage": true}});
        let chunks = server.post(CHAT, &chat(more)).chunks();
        let (usage, chunks) = chunks.split_last().unwrap();
        assert_eq!(usage["usage"], whole["usage"]);
        let part = |name: &str| {
            chunks.iter().filter_map(|c| c["choices"][0]["delta"][name].as_str()).collect::<String>()
        };
        assert_eq!(part("reasoning_content"), reasoning.unwrap_or_default());
        assert_eq!(part("content"), content.unwrap_or_default());
        let end = chunks.last().unwrap();
        assert_eq!(end["choices"][0]["finish_reason"], choice["finish_reason"]);
        let quick = json!({"model": id, "chat_template_kwargs": {"enable_thinking": false}});
        let quick = server.post(CHAT, &chat(quick)).has(200);
        assert_eq!(quick["choices"][0]["message"].get("reasoning_content"), None, "{quick}");
    }
    assert_eq!(server.children().len(), 1, "both use one worker");
    let models = server.get("/api/v1/models").has(200);
    let loaded = models["items"].as_array().unwrap().iter().filter(|model| model["loaded"] == true).count();
    assert_eq!(loaded, 2, "{models}");
    let ids = server.get("/v1/models").has(200);
    assert!(ids["data"].as_array().unwrap().iter().any(|model| model["id"] == id.as_str()), "{ids}");

    // What the request leaves open is as the model's makers want it (`generation_config.json`).
    let makers = ["--top-k", "20", "--top-p", "0.95", "--logprobs", "1"];
    let raw = ["--raw", "--prompt", "Once", "--seed", "3", "--max-tokens", "5", "--json"];
    let (text, _) =
        generated(&place.sparktune([&["generate", base.to_str().unwrap()], &makers[..], &raw[..]].concat()));
    let body = json!({"prompt": ["Once", "Twice"], "seed": 3, "max_tokens": 5, "logprobs": 1});
    let done = server.post("/v1/completions", &body).has(200);
    assert_eq!(done["choices"][0]["text"], text, "{done}");
    assert_eq!((&done["choices"][1]["index"], done["choices"].as_array().unwrap().len()), (&json!(1), 2));
    server.post("/api/v1/models/load", &json!({"model": MODEL})).has(202);
    // A model that is unloaded before it has been loaded is loaded after that.
    wait_until("the end of loading", || {
        server.get("/api/v1/tasks").has(200)["items"].as_array().unwrap().iter().all(|t| t["state"] == "done")
    });
    for model in [id.as_str(), MODEL] {
        server.post("/api/v1/models/unload", &json!({"model": model})).has(204);
    }
    wait_until("the end of the worker", || server.children().is_empty());
}

#[test]
fn what_cannot_be_answered_is_refused_in_openais_form() {
    let place = Place::new();
    let server = serve(&place);
    let refused = |body: &str, status: u16, param: Option<&str>, words: &str| {
        let answer = server.request("POST", CHAT, body);
        let error = &answer.has(status)["error"];
        assert_eq!(error["param"].as_str(), param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words) && error["type"].is_string(), "{error}");
    };
    refused("{", 400, None, "JSON");
    refused("[]", 400, None, "not a JSON object");
    refused(r#"{"messages":"hi"}"#, 400, Some("messages"), "messages must be an array");
    refused(r#"{"messages":[5]}"#, 400, None, "cannot be read");
    refused(r#"{"messages":[]}"#, 400, None, "no list");
    refused(&chat(json!({"model": "dir:../x"})).to_string(), 404, Some("model"), "GET /v1/models");
    refused(&chat(json!({"model": checkpoint().to_str()})).to_string(), 404, Some("model"), "no model");
    refused(&chat(json!({"logit_bias": {"1": 5}})).to_string(), 400, Some("logit_bias"), "not supported");
    refused(&chat(json!({"top_p": 2})).to_string(), 400, Some("top_p"), "at most 1");
    refused(&chat(json!({"n": 99})).to_string(), 400, Some("n"), "1 to 16");
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    refused(&chat(image).to_string(), 400, None, "without `text`");
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(200_000)}]});
    refused(&chat(long).to_string(), 400, None, "Shorten the prompt");
    let huge = json!({"messages": [{"role": "user", "content": "x".repeat(3 << 20)}]});
    refused(&chat(huge).to_string(), 413, None, "fewer or shorter");
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    refused(&deep, 400, None, "recursion");
    let streamed = server.post(CHAT, &chat(json!({"stream": true, "messages": []})));
    assert!(
        streamed.has(400)["error"]["message"].is_string(),
        "an error before the first token has a status"
    );
    assert_eq!(server.get("/v1/models/nothing").has(404)["error"]["code"], "model_not_found");
}

/// The time on the processors that a process has taken, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn too_many_answers_are_told_to_come_back_and_those_of_clients_that_leave_are_not_computed() {
    let place = Place::new();
    let server = serve(&place);
    let answers = || {
        let models = server.get("/api/v1/models").has(200);
        let mut of_model = models["items"].as_array().unwrap().iter();
        of_model.find(|model| model["id"] == MODEL).unwrap()["answers"].as_u64().unwrap_or(0)
    };
    let held: Vec<_> = (0..5)
        .map(|i| {
            let body = long_chat().to_string();
            let mut stream = BufReader::new(server.send("POST", CHAT, &body));
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert!(line.contains("200"), "{i}: {line}");
            stream
        })
        .collect();
    assert_eq!(answers(), 40);
    let busy = server.post(CHAT, &chat(json!({})));
    assert_eq!(busy.has(429)["error"]["code"], "rate_limit_exceeded");
    assert!(busy.head.to_lowercase().contains("retry-after: "), "{}", busy.head);

    let [worker] = server.children()[..] else { panic!("one worker") };
    let before = ticks(worker);
    wait_until("work on the answers", || ticks(worker) > before + 5);
    drop(held);
    wait_until("the end of the answers", || answers() == 0);
    // What was being computed when the last client left is completed.
    wait_until("the end of the work", || {
        let before = ticks(worker);
        std::thread::sleep(Duration::from_millis(300));
        ticks(worker) <= before + 1
    });
    // A client that waits for a whole answer leaves as well.
    let mut whole = long_chat();
    whole["stream"] = json!(false);
    let connection = server.send("POST", CHAT, &whole.to_string());
    wait_until("the beginning of the answer", || answers() == 8);
    drop(connection);
    wait_until("the end of the answer", || answers() == 0);
    server.post(CHAT, &chat(json!({}))).has(200);
}

#[test]
fn a_worker_that_is_killed_fails_its_answers_alone_and_one_without_a_server_ends() {
    let place = Place::new();
    let mut server = serve(&place);
    let kill = |pid: u32| {
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    };
    let mut stream = BufReader::new(server.send("POST", CHAT, &long_chat().to_string()));
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    kill(server.children()[0]);
    let rest: Vec<String> = stream.lines().map_while(Result::ok).collect();
    let error = rest.iter().rev().find(|line| line.contains("\"error\"")).expect("the stream tells it");
    assert!(error.contains("signal: 9") && error.contains("Ask again"), "{error}");
    server.post(CHAT, &chat(json!({}))).has(200);

    let connection = server.send("POST", CHAT, &long_chat().to_string());
    let [worker] = server.children()[..] else { panic!("one worker") };
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    wait_until("the end of the worker", || {
        std::fs::read_to_string(format!("/proc/{worker}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
    drop(connection);
}

#[test]
fn conversations_are_kept_only_on_request_and_are_data_to_train_on() {
    let place = Place::new();
    let server = serve(&place);
    let list = || server.get("/api/v1/chats").has(200)["items"].as_array().unwrap().clone();
    server.post(CHAT, &chat(json!({}))).has(200);
    assert!(list().is_empty() && !place.join("runs/.serve/chats").join("0").exists());
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    for (id, text) in [("00000000000000aa", "River and stone."), ("00000000000000bb", "Cloud and lamp.")] {
        let kept = json!({"title": text, "model": MODEL, "messages": [turn("user", "Say two words."), turn("assistant", text)]});
        server.request("PUT", &format!("/api/v1/chats/{id}"), &kept.to_string()).has(200);
    }
    let more = json!({"messages": [turn("user", "Again.")]});
    let chat = server.post("/api/v1/chats/00000000000000aa/messages", &more).has(200);
    assert_eq!(chat["messages"].as_array().unwrap().len(), 3);
    assert_eq!(list()[0]["id"], "00000000000000aa");
    for id in ["export%2F..", "..%2F..%2Fx", "00000000000000cc", "x"] {
        server.get(&format!("/api/v1/chats/{id}")).has(404);
    }
    let data = server.get("/api/v1/chats/export");
    place.write("chats.jsonl", &data.body);
    let model = checkpoint();
    let checked =
        place.sparktune(["check", "chats.jsonl", "--model", model.to_str().unwrap(), "--json"]).exits(0);
    let report = &checked.last()["report"];
    assert_eq!((&report["examples"], &report["rejected"]), (&json!(2), &json!(0)));
    let folder = place.sparktune([
        "check",
        "runs/.serve/chats/00000000000000aa.jsonl",
        "--model",
        model.to_str().unwrap(),
    ]);
    folder.exits(0);
    for (id, status) in [("00000000000000aa", 204), ("00000000000000aa", 404)] {
        server.request("DELETE", &format!("/api/v1/chats/{id}"), "").has(status);
    }
    assert_eq!(list().len(), 1);
}

#[test]
fn the_official_python_client_works() {
    if !Command::new("python3").args(["-c", "import openai"]).output().is_ok_and(|done| done.status.success())
    {
        println!("skipped: OpenAI's client is not tried, because python3 does not have the package `openai`");
        return;
    }
    let place = Place::new();
    let server = serve(&place);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/openai_client.py");
    let mut client = Command::new("python3");
    client
        .args([script, &format!("http://{}", server.address), "dir:demo"])
        .env("SPARKTUNE_TOKEN", &server.token);
    let done = client.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    println!("{said}");
}
