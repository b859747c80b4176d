//! The pool with shell scripts in place of inference workers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use sparktune_app::models::{ModelKind, OpenableModel, Opening};
use sparktune_app::program::Program;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::Prompt;

use super::{Answers, Event, ModelLimits, Refusal, Workers};
use crate::problem::Problem;

/// Answers each prompt with its number of bytes, except that a prompt with `wait` is never completed and one
/// with `crash` ends the process. Whatever it reads is in the file `log`, and that it was started.
const WORKER: &str = r#"
echo start "$2" >>log
while [ -e slow ]; do sleep 0.01; done
if [ -e only-one ] && [ -e loaded ] && kill -0 "$(cat loaded)" 2>/dev/null; then
    echo '{"event":"failed","error":"no room"}'
    exit 4
fi
echo $$ >loaded
echo '{"event":"ready","model":"m","context_tokens":99,"cache_tokens":16384,"draft_tokens":0,"has_template":true,"planned_bytes":1}'
while read -r line; do
    echo "$line" >>log
    id=$(echo "$line" | sed 's/.*"id":"\([0-9]*\)".*/\1/')
    case $line in
    *'"op":"generate"'*bad*) echo '{"event":"error","id":"'"$id"'","error":"refused"}' ;;
    *'"op":"generate"'*)
        echo '{"event":"accepted","id":"'"$id"'","prompt_tokens":1,"opens_thinking":false}'
        case $line in
        *wait*) continue ;;
        *crash*) kill -9 $$ ;;
        esac
        echo '{"event":"text","id":"'"$id"'","text":"hello","tokens":[]}'
        echo '{"event":"done","id":"'"$id"'","finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"drafted_tokens":0,"accepted_tokens":0},"seed":1,"first_token_ms":1,"total_ms":1}'
        ;;
    *_adapter*)
        name=$(echo "$line" | sed 's/.*"name":"\([^"]*\)".*/\1/')
        others= list= count=0
        for one in $adapters; do [ "$one" = "$name" ] || others="$others $one"; done
        adapters=$others
        case $line in
        *unload_adapter*) ;;
        *run:broken*) echo '{"event":"error","id":"'"$name"'","error":"the adapter is damaged"}' ;;
        *run:large*) echo '{"event":"error","id":"'"$name"'","error":"it is too large","no_room":true}' ;;
        *) adapters="$adapters $name" ;;
        esac
        for one in $adapters; do list="$list,\"$one\""; count=$((count+1)); done
        echo '{"event":"adapters","adapters":['"${list#,}"'],"planned_bytes":'$((1+count))',"context_tokens":'$((99-count))',"cache_tokens":'$((16384-count))'}'
        ;;
    esac
done
"#;

struct Place {
    folder: tempfile::TempDir,
    workers: Workers,
}

impl Place {
    fn new(limits: ModelLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let script = format!("#!/bin/sh\ncd {}\n{WORKER}", folder.path().display());
        fs::write(path("draft.sh"), script).unwrap();
        fs::set_permissions(path("draft.sh"), Permissions::from_mode(0o700)).unwrap();
        // A process that another test starts meanwhile may hold the draft open for writing, but not the copy.
        let copied = std::process::Command::new("cp").args([path("draft.sh"), path("worker.sh")]).status();
        assert!(copied.unwrap().success());
        let workers = Workers::new(Program::at(path("worker.sh")), limits);
        Self { folder, workers }
    }

    async fn ask(&self, name: &str, prompts: &[&str]) -> Result<Answers, Refusal> {
        let model = self.folder.path().join(name.rsplit_once(':').map_or(name, |(_, base)| base));
        fs::create_dir_all(&model).unwrap();
        let adapter = name.starts_with("run:").then(|| model.join("adapter"));
        let (model, opening) = (model_of(name, &model), Opening { model, adapter, ..Opening::default() });
        let asked: Vec<_> = prompts
            .iter()
            .map(|prompt| (Prompt::Prompt((*prompt).to_owned()), SamplingParams::default()))
            .collect();
        self.workers.ask(&model, &opening, &asked).await
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn starts(&self) -> usize {
        self.log().lines().filter(|line| line.starts_with("start")).count()
    }

    /// Waits until the worker of a model has said that it has so many adapters.
    async fn planned(&self, model: &Path, adapters: usize) {
        let opening = Opening { model: model.to_owned(), ..Opening::default() };
        let begun = Instant::now();
        loop {
            let ready = self.workers.slot_of(&opening).unwrap().ready().await.unwrap();
            let found = (ready.planned_bytes, ready.context_tokens);
            if found == (1 + adapters as u64, 99 - adapters) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{found:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the log has this line.
    async fn logged(&self, words: &str) {
        let begun = Instant::now();
        while !self.log().contains(words) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn model_of(id: &str, path: &Path) -> OpenableModel {
    let (kind, base, parameters) = (ModelKind::Base, None, None);
    OpenableModel { id: id.into(), name: id.into(), kind, base, parameters, path: path.to_owned() }
}

/// Returns the texts of all answers.
async fn texts(mut answers: Answers, count: usize) -> Vec<String> {
    let mut texts = vec![String::new(); count];
    while let Some((index, event)) = answers.next().await {
        match event {
            Event::Piece(piece) => texts[index].push_str(&piece.text),
            Event::Done(_) => {}
            other => panic!("{other:?}"),
        }
    }
    texts
}

#[tokio::test]
async fn one_worker_answers_for_its_base_and_the_adapters_on_it() {
    let place = Place::new(ModelLimits::default());
    assert_eq!(texts(place.ask("base", &["a", "b"]).await.unwrap(), 2).await, ["hello", "hello"]);
    for _ in 0..2 {
        assert_eq!(texts(place.ask("run:base", &["c"]).await.unwrap(), 1).await, ["hello"]);
    }
    assert_eq!(place.starts(), 1);
    // The worker knows whether it has the adapter, or has forgotten it for others.
    assert_eq!(place.log().matches(r#""makes_room":true"#).count(), 2, "{}", place.log());
    assert!(place.log().contains(r#""adapter":"run:base""#));
    // An adapter leaves less memory for answers, and their length stays that of before.
    assert_eq!(place.log().matches(r#""max_tokens":2048"#).count(), 4, "{}", place.log());
    let loaded = place.workers.loaded();
    assert_eq!((loaded.len(), loaded[0].models.len(), loaded[0].answers), (1, 2, 0));

    let model = place.folder.path().join("base");
    let opening = Opening { model: model.clone(), ..Opening::default() };
    let adapted = Opening { adapter: Some(model.join("adapter")), ..opening.clone() };
    place.workers.unload(&model_of("run:base", &model), &adapted).unwrap();
    place.logged("unload_adapter").await;
    assert_eq!(place.workers.loaded()[0].models, ["base"]);
    place.workers.unload(&model_of("base", &model), &opening).unwrap();
    assert!(place.workers.loaded().is_empty());
}

#[tokio::test]
async fn a_model_whose_files_are_written_anew_is_loaded_again() {
    let place = Place::new(ModelLimits::default());
    let model = place.folder.path().join("base");
    for (folder, starts) in [("", 1), ("outputs/merged", 3)] {
        let folder = model.join(folder);
        fs::create_dir_all(&folder).unwrap();
        for (text, starts) in [("old", starts), ("the new one", starts + 1)] {
            // Into the same file, which does not change the stamp of the folder itself.
            fs::write(folder.join("model.safetensors"), text).unwrap();
            for _ in 0..2 {
                assert_eq!(texts(place.ask("base", &["a"]).await.unwrap(), 1).await, ["hello"]);
            }
            assert_eq!(place.starts(), starts, "{text}");
        }
    }
}

#[tokio::test]
async fn a_model_whose_files_have_changed_is_unloaded_as_it_was_before() {
    let place = Place::new(ModelLimits::default());
    let model = place.folder.path().join("base");
    fs::create_dir_all(&model).unwrap();
    for text in ["old", "the new one"] {
        fs::write(model.join("model.safetensors"), text).unwrap();
        assert_eq!(texts(place.ask("base", &["a"]).await.unwrap(), 1).await, ["hello"]);
    }
    assert_eq!(place.workers.loaded().len(), 2);
    fs::write(model.join("model.safetensors"), "the newest of all").unwrap();
    let opening = Opening { model: model.clone(), ..Opening::default() };
    place.workers.unload(&model_of("base", &model), &opening).unwrap();
    assert!(place.workers.loaded().is_empty());
}

#[tokio::test]
async fn a_refused_prompt_or_adapter_is_told_in_the_words_of_the_worker() {
    let place = Place::new(ModelLimits::default());
    let refused = place.ask("base", &["wait", "bad"]).await.err().unwrap();
    assert_eq!(refused, Refusal::Invalid("refused".into()));
    // The answer that was accepted already is not completed for nobody.
    place.logged("cancel").await;
    let refused = place.ask("run:broken", &["bad"]).await.err().unwrap();
    assert_eq!(refused, Refusal::Invalid("the adapter is damaged".into()));
    let refused = place.ask("run:large:base", &["bad"]).await.err().unwrap();
    assert!(matches!(&refused, Refusal::NoRoom(failure) if failure.text == "it is too large"), "{refused}");
    assert_eq!(Problem::from(refused).status, 503);
    assert!(
        place.workers.loaded().iter().all(|loaded| loaded.models == ["base"] || loaded.models.is_empty())
    );
}

#[tokio::test]
async fn adapters_that_are_unloaded_one_after_the_other_are_not_loaded_any_more() {
    let place = Place::new(ModelLimits::default());
    for name in ["base", "run:x:base", "run:y:base"] {
        assert_eq!(texts(place.ask(name, &["a"]).await.unwrap(), 1).await, ["hello"]);
    }
    let model = place.folder.path().join("base");
    place.planned(&model, 2).await;
    let opening =
        Opening { adapter: Some(model.join("adapter")), model: model.clone(), ..Opening::default() };
    for name in ["run:x:base", "run:y:base"] {
        place.workers.unload(&model_of(name, &model), &opening).unwrap();
    }
    place.planned(&model, 0).await;
    assert_eq!(place.workers.loaded()[0].models, ["base"]);
}

#[tokio::test]
async fn a_crash_fails_its_answers_and_the_next_request_starts_another_worker() {
    let place = Place::new(ModelLimits::default());
    let mut waiting = place.ask("base", &["wait"]).await.unwrap();
    // It may be told before or after the prompt was accepted.
    match place.ask("base", &["crash"]).await {
        Ok(mut answers) => {
            assert!(matches!(answers.next().await, Some((0, Event::Failed { .. }))));
            assert_eq!(answers.next().await.map(|_| ()), None);
        }
        Err(refusal) => assert!(matches!(refusal, Refusal::Died(_)), "{refusal}"),
    }
    assert_eq!(place.starts(), 1, "what has ended one worker is not sent to another");
    let Some((0, Event::Failed { failure, .. })) = waiting.next().await else { panic!("it has ended") };
    assert!(failure.to_string().contains("signal: 9"), "{failure}");
    assert_eq!(texts(place.ask("base", &["a"]).await.unwrap(), 1).await, ["hello"]);
    assert_eq!(place.starts(), 2);
}

#[tokio::test]
async fn answers_that_nobody_waits_for_are_cancelled() {
    let place = Place::new(ModelLimits::default());
    let answers = place.ask("base", &["wait"]).await.unwrap();
    assert_eq!(place.workers.loaded()[0].answers, 1);
    assert!(!place.log().contains("cancel"));
    drop(answers);
    place.logged(r#"{"op":"cancel","id":"0"}"#).await;
    assert_eq!(place.workers.loaded()[0].answers, 0);
}

#[tokio::test]
async fn more_answers_than_may_wait_are_refused() {
    let place = Place::new(ModelLimits { answers: 1, waiting: 2, ..ModelLimits::default() });
    let held = place.ask("base", &["wait", "wait", "wait"]).await.unwrap();
    assert_eq!(place.ask("base", &["a"]).await.err(), Some(Refusal::Busy(3)));
    let model = place.folder.path().join("base");
    let opening = Opening { model: model.clone(), ..Opening::default() };
    let refused = place.workers.unload(&model_of("base", &model), &opening);
    assert_eq!(refused, Err(Refusal::Answering(3)));
    let four = place.ask("base", &["a"; 4]).await.err();
    assert!(matches!(four, Some(Refusal::Invalid(text)) if text.contains("at most 3")));
    drop(held);
    assert_eq!(texts(place.ask("base", &["a"]).await.unwrap(), 1).await, ["hello"]);
}

#[tokio::test]
async fn a_model_without_answers_makes_room_for_another_and_one_with_answers_does_not() {
    let place = Place::new(ModelLimits::default());
    fs::write(place.folder.path().join("only-one"), "").unwrap();
    texts(place.ask("one", &["a"]).await.unwrap(), 1).await;
    texts(place.ask("two", &["a"]).await.unwrap(), 1).await;
    assert_eq!(place.workers.loaded()[0].models, ["two"]);
    let _held = place.ask("two", &["wait"]).await.unwrap();
    let refused = place.ask("one", &["a"]).await.err();
    assert!(matches!(refused, Some(Refusal::NoRoom(failure)) if failure.text == "no room"));

    let place = Place::new(ModelLimits { loaded: 1, ..ModelLimits::default() });
    let held = place.ask("one", &["wait"]).await.unwrap();
    let refused = place.ask("two", &["a"]).await.err();
    assert!(matches!(refused, Some(Refusal::NoRoom(failure)) if failure.text.contains("answering")));
    drop(held);
    texts(place.ask("two", &["a"]).await.unwrap(), 1).await;
    assert_eq!(place.workers.loaded().len(), 1);
}

#[tokio::test]
async fn a_model_is_loaded_to_the_end_before_the_next_one_though_nobody_waits_for_it() {
    let place = Place::new(ModelLimits::default());
    let slow = place.folder.path().join("slow");
    fs::write(&slow, "").unwrap();
    tokio::select! {
        _ = place.ask("one", &["a"]) => panic!("it is not loaded"),
        () = place.logged("start") => {}
    }
    let more = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(place.starts(), 1, "{}", place.log());
        fs::remove_file(&slow).unwrap();
    };
    let (answers, ()) = tokio::join!(place.ask("two", &["a"]), more);
    assert_eq!(texts(answers.unwrap(), 1).await, ["hello"]);
    assert_eq!((place.starts(), place.workers.loaded().len()), (2, 2));
}

#[tokio::test]
async fn a_worker_that_is_idle_for_long_ends_and_is_started_again() {
    let place = Place::new(ModelLimits { idle: Duration::from_millis(500), ..ModelLimits::default() });
    texts(place.ask("base", &["a"]).await.unwrap(), 1).await;
    let begun = Instant::now();
    while !place.workers.loaded().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(texts(place.ask("base", &["a"]).await.unwrap(), 1).await, ["hello"]);
    // On a busy machine one may end before it is asked, and yet another is started.
    assert!(place.starts() >= 2, "{}", place.log());
}

#[test]
fn the_variables_that_an_adapter_was_trained_with_yield_to_those_of_the_request() {
    let kwargs = [("enable_thinking".to_owned(), json!(false)), ("style".to_owned(), json!("short"))];
    let opening = Opening { template_kwargs: kwargs.into(), ..Opening::default() };
    let given = json!({"messages": [], "chat_template_kwargs": {"enable_thinking": true}});
    let Prompt::Messages(prompt) = super::pool::with_kwargs(&Prompt::Messages(given), &opening) else {
        panic!("these are messages");
    };
    assert_eq!(prompt["chat_template_kwargs"], json!({"enable_thinking": true, "style": "short"}));
}
