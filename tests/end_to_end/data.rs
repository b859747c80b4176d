//! `check`: what is wrong with data, where, and what to do; nothing is lost.

use serde_json::{Value, json};

use crate::sparktune::{Place, chat, checkpoint};

const BROKEN: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u001b[31mhello\"}]}\n{oops\n";

#[test]
fn good_data_is_accepted_with_its_lengths() {
    let place = Place::new();
    place.chats(30);
    let model = checkpoint();
    let result = place.sparktune(["check", "train.jsonl", "--model", model.to_str().unwrap()]).exits(0);
    assert!(
        result.out.contains("30 examples accepted") && result.out.contains("of them trained"),
        "{}",
        result.out
    );
    assert!(result.out.contains("p99") && result.out.contains('█'), "{}", result.out);
    assert!(!place.join("rejected.jsonl").exists(), "nothing was rejected");
    // Without a model nobody knows whether a long example fits, and that is said.
    let long = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b".repeat(300_000)}]});
    place.write("long.jsonl", format!("{}\n{long}\n", chat(1)));
    let result = place.sparktune(["check", "long.jsonl"]).exits(0);
    for words in ["only 2 examples: enough", "the longest example has 300 kB; --model tells"] {
        assert!(result.out.contains(words), "{words}: {}", result.out);
    }
}

#[test]
fn rejected_lines_end_with_3_and_are_kept_with_reason_and_fix() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{BROKEN}", chat(1)));
    let result = place.sparktune(["check", "train.jsonl"]).exits(3);
    assert!(result.out.contains("train.jsonl:2") && result.out.contains("train.jsonl:3"), "{}", result.out);
    assert!(
        result.err.contains("2 of 3 lines were rejected") && result.err.contains("--max-rejected"),
        "{}",
        result.err
    );
    let kept = std::fs::read_to_string(place.join("rejected.jsonl")).unwrap();
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(kept[1]["text"], "{oops");
    assert!(kept.iter().all(|line| !line["reason"].as_str().unwrap().is_empty()));
    assert!(!result.out.contains('\u{1b}') && !result.err.contains('\u{1b}'), "text of the data is escaped");
    // What a shell makes of `*.jsonl` includes that list, which is no data.
    let again = place.sparktune(["check", "rejected.jsonl", "train.jsonl"]).exits(3);
    assert!(again.err.contains("rejected.jsonl: passed over"), "{}", again.err);
    assert!(again.err.contains("2 of 3 lines were rejected"), "{}", again.err);
    let alone = place.sparktune(["check", "rejected.jsonl"]).exits(3);
    assert!(alone.err.contains("is read as data"), "{}", alone.err);
    // A number counts the lines with the reason that stands behind it.
    let wrong = ["\"a\"", "\"b\"", "[{\"role\": \"user\", \"content\": 3}]"];
    let wrong = wrong.map(|turns| format!("{{\"messages\": {turns}}}\n"));
    place.write("types.jsonl", format!("{}\n{}", chat(1), wrong.concat()));
    let result = place.sparktune(["check", "types.jsonl"]).exits(3);
    let words = "2 lines, wrong type, first types.jsonl:2: messages: a string, not a list of turns. Write a \
                 list of turns (and 1 line of this kind for another reason)";
    assert!(result.out.contains(words), "{}", result.out);
}

#[test]
fn no_list_of_rejected_lines_is_lost_unsaid_and_a_file_of_its_name_costs_nobody_the_report() {
    let place = Place::new();
    for name in ["one.jsonl", "two.jsonl"] {
        place.write(name, format!("{}\n{BROKEN}", chat(1)));
    }
    place.write("good.jsonl", chat(1).to_string());
    let note = |args: &[&str], code: i32| place.sparktune([&["check"], args].concat()).exits(code).err;
    let earlier = "rejected.jsonl: the earlier list, of rejected lines of ";
    assert!(!note(&["one.jsonl"], 3).contains(earlier));
    assert!(!note(&["one.jsonl"], 3).contains(earlier), "the same data has a new list");
    let said = note(&["two.jsonl"], 3);
    assert!(said.contains(&format!("{earlier}one.jsonl, is replaced")), "{said}");
    let said = note(&["./two.jsonl", "one.jsonl"], 3);
    assert!(!said.contains(earlier), "the same file by another name: {said}");
    let said = note(&["./two.jsonl"], 3);
    assert!(said.contains(&format!("{earlier}one.jsonl, is replaced")), "{said}");
    let said = note(&["good.jsonl"], 0);
    assert!(said.contains(&format!("{earlier}./two.jsonl, was removed")), "{said}");

    // Data of the user's that has this name stays, and the report is made all the same.
    place.write("rejected.jsonl", chat(2).to_string());
    place.sparktune(["check", "rejected.jsonl", "good.jsonl"]).exits(0);
    for limit in ["0.9", "0.01"] {
        let check = ["check", "one.jsonl", "--max-rejected", limit];
        let done = place.sparktune(check).exits(3);
        assert!(done.out.contains("one.jsonl (messages): 3 lines"), "{}", done.out);
        assert!(!done.out.contains("are in rejected.jsonl"), "{}", done.out);
        let why = "rejected.jsonl: exists and is not a list of rejected lines";
        assert!(done.err.contains(why), "{}", done.err);
        assert_eq!(done.err.contains("2 of 3 lines were rejected"), limit == "0.01", "{}", done.err);
        let json = place.sparktune(check.into_iter().chain(["--json"])).exits(3).last();
        assert_eq!((&json["report"]["rejected"], &json["rejected_path"]), (&2.into(), &Value::Null));
    }
    let copied = place.sparktune(["check", "one.jsonl", "--write-clean", "clean.jsonl"]).exits(3);
    assert!(copied.err.contains("--rejected") && copied.out.is_empty(), "{copied:?}");
    assert_eq!(std::fs::read_to_string(place.join("rejected.jsonl")).unwrap(), chat(2).to_string());
}

#[test]
fn what_was_not_rejected_is_copied_into_a_file_of_its_own() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n\n{BROKEN}{}", chat(1), chat(2)));
    let args = ["check", "train.jsonl", "--write-clean", "clean.jsonl"];
    let result = place.sparktune(args).exits(0);
    assert!(result.out.contains("clean.jsonl has 2 lines; left out: 2"), "{}", result.out);
    let clean = std::fs::read_to_string(place.join("clean.jsonl")).unwrap();
    assert_eq!(clean, format!("{}\n{}\n", chat(1), chat(2)));
    place.sparktune(["check", "clean.jsonl"]).exits(0);
    // Lines of the eval set are not left out, so they are refused as before.
    let of_eval = ["check", "clean.jsonl", "--eval-data", "train.jsonl"];
    let refused = place.sparktune(of_eval).exits(3);
    assert!(!refused.err.contains("--write-clean"), "{}", refused.err);
    place.sparktune(of_eval.into_iter().chain(["--write-clean", "more.jsonl"])).exits(3);
    let table = place.sparktune(["check", "train.jsonl", "--write-clean", "rows.csv"]).exits(2);
    assert!(table.err.contains("ends with .jsonl"), "{}", table.err);
    // It replaces nothing, and copies no tables.
    let again = place.sparktune(args).exits(2);
    assert!(again.err.contains("exists already"), "{}", again.err);
    assert_eq!(again.out, "", "it is said before the data is read");
    place.write("rows.csv", "prompt,completion\na,b\n");
    let table = place.sparktune(["check", "rows.csv", "--write-clean", "rows.jsonl"]).exits(2);
    assert!(table.err.contains("only files of JSON Lines"), "{}", table.err);
    // An array is counted by its elements, whatever the file is called.
    place.write("array.jsonl", format!("\u{feff}\n[\n{},\n{{\"x\": 1}},\n{}\n]\n", chat(1), chat(2)));
    let array = place.sparktune(["check", "array.jsonl", "--write-clean", "array-clean.jsonl"]).exits(2);
    assert!(array.err.contains("only files of JSON Lines"), "{}", array.err);
    assert!(!place.join("array-clean.jsonl").exists());
}

#[test]
fn where_every_line_is_rejected_no_higher_limit_is_recommended() {
    let place = Place::new();
    place.write("train.jsonl", BROKEN);
    for limit in ["1", "0.5"] {
        let result = place.sparktune(["check", "train.jsonl", "--max-rejected", limit]).exits(3);
        assert!(
            !result.err.contains("--max-rejected") && !result.err.contains("the others"),
            "{}",
            result.err
        );
        assert_eq!(
            result.err.contains("no example is left: 2 lines rejected"),
            limit == "1",
            "{}",
            result.err
        );
    }
    let model = checkpoint();
    let pack = ["pack", "train.jsonl", "t.qubgpu", "--max-rejected", "1", "--model", model.to_str().unwrap()];
    let result = place.sparktune(pack).exits(3);
    assert!(result.err.contains("no example is left") && !result.err.contains("raise"), "{}", result.err);
}

#[test]
fn a_refused_file_of_a_folder_does_not_hide_the_others() {
    let place = Place::new();
    let model = checkpoint();
    std::fs::create_dir(place.join("sets")).unwrap();
    let chats: String = (0..30).map(|number| format!("{}\n", chat(number))).collect();
    place.write("sets/a.jsonl", &chats);
    let utf16: Vec<u8> = chats.encode_utf16().flat_map(u16::to_le_bytes).collect();
    place.write("sets/b.jsonl", [&b"\xff\xfe"[..], &utf16].concat());
    place.write("sets/c.jsonl", "[\n{}\n]\n{}");
    place.write("sets/d.jsonl", format!("{}\n{{oops\n", chat(40)));
    // With and without a model, and where a run would begin.
    let model = ["--model", model.to_str().unwrap()];
    for more in [&[][..], &model] {
        let result = place.sparktune(["check", "sets"].iter().chain(more)).exits(3);
        for told in
            ["31 examples accepted", "sets/b.jsonl: this file is UTF-16", "sets/c.jsonl: ", "sets/d.jsonl:2"]
        {
            assert!(result.out.contains(told), "{told}:\n{}", result.out);
        }
        let refused = "2 of 4 files are refused: sets/b.jsonl, sets/c.jsonl";
        assert!(result.err.contains(refused) && !result.err.contains("--max-rejected"), "{}", result.err);
    }
    let train = ["train", "--plain", "--non-interactive", "--data", "sets", "--max-rejected", "1"];
    let result = place.sparktune(train.iter().chain(&model)).exits(3);
    assert!(
        result.err.contains("UTF-16") && result.err.contains("2 of 4 files are refused"),
        "{}",
        result.err
    );
    let json = place.sparktune(["check", "sets", "--json"]).exits(3).last();
    let refused: Vec<bool> =
        json["report"]["files"].as_array().unwrap().iter().map(|file| file["refused"].is_string()).collect();
    assert_eq!(refused, [false, true, true, false]);
    let clean = place.sparktune(["check", "sets", "--write-clean", "clean.jsonl"]).exits(3);
    assert!(clean.err.contains("sets/b.jsonl is refused as a whole"), "{}", clean.err);
    assert!(!place.join("clean.jsonl").exists());
}

#[test]
fn one_mistyped_field_is_no_verdict_on_the_columns_of_all_lines() {
    let place = Place::new();
    let mistyped = chat(1).to_string().replace("\"messages\"", "\"message\"");
    // No line of this file is accepted, and most are wrong for another reason.
    place.write("wrong.jsonl", format!("{mistyped}\n{}", "{\"messages\": []}\n".repeat(6)));
    let mixed: String = (2..8).map(|number| format!("{}\n", chat(number))).collect();
    place.write("mixed.jsonl", format!("{mistyped}\n{mixed}{}", "{oops\n".repeat(6)));
    for file in ["wrong.jsonl", "mixed.jsonl"] {
        let result = place.sparktune(["check", file]).exits(3);
        assert!(!result.out.contains("fit no format"), "{}", result.out);
        assert!(result.out.contains("--map message=messages"), "the line's own remedy: {}", result.out);
        // Where no line is accepted, there is nothing to copy.
        assert_eq!(result.err.contains("--write-clean FILE"), file == "mixed.jsonl", "{}", result.err);
    }
    let model = checkpoint();
    let train = ["train", "--plain", "--non-interactive", "--data", "mixed.jsonl", "--model"];
    let result = place.sparktune(train.into_iter().chain([model.to_str().unwrap()])).exits(3);
    assert!(result.err.contains("check mixed.jsonl --write-clean FILE"), "{}", result.err);
    // A table is not copied line by line.
    place.write("mixed.csv", format!("prompt,completion\n{}", "a,\n".repeat(6) + &"a,b\n".repeat(6)));
    let result = place.sparktune(["check", "mixed.csv"]).exits(3);
    assert!(!result.err.contains("--write-clean") && result.err.contains("--max-rejected"), "{}", result.err);
    // The first line does not decide, but most lines do.
    place.write("map.jsonl", format!("{{oops\n{}", format!("{mistyped}\n").repeat(6)));
    let result = place.sparktune(["check", "map.jsonl"]).exits(3);
    assert!(result.out.starts_with("the columns message fit no format"), "{}", result.out);
    assert!(result.err.contains("--map message=messages"), "{}", result.err);
}

#[test]
fn how_much_may_be_rejected_is_the_users_choice() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{}\n{{oops\n", chat(1), chat(2)));
    place.sparktune(["check", "train.jsonl", "--max-rejected", "0.5"]).exits(0);
    place.sparktune(["check", "train.jsonl", "--max-rejected", "0.1"]).exits(3);
}

#[test]
fn json_has_the_whole_report_and_the_verdict() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{}\n{BROKEN}", chat(1), chat(1)));
    let result =
        place.sparktune(["check", "train.jsonl", "--json", "--rejected", "bad.jsonl"]).exits(3).last();
    assert_eq!(result["accepted"], false);
    assert_eq!(result["rejected_path"], "bad.jsonl");
    assert_eq!(result["report"]["rejected"], 2);
    assert_eq!(result["report"]["duplicates"]["examples"], 1);
    assert!(place.join("bad.jsonl").is_file());
}

#[test]
fn examples_in_train_and_eval_are_counted() {
    let place = Place::new();
    place.chats(6);
    place.write("eval.jsonl", format!("{}\n", chat(3)));
    let result =
        place.sparktune(["check", "train.jsonl", "--eval-data", "eval.jsonl", "--json"]).exits(0).last();
    assert_eq!(result["report"]["in_train_and_eval"]["examples"], 1);
}

#[test]
fn data_that_is_not_there_is_wrong_usage_and_names_the_path() {
    let place = Place::new();
    let object = place.sparktune(["check", "nowhere.jsonl", "--json"]).exits(2).last();
    assert_eq!(object["accepted"], false);
    assert!(object["error"].as_str().unwrap().contains("nowhere.jsonl"), "{object}");
    let result = place.sparktune(["check", "nowhere.jsonl"]).exits(2);
    assert!(result.err.contains("nowhere.jsonl"), "{}", result.err);
    std::fs::create_dir(place.join("empty")).unwrap();
    let result = place.sparktune(["check", "empty"]).exits(3);
    assert!(result.err.contains("empty"), "{}", result.err);
}

#[test]
fn the_format_can_be_insisted_on() {
    let place = Place::new();
    place.chats(3);
    let result = place.sparktune(["check", "train.jsonl", "--format", "alpaca"]).exits(3);
    assert!(result.out.contains("instruction"), "{}", result.out);
    let result = place.sparktune(["check", "train.jsonl", "--format", "csv"]).exits(2);
    assert!(result.err.contains("--format") && result.err.contains("sharegpt"), "{}", result.err);
}

#[test]
fn what_is_too_long_does_not_count_as_rejected_and_can_be_kept_in_part() {
    let place = Place::new();
    let long = json!({"messages": [
        {"role": "user", "content": "Say much."}, {"role": "assistant", "content": "word ".repeat(300)},
    ]});
    place.write("train.jsonl", format!("{}\n{long}\n{}\n", chat(1), chat(2)));
    let model = checkpoint();
    let checked = |more: &[&str]| {
        let args =
            ["check", "train.jsonl", "--max-example-tokens", "200", "--model", model.to_str().unwrap()];
        place.sparktune(args.iter().chain(more)).exits(0)
    };
    let result = checked(&[]);
    assert!(result.out.contains("1 example too long and left out"), "{}", result.out);
    assert!(
        result.out.contains("--overlong truncate") && result.out.contains("rejected.jsonl"),
        "{}",
        result.out
    );
    let report = &checked(&["--overlong", "truncate", "--json"]).last()["report"];
    assert_eq!((report["examples"].as_u64(), report["lengths"]["max"].as_u64()), (Some(3), Some(200)));
    assert_eq!(report["overlong"]["cut"]["examples"], 1);
    // A copy of what was not rejected has it too, and the whole conversation of which a turn is left out.
    let greeted = json!({"messages": [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."},
    ]});
    let kept = format!("{}\n{long}\n{greeted}\n", chat(1));
    place.write("train.jsonl", format!("{kept}{{oops\n"));
    let result = checked(&["--split-turns", "--write-clean", "clean.jsonl"]);
    assert!(result.out.contains("clean.jsonl has 3 lines; left out: 1"), "{}", result.out);
    assert!(result.out.contains("1 turn left out, because no example"), "{}", result.out);
    assert_eq!(std::fs::read_to_string(place.join("clean.jsonl")).unwrap(), kept);
    place.write("train.jsonl", format!("{}\n{long}\n{}\n", chat(1), chat(2)));
    let args = ["check", "train.jsonl", "--max-example-tokens", "4", "--model", model.to_str().unwrap()];
    let nothing = place.sparktune(args).exits(3);
    assert!(nothing.err.contains("no example is left: 3 lines left out as too long"), "{}", nothing.err);

    // Each has another length, and the report counts them all.
    let chats = (1..30).map(|words| {
        let answer = json!({"role": "assistant", "content": "word ".repeat(words)});
        format!("{}\n", json!({"messages": [{"role": "user", "content": "Say much."}, answer]}))
    });
    place.write("train.jsonl", chats.collect::<String>());
    let many = place.sparktune(args).exits(3);
    let listed = many.out.lines().filter(|line| line.contains("more than the limit of 4.")).count();
    assert_eq!(listed, 3, "{}", many.out);
    assert!(many.out.contains("… and 26 more"), "{}", many.out);
}

#[test]
fn examples_are_shown_with_their_trained_tokens() {
    let place = Place::new();
    let hostile = json!({"messages": [
        {"role": "user", "content": "\u{1b}[2Jhello"}, {"role": "assistant", "content": "Good day."},
    ]});
    place.write("train.jsonl", format!("{hostile}\n{}\n", chat(1)));
    let model = checkpoint();
    let args = ["check", "train.jsonl", "--show", "1", "--model", model.to_str().unwrap()];
    let result = place.sparktune(args).exits(0);
    assert!(result.out.contains("trained | Good day.<|im_end|>"), "{}", result.out);
    assert!(
        result.out.contains("train.jsonl:1, ") && !result.out.contains("train.jsonl:2"),
        "{}",
        result.out
    );
    assert!(result.out.contains("\\u{1b}[2Jhello") && !result.out.contains('\u{1b}'), "{}", result.out);

    let last = place.sparktune(args.iter().chain(&["--json"])).exits(0).last();
    let example = &last["examples"][0];
    assert_eq!((&example["line"], last["examples"].as_array().unwrap().len()), (&json!(1), 1));
    let trained = example["spans"].as_array().unwrap().iter().filter(|span| span["trained"] == true);
    let trained: String = trained.map(|span| span["text"].as_str().unwrap()).collect();
    assert_eq!(trained, "Good day.<|im_end|>");

    let of_model =
        [["--show", "1"], ["--template-kwargs", "{}"], ["--think", "train"], ["--overlong", "split"]];
    for [flag, value] in of_model {
        let result = place.sparktune(["check", "train.jsonl", flag, value]).exits(2);
        assert!(result.err.contains(&format!("{flag} needs a model")), "{}", result.err);
        assert!(result.err.contains("--model"), "{}", result.err);
    }
}

#[test]
fn what_is_said_about_thinking_changes_what_carries_loss() {
    let place = Place::new();
    place.chats(3);
    let model = checkpoint();
    let targets = |think: &str| {
        let args = ["check", "train.jsonl", "--json", "--think", think, "--model", model.to_str().unwrap()];
        place.sparktune(args).exits(0).last()["report"]["tokens"]["targets"].as_u64().unwrap()
    };
    assert!(targets("train") > targets("skip"));
}
