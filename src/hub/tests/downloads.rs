//! Downloads in which nothing goes wrong: which files arrive, and where they are put.

use std::path::Path;

use sparktune_hub::{Error, Event, Needs, Origin, Progress};

use crate::fake_hub::*;

#[test]
fn the_config_comes_alone() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let config = home.hub(&server).fetch_config(ID, &()).unwrap();
    assert_eq!(config.text, r#"{"model_type":"qwen3"}"#);
    assert_eq!(config.origin, Origin::Hub);
    assert_eq!(std::fs::read_to_string(config.path).unwrap(), config.text);
    let gets: Vec<_> = server.log().into_iter().filter(|r| r.method == "GET").map(|r| r.path).collect();
    assert_eq!(gets.len(), 2, "{gets:?}");
    assert!(gets[0].starts_with("/api/models/org/tiny/revision/main") && gets[1].ends_with("/config.json"));
}

#[test]
fn a_plan_lists_what_is_needed_with_sizes_and_fetches_no_weight() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let plan = home.hub(&server).plan_download(ID, Needs::Model, &()).unwrap();
    let files: Vec<_> = plan.files.iter().map(|f| (f.name.as_str(), f.size)).collect();
    assert_eq!(
        files,
        [
            ("config.json", 22),
            ("tokenizer.json", 2),
            ("tokenizer_config.json", 17),
            ("chat_template.jinja", 14),
            (WEIGHTS, 3_000_000)
        ]
    );
    // config.json was read for the check on quantisation, so it is here already.
    assert_eq!(plan.bytes(), 3_000_055);
    assert_eq!(plan.bytes_missing(), 3_000_033);
    assert!(plan.disk_available.unwrap() > plan.bytes_missing());
    assert_eq!(plan.commit.as_deref(), Some(COMMIT));
    assert!(server.downloads_of(WEIGHTS).is_empty());
}

#[test]
fn a_model_arrives_in_the_standard_layout_and_is_not_fetched_twice() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub(&server);
    let snapshot = hub.fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(snapshot.folder, home.snapshot());
    assert_eq!(
        names_in(&snapshot.folder),
        ["chat_template.jinja", "config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    );
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    let etag = sha256(&weights());
    assert_eq!(
        std::fs::read_link(snapshot.folder.join(WEIGHTS)).unwrap(),
        Path::new("../../blobs").join(&etag)
    );
    assert_eq!(std::fs::read(home.blob(&etag)).unwrap(), weights());
    assert_eq!(std::fs::read_to_string(home.repo().join("refs/main")).unwrap(), COMMIT);
    assert!(!home.part(&etag).exists());

    server.forget();
    let plan = hub.plan_download(ID, Needs::Model, &()).unwrap();
    assert_eq!(plan.bytes_missing(), 0);
    let again = hub.download(&plan, &()).unwrap();
    assert_eq!(again.folder, snapshot.folder);
    assert_eq!(server.log().len(), 1, "only the list of files is asked for");
}

#[test]
fn files_that_pythons_library_downloaded_are_found() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    // As huggingface_hub leaves it: blobs by etag, relative links, a ref without a newline.
    std::fs::create_dir_all(home.snapshot()).unwrap();
    std::fs::create_dir_all(home.repo().join("blobs")).unwrap();
    std::fs::create_dir_all(home.repo().join("refs")).unwrap();
    std::fs::write(home.repo().join("refs/main"), COMMIT).unwrap();
    let etag = sha256(&weights());
    std::fs::write(home.blob(&etag), weights()).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{etag}"), home.snapshot().join(WEIGHTS)).unwrap();
    let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert!(server.downloads_of(WEIGHTS).is_empty());
}

#[test]
fn a_blob_of_another_revision_is_linked_and_not_fetched() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let newer = "f".repeat(40);
    for (name, bytes) in
        [("config.json", b"{\"v\":2}".to_vec()), ("tokenizer.json", b"{}".to_vec()), (WEIGHTS, weights())]
    {
        server.put_at(&newer, name, &bytes, name == WEIGHTS);
    }
    let hub = home.hub(&server);
    hub.fetch(ID, Needs::Model, &()).unwrap();
    server.forget();
    server.set_revision("v2", &newer);
    let plan = hub.plan_download("org/tiny@v2", Needs::Model, &()).unwrap();
    assert_eq!(plan.bytes_missing(), 0);
    let snapshot = hub.download(&plan, &()).unwrap();
    assert_eq!(std::fs::read_to_string(snapshot.folder.join("config.json")).unwrap(), "{\"v\":2}");
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert!(server.downloads_of(WEIGHTS).is_empty());
    assert_eq!(std::fs::read_to_string(home.repo().join("refs/v2")).unwrap(), newer);
}

#[test]
fn a_blob_cut_short_by_a_power_failure_is_fetched_again() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub(&server);
    hub.fetch(ID, Needs::Model, &()).unwrap();
    std::fs::write(home.blob(&sha256(&weights())), b"short").unwrap();
    let plan = hub.plan_download(ID, Needs::Model, &()).unwrap();
    assert_eq!(plan.bytes_missing(), 3_000_000);
    let snapshot = hub.download(&plan, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
}

#[test]
fn shards_come_by_the_index_and_mtp_takes_only_its_own() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    let hub = home.hub(&server);
    let mtp = hub.fetch(ID, Needs::Mtp, &()).unwrap();
    assert_eq!(mtp.files, ["config.json", "model.safetensors.index.json", "model-2.safetensors"]);
    assert_eq!(names_in(&mtp.folder), ["config.json", "model-2.safetensors", "model.safetensors.index.json"]);
    assert!(server.downloads_of("model-1.safetensors").is_empty());
    server.forget();
    let whole = hub.fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(whole.folder.join("model-1.safetensors")).unwrap(), noise(400_000, 1));
    assert!(server.downloads_of("model-2.safetensors").is_empty());
}

#[test]
fn the_tokenizer_comes_without_weights() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let snapshot = home.hub(&server).fetch(ID, Needs::Tokenizer, &()).unwrap();
    assert_eq!(
        names_in(&snapshot.folder),
        ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]
    );
}

#[test]
fn a_renamed_repository_is_followed() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|request| {
        let new = request.path.replace("/org/old", "/org/tiny");
        (new != request.path).then(|| Act::Say(307, vec![("location", new)], vec![]))
    });
    let snapshot = home.hub(&server).fetch("org/old", Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_local_folder_needs_no_network() {
    let home = Home::new();
    let folder = home.dir.path().join("my model");
    std::fs::create_dir(&folder).unwrap();
    for name in ["config.json", "tokenizer.json", WEIGHTS, "notes.txt"] {
        std::fs::write(folder.join(name), "{}").unwrap();
    }
    let hub = home.hub_with("http://127.0.0.1:1", &[]);
    let path = folder.to_str().unwrap();
    let snapshot = hub.fetch(path, Needs::Model, &()).unwrap();
    assert_eq!((snapshot.folder, snapshot.origin, snapshot.commit), (folder.clone(), Origin::Folder, None));
    assert_eq!(snapshot.files, ["config.json", "tokenizer.json", WEIGHTS]);
    assert_eq!(hub.fetch_config(path, &()).unwrap().text, "{}");

    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let error = hub.fetch(path, Needs::Model, &()).unwrap_err();
    assert!(matches!(&error, Error::FileMissing { file, .. } if file == "tokenizer.json"), "{error}");
}

#[test]
fn progress_accounts_for_every_byte() {
    #[derive(Default)]
    struct Sum(std::sync::Mutex<(u64, u64, Vec<String>)>);
    impl Progress for Sum {
        fn on(&self, event: Event<'_>) {
            let mut sum = self.0.lock().unwrap();
            match event {
                Event::Begin { files, bytes, .. } => (sum.0, sum.2) = (bytes, vec![format!("{files} files")]),
                Event::Bytes { count, .. } => sum.1 += count,
                Event::Done { name, .. } => sum.2.push(name.into()),
                _ => {}
            }
        }
    }
    let (server, home) = (FakeHub::with_shards(), Home::new());
    let sum = Sum::default();
    home.hub(&server).fetch(ID, Needs::Model, &sum).unwrap();
    let (begin, bytes, mut done) = sum.0.into_inner().unwrap();
    assert_eq!(begin, bytes);
    done[1..].sort();
    assert_eq!(
        done,
        [
            "5 files",
            "chat_template.jinja",
            "model-1.safetensors",
            "model-2.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
}
