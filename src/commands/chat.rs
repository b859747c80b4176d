//! `chat`: a conversation with a model, or with two side by side, as a full screen or line by line.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use sparktune_app::answers::runs_dir;
use sparktune_app::chat::history::{Earlier, HistoryFile};
use sparktune_app::chat::recommended::Wishes;
use sparktune_app::chat::{Chat, Said, Settings};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::Decoding;
use sparktune_app::models::{OpenableModel, find_named};
use sparktune_app::program::Program;
use sparktune_app::thought::without_thinking;
use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{FinishReason, Finished};
use sparktune_tui::chat::line::{COMMANDS, Line, read};
use sparktune_tui::chat::{words_of_end, words_of_no_answer};
use sparktune_tui::output::{note, print, print_json};
use sparktune_tui::screen::can_fill_the_screen;
use sparktune_tui::screens::Screens;

use crate::interrupt::Interrupts;
use crate::request::Style;

/// How long an answer or a line is waited for before interrupts are looked at.
const POLL: Duration = Duration::from_millis(50);
/// The most bytes of a line.
const LONGEST_LINE: u64 = 4 << 20;

/// What `chat` is asked for.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// A run, a folder, or a model of the hub's cache.
    pub model: String,
    /// The model beside it; `base` for its base, such as the model that a run started from.
    pub beside: Option<String>,
    /// Whether a kept conversation goes on: that of a file, or the newest one with the run.
    pub earlier: Option<Option<PathBuf>>,
    /// How answers are made, apart from what a model has its own values for.
    pub settings: Settings,
    /// What the flags say of the settings that a model has its own values for.
    pub wishes: Wishes,
    /// Where and how the models decode.
    pub decoding: Decoding,
    /// The folder of the runs, if a flag names it.
    pub runs_dir: Option<PathBuf>,
}

/// Runs `sparktune chat`: a full screen on a terminal, otherwise each line of the standard input is answered.
///
/// # Errors
/// A model cannot be found or loaded, or does not fit into memory.
pub fn chat(program: &Program, mut request: ChatRequest, style: Style) -> Result<Exit, Failure> {
    let check = |sampling: &SamplingParams| {
        sampling.check().map_err(|error| Failure::usage(error.to_string().replace('_', "-")))
    };
    check(&request.wishes.over(request.settings.sampling.clone()))?;
    let runs_dir = runs_dir(request.runs_dir)?;
    let model = find_named(&request.model, &runs_dir)?;
    let beside = match request.beside.as_deref() {
        None => None,
        Some("base") => Some(model.started_from()?),
        Some(name) => Some(find_named(name, &runs_dir)?),
    };
    // A model is sampled as a server would, so that an answer is one that users of the model could get.
    let makers = Wishes::of_model(&model.opening()?.model);
    request.settings.sampling = request.wishes.over(makers.over(request.settings.sampling));
    check(&request.settings.sampling)?;
    // The base comes first, as in a comparison: before and after. Other models stand as they are named.
    let is_before_and_after = request.beside.as_deref() == Some("base");
    let mut models: Vec<OpenableModel> = [model].into_iter().chain(beside).collect();
    if is_before_and_after {
        models.reverse();
    }
    let earlier = request.earlier.map(|path| Earlier::read(&models, path.as_deref())).transpose()?;
    if let Some(earlier) = &earlier
        && request.settings.system.is_empty()
    {
        request.settings.system.clone_from(&earlier.system);
    }
    let is_full_screen = !style.plain && !style.json && !style.non_interactive && can_fill_the_screen();
    if is_full_screen && std::io::stdin().is_terminal() {
        return Screens::open()?.chat(program, &models, request.settings, request.decoding, earlier);
    }
    by_lines(program, &models, request.settings, request.decoding, earlier, style.json)
}

/// Answers line by line.
fn by_lines(
    program: &Program,
    models: &[OpenableModel],
    mut settings: Settings,
    decoding: Decoding,
    earlier: Option<Earlier>,
    is_json: bool,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let mut chat = Chat::open(program, models, decoding, &mut |name| {
        note(&format!("loading {} ...", escape(name)));
    })?;
    for name in chat.without_template() {
        note(&format!(
            "note: {} has no chat template, so each line is continued as text, without what was said before",
            escape(name)
        ));
    }
    let mut file = match earlier {
        Some(Earlier { file, turns, .. }) => {
            let questions = counted(turns.len() as u64 / 2, "question");
            note(&format!("continuing after {questions} in {}", escape(&file.path().display().to_string())));
            chat.go_on(&turns);
            Some(file)
        }
        None => HistoryFile::of(models),
    };
    if interrupts.count() > 0 {
        return Ok(Exit::Interrupted);
    }
    let is_person = std::io::stdin().is_terminal();
    interrupts.follow();
    let lines = lines_of_stdin();
    // What a script asks and does not get is told by the exit code too.
    let mut end = Exit::Done;
    loop {
        if is_person && !is_json {
            print("> ")?;
        }
        // A person's first signal ends the answers, and the chat goes on. A program's ends the chat.
        let before = if is_person { interrupts.count() } else { 0 };
        let Some(line) = next_line(&lines, &interrupts, before) else {
            if is_person {
                print("\n")?;
                return Ok(end);
            }
            return Ok(if interrupts.count() > before { Exit::Interrupted } else { end });
        };
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                note(&error);
                end = Exit::Data;
                continue;
            }
        };
        let text = match read(&line, &mut settings, chat.decoding()) {
            Ok(Line::Say(text)) => text,
            Ok(Line::Quit) => return Ok(end),
            Ok(Line::Empty) => continue,
            Ok(Line::New) => {
                chat.begin_again()?;
                file = HistoryFile::of(models);
                note("a new conversation begins");
                continue;
            }
            Ok(Line::Told(told)) => {
                note(&escape(&told));
                continue;
            }
            Ok(Line::Decode(wanted)) => {
                // Nobody looks at the signals while a model is loaded.
                let before = interrupts.count();
                interrupts.unfollow();
                let failure = chat.decode_otherwise(program, wanted, &mut |name| {
                    note(&format!("loading {} ...", escape(name)));
                })?;
                interrupts.follow();
                if interrupts.count() > before {
                    return Ok(Exit::Interrupted);
                }
                match failure {
                    None => note(&format!("answers are made {wanted} from now on")),
                    Some(failure) => note(&format!("answers are still made {}: {failure}", chat.decoding())),
                }
                continue;
            }
            Ok(Line::Help) => {
                COMMANDS.iter().for_each(|(command, what)| note(&format!("{command:<20} {what}")));
                continue;
            }
            Err(error) => {
                note(&error);
                continue;
            }
        };
        let heard = interrupts.count();
        chat.say(&text, &settings)?;
        let Some((answers, is_refused)) = answer(&mut chat, &interrupts, heard, is_json)? else {
            return Ok(Exit::Interrupted);
        };
        if is_refused && !is_person {
            end = Exit::Data;
        }
        if is_json {
            print_json(&json!({"question": text, "answers": answers}))?;
        }
        if let Some(file) = &file
            && let Err(failure) = file.write(&chat.kept(&settings))
        {
            note(&format!("the conversation is not kept: {failure}"));
        }
    }
}

/// An answer that is being printed.
#[derive(Default)]
struct Open {
    text: String,
    opens_thinking: bool,
    printed: usize,
    is_named: bool,
    end: Option<Result<Finished, String>>,
}

/// Waits for the answers of all models and prints them: the first as it comes, the others after it. The
/// first signal beyond the `heard` ones ends the answers. Returns them as JSON, and whether one was
/// refused; `None` after the second signal.
fn answer(
    chat: &mut Chat,
    interrupts: &Interrupts,
    heard: usize,
    is_json: bool,
) -> Result<Option<(Vec<Value>, bool)>, Failure> {
    let names: Vec<String> = chat.names().into_iter().map(str::to_owned).collect();
    let mut open: Vec<Open> = names.iter().map(|_| Open::default()).collect();
    let (mut shown, mut is_cancelled) = (0, false);
    while chat.is_answering() || shown < open.len() {
        let signals = interrupts.count() - heard;
        if signals > 1 {
            return Ok(None);
        }
        if signals > 0 && !is_cancelled {
            is_cancelled = true;
            chat.cancel()?;
        }
        if chat.is_answering() {
            for said in chat.next(POLL)? {
                match said {
                    Said::Text { side, text, opens_thinking } => {
                        open[side].text.push_str(&text);
                        open[side].opens_thinking = opens_thinking;
                    }
                    Said::Done { side, finished } => open[side].end = Some(Ok(finished)),
                    Said::Refused { side, error } => open[side].end = Some(Err(error)),
                }
            }
        }
        if is_json {
            shown = if chat.is_answering() { 0 } else { open.len() };
            continue;
        }
        while let Some(answer) = open.get_mut(shown) {
            if !answer.is_named && names.len() > 1 && (answer.end.is_some() || !answer.text.is_empty()) {
                answer.is_named = true;
                print(&format!("{}{}:\n", if shown > 0 { "\n" } else { "" }, escape(&names[shown])))?;
            }
            show_more(answer)?;
            let Some(end) = &answer.end else { break };
            if answer.printed > 0 {
                print("\n")?;
            } else if let Ok(Finished { finish_reason: FinishReason::Cancelled, .. }) = end {
                note(words_of_no_answer(FinishReason::Cancelled));
            } else if end.is_ok() {
                let (thought, _) = without_thinking(&answer.text, answer.opens_thinking);
                let words = thought.map_or(0, |thought| thought.split_whitespace().count()) as u64;
                note(&format!(
                    "it thought {} and gave no answer; /think off, a larger max-tokens or a lower temperature may help",
                    counted(words, "word")
                ));
            }
            match end {
                Ok(finished) => note(&words_of_end(finished)),
                Err(error) => note(error),
            }
            shown += 1;
        }
    }
    let is_refused = open.iter().any(|answer| matches!(answer.end, Some(Err(_))));
    Ok(Some((names.iter().zip(&open).map(|(name, answer)| as_json(name, answer)).collect(), is_refused)))
}

/// Prints what is new of an answer, without what was thought.
fn show_more(answer: &mut Open) -> Result<(), Failure> {
    let (_, text) = without_thinking(&answer.text, answer.opens_thinking);
    // A think block is known once its first word is whole.
    let may_think = !text.is_empty() && "<think>".starts_with(text.trim_start()) && answer.end.is_none();
    let new = if may_think { "" } else { text.get(answer.printed..).unwrap_or_default() };
    if !new.is_empty() {
        print(&new.split('\n').map(escape).collect::<Vec<_>>().join("\n"))?;
        answer.printed = text.len();
    }
    Ok(())
}

fn as_json(name: &str, answer: &Open) -> Value {
    let (thought, text) = without_thinking(&answer.text, answer.opens_thinking);
    let mut object = json!({"model": name, "text": text.trim_end()});
    if let Some(thought) = thought {
        object["thought"] = thought.into();
    }
    match &answer.end {
        Some(Ok(finished)) => {
            object["finish_reason"] = json!(finished.finish_reason);
            object["usage"] = json!(finished.usage);
            object["seed"] = json!(finished.seed);
            object["first_token_ms"] = json!(finished.first_token_ms);
            object["total_ms"] = json!(finished.total_ms);
        }
        Some(Err(error)) => object["error"] = error.as_str().into(),
        None => {}
    }
    object
}

/// Reads lines on a thread, so that Ctrl-C is heard while a line is awaited. A line that is not UTF-8 or too
/// long is passed over with a reason; after a failure of the input there are no more.
fn lines_of_stdin() -> Receiver<Result<String, String>> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        for number in 1_u64.. {
            let mut line = Vec::new();
            let read = std::io::Read::take(&mut input, LONGEST_LINE).read_until(b'\n', &mut line);
            let is_cut = line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n");
            // The rest of a line that is too long belongs to no other line.
            let read = if is_cut { read.and(input.skip_until(b'\n')) } else { read };
            let is_last = read.is_err();
            let line = match read {
                Ok(0) if !is_cut => return,
                Ok(_) if is_cut => Err(format!(
                    "line {number} has more than {LONGEST_LINE} bytes and was passed over. Say less at a time"
                )),
                Ok(_) => String::from_utf8(line)
                    .map_err(|_| format!("line {number} is not UTF-8 and was passed over. Convert it")),
                Err(error) => Err(format!("the standard input cannot be read: {error}")),
            };
            if sender.send(line).is_err() || is_last {
                return;
            }
        }
    });
    lines
}

/// Returns the next line, or why it is skipped; `None` at the end of the input or after a signal, even if
/// there are more lines.
fn next_line(
    lines: &Receiver<Result<String, String>>,
    interrupts: &Interrupts,
    before: usize,
) -> Option<Result<String, String>> {
    while interrupts.count() <= before {
        match lines.recv_timeout(POLL) {
            Ok(line) => return Some(line),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_signal_no_line_is_answered_although_there_are_more() {
        let (sender, lines) = channel();
        (1..=3).for_each(|line| sender.send(Ok(line.to_string())).unwrap());
        let interrupts = Interrupts::default();
        assert_eq!(next_line(&lines, &interrupts, 0), Some(Ok("1".into())));
        interrupts.hear();
        assert_eq!(next_line(&lines, &interrupts, 0), None);
        assert_eq!(next_line(&lines, &interrupts, 1), Some(Ok("2".into())), "a person was heard already");
    }
}
