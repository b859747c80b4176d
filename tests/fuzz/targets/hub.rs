//! What the hub and its cache hold: lists of files, cards of data sets, indexes of shards, and raw answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sparktune_hub::{Error, Hub, Needs, Patience};

use super::{empty_folder, is_a_sentence, parts};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The list of a data set's files, its card, and a name of one of its splits, as the cache holds them.
pub(super) fn data_set(input: &[u8]) {
    let [list, card, split] = parts(input);
    let cache = empty_folder("hub");
    let repo = cache.join("datasets--org--name");
    write(&repo.join(".listings").join(format!("{COMMIT}.json")), list);
    write(&repo.join("refs/main"), COMMIT.as_bytes());
    write(&repo.join("snapshots").join(COMMIT).join("README.md"), card);
    let hub = hub(&cache, &[("HF_HUB_OFFLINE", "1")]);
    let split = String::from_utf8_lossy(split);
    let name = if split.is_empty() { "hf:org/name".to_owned() } else { format!("hf:org/name{split}") };
    let (first, second) = (hub.plan_data_set(&name, &()), hub.plan_data_set(&name, &()));
    match (first, second) {
        (Ok(first), Ok(second)) => {
            assert_eq!(first.pinned, second.pinned);
            let files = |plan: &sparktune_hub::DataSetPlan| {
                plan.download.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>()
            };
            assert_eq!(files(&first), files(&second));
            files(&first).iter().for_each(|file| is_inside(file));
        }
        (Err(first), Err(second)) => {
            is_a_sentence(&first);
            assert_eq!(first.to_string(), second.to_string());
        }
        (first, second) => panic!("{first:?} and then {second:?}"),
    }
}

/// The config and the index of shards of a model's folder.
pub(super) fn model(input: &[u8]) {
    let [config, index] = parts(input);
    let folder = empty_folder("model");
    write(&folder.join("config.json"), config);
    write(&folder.join("tokenizer.json"), b"{}");
    write(&folder.join("model.safetensors.index.json"), index);
    write(&folder.join("a.safetensors"), b"");
    let hub = hub(&folder, &[("HF_HUB_OFFLINE", "1")]);
    for needs in [Needs::Config, Needs::Tokenizer, Needs::Model, Needs::Mtp] {
        match hub.plan_download(&folder.display().to_string(), needs, &()) {
            Ok(plan) => plan.files.iter().for_each(|file| is_inside(&file.name)),
            Err(error) => is_a_sentence(&error),
        }
    }
}

/// Raw answers of a server, one after the other: to the list of files, to the head of a file, and so on. The
/// last is repeated.
pub(super) fn answers(input: &[u8]) {
    let replies: [&[u8]; 4] = parts(input);
    let server = Server::of_this_process();
    server.begin(replies);
    let endpoint = format!("http://{}", server.address);
    let hub = hub(&empty_folder("hub"), &[("HF_ENDPOINT", &endpoint)]).with_patience(Patience {
        attempts: 1,
        first_wait: Duration::ZERO,
        silence: Duration::from_millis(500),
        list: Duration::from_secs(2),
        period: Duration::from_secs(2),
    });
    let check = |error: Error| is_a_sentence(&error);
    match hub.fetch("org/name", Needs::Tokenizer, &()) {
        Ok(snapshot) => snapshot.files.iter().for_each(|file| is_inside(file)),
        Err(error) => check(error),
    }
    server.begin(replies);
    hub.plan_data_set("hf:org/name", &()).map_or_else(check, |plan| {
        plan.download.files.iter().for_each(|file| is_inside(&file.name));
    });
}

/// Checks that a file with this name is below the folder that it is joined to.
fn is_inside(name: &str) {
    let is_plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    assert!(is_plain && !name.contains('\\') && !name.contains('\0'), "{name:?} leads elsewhere");
}

fn hub(cache: &Path, settings: &[(&str, &str)]) -> Hub {
    let cache = cache.display().to_string();
    let of = |name: &str| {
        let set = settings.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        set.or_else(|| matches!(name, "HF_HUB_CACHE" | "HF_HOME").then(|| cache.clone()))
    };
    Hub::from_env(of).expect("these settings are valid")
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
    std::fs::write(path, bytes).expect("the file can be written");
}

/// A server that answers without having read what was asked.
struct Server {
    address: SocketAddr,
    /// The answers that are left, the next one last.
    replies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    fn of_this_process() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| {
            let door = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let address = door.local_addr().expect("the port is known");
            let replies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
            let left = replies.clone();
            std::thread::spawn(move || {
                for stream in door.incoming() {
                    let Ok(mut stream) = stream else { continue };
                    let mut asked = Vec::new();
                    let mut byte = [0; 1];
                    while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1)
                    {
                        asked.push(byte[0]);
                    }
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    let reply = if left.len() > 1 { left.pop() } else { left.last().cloned() };
                    // The other side may have closed.
                    let _ = stream.write_all(&reply.unwrap_or_default());
                }
            });
            Self { address, replies }
        })
    }

    fn begin(&self, replies: [&[u8]; 4]) {
        let given = replies.iter().filter(|reply| !reply.is_empty()).rev();
        let mut left = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        *left = given.map(|reply| reply.to_vec()).collect();
    }
}
