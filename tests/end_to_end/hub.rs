//! A model that lies on a hub: judged by its config, planned without its weights, fetched only to be trained.
//! Its server has a data set too.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::formats::parquet;
use crate::sparktune::{Done, Place, chat, checkpoint, done};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The fixture checkpoint as `org/tiny` on loopback, and chats as the data set `org/chats` and as one of the
/// catalog; every request is remembered as `GET /path`.
pub(crate) struct Hub {
    pub(crate) endpoint: String,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

/// The files of the data set: 40 chats in two files, 8 others, and tables in other formats.
fn data_set() -> Vec<(&'static str, Vec<u8>)> {
    let chats = |numbers: std::ops::Range<usize>| {
        numbers.map(|i| chat(i).to_string() + "\n").collect::<String>().into_bytes()
    };
    let card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: data/train-*}\n  - {split: test, path: test.jsonl}\n  - {split: answers, path: answers/*}\n  - {split: nested, path: nested/*}\n  - {split: sheet, path: sheet.csv}\n---\n";
    vec![
        ("README.md", card.into()),
        ("chats.py", b"print('never run')".to_vec()),
        ("data/train-00000-of-00002.jsonl", chats(0..20)),
        ("data/train-00001-of-00002.jsonl", chats(20..40)),
        ("test.jsonl", chats(100..108)),
        ("answers/0000.parquet", parquet("answers.parquet")),
        ("nested/0000.parquet", parquet("chats.parquet")),
        ("nested/0001.parquet", parquet("chats.parquet")),
        ("sheet.csv", b"prompt,completion\r\nWhat is a lamp?,\"Light,\r\nin a room.\"\r\n".to_vec()),
    ]
}

impl Hub {
    pub(crate) fn open() -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", door.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        std::thread::spawn(move || {
            for stream in door.incoming() {
                let seen = seen.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &seen));
            }
        });
        Self { endpoint, log }
    }

    fn asked_for_weights(&self) -> bool {
        self.log
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.starts_with("GET") && line.ends_with("model.safetensors"))
    }

    fn train(&self, place: &Place, more: &[&str]) -> Done {
        let mut command: Command =
            place.command(["train", "--non-interactive", "--json", "--model", "org/tiny"]);
        command
            .args(["--data", "train.jsonl", "--pack-length", "128", "--max-steps", "1", "--mtp", "none"])
            .args(more);
        done(
            command
                .env("HF_ENDPOINT", &self.endpoint)
                .env("HF_HUB_OFFLINE", "0")
                .env("HF_TOKEN", "hf_secretsecretsecret"),
        )
    }
}

fn answer(mut stream: TcpStream, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().split('?').next().unwrap());
    log.lock().unwrap().push(format!("{method} {path}"));
    // A data set of the catalog is the same under another name.
    let path = &path.replace("allenai/tulu-3-sft-personas-instruction-following", "org/chats");
    let file = path.strip_prefix("/org/tiny/resolve/").and_then(|rest| rest.split_once('/'));
    let of_data = path.strip_prefix("/datasets/org/chats/resolve/").and_then(|rest| rest.split_once('/'));
    let body = match file {
        Some((_, name)) => std::fs::read(checkpoint().join(name)).ok(),
        None if of_data.is_some() => {
            let (_, sought) = of_data.unwrap();
            data_set().into_iter().find(|(name, _)| *name == sought).map(|(_, bytes)| bytes)
        }
        None if path.starts_with("/api/datasets/org/chats/revision/") => {
            let file =
                |(name, bytes): (&str, Vec<u8>)| serde_json::json!({"rfilename": name, "size": bytes.len()});
            let siblings: Vec<_> = data_set().into_iter().map(file).collect();
            Some(serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string().into_bytes())
        }
        None if path.starts_with("/api/models/org/tiny/revision/") => {
            let names = std::fs::read_dir(checkpoint()).unwrap().map(|entry| entry.unwrap());
            let siblings: Vec<_> = names
                .map(|file| {
                    let size = file.metadata().unwrap().len();
                    serde_json::json!({"rfilename": file.file_name().to_str().unwrap(), "size": size})
                })
                .collect();
            Some(serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string().into_bytes())
        }
        None => None,
    };
    let (status, body) = body.map_or((404, Vec::new()), |body| (200, body));
    let etag = path.rsplit('/').next().unwrap().replace('.', "-");
    let head = format!(
        "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\netag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
    if method == "GET" {
        let _ = stream.write_all(&body);
    }
}

#[test]
fn a_plan_fetches_no_weights_and_a_training_fetches_them_once() {
    let (place, hub) = (Place::new(), Hub::open());
    place.chats(40);
    let planned = hub.train(&place, &["--dry-run"]).exits(0);
    assert_eq!(planned.last()["model"]["id"], "org/tiny");
    assert!(!hub.asked_for_weights(), "{:?}", hub.log.lock().unwrap());

    let trained = hub.train(&place, &[]).exits(0);
    assert!(hub.asked_for_weights());
    let provenance = std::fs::read_to_string(trained.run_dir().join("provenance.json")).unwrap();
    assert!(provenance.contains(COMMIT), "{provenance}");
    let plan = std::fs::read_to_string(trained.run_dir().join("plan.toml")).unwrap();
    assert!(plan.contains(&format!("snapshots/{COMMIT}")), "the weights are where the plan says: {plan}");
    for text in [&planned.out, &planned.err, &trained.out, &trained.err, &provenance, &plan] {
        assert!(!text.contains("secret"), "the token is in {text}");
    }

    hub.log.lock().unwrap().clear();
    hub.train(&place, &[]).exits(0);
    assert!(!hub.asked_for_weights(), "what is here is not fetched again");
}

#[test]
fn a_model_that_is_not_there_names_the_fix() {
    let (place, hub) = (Place::new(), Hub::open());
    place.chats(4);
    let mut command = place.command(["plan", "--model", "org/none", "--data", "train.jsonl"]);
    let result = done(command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_OFFLINE", "0")).exits(2);
    assert!(result.err.contains("org/none") && result.err.contains("HF_TOKEN"), "{}", result.err);
}
