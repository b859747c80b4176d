//! The section of samples: the model's answers to the same prompts over the course of training.

use sparktune_base::units::count;
use sparktune_runlog::{Sample, Seen};

use super::input::ReportInput;
use super::markup::{Markup, clip};
use super::section;
use crate::spoken::{answered, spoken};

const PROMPT_CHARS: usize = 800;
const ANSWER_CHARS: usize = 2000;

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    if run.view.samples.is_empty() {
        return;
    }
    // Samples are grouped by prompt, in the order in which the prompts first occurred.
    let mut prompts: Vec<(&str, Vec<&Seen<Sample>>)> = Vec::new();
    for sample in &run.view.samples {
        let prompt = sample.what.prompt.as_str();
        match prompts.iter_mut().find(|(known, _)| *known == prompt) {
            Some((_, answers)) => answers.push(sample),
            None => prompts.push((prompt, vec![sample])),
        }
    }
    section(page, "Samples", |page| {
        for (prompt, answers) in prompts {
            page.element("article", &[], |page| {
                text(page, "prompt", &clip(spoken(prompt).trim_end(), PROMPT_CHARS));
                let mut answers = answers.into_iter().rev();
                if let Some(newest) = answers.next() {
                    answer(page, newest);
                }
                if answers.len() > 0 {
                    page.element("details", &[], |page| {
                        page.leaf("summary", &[], &format!("Earlier answers ({})", answers.len()));
                        for earlier in answers {
                            answer(page, earlier);
                        }
                    });
                }
            });
        }
    });
}

fn answer(page: &mut Markup, sample: &Seen<Sample>) {
    let class = if sample.discarded { "answer old" } else { "answer" };
    page.element("div", &[("class", class)], |page| {
        let again = if sample.discarded { " · replaced by a later attempt" } else { "" };
        let step = match sample.what.step {
            0 => "base model".to_owned(),
            step => format!("step {}", count(step)),
        };
        let words = format!("{step}{again}");
        page.leaf("p", &[("class", "note")], &words);
        text(page, "text", &clip(answered(&sample.what.text), ANSWER_CHARS));
    });
}

fn text(page: &mut Markup, class: &'static str, text: &str) {
    page.element("div", &[("class", class), ("dir", "auto")], |page| page.lines(text));
}
