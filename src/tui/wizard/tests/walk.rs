//! Tests of keys and responses across pages. The file is long because each test walks one rig through several
//! pages, from the answers at its head.

use sparktune_data::Foreign;

use super::*;
use crate::screen::picture::ASCII;
use crate::wizard::settings::listed;

#[test]
fn enter_alone_leads_a_newcomer_with_model_and_data_to_a_started_run() {
    let mut rig = Rig::with(GIVEN, World::default());
    for page in Page::ALL {
        assert_eq!(rig.page(), page);
        rig.take();
    }
    let run = rig.world.started.clone().unwrap();
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Started(run)));
    assert_eq!(rig.wizard.update(Input::Tick), Next::Leave);
}

#[test]
fn the_demo_takes_the_place_of_a_chosen_model_only_when_that_is_said_twice() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.press(KeyCode::Char('d'));
    rig.settle();
    rig.sees("replaces the model and the data that you chose");
    assert!(!rig.log.contains(&Request::Demo));
    // Another key in between takes it back.
    rig.press(KeyCode::Down);
    rig.press(KeyCode::Char('d'));
    rig.settle();
    assert!(!rig.log.contains(&Request::Demo));
    rig.press(KeyCode::Char('d'));
    rig.settle();
    assert!(rig.log.contains(&Request::Demo));
    assert_eq!(rig.page(), Page::Model);
}

#[test]
fn enter_in_a_folder_without_data_does_not_leave_it() {
    let world = World {
        listing: Box::new(|folder: &Path| {
            Ok(Listing { folder: folder.to_owned(), entries: Vec::new(), left_out: 0 })
        }),
        recent: Recent::default(),
        ..World::default()
    };
    let mut rig = Rig::with(&[("model", "Qwen/Qwen3.5-2B")], world);
    rig.to(Page::Data);
    rig.settle();
    let folders =
        |rig: &Rig| rig.log.iter().filter(|request| matches!(request, Request::List { .. })).count();
    let before = folders(&rig);
    rig.enter();
    rig.settle();
    rig.sees("no data file in this folder");
    assert_eq!(folders(&rig), before);
    rig.press(KeyCode::Down);
    rig.enter();
    rig.settle();
    assert_eq!(folders(&rig), before + 1, "a cursor that was moved there goes up");
}

#[test]
fn the_demo_is_filled_in_by_one_key_and_taken_by_enter() {
    let mut rig = Rig::new(Setup::default(), World { machine: Ok(laptop_with_room()), ..World::default() });
    rig.settle();
    rig.sees("no NVIDIA GPU was found");
    rig.press(KeyCode::Char('d'));
    rig.settle();
    assert_eq!(rig.page(), Page::Model);
    rig.sees("/demo/model");
    rig.take();
    rig.take();
    assert_eq!(rig.page(), Page::Plan);
    // The preset's values are used, and marked as such.
    rig.sees("256");
    rig.sees("preset");

    // They suit the demo alone: with another model the recommended ones are back.
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Esc);
    assert_eq!(rig.page(), Page::Model);
    rig.press(KeyCode::Down);
    rig.enter();
    rig.settle();
    let answers = &rig.wizard.state.planner.answers;
    assert!(answers.preset.is_none() && answers.name.is_none(), "{answers:?}");
    assert!(answers.max_steps.is_none() && answers.learning_rate.is_none(), "{answers:?}");
    assert!(answers.model.is_some() && answers.data.is_some());
}

#[test]
fn a_setting_is_found_by_its_words_and_the_ends_of_the_list_by_one_key() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Char('/'));
    rig.text("adamw epsilon");
    rig.sees("eps");
    rig.sees("/ adamw epsilon");
    rig.press(KeyCode::Esc);
    // The cursor stays where it was found, in the list of all settings, under its heading.
    rig.sees("optimizer.eps");
    rig.sees("optimizer and schedule");
    rig.press(KeyCode::Home);
    rig.sees("method.kind");
    rig.press(KeyCode::End);
    rig.sees("tensorboard");
    // Above the cost of pack lengths, the keys of the list are not offered.
    rig.press(KeyCode::Char('c'));
    rig.sees("back to the settings");
    rig.press(KeyCode::Char('c'));
    assert_eq!(rig.page(), Page::Plan);
    rig.sees("tensorboard");
}

#[test]
fn what_is_started_are_the_answers_that_were_given() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    // The second row is the pack length.
    rig.press(KeyCode::Down);
    rig.text("2048");
    rig.enter();
    rig.to(Page::Review);
    rig.enter();
    let started = rig.open_as(|request| match &request.body {
        Request::Start { answers, .. } => Some((**answers).clone()),
        _ => None,
    });
    let answers = &started[0];
    assert_eq!(answers.get("pack-length").unwrap().0, "2048");
    assert_eq!(answers.get("model").unwrap().0, "Qwen/Qwen3.5-2B");
}

#[test]
fn going_back_and_forward_loses_nothing() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Down);
    rig.text("1024");
    rig.enter();
    rig.to(Page::Review);
    let before = rig.wizard.state.planner.answers.clone();
    let screen = rig.screen();
    for _ in 0..5 {
        rig.press(KeyCode::Esc);
        rig.settle();
    }
    assert_eq!(rig.page(), Page::Machine);
    for _ in 0..5 {
        rig.press(KeyCode::Tab);
        rig.settle();
    }
    assert_eq!(rig.page(), Page::Review);
    assert_eq!(rig.wizard.state.planner.answers, before);
    assert_eq!(rig.screen(), screen);
    // Nothing had to be read a second time.
    let asked = rig.open_as(|request| request.body.is_slow().then_some(()));
    assert!(asked.is_empty());
}

#[test]
fn another_model_lets_go_of_all_that_rested_on_the_first() {
    let mut rig = Rig::with(&[GIVEN, &[("revision", "v1")][..]].concat(), World::default());
    rig.to(Page::Plan);
    assert!(rig.wizard.state.planner.plan.is_some());
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Home);
    rig.enter();
    assert!(rig.wizard.state.planner.plan.is_none() && rig.wizard.state.data.ready().is_none());
    assert_eq!(rig.wizard.state.planner.answers.get("revision"), None);
    rig.settle();
    rig.take();
    rig.settle();
    assert_eq!(rig.page(), Page::Plan);
    assert!(rig.wizard.state.planner.plan.is_some());
}

#[test]
fn stale_answers_are_ignored_and_what_is_no_longer_wanted_is_cancelled() {
    let mut rig = Rig::ready();
    rig.enter();
    rig.press(KeyCode::Home);
    rig.press(KeyCode::Down);
    rig.enter();
    let first =
        rig.open_as(|request| matches!(request.body, Request::Model { .. }).then_some(request.ticket))[0];
    rig.press(KeyCode::Down);
    rig.enter();
    let tickets =
        rig.open_as(|request| matches!(request.body, Request::Model { .. }).then_some(request.ticket));
    assert_eq!(
        rig.open_as(|request| match request.body {
            Request::Cancel { ticket } => Some(ticket),
            _ => None,
        }),
        [first]
    );
    rig.send(first, Response::Model(Ok(Box::new(model("stale/model")))));
    assert_eq!(rig.page(), Page::Model);
    rig.sees_not("stale/model");
    rig.send(tickets[1], Response::Model(Err("the hub cannot be reached: name resolution failed".into())));
    rig.sees("name resolution failed");
    assert_eq!(rig.page(), Page::Model);
}

#[test]
fn a_model_of_unknown_architecture_has_to_be_confirmed() {
    let odd = |name: &str| Ok(ModelFound { unknown_architecture: Some("olmo3".into()), ..model(name) });
    let mut rig = Rig::with(GIVEN, World { model: Box::new(odd), ..World::default() });
    rig.take();
    rig.take();
    assert_eq!(rig.page(), Page::Model);
    rig.sees("olmo3");
    rig.press(KeyCode::Tab);
    assert_eq!(rig.page(), Page::Model);
    rig.press(KeyCode::Char('y'));
    rig.settle();
    rig.to(Page::Review);
    rig.enter();
    let started = rig.open_as(|request| match &request.body {
        Request::Start { answers, .. } => answers.get("architecture"),
        _ => None,
    });
    assert_eq!(started, [("qwen3_5".to_owned(), Origin::Flag)]);
    // The model was looked up only once.
    assert_eq!(rig.log.iter().filter(|request| matches!(request, Request::Model { .. })).count(), 1);
}

#[test]
fn another_model_is_typed_completed_and_checked() {
    let mut rig = Rig::ready();
    rig.enter();
    rig.press(KeyCode::Char('o'));
    rig.text("qwen/qwen3.5-4");
    rig.press(KeyCode::Tab);
    rig.settle();
    rig.sees("Qwen/Qwen3.5-4B");
    rig.ctrl('u');
    rig.text("~/mine");
    rig.enter();
    let asked = rig.open_as(|request| match &request.body {
        Request::Model { name, .. } => Some(name.clone()),
        _ => None,
    });
    assert_eq!(asked, ["/home/me/mine"]);
    rig.settle();
    assert_eq!(rig.page(), Page::Data);
}

#[test]
fn the_model_of_the_demo_is_the_last_of_the_list_and_is_named_by_its_name() {
    let demo = Some("/opt/sparktune/presets/demo/model".to_owned());
    let mut rig = Rig::new(Setup { demo: demo.clone(), ..Setup::default() }, World::default());
    rig.settle();
    rig.enter();
    rig.press(KeyCode::End);
    rig.press(KeyCode::Up);
    rig.sees("demo (included)");
    rig.enter();
    let asked = |rig: &mut Rig| {
        let names = rig.open_as(|request| match &request.body {
            Request::Model { name, .. } => Some(name.clone()),
            _ => None,
        });
        names.last().cloned()
    };
    assert_eq!(asked(&mut rig), demo);
    rig.press(KeyCode::Char('o'));
    rig.ctrl('u');
    rig.text("demo");
    rig.enter();
    let typed = asked(&mut rig).unwrap();
    assert!(typed != "demo" && typed.ends_with("presets/demo/model"), "{typed}");
}

#[test]
fn the_cursor_is_on_a_typed_model_and_its_error_is_shown_there_alone() {
    let refused = |name: &str| Err(format!("{name}: no such model"));
    let mut rig = Rig::with(&[], World { model: Box::new(refused), ..World::default() });
    rig.enter();
    rig.press(KeyCode::Char('o'));
    rig.text("org/typed");
    rig.enter();
    rig.settle();
    rig.sees("org/typed: no such model");
    rig.sees("u checks it again");
    rig.press(KeyCode::Down);
    rig.sees_not("no such model");
    // The row of the typed model goes, and the cursor stays on the model that was chosen instead of it.
    rig.enter();
    rig.settle();
    let first = &Catalog::shipped().models[0].id;
    rig.sees(&format!("{first}: no such model"));
    rig.press(KeyCode::Up);
    rig.sees(&format!("{first}: no such model"));
}

#[test]
fn the_search_narrows_the_models_and_loses_the_choice_of_none() {
    let mut rig = Rig::ready();
    rig.enter();
    rig.press(KeyCode::Char('/'));
    rig.text("27b");
    rig.sees_not("Qwen/Qwen3.5-0.8B");
    rig.sees("Qwen/Qwen3.6-27B");
    rig.enter();
    rig.take();
    assert_eq!(rig.page(), Page::Data);
    assert!(rig.wizard.state.planner.answers.model.as_ref().unwrap().value.contains("27B"));
}

#[test]
fn files_are_found_marked_and_read_together_whatever_their_names() {
    let mut rig = Rig::with(&GIVEN[..1], World::default());
    rig.take();
    rig.take();
    assert_eq!(rig.page(), Page::Data);
    rig.press(KeyCode::Char('/'));
    rig.text("utf8");
    rig.enter();
    rig.press(KeyCode::Char(' '));
    rig.press(KeyCode::Char('/'));
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Char('/'));
    rig.text("chats");
    rig.enter();
    rig.press(KeyCode::Char(' '));
    rig.sees("2 marked");
    rig.enter();
    let chosen = rig.open_as(|request| match &request.body {
        Request::Data { answers } => Some(answers.data.as_ref().unwrap().value.clone()),
        _ => None,
    });
    let odd = PathBuf::from("/desk").join(OsString::from_vec(b"not\xffutf8.jsonl".to_vec()));
    assert_eq!(chosen, [vec![odd, "/desk/chats.jsonl".into()]]);
}

#[test]
fn reading_the_data_is_cancelled_by_a_key_and_begun_again_by_choosing() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.take();
    rig.enter();
    rig.collect();
    // The model was already checked on its page.
    rig.settle_all_but_data();
    assert_eq!(rig.page(), Page::Data);
    let ticket = rig.data_ticket().unwrap();
    let progress = Progress {
        what: "tokenising the data".into(),
        done: 20_000_000,
        total: Some(48_000_000),
        unit: Unit::Bytes,
        note: Some("9,100 examples".into()),
    };
    rig.send(ticket, Response::Progress(progress));
    rig.sees("tokenising the data");
    rig.sees("20.0 MB of 48.0 MB");
    rig.press(KeyCode::Char('x'));
    assert_eq!(
        rig.open_as(|request| match request.body {
            Request::Cancel { ticket } => Some(ticket),
            _ => None,
        }),
        [ticket]
    );
    rig.open.clear();
    // The late response changes nothing.
    rig.send(ticket, Response::Data(Ok(Box::new(data()))));
    assert!(rig.wizard.state.data.ready().is_none());
    rig.press(KeyCode::Esc);
    rig.sees("cancelled");
    rig.press(KeyCode::Char('u'));
    rig.settle();
    assert!(rig.wizard.state.data.ready().is_some());
}

impl Rig {
    fn data_ticket(&mut self) -> Option<Ticket> {
        self.open_as(|request| matches!(request.body, Request::Data { .. }).then_some(request.ticket))
            .last()
            .copied()
    }

    fn settle_all_but_data(&mut self) {
        for _ in 0..5 {
            self.collect();
            for request in std::mem::take(&mut self.open) {
                match self.answer(&request.body) {
                    Some(response) if !matches!(request.body, Request::Data { .. }) => {
                        self.send(request.ticket, response)
                    }
                    _ => self.open.push(request),
                }
            }
        }
    }
}

#[test]
fn data_with_too_many_bad_lines_is_refused_until_the_limit_is_raised() {
    let bad = |_: &Answers| {
        let mut found = data();
        found.report.rejected = 5000;
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(bad), ..World::default() });
    rig.take();
    rig.take();
    rig.enter();
    assert_eq!(rig.page(), Page::Data);
    rig.sees("5,000 of 29,315 lines were rejected");
    rig.press(KeyCode::Char('w'));
    rig.settle();
    rig.sees("rejected line 1 of 230");
    rig.sees("fix: Use one of");
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Char('m'));
    assert_eq!(rig.wizard.state.planner.answers.get("max-rejected").unwrap().0, "0.18");
    rig.enter();
    assert_eq!(rig.page(), Page::Plan);
}

#[test]
fn what_was_allowed_for_one_file_is_not_allowed_for_the_next() {
    let bad = |_: &Answers| {
        let mut found = data();
        found.report.rejected = 5000;
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(bad), ..World::default() });
    rig.take();
    rig.take();
    rig.press(KeyCode::Char('f'));
    rig.settle();
    rig.press(KeyCode::Char('m'));
    let answers = &rig.wizard.state.planner.answers;
    assert!(answers.format.is_some() && answers.max_rejected.is_some());
    // A draft does not carry it over to the next file either, and goes on where it is allowed again.
    let draft = Draft::from_text(&rig.wizard.kept.draft.to_text(), "draft").unwrap();
    assert_eq!((draft.page, draft.answers), (Page::Data, flags(GIVEN)));
    rig.wizard.state.choose_data(vec!["/desk/chats.jsonl".into()]);
    rig.wizard.state.refresh_facts(Page::Data);
    rig.settle();
    let answers = &rig.wizard.state.planner.answers;
    assert!(answers.format.is_none() && answers.max_rejected.is_none());
    rig.sees("5,000 of 29,315 lines were rejected");
    assert_eq!(rig.page(), Page::Data);
}

#[test]
fn a_refused_file_is_shown_with_its_sentence_and_no_key_goes_on_without_it() {
    let among_others = |_: &Answers| {
        let mut found = data();
        let whole = found.report.files[0].clone();
        let why = "sets/e.jsonl: this file is UTF-16, but data must be UTF-8. Convert it: iconv -f UTF-16";
        found.report.files.extend(["sets/b.jsonl", "sets/c.jsonl", "sets/d.jsonl", "sets/e.jsonl"].map(
            |name| {
                let refused = name.ends_with("e.jsonl").then(|| why.to_owned());
                FileReport { name: name.to_owned(), refused, ..whole.clone() }
            },
        ));
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(among_others), ..World::default() });
    rig.take();
    rig.take();
    rig.enter();
    rig.sees("sets/e.jsonl: this file is UTF-16");
    rig.sees("1 of 5 files is refused: sets/e.jsonl");
    rig.sees("o other data");
    rig.press(KeyCode::Char('m'));
    assert!(rig.wizard.state.planner.answers.get("max-rejected").is_none());
    rig.enter();
    assert_eq!(rig.page(), Page::Data);
}

#[test]
fn foreign_columns_are_shown_with_a_map_that_a_key_takes() {
    let foreign = |answers: &Answers| {
        let mut found = data();
        if answers.map.is_none() {
            let map = "question=prompt,answer=completion".parse().ok();
            let columns = vec!["question".into(), "answer".into()];
            found.report.foreign = Some(Foreign { columns, map, lines: 60_000 });
            found.report.rejected = 60_000;
        }
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(foreign), ..World::default() });
    rig.take();
    rig.take();
    rig.enter();
    rig.sees("the columns look like question=prompt,answer=completion: c reads them so");
    rig.press(KeyCode::Char('c'));
    rig.settle();
    assert_eq!(rig.wizard.state.planner.answers.get("map").unwrap().0, "question=prompt,answer=completion");
    assert!(rig.wizard.state.data_refused().is_none());
    rig.press(KeyCode::Char('c'));
    assert!(rig.wizard.state.data.ready().is_some(), "there is nothing left to take");
}

#[test]
fn the_rejected_lines_are_paged_in_both_directions() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('w'));
    rig.settle();
    for _ in 0..2 {
        rig.press(KeyCode::PageDown);
        rig.settle();
    }
    rig.sees("rejected line 201 of 230");
    rig.press(KeyCode::Up);
    rig.settle();
    rig.sees("rejected line 200 of 230");
    rig.press(KeyCode::Down);
    rig.settle();
    rig.sees("rejected line 201 of 230");
    rig.press(KeyCode::PageDown);
    rig.press(KeyCode::Down);
    rig.sees("rejected line 230 of 230");
    rig.press(KeyCode::Esc);
    rig.sees("examples accepted");
}

#[test]
fn any_example_is_shown_by_the_number_of_its_line_or_a_text_in_it() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('p'));
    rig.text(":812");
    rig.sees("line: 812");
    rig.enter();
    rig.settle();
    rig.sees("example 1 of 1");
    rig.sees(":812");
    rig.text("/esc q");
    rig.sees("search: esc q");
    rig.enter();
    rig.settle();
    rig.sees("2 examples found");
    let sought = rig.log.iter().filter_map(|request| match request {
        Request::Find { wanted, .. } => Some(wanted.clone()),
        _ => None,
    });
    let line = Wanted::Line { file: None, line: 812 };
    assert_eq!(sought.collect::<Vec<_>>(), [line, Wanted::Text("esc q".into())]);
    // Escape first returns to the first examples, then to the data.
    rig.press(KeyCode::Esc);
    rig.sees("example 1 of 2");
    rig.text(":x");
    rig.enter();
    rig.sees("the number of a line");
    // It is corrected where it was typed.
    rig.press(KeyCode::Backspace);
    rig.text("81");
    rig.sees("line: 81");
    rig.enter();
    rig.settle();
    rig.sees("example 1 of 1");
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Esc);
    rig.sees("examples accepted");
}

#[test]
fn a_search_that_nobody_waits_for_is_ended() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('p'));
    let searches = |rig: &mut Rig| {
        rig.open_as(|request| matches!(request.body, Request::Find { .. }).then_some(request.ticket))
    };
    let ended = |rig: &mut Rig| {
        rig.open_as(|request| match request.body {
            Request::Cancel { ticket } => Some(ticket),
            _ => None,
        })
    };
    for text in ["/one", "/two"] {
        rig.text(text);
        rig.enter();
    }
    let begun = searches(&mut rig);
    assert_eq!(ended(&mut rig), begun[..1], "by the next search");
    rig.press(KeyCode::Esc);
    assert_eq!(ended(&mut rig), begun, "by Escape");
    rig.text("/three");
    rig.enter();
    rig.press(KeyCode::Char('p'));
    assert_eq!(ended(&mut rig), searches(&mut rig), "by leaving the preview");
    rig.sees("examples accepted");
}

#[test]
fn a_long_search_keeps_its_cursor_in_sight() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('p'));
    rig.press(KeyCode::Char('/'));
    rig.text(&format!("beginning {} end", "of a long text ".repeat(12)));
    rig.sees("a long text  end");
    rig.press(KeyCode::Home);
    rig.sees("search: beginning of");
    // Whatever the cursor looks like, a terminal without Unicode can show it.
    let shown = text(&drawn(&mut rig.wizard, 100, 32, &ASCII));
    assert!(shown.lines().any(|line| line.contains("search: ") && line.is_ascii()), "{shown}");
}

#[test]
fn each_row_of_the_review_and_each_finding_of_the_machine_can_be_seen() {
    let mut rig = Rig::with(&[GIVEN, &[("rank", "64")][..]].concat(), World::default());
    rig.pose_at(Page::Review);
    for (width, height) in [(80, 24), (132, 40), (60, 16), (80, 50)] {
        let shown = |rig: &mut Rig| text(&drawn(&mut rig.wizard, width, height, &NO_COLOUR));
        for _ in 0..60 {
            rig.press(KeyCode::PageUp);
        }
        let rows = rig.wizard.state.planner.plan.as_ref().unwrap().advice.as_ref().unwrap().explain.clone();
        let mut seen = shown(&mut rig);
        // A page down leaves out no row, and the last page ends with the last row.
        for _ in 0..60 {
            rig.press(KeyCode::PageDown);
            seen += &shown(&mut rig);
        }
        for row in &rows {
            // The longest names are cut at their end.
            let name: String = row.key.chars().take(20).collect();
            assert!(seen.contains(&name), "{name} is never seen at {width}×{height}");
        }
        let last = shown(&mut rig);
        assert!(last.contains(&format!("to {} of {}", rows.len(), rows.len())), "{last}");
        rig.press(KeyCode::Up);
        assert_ne!(shown(&mut rig), last, "the first key up moves already, at {width}×{height}");
    }

    let mut found = laptop();
    found.findings.iter_mut().for_each(|finding| finding.found = "a word ".repeat(40));
    found.findings.last_mut().unwrap().advice = Some("the last word".into());
    let mut rig = Rig::new(Setup::default(), World { machine: Ok(found), ..World::default() });
    rig.settle();
    let shown = |rig: &mut Rig| text(&drawn(&mut rig.wizard, 60, 16, &NO_COLOUR));
    assert!(!shown(&mut rig).contains("the last word"));
    for _ in 0..60 {
        rig.press(KeyCode::Down);
    }
    let last = shown(&mut rig);
    assert!(last.contains("the last word"), "{last}");
    rig.press(KeyCode::Up);
    assert_ne!(shown(&mut rig), last, "the first key up moves already");
}

#[test]
fn the_think_policy_is_switched_at_once_and_counted_again_when_the_page_is_left() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('p'));
    rig.sees("2 of 24,315 examples");
    rig.sees("think = skip");
    rig.press(KeyCode::Char('t'));
    rig.sees("think = train");
    assert_eq!(rig.data_ticket(), None);
    rig.press(KeyCode::Esc);
    rig.enter();
    assert_eq!(rig.page(), Page::Plan);
    // The old counts are used until the new ones arrive.
    assert!(rig.wizard.state.planner.plan.is_some());
    let ticket = rig.data_ticket().unwrap();
    let mut found = data();
    found.facts.target_tokens += 1000;
    rig.send(ticket, Response::Data(Ok(Box::new(found.clone()))));
    assert_eq!(rig.wizard.state.data.ready().unwrap().facts, found.facts);
}

#[test]
fn the_plan_follows_each_keystroke_and_the_last_valid_one_stays() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Down);
    rig.press(KeyCode::Down);
    let rank = |rig: &Rig| rig.wizard.state.planner.plan.as_ref().unwrap().method.rank();
    assert_eq!(rank(&rig), 128);
    rig.text("6");
    assert_eq!(rank(&rig), 6);
    rig.text("4");
    assert_eq!(rank(&rig), 64);
    rig.text("x");
    assert_eq!(rank(&rig), 64);
    rig.sees("expected a whole number");
    // An invalid value cannot be kept, only corrected or undone.
    rig.enter();
    assert_eq!((rig.page(), rank(&rig)), (Page::Plan, 64));
    rig.press(KeyCode::Backspace);
    rig.enter();
    rig.sees("recommended is 128");
    rig.text("9");
    assert_eq!(rank(&rig), 9);
    rig.press(KeyCode::Esc);
    assert_eq!(rank(&rig), 64);
    rig.press(KeyCode::Char('r'));
    assert_eq!((rank(&rig), rig.wizard.state.planner.answers.get("rank")), (128, None));
    rig.sees("as recommended");
}

#[test]
fn the_reason_for_the_pack_length_is_read_in_full_on_a_screen_of_the_usual_size() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Down);
    let screen = text(&drawn(&mut rig.wizard, 80, 24, &NO_COLOUR));
    assert!(screen.contains("pack.length") && screen.contains("expects a whole number"), "{screen}");
    rig.press(KeyCode::Char('c'));
    rig.sees("◂ chosen");
}

#[test]
fn arrows_change_values_and_say_why_one_cannot_be() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Right);
    assert_eq!(rig.wizard.state.planner.answers.get("method").unwrap().0, "full");
    rig.press(KeyCode::Right);
    rig.press(KeyCode::Down);
    let before = rig.wizard.state.planner.plan.as_ref().unwrap().pack.length;
    rig.press(KeyCode::Right);
    assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap().pack.length, before + 128);
    rig.press(KeyCode::Left);
    rig.sees("as recommended");
    // The number of epochs cannot go below one.
    rig.press(KeyCode::Down);
    rig.press(KeyCode::Down);
    for _ in 0..3 {
        rig.press(KeyCode::Left);
    }
    rig.sees("0 is not possible");
    assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap().duration.epochs, 1.0);
}

#[test]
fn answers_that_fit_nowhere_are_shown_with_what_would_and_can_be_changed() {
    let world = World { machine: Ok(laptop_with_room()), ..World::default() };
    let mut rig = Rig::with(&[GIVEN, &[("method", "full")][..]].concat(), world);
    rig.to(Page::Plan);
    assert!(rig.wizard.state.planner.plan.is_none());
    rig.sees("does not fit");
    rig.enter();
    assert_eq!(rig.page(), Page::Plan);
    // The cursor is on the setting that causes the problem.
    rig.press(KeyCode::Char('r'));
    let state = &rig.wizard.state;
    assert!(state.planner.plan.is_some(), "{:?}", state.planner.problem);
}

/// A machine with enough disk space, and too little memory for full fine-tuning.
fn laptop_with_room() -> MachineFound {
    let mut found = laptop();
    found.facts.disk_free_bytes = Some(1_000_000_000_000);
    found.facts.mem_total_bytes = 32_000_000_000;
    found.facts.mem_available_bytes = 28_000_000_000;
    found
}

#[test]
fn a_preset_is_loaded_and_own_values_count_more() {
    let mut rig = Rig::with(&[GIVEN, &[("epochs", "5")][..]].concat(), World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Char('p'));
    rig.settle();
    rig.press(KeyCode::Down);
    rig.enter();
    rig.sees("preset quick is loaded; your own value of epochs overrides it (R resets)");
    let plan = rig.wizard.state.planner.plan.clone().unwrap();
    assert_eq!((plan.method.rank(), plan.duration.epochs, plan.preset.as_deref()), (16, 5.0, Some("quick")));
    rig.press(KeyCode::Char('R'));
    assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap().duration.epochs, 1.0);
    // An answer, when removed, falls back to the preset's value, and that to the plan's.
    rig.press(KeyCode::Down);
    rig.press(KeyCode::Down);
    rig.text("64");
    rig.enter();
    for rank in [16, 128] {
        rig.press(KeyCode::Char('r'));
        assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap().method.rank(), rank);
    }
    // Another preset replaces the first.
    rig.press(KeyCode::Char('p'));
    rig.settle();
    rig.enter();
    assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap().method.rank(), 128);
}

#[test]
fn a_preset_is_saved_without_model_and_data_and_replaced_only_when_asked_twice() {
    let mut rig = Rig::with(&[GIVEN, &[("rank", "32")][..]].concat(), World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Char('P'));
    rig.text("a/b");
    rig.enter();
    rig.sees("a name of letters");
    rig.ctrl('u');
    rig.text("taken");
    rig.enter();
    let saved = rig.open_as(|request| match &request.body {
        Request::SavePreset { toml, replace, .. } => Some((toml.clone(), *replace)),
        _ => None,
    });
    assert!(saved[0].0.contains("rank = 32") && !saved[0].0.contains("Qwen") && !saved[0].1);
    rig.settle();
    rig.sees("Press Enter again to");
    rig.take();
    rig.sees("saved: ~/.config/sparktune/presets/taken.toml");
}

#[test]
fn a_model_without_mtp_head_skips_that_question_with_a_word() {
    let headless = |name: &str| {
        let mut found = model(name);
        found.facts.config.mtp_num_hidden_layers = 0;
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { model: Box::new(headless), ..World::default() });
    rig.to(Page::Plan);
    rig.take();
    assert_eq!(rig.page(), Page::Review);
    rig.sees("no MTP head");
    rig.press(KeyCode::Esc);
    assert_eq!(rig.page(), Page::Plan);
}

#[test]
fn the_mtp_head_is_chosen_by_arrows_and_the_recommendation_is_no_answer() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Mtp);
    rig.press(KeyCode::Down);
    assert_eq!(rig.wizard.state.planner.answers.get("mtp").unwrap().0, "default");
    // What a choice costs stands on a small screen too.
    rig.press(KeyCode::Down);
    rig.sees("by training");
    rig.press(KeyCode::Up);
    rig.press(KeyCode::Up);
    assert_eq!(rig.wizard.state.planner.answers.get("mtp"), None);
}

#[test]
fn a_start_is_cancelled_goes_on_later_and_says_why_it_failed() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Review);
    rig.open.clear();
    rig.enter();
    let start = |rig: &mut Rig| {
        *rig.open_as(|request| matches!(request.body, Request::Start { .. }).then_some(request.ticket))
            .last()
            .unwrap()
    };
    let ticket = start(&mut rig);
    let progress = |what: &str, done| {
        Response::Progress(Progress {
            what: what.into(),
            done,
            total: Some(100),
            unit: Unit::Count,
            note: None,
        })
    };
    rig.send(ticket, progress("tokenising the data", 100));
    rig.send(ticket, progress("fetching model.safetensors", 10));
    rig.sees("fetching model.safetensors");
    rig.press(KeyCode::Esc);
    rig.sees("stopping");
    rig.send(ticket, Response::Started(Err("cancelled".into())));
    assert_eq!(rig.page(), Page::Review);
    rig.sees("cancelled; what has been downloaded is kept");
    rig.enter();
    let ticket = start(&mut rig);
    rig.send(ticket, Response::Started(Err("the disk is full: free 3 GB".into())));
    rig.sees("the disk is full");
    rig.enter();
    let again = start(&mut rig);
    assert_ne!(again, ticket);
    rig.send(ticket, Response::Started(Ok("/stale".into())));
    assert_eq!(rig.wizard.outcome(), None);
    rig.send(again, Response::Started(Ok("/run".into())));
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Started("/run".into())));
    let forgotten = rig.open_as(|request| (request.body == Request::ForgetDraft).then_some(()));
    assert_eq!(forgotten.len(), 1);
}

#[test]
fn leaving_is_asked_for_and_keeps_the_answers_or_throws_them_away() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.take();
    rig.press(KeyCode::Char('q'));
    rig.sees("leave the wizard?");
    assert_eq!(rig.press(KeyCode::Char('n')), Next::Draw);
    rig.press(KeyCode::Char('q'));
    assert_eq!(rig.press(KeyCode::Char('y')), Next::Leave);
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: true }));
    let kept = rig.log.iter().filter_map(|request| {
        if let Request::KeepDraft { draft } = request { Some(draft.page) } else { None }
    });
    assert_eq!(kept.collect::<Vec<_>>(), [Page::Model]);

    let mut rig = Rig::with(GIVEN, World::default());
    rig.take();
    rig.press(KeyCode::Char('q'));
    rig.press(KeyCode::Char('d'));
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: false }));
    assert_eq!(rig.open.last().unwrap().body, Request::ForgetDraft);

    // Pressing Ctrl-C again leaves without a question.
    let mut rig = Rig::ready();
    rig.ctrl('c');
    assert_eq!(rig.ctrl('c'), Next::Leave);
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: false }));
}

#[test]
fn answers_that_cannot_be_saved_are_not_called_saved() {
    let refused = |words: &str| {
        let mut rig = Rig::with(GIVEN, World::default());
        rig.enter();
        let is_draft = |request: &Ticketed<Request>| matches!(request.body, Request::KeepDraft { .. });
        let ticket = rig.open_as(|request| is_draft(request).then_some(request.ticket))[0];
        (rig, ticket, Response::NotKept(words.into()))
    };
    let (mut rig, ticket, refusal) = refused("the home folder is read-only");
    rig.press(KeyCode::Char('q'));
    rig.sees("Your answers are saved");
    // The refusal comes while the question is open.
    rig.send(ticket, refusal);
    rig.sees("are lost when you leave");
    rig.sees_not("are saved");
    rig.sees_not("delete the answers");
    rig.press(KeyCode::Char('y'));
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: false }));

    // With the next answer it is tried again.
    let (mut rig, ticket, refusal) = refused("the disk is full");
    rig.send(ticket, refusal);
    rig.sees("could not be saved for later: the disk is full");
    rig.to(Page::Data);
    rig.press(KeyCode::Char('q'));
    rig.sees("Your answers are saved");
}

/// Returns the requests that save a draft, of those that were not taken yet.
fn saves(rig: &mut Rig) -> Vec<Ticket> {
    rig.open_as(|request| matches!(request.body, Request::KeepDraft { .. }).then_some(request.ticket))
}

#[test]
fn what_was_saved_before_the_last_changes_is_offered_and_can_be_deleted() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.enter();
    rig.press(KeyCode::Esc);
    let tickets = saves(&mut rig);
    assert_eq!(tickets.len(), 2, "each page is saved");
    rig.send(tickets[1], Response::NotKept("the disk is full".into()));
    rig.press(KeyCode::Char('q'));
    rig.sees("Your last changes could not be saved");
    rig.sees("offers to continue");
    rig.press(KeyCode::Char('d'));
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: false }));
    assert_eq!(rig.open.last().unwrap().body, Request::ForgetDraft);
}

#[test]
fn a_save_that_fails_after_leaving_is_not_called_saved() {
    for (is_last, draft_kept) in [(true, false), (false, true)] {
        let mut rig = Rig::with(GIVEN, World::default());
        rig.enter();
        // Going to another page saves once more.
        rig.press(KeyCode::Esc);
        let tickets = saves(&mut rig);
        assert_eq!(tickets.len(), 2);
        rig.press(KeyCode::Char('q'));
        assert_eq!(rig.press(KeyCode::Char('y')), Next::Leave);
        assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: true }));
        let ticket = tickets[usize::from(is_last)];
        let body = Response::NotKept("the disk is full".into());
        rig.responses.send(Ticketed { ticket, body }).unwrap();
        let backend = std::thread::spawn(|| {});
        assert_eq!(rig.wizard.outcome_after(backend), Some(Outcome::Left { draft_kept }));
    }
}

#[test]
fn a_run_planned_again_leaves_the_draft_of_another_wizard_alone() {
    let of_draft = |request: &Request| {
        matches!(request, Request::KeepDraft { .. } | Request::ForgetDraft)
            || matches!(request, Request::Start { forgets_draft: true, .. })
    };
    let with_plan = |beside_draft| {
        let begin = Begin::WithPlan { beside_draft };
        let mut rig = Rig::new(Setup { answers: flags(GIVEN), begin, ..Setup::default() }, World::default());
        rig.settle();
        rig.to(Page::Review);
        rig
    };
    let mut rig = with_plan(true);
    rig.press(KeyCode::Char('q'));
    rig.sees("The answers on these pages are not saved");
    rig.sees_not("delete the answers");
    rig.press(KeyCode::Char('n'));
    rig.take();
    assert!(matches!(rig.wizard.outcome(), Some(Outcome::Started(_))));
    assert!(!rig.log.iter().any(of_draft), "{:?}", rig.log);
    // Where there is no other, the draft is that of this wizard.
    let mut rig = with_plan(false);
    rig.press(KeyCode::Char('q'));
    rig.sees("Your answers are saved");
    rig.press(KeyCode::Char('n'));
    rig.take();
    assert!(rig.log.iter().filter(|request| of_draft(request)).count() > 2);
}

#[test]
fn the_cursor_among_the_models_stays_where_the_user_put_it_when_the_machine_answers() {
    for is_moved in [false, true] {
        let mut rig = Rig::new(Setup::default(), World::default());
        rig.enter();
        assert_eq!(rig.page(), Page::Model);
        if is_moved {
            rig.press(KeyCode::Down);
        }
        rig.settle();
        rig.enter();
        let chosen = rig.open_as(|request| match &request.body {
            Request::Model { name, .. } => Some(name.clone()),
            _ => None,
        });
        let second = &Catalog::shipped().models[1].id;
        assert_eq!(chosen[0] == *second, is_moved, "{chosen:?}");
    }
}

#[test]
fn leaving_during_a_start_ends_it_first() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Review);
    rig.open.clear();
    rig.enter();
    let ticket =
        rig.open_as(|request| matches!(request.body, Request::Start { .. }).then_some(request.ticket))[0];
    rig.press(KeyCode::Char('q'));
    assert_eq!(rig.press(KeyCode::Char('y')), Next::Draw);
    assert_eq!(
        rig.open_as(|request| match request.body {
            Request::Cancel { ticket } => Some(ticket),
            _ => None,
        }),
        [ticket]
    );
    rig.send(ticket, Response::Started(Err("cancelled".into())));
    assert_eq!(rig.wizard.outcome(), Some(&Outcome::Left { draft_kept: true }));
}

#[test]
fn an_unfinished_wizard_is_continued_where_it_was_left() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Plan);
    rig.press(KeyCode::Char('p'));
    rig.settle();
    rig.press(KeyCode::Down);
    rig.enter();
    rig.press(KeyCode::Down);
    rig.text("1024");
    rig.enter();
    rig.to(Page::Mtp);
    let plan = rig.wizard.state.planner.plan.clone().unwrap();
    let draft = rig.wizard.kept.draft.clone();
    let draft = Draft::from_text(&draft.to_text(), "draft").unwrap();

    let setup = Setup { begin: Some(draft).into(), ..Setup::default() };
    let mut rig = Rig::new(setup, World::default());
    rig.settle();
    rig.sees("an unfinished wizard");
    rig.sees("Qwen/Qwen3.5-2B");
    rig.press(KeyCode::Char('c'));
    assert_eq!(rig.page(), Page::Mtp);
    rig.settle();
    assert_eq!(rig.wizard.state.planner.plan.as_ref().unwrap(), &plan);
}

#[test]
fn the_answers_of_a_run_open_the_page_of_the_plan_and_are_changed_there() {
    let answers = flags(&[GIVEN, &[("rank", "32"), ("epochs", "2")][..]].concat());
    let setup = Setup { answers, begin: Begin::WithPlan { beside_draft: false }, ..Setup::default() };
    let mut rig = Rig::new(setup, World::default());
    rig.settle();
    assert_eq!(rig.page(), Page::Plan);
    let plan = rig.wizard.state.planner.plan.as_ref().unwrap();
    assert_eq!((plan.method.rank(), plan.duration.epochs), (32, 2.0));
    rig.enter();
    rig.settle();
    assert_ne!(rig.page(), Page::Plan, "nothing is missing");
}

#[test]
fn a_draft_is_thrown_away_only_when_that_is_said_and_new_flags_count_more() {
    let draft =
        Draft { page: Page::Plan, answers: flags(&[GIVEN, &[("rank", "32"), ("epochs", "2")][..]].concat()) };
    let setup = Setup { begin: Some(draft.clone()).into(), ..Setup::default() };
    let mut rig = Rig::new(setup, World::default());
    rig.settle();
    rig.press(KeyCode::Char('x'));
    assert!(rig.open_as(|request| (request.body == Request::ForgetDraft).then_some(())).is_empty());
    rig.press(KeyCode::Char('n'));
    assert_eq!(rig.open_as(|request| (request.body == Request::ForgetDraft).then_some(())).len(), 1);
    assert_eq!((rig.page(), rig.wizard.state.planner.answers.clone()), (Page::Machine, Answers::default()));

    let setup = Setup { answers: flags(&[("rank", "8")]), begin: Some(draft).into(), ..Setup::default() };
    let mut rig = Rig::new(setup, World::default());
    rig.settle();
    rig.enter();
    rig.settle();
    let plan = rig.wizard.state.planner.plan.clone().unwrap();
    assert_eq!((plan.method.rank(), plan.duration.epochs), (8, 2.0));

    // What was said of another model is not said of this one.
    let draft_of = |pairs: &[(&str, &str)]| Draft { page: Page::Machine, answers: flags(pairs) };
    for (model, is_same) in [("Qwen/Qwen3.5-2B", true), ("Qwen/Qwen3.5-4B", false)] {
        let begin = Some(draft_of(&[GIVEN, &[("revision", "v1")][..]].concat())).into();
        let setup = Setup { answers: flags(&[("model", model)]), begin, ..Setup::default() };
        let mut rig = Rig::new(setup, World::default());
        rig.settle();
        rig.enter();
        let answers = &rig.wizard.state.planner.answers;
        assert_eq!(
            (answers.model.as_ref().unwrap().value.as_str(), answers.revision.is_some()),
            (model, is_same)
        );
    }

    // What was said of other data is not said of this one.
    let both = "[\"a.jsonl\", \"b.jsonl\"]";
    let of_data = [("data", both), ("map", "q=prompt"), ("weight", "a.jsonl=2,b.jsonl=3")];
    let draft = Draft { page: Page::Machine, answers: flags(&of_data) };
    for (data, map, weights) in [(both, true, 2), ("b.jsonl", false, 1), ("c.jsonl", false, 0)] {
        let answers = flags(&[("data", data)]);
        let mut rig = Rig::new(
            Setup { answers, begin: Some(draft.clone()).into(), ..Setup::default() },
            World::default(),
        );
        rig.settle();
        rig.enter();
        let answers = &rig.wizard.state.planner.answers;
        let kept = answers.weights.as_ref().map_or(0, |weights| weights.value.0.len());
        assert_eq!((answers.map.is_some(), kept), (map, weights), "{data}");
    }
}

#[test]
fn a_backend_that_is_gone_is_named_once_and_leaving_still_works() {
    let mut rig = Rig::ready();
    let (tell, _) = mpsc::channel();
    drop(std::mem::replace(&mut rig.responses, tell));
    assert_eq!(rig.wizard.update(Input::Tick), Next::Draw);
    rig.sees("nothing can be read any more");
    assert_eq!(rig.wizard.update(Input::Tick), Next::Keep);
    rig.press(KeyCode::Char('q'));
    assert_eq!(rig.press(KeyCode::Char('y')), Next::Leave);
}

#[test]
fn an_idle_wizard_draws_nothing() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Review);
    for _ in 0..8 {
        assert_eq!(rig.wizard.update(Input::Tick), Next::Keep);
    }
}

#[test]
fn typed_text_is_text_and_no_command() {
    let mut rig = Rig::ready();
    rig.enter();
    rig.press(KeyCode::Char('o'));
    rig.text("q?");
    rig.sees("id or folder: q?");
    rig.press(KeyCode::F(1));
    rig.sees("while typing");
    rig.press(KeyCode::Char(' '));
    rig.wizard.update(Input::Paste("\u{1b}[2Jorg/name\n".into()));
    rig.sees("q?[2Jorg/name");
}

#[test]
fn the_command_line_is_shown_alone_and_says_what_the_answers_say() {
    let mut rig = Rig::with(&[GIVEN, &[("rank", "64")][..]].concat(), World::default());
    rig.to(Page::Review);
    rig.press(KeyCode::Char('c'));
    let screen = rig.screen();
    assert!(screen.contains("sparktune train --non-interactive"), "{screen}");
    assert!(screen.contains("--rank 64") && !screen.contains("machine"), "{screen}");
    rig.press(KeyCode::Char('Y'));
    rig.sees("copied, if this terminal allows it");
    let copied = rig.wizard.copies().unwrap();
    assert!(copied.starts_with("sparktune train") && copied.contains("--rank 64"), "{copied}");
    assert_eq!((copied.lines().count(), rig.wizard.copies()), (1, None));
    rig.press(KeyCode::Esc);
    rig.sees("Review and start");
}

#[test]
fn a_key_that_means_nothing_in_a_question_does_not_reach_the_page_below() {
    let draft = Draft { page: Page::Model, answers: flags(&[("rank", "64")]) };
    let mut rig = Rig::new(Setup { begin: Some(draft).into(), ..Setup::default() }, World::default());
    rig.press(KeyCode::Char('d'));
    rig.settle();
    rig.sees("continue where you left off");
    assert!(!rig.log.contains(&Request::Demo), "the demo was filled in behind the question");
}

#[test]
fn data_without_bad_lines_keeps_its_limit_and_a_name_that_no_plan_holds_is_refused_at_once() {
    let good = |_: &Answers| {
        let mut found = data();
        found.report.rejected = 0;
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(good), ..World::default() });
    rig.to(Page::Data);
    rig.press(KeyCode::Char('m'));
    assert_eq!(rig.wizard.state.planner.answers.max_rejected, None);
    let odd = PathBuf::from(OsString::from_vec(b"tr\xffin.jsonl".to_vec()));
    rig.wizard.state.choose_data(vec![odd]);
    rig.wizard.state.refresh_facts(Page::Data);
    rig.settle();
    rig.take();
    assert_eq!(rig.page(), Page::Data);
    rig.sees("is not valid UTF-8");
}

#[test]
fn a_switched_think_policy_is_counted_and_enter_while_reading_says_so() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Data);
    rig.press(KeyCode::Char('t'));
    rig.sees("counting again");
    let again = rig.open_as(|request| matches!(request.body, Request::Data { .. }).then_some(()));
    assert_eq!(again.len(), 1);
    rig.press(KeyCode::Char('u'));
    rig.enter();
    rig.sees("the data is still being read");
}

/// Splits every line into three examples if the answers say so, and otherwise finds one that is too long.
fn by_turns(answers: &Answers) -> DataFound {
    let mut found = data();
    if answers.split_turns.as_ref().is_some_and(|answer| answer.value) {
        found.facts.examples *= 3;
        found.facts.total_tokens *= 3;
        found.facts.histogram.iter_mut().for_each(|bucket| bucket.count *= 3);
    }
    found
}

/// Moves the cursor of the plan's page to a setting that is shown at first.
fn select(rig: &mut Rig, name: &str) {
    let listed = listed(false, &Answers::default());
    let at = listed.iter().position(|setting| setting.name == name).unwrap();
    for _ in &listed {
        rig.press(KeyCode::Up);
    }
    for _ in 0..at {
        rig.press(KeyCode::Down);
    }
}

#[test]
fn an_answer_that_makes_other_examples_has_the_data_read_again_at_once() {
    let world = || World { data: Box::new(|answers| Ok(by_turns(answers))), ..World::default() };
    let mut rig = Rig::with(GIVEN, world());
    rig.to(Page::Plan);
    let steps =
        |rig: &Rig| rig.wizard.state.planner.plan.as_ref().unwrap().advice.as_ref().unwrap().time.steps;
    let before = steps(&rig);
    let asked = |rig: &mut Rig| {
        rig.open_as(|request| matches!(request.body, Request::Data { .. }).then_some(())).len()
    };
    // It is among the settings that the page shows at first.
    select(&mut rig, "split-turns");
    rig.press(KeyCode::Right);
    assert_eq!(asked(&mut rig), 1);
    rig.sees("being read again");
    assert_eq!(steps(&rig), before, "until the data was read");
    rig.settle();
    assert_eq!(rig.page(), Page::Plan);
    assert!(steps(&rig) > 2 * before, "{} after {before}", steps(&rig));
    rig.sees_not("being read again");
    rig.press(KeyCode::Char('r'));
    rig.settle();
    assert_eq!(steps(&rig), before);
    // The size of the eval set changes no example, so it waits until the page is left.
    select(&mut rig, "eval-fraction");
    rig.press(KeyCode::Right);
    assert_eq!(asked(&mut rig), 0);
}

#[test]
fn variables_of_the_template_are_typed_from_those_in_use_and_wrong_ones_are_corrected_in_place() {
    let read = |answers: &Answers| {
        let mut found = data();
        let given = answers.template_kwargs.as_ref().map(|answer| answer.value.clone());
        found.facts.template_kwargs = given.unwrap_or_else(TemplateKwargs::without_thinking);
        let is_known = found.facts.template_kwargs.0.keys().all(|name| name == "enable_thinking");
        if is_known { Ok(found) } else { Err("the chat template reads no variable `x`".to_owned()) }
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(read), ..World::default() });
    rig.to(Page::Plan);
    select(&mut rig, "template-kwargs");
    rig.press(KeyCode::Char('e'));
    rig.sees(r#"{"enable_thinking":false}"#);
    rig.ctrl('u');
    rig.text(r#"{"x":1}"#);
    rig.enter();
    rig.settle();
    rig.sees("the chat template reads no variable `x`");
    rig.sees("template kwargs");
    rig.press(KeyCode::Char('e'));
    rig.ctrl('u');
    rig.text(r#"{"enable_thinking":true}"#);
    rig.enter();
    rig.settle();
    rig.sees_not("reads no variable");
    let plan = rig.wizard.state.planner.plan.as_ref().unwrap();
    assert_eq!(plan.data.template_kwargs, TemplateKwargs::thinking(true));
}

#[test]
fn the_review_shows_how_many_findings_there_are_about_the_data_and_the_first() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.to(Page::Review);
    rig.sees("31 examples identical to an earlier one");
    let found = |_: &Answers| {
        let mut found = data();
        found.report.empty_assistant_turns = DataFinding { examples: 4, ..DataFinding::default() };
        Ok(found)
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(found), ..World::default() });
    rig.to(Page::Review);
    rig.sees("2 findings about the data, the first: 31 examples identical to an earlier one");
}

#[test]
fn a_draft_whose_preset_is_a_file_goes_on_with_it() {
    let answers =
        flags(&[("model", "Qwen/Qwen3.5-2B"), ("data", "sets/train.jsonl"), ("preset", "./mine.toml")]);
    let draft = Some(Draft { page: Page::Plan, answers });
    let mut rig = Rig::new(Setup { begin: draft.into(), ..Setup::default() }, World::default());
    rig.settle();
    rig.press(KeyCode::Char('c'));
    rig.settle();
    assert_eq!(rig.wizard.state.planner.answers.get("rank").unwrap(), ("4".to_owned(), Origin::Preset));
}
