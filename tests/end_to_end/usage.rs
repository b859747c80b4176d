//! Wrong usage, help, completions: what a first-time user and a script meet.

use std::process::{Command, Stdio};

use crate::sparktune::{Place, checkpoint, done};

#[test]
fn the_bare_name_says_what_to_type_and_is_no_success() {
    let result = Place::new().sparktune::<&str>([]).exits(2);
    assert!(
        result.out.is_empty() && result.err.contains("sparktune --demo") && result.err.contains("check"),
        "{}",
        result.err
    );
}

#[test]
fn hints_name_the_program_as_the_user_called_it() {
    let place = Place::new();
    let result = |called_as: Option<&str>, arguments: &[&str]| {
        let mut command = place.command(arguments);
        called_as.map(|name| command.env("SPARKTUNE_COMMAND", name));
        let result = done(&mut command);
        (result.code, result.out + &result.err)
    };
    for (arguments, code, hint) in [
        (&[][..], 2, "NAME --demo"),
        (&["--help"], 0, "NAME watch"),
        (&["check", "--help"], 0, "Usage: NAME check"),
        (&["watch"], 2, "`NAME train`"),
        (&["watch", "nothing"], 2, "`NAME runs --all`"),
        (&["runs"], 0, "`NAME train` starts one"),
    ] {
        for name in ["./run.sh", "./run.sh --docker", r"/my\ folder/run.sh"] {
            let (found, text) = result(Some(name), arguments);
            assert!(
                found == Some(code) && text.contains(&hint.replace("NAME", name)),
                "{arguments:?}:\n{text}"
            );
            assert!(!text.contains(&hint.replace("NAME", "sparktune")), "{arguments:?}:\n{text}");
        }
        for unusable in [None, Some(""), Some("\u{1b}[2J")] {
            let text = result(unusable, arguments).1;
            assert!(text.contains(&hint.replace("NAME", "sparktune")), "{arguments:?}:\n{text}");
        }
    }
}

#[test]
fn help_lists_every_command_and_the_exit_codes() {
    let result = Place::new().sparktune(["--help"]).exits(0);
    for word in [
        "check",
        "plan",
        "train",
        "watch",
        "runs",
        "resume",
        "head",
        "stop",
        "export",
        "report",
        "generate",
        "compare",
        "pack",
        "unpack",
        "verify",
        "packet",
        "serve",
        "doctor",
        "bench",
        "completions",
        "--demo",
        "Exit codes:\n    0 done",
        "69 the network or the Hub failed",
        "77 not possible on this machine",
    ] {
        assert!(result.out.contains(word), "{word} is not in\n{}", result.out);
    }
    assert!(!result.out.contains("\n  trainer"), "the trainer is nobody's command");
}

#[test]
fn a_wrong_flag_or_value_names_itself_and_ends_with_2() {
    let place = Place::new();
    let result = place.sparktune(["train", "--modle", "x"]).exits(2);
    assert!(result.err.contains("--model"), "the nearest flag is named: {}", result.err);
    let result = place.sparktune(["train", "--method", "magic"]).exits(2);
    assert!(result.err.contains("lora, full"), "{}", result.err);
    let result = place.sparktune(["train", "--warmup-ratio", "3"]).exits(2);
    assert!(result.err.contains("--warmup-ratio") && result.err.contains("from 0 to 0.9"), "{}", result.err);
    let result = place.sparktune(["train", "--preset", "defualt", "--model", "x", "--data", "y"]).exits(2);
    assert!(result.err.contains("default, quick, recipe, demo"), "{}", result.err);
}

#[test]
fn every_missing_answer_is_named_with_its_flag_and_nobody_is_asked() {
    let place = Place::new();
    for args in [&["train", "--non-interactive"][..], &["--non-interactive"], &["plan"], &["train"]] {
        let result = place.sparktune(args).exits(2);
        assert!(result.err.contains("--model") && result.err.contains("--data"), "{}", result.err);
    }
}

#[test]
fn with_json_a_failure_before_there_is_a_run_is_an_object_too() {
    let result = Place::new().sparktune(["--non-interactive", "--json"]).exits(2);
    let last = result.last();
    assert_eq!(last["outcome"], "failed");
    assert!(last["run_dir"].is_null() && last["error"].as_str().unwrap().contains("--model"), "{last}");
    for field in ["steps", "final_loss", "eval_loss", "outputs"] {
        assert!(last.get(field).is_some(), "{field} is missing in {last}");
    }
}

#[test]
fn a_mistyped_variable_is_not_passed_over() {
    let place = Place::new();
    let result = done(place.command(["runs"]).env("SPARKTUNE_RUNS_DIRR", "x")).exits(2);
    assert!(result.err.contains("SPARKTUNE_RUNS_DIR"), "{}", result.err);
}

#[test]
fn a_settings_file_is_read_and_a_flag_overrules_it() {
    let place = Place::new();
    std::fs::create_dir_all(place.join(".config/sparktune")).unwrap();
    place.write(".config/sparktune/settings.toml", "runs_dir = \"mine\"\n");
    let result = place.sparktune(["runs"]).exits(0);
    assert!(result.err.contains("mine"), "{}", result.err);
    let result = place.sparktune(["runs", "--runs-dir", "other"]).exits(0);
    assert!(result.err.contains("other"), "{}", result.err);
}

#[test]
fn a_reader_that_goes_away_is_success() {
    let place = Place::new();
    place.chats(4);
    let mut child = place.command(["check", "train.jsonl"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn global_flags_are_accepted_by_commands_that_never_ask() {
    let place = Place::new();
    for args in [&["resume", "--non-interactive"][..], &["--non-interactive", "--json", "resume"]] {
        let result = place.sparktune(args).exits(2);
        assert!(result.err.contains("no runs") || result.err.contains("no run"), "{}", result.err);
    }
    let listed = place.sparktune(["--json", "runs", "--plain", "--non-interactive"]).exits(0);
    assert!(listed.last().as_array().unwrap().is_empty());
    place.chats(4);
    let checked = place.sparktune(["--json", "check", "train.jsonl", "--max-rejected", "0.5"]).exits(0);
    assert_eq!(checked.last()["accepted"], true);
}

/// What a real bash offers for the last of these words.
fn completed_by_bash(place: &Place, words: &[&str]) -> Vec<String> {
    let script = r#"
        source <("$SPARKTUNE" completions bash)
        COMP_WORDS=("$SPARKTUNE" "$@") COMP_CWORD=$#
        _sparktune "$SPARKTUNE"
        for word in "${COMPREPLY[@]}"; do echo "$word"; done"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).args(words).current_dir(place.path()).env_clear();
    bash.envs([("PATH", "/usr/bin:/bin"), ("SPARKTUNE", env!("CARGO_BIN_EXE_sparktune"))]);
    let result = done(bash.env("HOME", place.path())).exits(0);
    assert!(result.err.is_empty(), "{}", result.err);
    result.out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_words_presets_runs_and_files() {
    let place = Place::new();
    place.chats(4);
    std::fs::create_dir_all(place.join(".config/sparktune/presets")).unwrap();
    place.write(".config/sparktune/presets/quiet.toml", "seed = 1\n");
    for run in ["runs/20261120T130000Z-chat-lora", "elsewhere/20261121T130000Z-other-full"] {
        std::fs::create_dir_all(place.join(run).join("events")).unwrap();
    }
    let offered = |words: &[&str]| completed_by_bash(&place, words);
    assert_eq!(offered(&["tr"]), ["train"], "and not the hidden trainer");
    assert_eq!(offered(&["train", "--method", ""]), ["lora", "full"]);
    assert_eq!(offered(&["train", "--method", "=", "fu"]), ["full"]);
    assert_eq!(offered(&["train", "--early"]), ["--early-stop-patience"]);
    assert_eq!(offered(&["plan", "--preset", "qui"]), ["quick", "quiet"]);
    assert_eq!(offered(&["check", "tra"]), ["train.jsonl"]);
    assert_eq!(offered(&["resume", "2026"]), ["20261120T130000Z-chat-lora"]);
    assert_eq!(offered(&["--runs-dir", "elsewhere", "watch", "2026"]), ["20261121T130000Z-other-full"]);
}

#[test]
fn completions_are_printed_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let result = place.sparktune(["completions", shell]).exits(0);
        assert!(result.out.contains("sparktune") && result.out.contains("complete --"), "{shell}");
    }
}

#[test]
fn a_model_that_cannot_be_trained_is_refused_from_its_config_alone() {
    let place = Place::new();
    place.chats(4);
    std::fs::create_dir(place.join("gpt2")).unwrap();
    place.write("gpt2/config.json", r#"{"model_type": "gpt2"}"#);
    let result = place.sparktune(["plan", "--model", "./gpt2", "--data", "train.jsonl"]).exits(2);
    assert!(result.err.contains("gpt2"), "{}", result.err);
}

#[test]
fn a_token_is_never_printed() {
    let place = Place::new();
    place.chats(4);
    let model = checkpoint();
    let mut command = place.command(["plan", "--data", "train.jsonl", "--explain"]);
    let result = done(command.arg("--model").arg(model).env("HF_TOKEN", "hf_secretsecretsecret")).exits(0);
    assert!(!result.out.contains("secret") && !result.err.contains("secret"));
}
