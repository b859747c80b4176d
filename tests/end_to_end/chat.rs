//! A conversation with a run and its base, line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::sparktune::{Done, Place, checkpoint, files};

/// Says these lines to `chat`.
fn chat(place: &Place, args: &[&str], lines: &[u8]) -> Done {
    let mut command = place.command([&["chat"], args].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn objects(done: &Done) -> Vec<Value> {
    done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_and_its_base_answer_the_same_and_the_conversation_is_kept_with_the_run() {
    let (place, run) = Place::with_finished_run();
    let runs_dir = run.parent().unwrap().to_str().unwrap();
    let args = ["latest", "--beside", "base", "--temperature", "0", "--max-tokens", "8", "--json"];
    let args = [&args[..], &["--runs-dir", runs_dir]].concat();
    let done = chat(&place, &args, b"Say stone.\nSay river.\n/new\n/think off\nSay river.\n").exits(0);
    let answered = objects(&done);
    assert_eq!(answered.len(), 3, "{done:?}");
    let prompt_tokens = |n: usize| {
        let answers = answered[n]["answers"].as_array().unwrap();
        answers.iter().map(|answer| answer["usage"]["prompt_tokens"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(answered[0]["answers"].as_array().unwrap().len(), 2);
    assert_eq!(answered[1]["question"], "Say river.");
    for side in 0..2 {
        assert!(
            prompt_tokens(1)[side] > prompt_tokens(2)[side],
            "the second question has the first before it"
        );
    }
    // A model answers as `generate` does, which prints what it thinks, too.
    let model = checkpoint();
    let greedy = ["--temperature", "0", "--max-tokens", "8"];
    let generate = [&["generate", model.to_str().unwrap(), "--prompt", "Say stone."][..], &greedy].concat();
    let generated = place.sparktune(generate).exits(0);
    let alone = chat(&place, &[&[model.to_str().unwrap(), "--json"][..], &greedy].concat(), b"Say stone.\n");
    let answer = &objects(&alone.exits(0))[0]["answers"][0];
    let said = [&answer["thought"], &answer["text"]].into_iter().find_map(|text| text.as_str());
    assert_eq!(generated.out.trim(), said.unwrap().trim());

    let answered_by = format!("run:{}", run.file_name().unwrap().to_str().unwrap());
    let kept = files(&run.join("chats"));
    assert_eq!(kept.len(), 2, "two conversations: {kept:?}");
    let lines: Vec<Value> = kept
        .iter()
        .flat_map(|(_, bytes)| bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()))
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert!(
        lines.iter().all(|line| line["model"] == answered_by),
        "the base's answers are not kept: {lines:?}"
    );
    let mut turns: Vec<usize> = lines.iter().map(|line| line["messages"].as_array().unwrap().len()).collect();
    turns.sort_unstable();
    assert_eq!(turns, [2, 4]);
    // They can be trained on as they are.
    place.sparktune(["check", run.join("chats").to_str().unwrap()]).exits(0);

    // One goes on in its file, with the question that was first, which the model still knows.
    let messages = |name: &std::path::Path| {
        let kept: Value =
            serde_json::from_slice(&std::fs::read(run.join("chats").join(name)).unwrap()).unwrap();
        kept["messages"].as_array().unwrap().clone()
    };
    let (file, _) = kept.iter().find(|(name, _)| messages(name).len() == 4).unwrap();
    let before = messages(file);
    let goes_on = format!("--continue={}", run.join("chats").join(file).display());
    let done = chat(&place, &[&args[..], &[&goes_on]].concat(), b"Say stone.\n").exits(0);
    assert!(done.err.contains("continuing after 2 questions"), "{}", done.err);
    let asked = objects(&done)[0]["answers"][1]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(asked > prompt_tokens(1)[1], "the earlier turns are part of the prompt");
    assert_eq!((messages(file).len(), &messages(file)[..4]), (6, &before[..]));
    assert_eq!(files(&run.join("chats")).len(), 2, "in the same file");
    chat(&place, &[&args[..], &["--continue"]].concat(), b"").exits(0);
}

#[test]
fn a_signal_ends_a_conversation_of_a_program_although_it_has_more_to_say() {
    let place = Place::new();
    let model = checkpoint();
    let mut command = place.command(["chat", model.to_str().unwrap(), "--max-tokens", "8", "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = 10_000;
    let mut input = child.stdin.take().unwrap();
    // Nobody reads what is left in the pipe at the end.
    let says = std::thread::spawn(move || drop(input.write_all("Say stone.\n".repeat(lines).as_bytes())));
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    answers.next().unwrap().unwrap();
    assert!(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap().success());
    let more = answers.map_while(Result::ok).count();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(more < lines - 1, "all were answered");
    says.join().unwrap();
}

#[test]
fn a_conversation_goes_on_when_its_model_is_loaded_again_to_decode_otherwise() {
    let place = Place::new();
    let model = checkpoint();
    let greedy =
        [model.to_str().unwrap(), "--temperature", "0", "--max-tokens", "8", "--thinking", "false", "--json"];
    let lines = b"Say stone.\n/draft 2\n/draft 2\nSay river.\n/new\nSay river.\n/device cuda\nSay stone.\n";
    let done = chat(&place, &greedy, lines).exits(0);
    let usage: Vec<Value> = objects(&done).iter().map(|asked| asked["answers"][0]["usage"].clone()).collect();
    let tokens = |n: usize, field: &str| usage[n][field].as_u64().unwrap();
    assert_eq!(usage.len(), 4, "{done:?}");
    assert_eq!(tokens(0, "drafted_tokens"), 0);
    assert!(tokens(1, "drafted_tokens") > 0, "the head drafts from then on: {usage:?}");
    assert!(tokens(1, "prompt_tokens") > tokens(2, "prompt_tokens"), "the first question was kept");
    for words in
        ["made on cpu with 2 drafted tokens from now on", "already made on cpu with 2 drafted tokens"]
    {
        assert!(done.err.contains(words), "{words}: {}", done.err);
    }
    // Without a GPU it says so, and goes on as before.
    let moved = done.err.contains("made on cuda with 2 drafted tokens from now on");
    assert!(
        moved || done.err.contains("answers are still made on cpu with 2 drafted tokens: "),
        "{}",
        done.err
    );
    assert!(tokens(3, "prompt_tokens") > tokens(2, "prompt_tokens"), "{usage:?}");
}

#[test]
fn lines_are_answered_as_text_and_what_cannot_be_said_is_refused_in_words() {
    let place = Place::new();
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let thinks = [model, "--temperature", "0", "--max-tokens", "4"];
    let silent = chat(&place, &thinks, b"Hello\n").exits(0);
    assert!(silent.err.contains("and gave no answer; /think off"), "{silent:?}");
    let few = [&thinks[..], &["--thinking", "false"]].concat();
    let done = chat(&place, &few, b"\nHello\n/set heat 1\n/set top-k 5\n/help\n/quit\nnever\n").exits(0);
    assert!(!done.out.is_empty() && !done.out.contains("> "), "{done:?}");
    for words in ["no setting of this name", "top-k: 5", "/system TEXT", "4 tokens"] {
        assert!(done.err.contains(words), "{words}: {}", done.err);
    }
    assert!(!place.join("chats").exists());
    // A line that cannot be said is passed over, the others are answered, and a script notices.
    let long = vec![b'a'; (4 << 20) + 10];
    let lines = [&b"Hello\n\xff\xfe\n"[..], &long, b"\nHello\n"].concat();
    let wrong = chat(&place, &few, &lines).exits(3);
    for words in ["line 2 is not UTF-8 and was passed over", "line 3 has more than 4194304 bytes"] {
        assert!(wrong.err.contains(words), "{words}: {}", wrong.err);
    }
    assert_eq!(wrong.err.matches("4 tokens, ").count(), 2, "{}", wrong.err);
    let refused = chat(&place, &few, &[&b"a ".repeat(20_000)[..], b"\nHello\n"].concat()).exits(3);
    assert!(refused.err.contains("Shorten the prompt") && !refused.out.is_empty(), "{}", refused.err);
    let none = chat(&place, &["latest"], b"").exits(2);
    assert!(none.err.contains("there are no runs in /"), "{}", none.err);
    let alone = chat(&place, &[model, "--beside", "base"], b"").exits(2);
    assert!(alone.err.contains("is not a run"), "{}", alone.err);
    let wrong = chat(&place, &[model, "--top-p", "0"], b"").exits(2);
    assert!(wrong.err.contains("top-p is 0"), "{}", wrong.err);
    // Named models stand as they are named.
    let copy = place.join("another");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(model).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    std::fs::write(copy.join("generation_config.json"), r#"{"temperature": 0.7, "top_k": 20}"#).unwrap();
    let another = copy.to_str().unwrap();
    let args = [another, "--beside", model, "--max-tokens", "4", "--json"];
    let done = chat(&place, &args, b"Hello\n/set\n").exits(0);
    let names: Vec<_> = objects(&done)[0]["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["model"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].contains("another") && !names[1].contains("another"), "{names:?}");
    // Equal weights give equal answers: one seed serves both sides, also if nobody names one.
    let answers = &objects(&done)[0]["answers"];
    for field in ["seed", "text", "thought"] {
        assert_eq!(answers[0][field], answers[1][field], "{answers}");
    }
    assert!(answers[0]["seed"].is_u64(), "{answers}");
    assert!(done.err.contains("temperature 0.7") && done.err.contains("top-k 20"), "{}", done.err);
}
