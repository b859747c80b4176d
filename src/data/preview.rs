//! A few examples as the model will see them, with the trained text marked, so that a user can check them
//! before a run.
//!
//! Enters: the user's text and the checkpoint's tokenizer. Leaves: [`Preview`], in which each example is
//! shown under both think policies, so that a screen switches between them at once. It reads only a bounded
//! beginning of the data.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sparktune_base::choices::Think;
use sparktune_base::field_map::FieldMap;
use sparktune_base::units::counted;

use crate::at_work;
use crate::chat_tokenizer::ChatTokenizer;
use crate::chunks;
use crate::conversation::Conversation;
use crate::error::DataError;
use crate::examples::{Example, ExampleMaker, ExampleOptions};
use crate::explain;
use crate::format::Format;
use crate::mapped::in_own_names;
use crate::rejection::Rejection;
use crate::report::Place;
use crate::served::Prompts;
use crate::source::Source;
use crate::tokens::Tokens;

/// The length in bytes above which a line is not tokenised for a preview.
pub(crate) const LONGEST_LINE: usize = 1 << 20;
/// The number of rejected examples after which no further one is tried.
const MAX_REFUSED: usize = 64;

/// The selection of examples to show.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PreviewOptions {
    /// Read every file as this format rather than detecting it per file.
    pub format: Option<Format>,
    /// What the columns of foreign data stand for.
    pub map: FieldMap,
    /// How a conversation becomes examples.
    pub examples: ExampleOptions,
    /// The number of tokens above which an example is too long.
    pub max_example_tokens: Option<u32>,
    /// The largest number of examples.
    pub limit: usize,
    /// The number of bytes that are read from the beginning of the data.
    pub max_scan_bytes: usize,
    /// The number of bytes kept of an example's text; the middle of a longer one is left out.
    pub max_text_bytes: usize,
}

impl Default for PreviewOptions {
    fn default() -> Self {
        Self {
            format: None,
            map: FieldMap::default(),
            examples: ExampleOptions::default(),
            max_example_tokens: None,
            limit: 12,
            max_scan_bytes: 16 << 20,
            max_text_bytes: 16 << 10,
        }
    }
}

/// A few examples of the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// The first examples, then one from the middle and the longest of those that were read.
    pub examples: Vec<Previewed>,
    /// The empty thinking block that the template inserts. `None` if it inserts none; both think policies
    /// are then the same.
    pub empty_think_block: Option<String>,
    /// The first rejected line, with the reason.
    pub first_refused: Option<(Place, Rejection)>,
    /// The number of lines that are not shown because they are longer than 1 MiB; in a search, only those
    /// that it has found.
    pub too_long_to_show: u64,
    /// Why a file that may have what is looked for was not searched to its end, if there is one.
    pub refused_file: Option<String>,
    /// Whether all of the data was looked at, so that "middle" and "longest" refer to all of it.
    pub whole: bool,
}

impl Preview {
    /// Returns why a search shows no example, if the reason is not that there is none.
    pub fn why_not_found(&self) -> Option<String> {
        match (&self.first_refused, self.too_long_to_show, &self.refused_file) {
            (Some((place, rejection)), ..) => Some(format!("{place} is no example: {rejection}")),
            (None, 0, error) => error.as_ref().map(|error| format!("not all of the data was read: {error}")),
            (None, lines, _) => {
                let lines = counted(lines, "line");
                Some(format!("it is in {lines} longer than 1 MiB, and such lines are not shown"))
            }
        }
    }

    /// Describes the effect of the think policy on these examples.
    pub fn thinking_in_words(&self) -> &'static str {
        let differ = self.examples.iter().any(|example| example.train.spans != example.skip.spans);
        match (&self.empty_think_block, differ) {
            (None, _) => {
                "this model's template inserts no empty think block, so both choices train the same tokens"
            }
            (Some(_), false) => {
                "none of the examples shown has an inserted empty think block, so both choices train the same tokens here"
            }
            (Some(_), true) => {
                "the empty think block that the template inserts is trained with `train`, and is context with `skip`"
            }
        }
    }
}

/// The reason why an example was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// One of the first.
    First,
    /// From the middle of the examples that were read.
    Middle,
    /// The longest of the examples that were read.
    Longest,
}

/// One example under both think policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Previewed {
    /// The place of its line.
    pub place: Place,
    /// The reason why it was chosen.
    pub pick: Pick,
    /// The number of tokens, which is the same under both policies.
    pub tokens: u32,
    /// The rendering in which the inserted thinking block is trained.
    pub train: Rendering,
    /// The rendering in which the inserted thinking block is context.
    pub skip: Rendering,
}

/// An example under one think policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rendering {
    /// The number of tokens that contribute to the loss. 0 means that the example is rejected under this
    /// policy.
    pub target_tokens: u32,
    /// The pieces of its text in order.
    pub spans: Vec<Span>,
}

/// A piece of an example. Its text is untrusted and has to be escaped for a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The text.
    pub text: String,
    /// Whether it contributes to the loss.
    pub trained: bool,
    /// Whether it is one of the tokenizer's special tokens.
    pub special: bool,
    /// Whether it is a note on how much text was left out.
    pub left_out: bool,
}

/// A line that could be parsed.
struct Candidate<'a> {
    file: u32,
    line: u64,
    /// The length of the line in bytes, which includes tools.
    line_bytes: usize,
    conversation: Conversation<'a>,
}

/// Renders a few examples of text. Bad lines are not an error: the first of them is in the preview.
pub(crate) fn preview_text(
    source: &Source,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Result<Preview, DataError> {
    let (chunks, whole) = chunks::head(source, options.format, &options.map, options.max_scan_bytes)?;
    let thinking = tokenizer.thinking();
    let mut preview =
        Preview { whole, empty_think_block: thinking.and_then(|t| t.empty_block), ..Preview::default() };
    let mut refused: Option<(u32, u64, Rejection)> = None;
    let mut refuse = |file, line, rejection| {
        if refused.as_ref().is_none_or(|(f, l, _)| (file, line) < (*f, *l)) {
            refused = Some((file, line, rejection));
        }
    };

    let mut candidates = Vec::new();
    for chunk in &chunks {
        if let Some(rejection) = &chunk.refused {
            refuse(chunk.file, chunk.first_line, rejection.clone());
            continue;
        }
        for line in chunk.lines().filter(|l| !l.bytes.trim_ascii().is_empty()) {
            if line.bytes.len() > LONGEST_LINE {
                preview.too_long_to_show += 1;
                continue;
            }
            let parsed = std::str::from_utf8(line.bytes)
                .map_err(|e| explain::invalid_utf8(e.valid_up_to()))
                .and_then(|text| chunk.parse(text));
            match parsed {
                Ok(conversation) => {
                    let line_bytes = line.bytes.len();
                    candidates.push(Candidate {
                        file: chunk.file,
                        line: line.line_no,
                        line_bytes,
                        conversation,
                    });
                }
                Err(rejection) => refuse(chunk.file, line.line_no, rejection),
            }
        }
    }

    let mut shown = vec![false; candidates.len()];
    let mut tried = 0;
    let mut show = |order: &mut dyn Iterator<Item = usize>, pick, limit: usize| {
        let mut left = limit.saturating_sub(preview.examples.len());
        for i in order {
            if shown[i] {
                continue;
            }
            if left == 0 {
                return;
            }
            if tried == MAX_REFUSED {
                preview.whole = false;
                return;
            }
            shown[i] = true;
            let Candidate { file, line, conversation, .. } = &candidates[i];
            at_work::lines_of(&source.files()[*file as usize].name);
            let at_work = at_work::on_lines();
            at_work.begin(*line);
            let place = Place { file: source.files()[*file as usize].name.clone(), line: *line };
            match previewed(conversation, place, (pick, left), tokenizer, options) {
                Ok(examples) => {
                    left -= examples.len();
                    preview.examples.extend(examples);
                }
                Err(rejection) => {
                    refuse(*file, *line, rejection);
                    tried += 1;
                }
            }
        }
    };
    // Two examples come from elsewhere in the data, if more than two are shown.
    let first = if options.limit > 2 { options.limit - 2 } else { options.limit };
    show(&mut (0..candidates.len()), Pick::First, first);
    let mut by_length: Vec<usize> = (0..candidates.len()).collect();
    by_length.sort_by_key(|i| std::cmp::Reverse(candidates[*i].line_bytes));
    if options.limit > 2 {
        show(&mut (candidates.len() / 2..candidates.len()), Pick::Middle, options.limit - 1);
        show(&mut by_length.into_iter(), Pick::Longest, options.limit);
    }
    tokenizer.template_holds()?;
    preview.first_refused = refused.map(|(file, line, rejection)| {
        let place = Place { file: source.files()[file as usize].name.clone(), line };
        (place, in_own_names(rejection, &options.map))
    });
    Ok(preview)
}

/// Renders the examples of a line, at least one and at most `most`, which is not 0.
pub(crate) fn previewed(
    conversation: &Conversation<'_>,
    place: Place,
    (pick, most): (Pick, usize),
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Result<Vec<Previewed>, Rejection> {
    let prompts = Prompts::default();
    let maker = ExampleMaker {
        tokenizer,
        // Whatever has trained tokens under the other policy has some under this one too.
        policy: Think::Train.into(),
        options: options.examples,
        max_tokens: options.max_example_tokens,
        enough: most,
        prompts: &prompts,
        progress: &(),
    };
    // The turns of all examples of a long conversation take much more memory than what is shown of them.
    let examples = maker.make(conversation.clone(), |example| {
        let rendering = |think| rendered(&example, think, tokenizer, options.max_text_bytes);
        Ok(Previewed {
            place: place.clone(),
            pick,
            tokens: example.tokens.input_ids.len() as u32,
            train: rendering(Think::Train)?,
            skip: rendering(Think::Skip)?,
        })
    })?;
    if let Some(rejection) = examples.left_out.filter(|_| examples.made.is_empty()) {
        return Err(rejection);
    }
    examples.made.into_iter().take(most).collect()
}

fn rendered(
    example: &Example<'_>,
    think: Think,
    tokenizer: &ChatTokenizer,
    max_text_bytes: usize,
) -> Result<Rendering, Rejection> {
    let Example { conversation, tokens, is_cut } = example;
    if matches!(conversation, Conversation::Document(_)) {
        return Ok(rendered_text(tokens, tokenizer, max_text_bytes));
    }
    let kept = tokens.input_ids.len();
    let (mut text, targets) = tokenizer.text_and_targets(conversation, think.into())?;
    if *is_cut {
        text.truncate(tokenizer.bytes_of(conversation, &text, kept));
    }
    // An answer that consists only of the inserted block has a target under one policy only.
    let target_tokens = tokenizer
        .encode_conversation(conversation, think)
        .map_or(0, |tokens| tokens.loss_mask.iter().take(kept).filter(|&&target| target).count());
    let special = tokenizer.special_ranges(&text);
    Ok(Rendering {
        target_tokens: target_tokens as u32,
        spans: spans(&text, &targets, &special, max_text_bytes),
    })
}

/// Renders raw text, or a piece of it, from its tokens. All but the first are trained.
fn rendered_text(tokens: &Tokens, tokenizer: &ChatTokenizer, max_text_bytes: usize) -> Rendering {
    let (first, rest) = tokens.input_ids.split_at(1);
    let first = tokenizer.decode(first);
    let text = format!("{first}{}", tokenizer.decode(rest));
    let special = tokenizer.special_ranges(&text);
    let trained = first.len()..text.len();
    Rendering {
        target_tokens: tokens.target_count() as u32,
        spans: spans(&text, std::slice::from_ref(&trained), &special, max_text_bytes),
    }
}

/// Splits a text into pieces of one kind, and leaves out the middle of a long text.
pub(crate) fn spans(
    text: &str,
    targets: &[Range<usize>],
    special: &[Range<usize>],
    max_bytes: usize,
) -> Vec<Span> {
    let hole = if text.len() > max_bytes {
        text.floor_char_boundary(max_bytes / 2)..text.ceil_char_boundary(text.len() - max_bytes / 2)
    } else {
        text.len()..text.len()
    };
    let mut borders: Vec<usize> = targets.iter().chain(special).flat_map(|r| [r.start, r.end]).collect();
    borders.extend([0, text.len(), hole.start, hole.end]);
    borders.retain(|at| *at <= text.len() && text.is_char_boundary(*at));
    borders.sort_unstable();
    borders.dedup();
    let inside = |ranges: &[Range<usize>], at: usize| {
        let after = ranges.partition_point(|range| range.end <= at);
        ranges.get(after).is_some_and(|range| range.start <= at)
    };
    let mut spans: Vec<Span> = Vec::new();
    for (start, end) in borders.iter().zip(borders.iter().skip(1)).map(|(a, b)| (*a, *b)) {
        if hole.contains(&start) {
            if start == hole.start {
                let text = format!("… {} bytes not shown …", hole.len());
                spans.push(Span { text, trained: false, special: false, left_out: true });
            }
            continue;
        }
        let (trained, special) = (inside(targets, start), inside(special, start));
        spans.push(Span { text: text[start..end].to_owned(), trained, special, left_out: false });
    }
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one trained span, not the list of its positions")]
    fn a_long_text_keeps_both_ends_and_says_how_much_is_missing() {
        let text = "ä".repeat(50) + "b" + &"ö".repeat(50);
        let spans = spans(&text, &[0..text.len()], &[], 21);
        let words: Vec<&str> = spans.iter().map(|span| span.text.as_str()).collect();
        assert_eq!(words, ["äääää", "… 181 bytes not shown …", "ööööö"]);
        assert_eq!(spans.iter().map(|span| span.left_out).collect::<Vec<_>>(), [false, true, false]);
        assert!(spans[0].trained && !spans[1].trained && spans[2].trained);
    }

    proptest! {
        #[test]
        fn spans_make_up_the_text_and_every_byte_has_the_mark_of_its_range(
            text in "\\PC{0,80}", cuts in prop::collection::vec(0usize..300, 0..12), max in 0usize..400,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| text.floor_char_boundary(at)).collect();
            cuts.sort_unstable();
            let ranges: Vec<Range<usize>> = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let (targets, special) = ranges.split_at(ranges.len() / 2);
            let spans = spans(&text, targets, special, max);
            let shown: usize = spans.iter().filter(|span| !span.left_out).map(|span| span.text.len()).sum();
            prop_assert!(shown <= max || shown == text.len());
            let mut at = 0;
            for span in &spans {
                if span.left_out {
                    let bytes: usize = span.text.split(' ').nth(1).unwrap().parse().unwrap();
                    at += bytes;
                    continue;
                }
                prop_assert_eq!(&text[at..at + span.text.len()], &span.text);
                for byte in at..at + span.text.len() {
                    prop_assert_eq!(targets.iter().any(|r| r.contains(&byte)), span.trained);
                    prop_assert_eq!(special.iter().any(|r| r.contains(&byte)), span.special);
                }
                at += span.text.len();
            }
            prop_assert_eq!(at, text.len());
        }
    }
}
