//! Data sets: which files of a repository arrive, at which commit, and what is refused.

use sparktune_hub::{DataSetPlan, Error, Hub, Origin, Snapshot};

use crate::fake_hub::*;

const NAME: &str = "hf:org/tiny";
const TRAIN: [&str; 2] = ["en/train-00000-of-00002.jsonl", "en/train-00001-of-00002.jsonl"];

/// Plans and downloads.
fn fetch(hub: &Hub, name: &str) -> Result<(DataSetPlan, Snapshot), Error> {
    let plan = hub.plan_data_set(name, &())?;
    let snapshot = hub.download(&plan.download, &())?;
    Ok((plan, snapshot))
}

fn error_of(hub: &Hub, name: &str) -> (Error, String) {
    let error = fetch(hub, name).expect_err(name);
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_split_arrives_in_the_standard_layout_and_nothing_else_does() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let hub = home.hub(&server);
    let (plan, snapshot) = fetch(&hub, NAME).unwrap();
    assert_eq!(plan.pinned, format!("hf:org/tiny@{COMMIT}"));
    assert_eq!(snapshot.folder, home.data_repo().join("snapshots").join(COMMIT));
    assert_eq!(snapshot.files, TRAIN);
    for (number, file) in (0..).zip(TRAIN) {
        assert_eq!(std::fs::read(snapshot.folder.join(file)).unwrap(), lines(number));
    }
    let link = std::fs::read_link(snapshot.folder.join(TRAIN[0])).unwrap();
    assert_eq!(link, std::path::Path::new("../../../blobs").join(sha256(&lines(0))));
    assert_eq!(std::fs::read_to_string(home.data_repo().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(names_in(&snapshot.folder), ["README.md", "en"]);
    assert!(server.log().iter().all(|request| {
        request.path.starts_with("/api/datasets/org/tiny/revision/")
            || request.path.starts_with("/datasets/org/tiny/resolve/")
            || request.role == Role::Cdn
    }));

    server.forget();
    let plan = hub.plan_data_set(NAME, &()).unwrap();
    assert_eq!(plan.download.bytes_missing(), 0);
    assert_eq!(server.log().len(), 1, "only the list of files is asked for");
    let (_, test) = fetch(&hub, "hf:org/tiny/en:test").unwrap();
    assert_eq!(std::fs::read(test.folder.join("en/test.jsonl")).unwrap(), lines(2));
    let (_, german) = fetch(&hub, "hf:org/tiny/de").unwrap();
    assert_eq!(std::fs::read(german.folder.join("de/all of it (ä).jsonl")).unwrap(), lines(3));
}

#[test]
fn a_pinned_name_gives_the_same_bytes_whatever_becomes_of_the_branch_and_asks_nobody() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let hub = home.hub(&server);
    let (first, _) = fetch(&hub, NAME).unwrap();
    let newer = "f".repeat(40);
    server.put_at(&newer, "train.jsonl", b"{}", false);
    server.set_revision("main", &newer);
    let (moved, snapshot) = fetch(&hub, NAME).unwrap();
    assert_eq!(
        (moved.pinned, snapshot.files),
        (format!("hf:org/tiny@{newer}"), vec!["train.jsonl".to_owned()])
    );

    server.forget();
    let (again, snapshot) = fetch(&hub, &first.pinned).unwrap();
    assert_eq!((again.pinned, snapshot.files.as_slice()), (first.pinned, &TRAIN.map(str::to_owned)[..]));
    assert!(server.log().is_empty(), "the files of a commit never change");
}

#[test]
fn offline_a_whole_split_is_there_and_half_of_one_is_not() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let offline = home.hub_with(&server.endpoint(), &[("HF_HUB_OFFLINE", "1")]);
    let (error, text) = error_of(&offline, NAME);
    assert!(matches!(error, Error::Offline { .. }) && text.contains("no file of this data set"), "{text}");
    fetch(&home.hub(&server), NAME).unwrap();
    // The other config stops half way, at the same commit.
    server.rule(|r| (r.role == Role::Cdn && r.path.contains("/de/")).then_some(Act::CutAfter(0)));
    error_of(&home.hub(&server), "hf:org/tiny/de");
    server.forget();
    let (plan, snapshot) = fetch(&offline, NAME).unwrap();
    assert_eq!((snapshot.origin, snapshot.files.as_slice()), (Origin::Cache, &TRAIN.map(str::to_owned)[..]));
    assert_eq!(plan.pinned, format!("hf:org/tiny@{COMMIT}"));
    assert_eq!(fetch(&offline, &plan.pinned).unwrap().1.files, TRAIN);
    for (name, missing) in [("hf:org/tiny/de", "all of it"), ("hf:org/tiny:test", "test.jsonl")] {
        let (error, text) = error_of(&offline, name);
        assert!(matches!(error, Error::Offline { .. }) && text.contains(missing), "{text}");
    }
    assert!(server.log().is_empty());
}

#[test]
fn files_that_pythons_library_downloaded_are_found_and_a_gap_in_them_too() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    fetch(&home.hub(&server), NAME).unwrap();
    std::fs::remove_dir_all(home.data_repo().join(".listings")).unwrap();
    let offline = home.hub_with(&server.endpoint(), &[("HF_HUB_OFFLINE", "1")]);
    let (_, snapshot) = fetch(&offline, NAME).unwrap();
    assert_eq!(snapshot.files, TRAIN);
    std::fs::remove_file(snapshot.folder.join(TRAIN[0])).unwrap();
    let (error, text) = error_of(&offline, NAME);
    assert!(matches!(error, Error::Offline { .. }) && text.contains("train-00000-of-00002"), "{text}");
}

#[test]
fn an_unreachable_hub_is_replaced_by_the_cache_and_said() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    fetch(&home.hub(&server), NAME).unwrap();
    let away = home.hub_with("http://127.0.0.1:1", &[]);
    let (_, snapshot) = fetch(&away, NAME).unwrap();
    assert!(matches!(snapshot.origin, Origin::CacheInstead { .. }) && snapshot.files == TRAIN);
    let (error, text) = error_of(&away, "hf:org/tiny:test");
    assert!(matches!(error, Error::HubAway { .. }) && text.contains("en/test.jsonl"), "{text}");
}

#[test]
fn a_download_given_up_is_continued_by_the_next_command() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    server.rule(|r| {
        let is_hit = r.role == Role::Cdn && r.is_get_of("train-00001-of-00002.jsonl");
        is_hit.then(|| Act::CutAfter(if r.start() == 0 { 500 } else { 0 }))
    });
    let (error, text) = error_of(&home.hub(&server), NAME);
    assert!(matches!(error, Error::Interrupted { .. }) && text.contains("hf:org/tiny"), "{text}");
    server.be_good();
    server.forget();
    let (_, snapshot) = fetch(&home.hub(&server), NAME).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(TRAIN[1])).unwrap(), lines(1));
    let starts: Vec<usize> =
        server.downloads_of("train-00001-of-00002.jsonl").iter().map(Request::start).collect();
    assert!(starts[0] > 0, "{starts:?}");
}

#[test]
fn a_missing_data_set_revision_config_or_split_each_has_its_own_words() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let hub = home.hub(&server);
    for (name, words) in [
        ("hf:org/none", &["hf:org/none", "no such data set", "HF_TOKEN"][..]),
        ("hf:org/tiny@v9", &["the data set exists, but not this revision"]),
        ("hf:org/tiny/fr", &["no config \"fr\"", "\"en\", \"de\""]),
        ("hf:org/tiny:dev", &["no split \"dev\"", "\"test\", \"train\""]),
        ("hf:tiny", &["hf:OWNER/NAME"]),
    ] {
        let (_, text) = error_of(&hub, name);
        assert!(words.iter().all(|word| text.contains(word)), "{name}: {text}");
    }
    server.rule(|r| {
        let is_asked = r.path.starts_with("/api/datasets/");
        is_asked.then(|| Act::Say(403, vec![("x-error-code", "GatedRepo".into())], vec![]))
    });
    let (error, text) = error_of(&hub, NAME);
    assert!(matches!(error, Error::Gated { .. }) && text.contains("/datasets/org/tiny"), "{text}");
}

#[test]
fn a_renamed_data_set_is_found_under_its_old_name_and_a_gated_one_is_said_to_be() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    server.rule(|r| {
        let location = r.path.contains("org/old").then(|| r.path.replace("org/old", "org/tiny"))?;
        Some(Act::Say(307, vec![("location", location)], vec![]))
    });
    let (plan, snapshot) = fetch(&home.hub(&server), "hf:org/old").unwrap();
    assert_eq!(
        (plan.pinned, snapshot.files),
        (format!("hf:org/old@{COMMIT}"), TRAIN.map(str::to_owned).to_vec())
    );
    for (status, code) in [(401, "GatedRepo"), (403, "GatedRepo"), (403, "")] {
        let home = Home::new();
        server.rule(move |r| {
            let is_asked = r.role == Role::Hub && r.path.contains("/resolve/");
            is_asked.then(|| Act::Say(status, vec![("x-error-code", code.into())], vec![]))
        });
        let (error, text) = error_of(&home.hub(&server), NAME);
        assert!(matches!(error, Error::Gated { .. }) && text.contains("org/tiny"), "{status} {code}: {text}");
    }
}

#[test]
fn the_token_opens_a_private_data_set_and_never_reaches_storage() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    server.rule(|r| {
        let is_refused = r.role == Role::Hub && !r.headers.contains_key("authorization");
        is_refused.then(|| Act::Say(401, vec![], vec![]))
    });
    assert!(matches!(error_of(&home.hub(&server), NAME).0, Error::Gated { .. }));
    let hub = home.hub_with(&server.endpoint(), &[("HF_TOKEN", "hf_secretsecret")]);
    assert_eq!(fetch(&hub, NAME).unwrap().1.files, TRAIN);
    let of_storage: Vec<Request> = server.log().into_iter().filter(|r| r.role == Role::Cdn).collect();
    assert!(!of_storage.is_empty());
    assert!(of_storage.iter().all(|r| !r.headers.contains_key("authorization")));
}

#[test]
fn a_hostile_repository_cannot_write_outside_the_snapshot_or_name_an_endless_size() {
    for evil in ["../../../../evil.jsonl", "/tmp/evil.jsonl", "a/..\\evil.jsonl", "train\u{1b}[2J.jsonl"] {
        let (server, home) = (FakeHub::new(), Home::new());
        server.put(evil, b"{}", false);
        let (error, text) = error_of(&home.hub(&server), NAME);
        assert!(matches!(error, Error::UnsafeName { .. }) && !text.contains('\u{1b}'), "{text}");
        assert!(!home.dir.path().join("evil.jsonl").exists());
    }
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    server.rule(|r| {
        let headers = vec![("x-linked-etag", sha256(b"x")), ("x-linked-size", u64::MAX.to_string())];
        (r.method == "HEAD" && r.path.contains("/train-")).then(|| Act::Say(200, headers, vec![]))
    });
    assert!(matches!(error_of(&home.hub(&server), NAME).0, Error::DiskFull { .. }));
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    server.put("README.md", &vec![b'-'; 17 << 20], false);
    let (error, text) = error_of(&home.hub(&server), NAME);
    assert!(matches!(error, Error::BadCard { .. }) && text.contains("too many"), "{text}");
    assert!(!home.data_repo().join("blobs").exists(), "it is refused before it is fetched");
}

#[test]
fn hashes_in_the_list_save_a_request_for_each_file_and_a_wrong_one_is_noticed() {
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let listed = |hash: String| {
        let file = serde_json::json!({
            "rfilename": "train.jsonl", "size": lines(0).len(), "lfs": {"sha256": hash, "pointerSize": 1}
        });
        let json = serde_json::json!({"sha": COMMIT, "siblings": [file]}).to_string().into_bytes();
        move |r: &Request| r.path.starts_with("/api/").then(|| Act::Say(200, vec![], json.clone()))
    };
    server.put("train.jsonl", &lines(0), true);
    server.rule(listed(sha256(&lines(0))));
    let (_, snapshot) = fetch(&home.hub(&server), NAME).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join("train.jsonl")).unwrap(), lines(0));
    assert!(server.log().iter().all(|request| request.method == "GET"));

    let home = Home::new();
    server.be_good();
    server.rule(listed(sha256(b"something else")));
    assert!(matches!(error_of(&home.hub(&server), NAME).0, Error::WrongHash { .. }));
}
