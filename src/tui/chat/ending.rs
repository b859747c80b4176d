//! The end of an answer in words, for full screens and plain lines.

use sparktune_base::units::counted;
use sparktune_sampling::protocol::{FinishReason, Finished};

/// Describes the end of a model that thought or said nothing, and what the user can do for an answer.
pub const fn words_of_no_answer(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => {
            "no answer, so the question is not kept either; another seed or a lower temperature may give one"
        }
        FinishReason::Length => {
            "no answer, so the question is not kept either; a larger `/set max-tokens` or `/think off` leaves room for one"
        }
        FinishReason::Cancelled => {
            "ended before there was an answer, so the question is not kept either; ask again to get one"
        }
    }
}

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
