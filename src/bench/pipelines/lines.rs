//! Writes JSON Lines that have exactly the examples of a token file, in its order, so that both pipelines can
//! be given the same examples by number.

use std::fmt::Write as _;
use std::path::Path;

use sparktune_data::token_file::TokenFile;
use sparktune_data::{Tokens, lines};
use sparktune_plan::Plan;

use super::job::{Job, Written};
use super::loader::{Lines, Loader, text_of, tokenizer};
use crate::error::BenchError;

/// Writes the lines of the examples and compares the tokens of each with the token file's.
///
/// # Errors
/// A file cannot be read or written, or an example is not one line of it.
pub(crate) fn write(job: &Job, plan: &Plan) -> Result<Written, BenchError> {
    let file = TokenFile::open(&job.tokens)?;
    let texts = job.sources.iter().map(|path| text_of(path)).collect::<Result<Vec<_>, _>>()?;
    let numbered: Vec<Vec<&[u8]>> =
        texts.iter().map(|text| lines(text.as_bytes(), 1).map(|line| line.bytes).collect()).collect();
    let mut written = String::new();
    for example in 0..file.len() {
        let origin = file.origin(example);
        let line = numbered.get(origin.file as usize).and_then(|all| {
            let at = usize::try_from(origin.line.checked_sub(1)?).ok()?;
            std::str::from_utf8(all.get(at)?).ok()
        });
        let line = line.ok_or_else(|| not_a_line(&file.origin_text(example)))?;
        writeln!(written, "{line}").expect("memory can be written");
    }
    std::fs::write(&job.lines, &written).map_err(BenchError::io("write", &job.lines))?;
    let jsonl_bytes = written.len() as u64;
    compare(written, &file, plan)?;
    let size = |path: &Path| std::fs::metadata(path).map(|found| found.len());
    let longer = |length: &&u32| **length as u64 > job.row_tokens;
    Ok(Written {
        examples: file.len() as u64,
        tokens: file.total_tokens(),
        target_tokens: file.target_tokens(),
        cut_examples: file.lengths().iter().filter(longer).count() as u64,
        jsonl_bytes,
        token_file_bytes: size(&job.tokens).map_err(BenchError::io("read", &job.tokens))?,
    })
}

/// Compares every example of the lines with the token file's.
fn compare(written: String, file: &TokenFile, plan: &Plan) -> Result<(), BenchError> {
    let lines = Loader::Lines(Box::new(Lines::new(written, tokenizer(plan)?, plan.data.think.into())?));
    if lines.len() != file.len() {
        return Err(not_a_line("one of its lines"));
    }
    for example in 0..file.len() {
        let Tokens { input_ids, loss_mask } = lines.read(example)?;
        let found = file.example(example)?;
        if input_ids != found.tokens || !loss_mask.iter().copied().eq(found.mask.iter()) {
            return Err(not_a_line(&file.origin_text(example)));
        }
    }
    Ok(())
}

fn not_a_line(place: &str) -> BenchError {
    BenchError::unsuitable(
        format!("{place} is not one example with the tokens of the token file"),
        "Give JSON Lines, one example a line, and leave out settings that split, cut or choose turns of an example",
    )
}
