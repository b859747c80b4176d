//! The answers of a request while they are generated. Dropping them ends the work.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use super::commands::{Command, Event};
use super::refusal::Refusal;
use super::slot::{Counted, Slot, ended};

/// The answers to a request, which are numbered from 0.
pub(crate) struct Answers {
    slot: Arc<Slot>,
    /// Their ids at the worker; none once an answer has ended.
    ids: Vec<Option<String>>,
    /// Whether each begins inside a think block.
    opens_thinking: Vec<bool>,
    receiver: UnboundedReceiver<(usize, Event)>,
    /// Events that came while others were not accepted yet.
    early: VecDeque<(usize, Event)>,
    _counted: Counted,
}

impl Answers {
    /// Waits until all answers are accepted.
    pub(super) async fn begin(
        ids: Vec<String>,
        receiver: UnboundedReceiver<(usize, Event)>,
        slot: Arc<Slot>,
        counted: Counted,
    ) -> Result<Self, Refusal> {
        let opens_thinking = vec![false; ids.len()];
        let mut missing = ids.len();
        let ids = ids.into_iter().map(Some).collect();
        let mut answers =
            Self { slot, ids, opens_thinking, receiver, early: VecDeque::new(), _counted: counted };
        while missing > 0 {
            let Some((index, event)) = answers.receiver.recv().await else {
                return Err(Refusal::Gone(ended()));
            };
            match event {
                Event::Accepted { opens_thinking, .. } => {
                    answers.opens_thinking[index] = opens_thinking;
                    missing -= 1;
                }
                Event::Refused(refusal) => {
                    answers.ids[index] = None;
                    return Err(refusal);
                }
                Event::Failed { failure, had_prompt: true } => return Err(Refusal::Died(failure)),
                Event::Failed { failure, had_prompt: false } => return Err(Refusal::Gone(failure)),
                event => answers.early.push_back((index, event)),
            }
        }
        Ok(answers)
    }

    /// Returns whether an answer begins inside a think block.
    pub(crate) fn opens_thinking(&self, index: usize) -> bool {
        self.opens_thinking[index]
    }

    /// Returns what happens next, and to which answer; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        if self.ids.iter().all(Option::is_none) {
            return None;
        }
        let next = match self.early.pop_front() {
            Some(next) => Some(next),
            None => self.receiver.recv().await,
        };
        // The thread of the worker has ended without a word.
        let (index, event) = next.unwrap_or_else(|| {
            let open = self.ids.iter().position(Option::is_some).unwrap_or_default();
            (open, Event::Failed { failure: ended(), had_prompt: true })
        });
        if matches!(event, Event::Done(_) | Event::Refused(_) | Event::Failed { .. }) {
            self.ids[index] = None;
        }
        Some((index, event))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for id in self.ids.iter().flatten() {
            let _ = self.slot.send(Command::Cancel { id: id.clone() });
        }
    }
}
