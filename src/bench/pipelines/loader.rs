//! Examples from JSON Lines, which are parsed, rendered and tokenised each time, or from a mapped token file.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use sparktune_data::token_file::TokenFile;
use sparktune_data::{ChatTokenizer, Format, MaskPolicy, Rejection, Tokens, lines, parse_line};
use sparktune_plan::Plan;

use super::job::Job;
use crate::error::BenchError;

/// A file of examples.
pub(crate) enum Loader {
    Lines(Box<Lines>),
    Tokens(Box<TokenFile>),
}

/// JSON Lines in memory, with everything that is needed to tokenise them.
pub(crate) struct Lines {
    text: String,
    /// Where each line begins and ends.
    places: Vec<(usize, usize)>,
    format: Format,
    tokenizer: ChatTokenizer,
    policy: MaskPolicy,
}

impl Loader {
    /// Opens the file that the job's pipeline reads. Also returns the milliseconds that the tokenizer took.
    ///
    /// # Errors
    /// The file, the tokenizer or the chat template cannot be used.
    pub(crate) fn open(job: &Job, plan: &Plan) -> Result<(Self, f64), BenchError> {
        if job.pipeline.reads_tokens() {
            return Ok((Self::Tokens(Box::new(TokenFile::open(&job.tokens)?)), 0.0));
        }
        let began = Instant::now();
        let tokenizer = tokenizer(plan)?;
        let tokenizer_ms = milliseconds(began);
        let text = std::fs::read_to_string(&job.lines).map_err(BenchError::io("read", &job.lines))?;
        let lines = Lines::new(text, tokenizer, plan.data.think.into())?;
        Ok((Self::Lines(Box::new(lines)), tokenizer_ms))
    }

    /// Asks the system to forget what it has in memory of the file that the job's pipeline reads.
    pub(crate) fn forget(job: &Job) {
        let path = if job.pipeline.reads_tokens() { &job.tokens } else { &job.lines };
        let Ok(file) = File::open(path) else { return };
        // A file that was just written is not forgotten before it is on the disk. Both are advice alone.
        let _ = file.sync_all();
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }

    /// Returns the number of examples.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.places.len(),
            Self::Tokens(file) => file.len(),
        }
    }

    /// Returns the tokens and the loss mask of an example.
    ///
    /// # Errors
    /// The example is damaged or cannot be tokenised.
    pub(crate) fn read(&self, example: usize) -> Result<Tokens, BenchError> {
        match self {
            Self::Lines(lines) => lines.read(example),
            Self::Tokens(file) => {
                let found = file.example(example)?;
                Ok(Tokens { input_ids: found.tokens.to_vec(), loss_mask: found.mask.iter().collect() })
            }
        }
    }
}

/// Opens the plan's tokenizer and chat template.
///
/// # Errors
/// One of them cannot be used.
pub(crate) fn tokenizer(plan: &Plan) -> Result<ChatTokenizer, BenchError> {
    let folder = plan.model.path.as_deref().ok_or(sparktune_train::TrainError::NoModelFolder)?;
    let mut tokenizer = ChatTokenizer::open(folder, plan.model.chat_template.as_deref())?;
    tokenizer.set_kwargs(plan.data.template_kwargs.0.clone());
    Ok(tokenizer)
}

/// Returns the milliseconds since then.
pub(crate) fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Returns the format that a line has.
pub(crate) fn format_of(line: &str) -> Option<Format> {
    Format::ALL.into_iter().find(|format| parse_line(Some(*format), line).is_ok())
}

impl Lines {
    /// Finds the lines of a text.
    ///
    /// # Errors
    /// The first line has no format that is known.
    pub(crate) fn new(
        text: String,
        tokenizer: ChatTokenizer,
        policy: MaskPolicy,
    ) -> Result<Self, BenchError> {
        let start = text.as_ptr() as usize;
        let mut places = Vec::new();
        for line in lines(text.as_bytes(), 1).filter(|line| !line.bytes.is_empty()) {
            let begin = line.bytes.as_ptr() as usize - start;
            places.push((begin, begin + line.bytes.len()));
        }
        let first = places.first().map_or("", |(begin, end)| &text[*begin..*end]);
        let format = format_of(first).ok_or_else(|| {
            BenchError::unsuitable(
                "its first line is in no format that is known",
                "Use JSON Lines of chats, or of prompts and completions",
            )
        })?;
        Ok(Self { text, places, format, tokenizer, policy })
    }

    fn read(&self, example: usize) -> Result<Tokens, BenchError> {
        let (begin, end) = self.places[example];
        let refused = |why: Rejection| {
            BenchError::unsuitable(
                format!("its line {} is refused: {why}", example + 1),
                "Measure on lines that `sparktune check` accepts",
            )
        };
        let conversation = parse_line(Some(self.format), &self.text[begin..end]).map_err(refused)?;
        self.tokenizer.encode_conversation(&conversation, self.policy).map_err(refused)
    }
}

/// Returns the lines of a file of text.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub(crate) fn text_of(path: &Path) -> Result<String, BenchError> {
    std::fs::read_to_string(path).map_err(BenchError::io("read as JSON Lines", path))
}
