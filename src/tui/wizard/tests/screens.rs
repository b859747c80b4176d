//! Compares every page as text, and some as pictures: `INSTA_UPDATE=always` updates them.
//!
//! The plan comes from `plan.toml`, so that changes of the planner's reasons or figures change no snapshot.

use super::*;
use crate::screen::Role;
use crate::screen::picture::{
    ASCII, TRUE_COLOUR, assert_role, check, check_change, check_svg, check_text, check_wide, usual,
};

impl Rig {
    /// Compares what `act` changes on the screen with a snapshot.
    #[track_caller]
    fn change<T>(&mut self, name: &str, act: impl FnOnce(&mut Self) -> T) {
        let before = usual(&mut self.wizard);
        act(self);
        check_change(name, &before, &usual(&mut self.wizard));
    }
}

#[test]
fn the_machine_page() {
    let mut rig = Rig::ready();
    check("wizard-machine", &mut rig.wizard);
    check_svg("wizard-machine", &usual(&mut rig.wizard));
    let mut rig = Rig::new(Setup::default(), World { machine: Ok(laptop()), ..World::default() });
    check("wizard-machine-looking", &mut rig.wizard);
    rig.settle();
    check("wizard-machine-without-gpu", &mut rig.wizard);
    assert_role(&usual(&mut rig.wizard), "310 MB free for /desk/runs", Role::Bad);
    let machine =
        Err("NVML answers nothing: the driver was updated and not loaded again. Restart the machine".into());
    let mut rig = Rig::new(Setup::default(), World { machine, ..World::default() });
    rig.settle();
    check("wizard-machine-failed", &mut rig.wizard);
}

#[test]
fn the_model_page() {
    let mut rig = Rig::ready();
    rig.take();
    check_wide("wizard-model", &mut rig.wizard);
    check_svg("wizard-model", &usual(&mut rig.wizard));
    rig.change("wizard-model-checking", |rig| rig.enter());
    rig.change("wizard-model-search", |rig| {
        rig.press(KeyCode::Char('/'));
        rig.text("3.5-9");
    });
    rig.press(KeyCode::Esc);
    rig.change("wizard-model-other", |rig| {
        rig.press(KeyCode::Char('o'));
        rig.text("qwen/qwen3.5-");
        rig.press(KeyCode::Tab);
    });

    let refused = |_: &str| {
        Err("config.json: model_type `qwen3_5_moe` is unknown. sparktune can train qwen3_5, qwen3, qwen2, llama, mistral (dense, not quantised)".to_owned())
    };
    let mut rig = Rig::with(
        &[("model", "org/evil\u{1b}[2J\u{202e}name")],
        World { model: Box::new(refused), ..World::default() },
    );
    rig.take();
    rig.take();
    check("wizard-model-refused", &mut rig.wizard);

    let odd = |name: &str| {
        Ok(ModelFound {
            unknown_architecture: Some("olmo3".into()),
            notes: vec!["using the cached copy: the hub cannot be reached".into()],
            ..model(name)
        })
    };
    let mut rig =
        Rig::with(&[("model", "allenai/Olmo-3-1025-7B")], World { model: Box::new(odd), ..World::default() });
    rig.take();
    rig.take();
    check("wizard-model-unknown", &mut rig.wizard);

    let mut rig = Rig::new(Setup::default(), World { machine: Ok(laptop()), ..World::default() });
    rig.settle();
    rig.take();
    check("wizard-model-on-cpu", &mut rig.wizard);
}

#[test]
fn the_data_page() {
    let mut rig = Rig::with(&GIVEN[..1], World::default());
    rig.to(Page::Data);
    check("wizard-data-files", &mut rig.wizard);
    rig.change("wizard-data-path", |rig| {
        rig.press(KeyCode::Char('o'));
        rig.ctrl('w');
        rig.text("work/");
        rig.settle();
        rig.press(KeyCode::Tab);
    });

    let mut rig = Rig::with(GIVEN, World::default());
    rig.take();
    rig.settle();
    rig.enter();
    let ticket =
        rig.open_as(|request| matches!(request.body, Request::Data { .. }).then_some(request.ticket))[0];
    for done in [1_000_000, 13_000_000] {
        for _ in 0..8 {
            rig.wizard.update(Input::Tick);
        }
        let progress = Progress {
            what: "tokenising the data".into(),
            done,
            total: Some(48_000_000),
            unit: Unit::Bytes,
            note: Some("6,120 examples".into()),
        };
        rig.send(ticket, Response::Progress(progress));
    }
    check("wizard-data-reading", &mut rig.wizard);
    rig.send(ticket, Response::Data(Ok(Box::new(data()))));
    rig.pose();
    check_wide("wizard-data", &mut rig.wizard);
    check_svg("wizard-data", &usual(&mut rig.wizard));
    rig.press(KeyCode::Char('p'));
    check("wizard-data-preview", &mut rig.wizard);
    assert_role(&usual(&mut rig.wizard), "I am sorry about that.", Role::Trained);
    rig.change("wizard-data-preview-hostile", |rig| {
        rig.press(KeyCode::Char('t'));
        rig.press(KeyCode::Right);
    });
    rig.press(KeyCode::Esc);
    rig.press(KeyCode::Char('w'));
    rig.settle();
    check("wizard-data-rejected", &mut rig.wizard);

    let failed = |_: &Answers| {
        Err("sets/train.jsonl: permission denied (os error 13). Make it readable, or choose other data"
            .to_owned())
    };
    let mut rig = Rig::with(GIVEN, World { data: Box::new(failed), ..World::default() });
    rig.take();
    rig.take();
    check("wizard-data-failed", &mut rig.wizard);

    let mut rig = Rig::with(
        &GIVEN[..1],
        World {
            listing: Box::new(|folder| Ok(Listing { folder: folder.into(), ..Listing::default() })),
            recent: Recent::default(),
            ..World::default()
        },
    );
    rig.to(Page::Data);
    check("wizard-data-nothing", &mut rig.wizard);
}

#[test]
fn the_plan_page() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.pose_at(Page::Plan);
    check_wide("wizard-plan", &mut rig.wizard);
    check_svg("wizard-plan", &usual(&mut rig.wizard));
    check_text("wizard-plan-ascii", &text(&drawn(&mut rig.wizard, 80, 24, &ASCII)));
    let screen = usual(&mut rig.wizard);
    assert_role(&screen, "◂ lora ▸", Role::Selected);
    assert_role(&screen, "lora, as recommended", Role::Good);
    rig.press(KeyCode::Down);
    rig.change("wizard-plan-typing", |rig| rig.text("8192"));
    rig.change("wizard-plan-wrong", |rig| rig.text("0000000"));
    rig.press(KeyCode::Esc);
    rig.pose();
    rig.change("wizard-plan-cost", |rig| rig.press(KeyCode::Char('c')));
    rig.press(KeyCode::Char('c'));
    rig.press(KeyCode::Char('a'));
    rig.pose();
    check_text("wizard-plan-all", &text(&drawn(&mut rig.wizard, 132, 40, &TRUE_COLOUR)));
    rig.change("wizard-presets", |rig| {
        rig.press(KeyCode::Char('p'));
        rig.settle();
    });
    rig.press(KeyCode::Esc);
    rig.change("wizard-preset-exists", |rig| {
        rig.press(KeyCode::Char('P'));
        rig.text("taken");
        rig.take();
    });
    rig.press(KeyCode::Esc);
    rig.change("wizard-plan-help", |rig| rig.press(KeyCode::Char('?')));

    let mut found = laptop();
    found.facts.disk_free_bytes = None;
    let mut rig = Rig::with(
        &[GIVEN, &[("method", "full")][..]].concat(),
        World { machine: Ok(found), ..World::default() },
    );
    rig.to(Page::Plan);
    check("wizard-plan-does-not-fit", &mut rig.wizard);
}

#[test]
fn the_mtp_page() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.pose_at(Page::Mtp);
    check("wizard-mtp", &mut rig.wizard);
    check_svg("wizard-mtp", &usual(&mut rig.wizard));
}

#[test]
fn the_review_warns_of_an_answer_far_from_its_recommendation() {
    let mut rig = Rig::with(&[GIVEN, &[("learning-rate", "0.5")][..]].concat(), World::default());
    rig.to(Page::Review);
    assert_role(&usual(&mut rig.wizard), "--learning-rate is 0.5", Role::Warn);
}

#[test]
fn a_warning_of_the_review_is_read_to_its_end() {
    let mut rig = Rig::with(GIVEN, World::default());
    rig.pose_at(Page::Review);
    let advice = rig.wizard.state.planner.plan.as_mut().unwrap().advice.as_mut().unwrap();
    advice.warnings = vec!["the eval set is too small to judge the run. ".repeat(5) + "REMEDY"];
    assert_role(&usual(&mut rig.wizard), "REMEDY", Role::Warn);
}

#[test]
fn the_review_and_the_start() {
    let mut rig =
        Rig::with(&[GIVEN, &[("rank", "64"), ("weight-decay", "0.02")][..]].concat(), World::default());
    rig.pose_at(Page::Review);
    check_wide("wizard-review", &mut rig.wizard);
    check_svg("wizard-review", &usual(&mut rig.wizard));
    rig.press(KeyCode::Char('c'));
    check_text("wizard-command", &text(&drawn(&mut rig.wizard, 60, 16, &TRUE_COLOUR)));
    rig.press(KeyCode::Esc);
    rig.open.clear();
    rig.enter();
    let ticket =
        rig.open_as(|request| matches!(request.body, Request::Start { .. }).then_some(request.ticket))[0];
    let mut tell = |what: &str, done, total, note: Option<&str>| {
        let note = note.map(str::to_owned);
        let progress = Progress { what: what.into(), done, total: Some(total), unit: Unit::Bytes, note };
        rig.send(ticket, Response::Progress(progress));
        for _ in 0..8 {
            rig.wizard.update(Input::Tick);
        }
    };
    tell("looking for changes in the data", 48_000_000, 48_000_000, None);
    tell("tokenising the data", 48_000_000, 48_000_000, None);
    tell("fetching Qwen/Qwen3.5-2B", 1_900_000_000, 4_400_000_000, None);
    tell(
        "fetching Qwen/Qwen3.5-2B",
        2_000_000_000,
        4_400_000_000,
        Some("the connection was cut; trying again in 4 s"),
    );
    check("wizard-starting", &mut rig.wizard);
    rig.change("wizard-leave", |rig| rig.press(KeyCode::Char('q')));
    rig.press(KeyCode::Esc);
    rig.send(ticket, Response::Started(Err("the run needs 21 GB on disk and 3.1 GB are free.\nFree some space, or point --runs-dir at a larger disk".into())));
    check("wizard-start-failed", &mut rig.wizard);
}

#[test]
fn the_smallest_screen_has_room_for_every_page() {
    let mut rig = Rig::with(GIVEN, World::default());
    for page in [Page::Model, Page::Data, Page::Plan, Page::Mtp, Page::Review] {
        rig.pose_at(page);
        let name = format!("wizard-{}-60x16", page.word().replace(' ', "-"));
        check_text(&name, &text(&drawn(&mut rig.wizard, 60, 16, &TRUE_COLOUR)));
    }
}

#[test]
fn the_question_whether_to_continue() {
    let draft = Draft { page: Page::Plan, answers: flags(GIVEN) };
    let mut rig = Rig::new(Setup { begin: Some(draft).into(), ..Setup::default() }, World::default());
    rig.settle();
    check("wizard-continue", &mut rig.wizard);
}

#[test]
fn the_weights_of_several_data_sets_are_on_the_plans_page() {
    let two = [("model", "Qwen/Qwen3.5-2B"), ("data", r#"["chats.jsonl", "tools.jsonl"]"#)];
    let mut rig = Rig::with(&two, World::default());
    rig.pose_at(Page::Plan);
    for _ in 0..40 {
        rig.press(KeyCode::Down);
    }
    check_text("wizard-plan-weights", &text(&drawn(&mut rig.wizard, 132, 40, &TRUE_COLOUR)));
    rig.press(KeyCode::Char('e'));
    rig.sees("tools.jsonl=1");
}
