//! The end of an answer in words, for full screens and plain lines.

use sparktune_base::units::counted;
use sparktune_sampling::protocol::{FinishReason, Finished};

/// Describes how an answer came about: its length and speed, and how many drafted tokens were accepted.
pub fn words_of_end(finished: &Finished) -> String {
    let usage = finished.usage;
    let mut parts = vec![counted(usage.completion_tokens as u64, "token")];
    let seconds = (finished.total_ms - finished.first_token_ms) / 1000.0;
    if usage.completion_tokens > 1 && seconds > 0.0 {
        parts.push(format!("{:.1} tokens/s", (usage.completion_tokens - 1) as f64 / seconds));
    }
    if usage.drafted_tokens > 0 {
        parts.push(format!("{} of {} drafted tokens accepted", usage.accepted_tokens, usage.drafted_tokens));
    }
    match finished.finish_reason {
        FinishReason::Stop => {}
        FinishReason::Length => parts.push("cut at the largest length".to_owned()),
        FinishReason::Cancelled => parts.push("ended by you".to_owned()),
    }
    parts.join(", ")
}
