//! The section about a comparison of the run with the model that it started from, if one was made.

use sparktune_base::units::{count, milliseconds, or_unknown, tokens_per_s};
use sparktune_compare::{Answer, Comparison, Estimate, ModelAnswers, PromptShown, Summary};

use super::input::ReportInput;
use super::markup::{Markup, clip};
use super::times::moment;
use super::{absent, left_out, section, table, untrusted};

/// The most prompts whose answers are shown.
const MOST_PROMPTS: usize = 20;
/// The most characters of a prompt and of an answer.
const CHARS: usize = 1500;

/// A row of the table: its name, and what it is of a model.
type Figure = (&'static str, fn(&Summary) -> Option<String>);

const FIGURES: [Figure; 8] = [
    ("Answers that pass", |s| {
        s.pass_rate.map(|rate| format!("{} of {}, {}", s.passed, s.decided, percent(&rate)))
    }),
    ("Score", |s| s.score.map(|score| format!("{:.2} ({:.2} to {:.2})", score.value, score.low, score.high))),
    ("chrF", |s| s.chrf.map(|chrf| format!("{chrf:.1}"))),
    ("BLEU", |s| s.bleu.map(|bleu| format!("{bleu:.1}"))),
    ("Perplexity of the references", |s| s.reference_perplexity.map(|perplexity| format!("{perplexity:.2}"))),
    ("Tokens per second", |s| s.tokens_per_s.map(tokens_per_s)),
    ("First token after", |s| s.first_token_ms.map(milliseconds)),
    ("Tokens of an answer", |s| s.answer_tokens.map(|tokens| format!("{tokens:.0}"))),
];

fn percent(rate: &Estimate) -> String {
    let of = |share: f64| format!("{:.0}", share * 100.0);
    format!("{} % ({} to {} %)", of(rate.value), of(rate.low), of(rate.high))
}

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    let Some(comparison) = &run.comparison else { return };
    let [base, tuned] = &comparison.models[..] else { return };
    section(page, "Before and after", |page| {
        let prompts = count(comparison.prompts.len() as u64);
        let when = moment(comparison.created_us);
        let words = format!("The suite “{}” with {prompts} prompts, asked on {when}.", comparison.suite);
        untrusted(page, "p", "note", &words);
        let rows = FIGURES.iter().filter_map(|(name, of)| {
            let [before, after] = [of(&base.summary), of(&tuned.summary)];
            (before.is_some() || after.is_some()).then_some((*name, before, after))
        });
        table(page, "figures", &["What", "Before", "After"], rows, |page, (name, before, after)| {
            page.leaf("th", &[("scope", "row")], name);
            for value in [before, after] {
                page.leaf("td", &[], &or_unknown(value, |text| text));
            }
        });
        for difference in &comparison.differences {
            untrusted(page, "p", "verdict", &sentence(&difference.words));
        }
        for note in &comparison.notes {
            untrusted(page, "p", "note", note);
        }
        answers(page, comparison, base, tuned);
    });
}

/// Makes a sentence of words that begin with a name.
fn sentence(words: &str) -> String {
    let mut characters = words.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", characters.as_str())
}

fn answers(page: &mut Markup, comparison: &Comparison, base: &ModelAnswers, tuned: &ModelAnswers) {
    let pairs = || base.answers.iter().zip(&tuned.answers).zip(&comparison.prompts);
    let is_other = |((before, after), _): &((&Answer, &Answer), &PromptShown)| before.text != after.text;
    let differing = pairs().filter(is_other).count();
    if differing == 0 {
        return absent(page, "Both gave the same answers.");
    }
    page.element("details", &[], |page| {
        page.leaf("summary", &[], &format!("Answers that differ ({differing})"));
        for ((before, after), prompt) in pairs().filter(is_other).take(MOST_PROMPTS) {
            page.element("article", &[], |page| {
                text(page, "prompt", &prompt.last_text());
                for (name, answer) in [("before", before), ("after", after)] {
                    page.element("div", &[("class", "answer")], |page| {
                        let verdict = match answer.passed {
                            Some(true) => " · passes",
                            Some(false) => " · does not pass",
                            None => "",
                        };
                        page.leaf("p", &[("class", "note")], &format!("{name}{verdict}"));
                        text(page, "text", answer.error.as_deref().unwrap_or(&answer.text));
                    });
                }
            });
        }
        left_out(page, differing, differing.min(MOST_PROMPTS));
    });
}

fn text(page: &mut Markup, class: &'static str, text: &str) {
    page.element("div", &[("class", class), ("dir", "auto")], |page| {
        page.lines(&clip(text.trim_end(), CHARS))
    });
}
