//! `HF_HUB_OFFLINE`: the cache alone, and never a request.

use sparktune_hub::{Cached, Error, Needs, Origin, WholeModel};

use crate::fake_hub::*;

const OFFLINE: &[(&str, &str)] = &[("HF_HUB_OFFLINE", "1")];

#[test]
fn offline_without_a_cache_says_what_is_missing_and_asks_nobody() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub_with(&server.endpoint(), OFFLINE);
    for needs in [Needs::Config, Needs::Tokenizer, Needs::Model, Needs::Mtp] {
        let error = hub.fetch(ID, needs, &()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Offline { .. }) && text.contains("HF_HUB_OFFLINE"), "{text}");
    }
    assert!(server.log().is_empty());
}

#[test]
fn offline_with_a_cache_works_whole() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    let online = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    server.forget();
    let hub = home.hub_with(&server.endpoint(), OFFLINE);
    for model in [ID.to_string(), format!("{ID}@{COMMIT}")] {
        let snapshot = hub.fetch(&model, Needs::Model, &()).unwrap();
        assert_eq!((snapshot.folder, snapshot.files), (online.folder.clone(), online.files.clone()));
        assert_eq!(snapshot.origin, Origin::Cache);
    }
    std::fs::create_dir(home.repo().with_file_name("models--..--..")).unwrap();
    std::fs::create_dir(home.repo().with_file_name("models--org--other")).unwrap();
    assert_eq!(hub.whole_models(), [WholeModel { id: ID.to_owned(), folder: online.folder }]);
    assert_eq!(hub.fetch_config(ID, &()).unwrap().text, r#"{"model_type":"qwen3"}"#);
    assert_eq!(hub.fetch(ID, Needs::Mtp, &()).unwrap().files.last().unwrap(), "model-2.safetensors");
    assert!(server.log().is_empty());
}

#[test]
fn offline_with_half_a_model_names_the_missing_half() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    home.hub(&server).fetch(ID, Needs::Mtp, &()).unwrap();
    let hub = home.hub_with(&server.endpoint(), OFFLINE);
    let error = hub.fetch(ID, Needs::Model, &()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    assert_eq!(hub.whole_models(), []);
    home.hub(&server).fetch(ID, Needs::Tokenizer, &()).unwrap();
    let error = hub.fetch(ID, Needs::Model, &()).unwrap_err().to_string();
    assert!(error.contains("model-1.safetensors"), "{error}");
}

#[test]
fn a_newer_config_alone_does_not_displace_a_whole_older_model() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    let newer = "e".repeat(40);
    server.put_at(&newer, "config.json", b"{}", false);
    server.set_revision("main", &newer);
    assert_eq!(home.hub(&server).fetch_config(ID, &()).unwrap().text, "{}");
    let snapshot = home.hub_with(&server.endpoint(), OFFLINE).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(snapshot.commit.as_deref(), Some(COMMIT));
}

#[test]
fn what_is_here_is_known_without_asking_anybody() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    let hub = home.hub(&server);
    assert_eq!(hub.cached(ID), Cached::Nothing);
    assert_eq!(hub.cached("no such/model/name"), Cached::Nothing);
    let config = hub.fetch_config(ID, &()).unwrap().text.len() as u64;
    assert_eq!(hub.cached(ID), Cached::Partial { bytes: config });

    server.rule(|r| (r.role == Role::Cdn && r.is_get_of("model-2.safetensors")).then_some(Act::CutAfter(0)));
    hub.fetch(ID, Needs::Model, &()).unwrap_err();
    let Cached::Partial { bytes: half } = hub.cached(ID) else { panic!("{:?}", hub.cached(ID)) };
    server.be_good();
    let plan = hub.plan_download(ID, Needs::Model, &()).unwrap();
    assert_eq!(half + plan.bytes_missing(), plan.bytes(), "what is here and what is missing is all of it");

    let snapshot = hub.download(&plan, &()).unwrap();
    server.forget();
    let whole = Cached::Whole { bytes: plan.bytes() };
    assert_eq!(hub.cached(ID), whole);
    assert_eq!(hub.cached(&format!("{ID}@{COMMIT}")), whole);
    assert_eq!(hub.cached(snapshot.folder.to_str().unwrap()), whole);
    std::fs::remove_file(snapshot.folder.join("model-1.safetensors")).unwrap();
    assert!(matches!(hub.cached(ID), Cached::Partial { .. }));
    assert!(server.log().is_empty());
}
