//! Which turns of a conversation become examples, and what becomes of examples that are too long.

use sparktune_base::choices::{Overlong, TrainOn};

use crate::resolve::Resolver;

impl Resolver<'_> {
    /// Decides which turns are trained, whether each is an example of its own, and what becomes of examples
    /// over the limit on tokens.
    pub(crate) fn examples(&mut self) -> (TrainOn, bool, Overlong) {
        let (answers, data) = (self.answers, &self.facts.data);
        let train_on = self.pick(
            "data.train_on",
            &answers.train_on,
            TrainOn::All,
            "every assistant turn shows what to answer at its place in the conversation",
        );
        let split_turns = self.pick(
            "data.split_turns",
            &answers.split_turns,
            false,
            "one example per conversation reads each turn once; split, the turns before a trained one are read again, but as a server renders them: reasoning that a chat template drops from earlier turns is then trained too",
        );
        let overlong = self.pick(
            "data.overlong",
            &answers.overlong,
            Overlong::Auto,
            format!(
                "raw text is split without losing a token; a conversation is left out, because an answer that is cut teaches no end, and parts miss what was said before; {}",
                data.too_long
            ),
        );
        (train_on, split_turns, overlong)
    }
}
