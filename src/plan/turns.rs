//! Which turns of a conversation become examples, and what becomes of examples that are too long.

use sparktune_base::choices::{Overlong, TrainOn};
use sparktune_base::units::{count, counted};

use crate::resolve::Resolver;

impl Resolver<'_> {
    /// Decides which turns are trained, whether each is an example of its own, and what becomes of examples
    /// over the limit on tokens.
    pub(crate) fn examples(&mut self) -> (TrainOn, bool, Overlong) {
        let (answers, data) = (self.answers, &self.facts.data);
        let train_on = self.pick_packed(
            "data.train_on",
            &answers.train_on,
            |packed| packed.train_on,
            TrainOn::All,
            "every assistant turn shows what to answer at its place in the conversation",
        );
        let mut reason = "one example per conversation reads each turn once; an example per trained turn reads the turns before it again, but as a server renders them, and trains reasoning that a chat template drops from earlier turns".to_owned();
        if data.earlier_unlike_served > 0 {
            let examples = counted(data.earlier_unlike_served, "example");
            reason.push_str(&format!("; this changes the answers to earlier questions in {examples}"));
        }
        let split_turns = self.pick_packed(
            "data.split_turns",
            &answers.split_turns,
            |packed| packed.split_turns,
            false,
            reason,
        );
        // A report that was taken with another limit knows nothing of the examples over this one.
        let limit = answers.max_example_tokens.as_ref().map_or(u32::MAX, |answer| answer.value);
        let longer = match data.longer_than(limit) {
            0 => data.too_long.to_string(),
            longer => format!("about {} over {} tokens", counted(longer, "example"), count(limit.into())),
        };
        let overlong = self.pick_packed(
            "data.overlong",
            &answers.overlong,
            |packed| packed.overlong,
            Overlong::Auto,
            format!(
                "raw text is split without losing a token; a conversation is left out, because an answer that is cut teaches no end, and parts miss what was said before; {longer}"
            ),
        );
        (train_on, split_turns, overlong)
    }
}
