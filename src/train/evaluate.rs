//! The loss on the eval set, and sample generations.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use sparktune_base::choices::PackStrategy;
use sparktune_base::regular_file::read_regular;
use sparktune_cluster::Error as ClusterError;
use sparktune_data::ChatTokenizer;
use sparktune_data::packing::{Packing, Packs};
use sparktune_model::{Checkpoint, Generator, Loss, Model, PackedSequence};
use sparktune_plan::Plan;
use sparktune_runlog::{Eval, HeadEval, Kind, RunDir, Sample};

use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::examples::{Examples, eval_tokens, train_tokens};
use crate::objective::{Objective, Trainee};
use crate::prompts::{Place, places};
use crate::session::Session;
use crate::state::Stage;

/// The largest length in tokens of a prompt that is sampled from while there are shorter ones. The delta
/// rule of a prompt is computed on the CPU, which takes minutes for tens of thousands of tokens.
const LONGEST_PROMPT: usize = 2048;

/// The largest number of examples that all prompts are taken from: training data may have millions, and each
/// prompt gives an answer of at least a token.
const MOST_ASKED: usize = 4096;

/// The most bytes that the file of the user's prompts has.
const MOST_PROMPT_BYTES: u64 = 16 << 20;

/// The eval set of a run, packed once.
pub(crate) struct EvalSet {
    examples: Examples,
    packs: Packs,
    tokenizer: Option<ChatTokenizer>,
    /// The prompts of the user.
    own_prompts: Vec<Vec<u32>>,
}

/// A prompt of the eval set.
pub(crate) struct Prompt {
    /// The example.
    pub(crate) example: usize,
    pub(crate) place: Place,
    pub(crate) ids: Vec<u32>,
}

impl EvalSet {
    /// Opens the eval token file of a run, if it exists and is not empty. `warn` is called when the run's
    /// tokenizer cannot be read; there are then no samples.
    ///
    /// # Errors
    /// When the file does not fit the model or the objective.
    pub(crate) fn open(
        run: &RunDir,
        plan: &Plan,
        base: &Checkpoint,
        examples_per_group: usize,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<Self>, TrainError> {
        let opened = Self::open_file(eval_tokens(run), plan, base, examples_per_group, warn)?;
        let Some(mut eval_set) = opened else { return Ok(None) };
        match own_prompts(run, base.config().vocab_size) {
            Ok(prompts) => eval_set.own_prompts = prompts,
            Err(error) => {
                warn(format!("your own prompts are not answered: {}: {error}", run.prompts().display()))
            }
        }
        Ok(Some(eval_set))
    }

    /// Opens the training data of a run instead, for the prompts of a run without an eval set.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub(crate) fn of_training(
        run: &RunDir,
        plan: &Plan,
        base: &Checkpoint,
    ) -> Result<Option<Self>, TrainError> {
        Self::open_file(train_tokens(run), plan, base, 1, &mut |_| ())
    }

    fn open_file(
        path: PathBuf,
        plan: &Plan,
        base: &Checkpoint,
        examples_per_group: usize,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<Self>, TrainError> {
        if !path.exists() {
            return Ok(None);
        }
        let examples = Examples::open(&path, base.config().vocab_size, examples_per_group)?;
        if examples.file().target_tokens() == 0 {
            return Ok(None);
        }
        let packing = Packing::new(PackStrategy::Bfd, plan.pack.length, plan.seed)?;
        let packs = examples.pack(&packing, 0);
        let tokenizer = match ChatTokenizer::without_template(base.dir()) {
            Ok(tokenizer) => Some(tokenizer),
            Err(error) => {
                warn(format!("no sample answers: {error}"));
                None
            }
        };
        Ok(Some(Self { examples, packs, tokenizer, own_prompts: Vec::new() }))
    }

    /// Returns the number of examples and of trained tokens.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.examples.file().len() as u64, self.examples.file().target_tokens())
    }

    /// Returns all examples as packed sequences.
    pub(crate) fn sequences(&self) -> impl ExactSizeIterator<Item = Result<PackedSequence, TrainError>> {
        self.packs.iter().map(|pieces| self.examples.sequence(pieces))
    }

    /// Computes the mean loss per term of the objective in nats, and records it. If the members of a swarm
    /// change meanwhile, those that are left compute it.
    ///
    /// # Errors
    /// When an example is damaged, or the loss is not finite.
    pub(crate) fn loss<O: Objective>(
        &self,
        session: &mut Session,
        objective: &O,
        trainee: &O::Trainee,
        step: u64,
    ) -> Result<f64, TrainError> {
        loop {
            match self.loss_once(session, objective, trainee, step) {
                Err(TrainError::Cluster(ClusterError::Regrouped)) => session.record_members(step + 1),
                loss => return loss,
            }
        }
    }

    fn loss_once<O: Objective>(
        &self,
        session: &mut Session,
        objective: &O,
        trainee: &O::Trainee,
        step: u64,
    ) -> Result<f64, TrainError> {
        let started = Instant::now();
        let mut trained_tokens = 0;
        // Sum and number of terms of each part of the loss.
        let mut parts: Vec<(f64, u64)> = Vec::new();
        let mut add = |losses: Vec<(f64, usize)>| {
            parts.resize(parts.len().max(losses.len()), (0.0, 0));
            for ((sum, terms), (loss, count)) in parts.iter_mut().zip(losses) {
                *sum += loss;
                *terms += count as u64;
            }
        };
        let computed = |losses: Vec<(Loss, usize)>| -> Vec<(f64, usize)> {
            losses.into_iter().map(|(loss, count)| (loss.nats(), count)).collect()
        };
        // Several ranks take the packs in turn, and everything is added in the order of packs all the same.
        let (own, ranks) = (session.ranks.own(), session.ranks.count());
        let has_others = session.ranks.has_others();
        let mut of_packs: Vec<Sums> = Vec::new();
        // The device computes one sequence while the next one is prepared.
        let mut in_flight = Vec::new();
        for (done, sequence) in self.sequences().enumerate() {
            let sequence = sequence?;
            trained_tokens += sequence.target_tokens() as u64;
            if has_others {
                if own.contains(&(done % ranks)) {
                    let losses = computed(objective.parts(trainee, &sequence));
                    of_packs.push(losses.into_iter().map(|(loss, count)| (loss.to_bits(), count)).collect());
                }
            } else {
                add(computed(std::mem::replace(&mut in_flight, objective.parts(trainee, &sequence))));
            }
            session.sample_machine();
            if self.packs.len() > 16 && done % 16 == 15 {
                session.progress("eval", done as u64 + 1, self.packs.len() as u64, "packs");
            } else {
                session.still("eval", done as u64 + 1, self.packs.len() as u64, "packs");
            }
        }
        add(computed(in_flight));
        for pack in in_turn(session.ranks.gather_shares(of_packs)?) {
            add(pack.into_iter().map(|(bits, count)| (f64::from_bits(bits), count)).collect());
        }
        let means: Vec<f64> = parts.iter().map(|(sum, terms)| sum / (*terms).max(1) as f64).collect();
        let loss = objective.loss_of_parts(&means);
        TrainError::require_finite("held-out loss", loss, step)?;
        match O::Trainee::STAGE {
            Stage::Main => session.events.emit(Kind::Eval(Eval {
                step,
                loss_nats: loss,
                target_tokens: trained_tokens,
                examples: self.examples.file().len() as u64,
                eval_ms: Some(milliseconds(started)),
            })),
            Stage::Mtp => session.events.emit(Kind::HeadEval(HeadEval {
                step,
                loss_nats: loss,
                draft_nats: means,
                target_tokens: parts.first().map_or(0, |(_, terms)| *terms),
                eval_ms: Some(milliseconds(started)),
            })),
        }
        Ok(loss)
    }

    /// Returns the first prompts of `count` examples that have one, without long ones if possible.
    pub(crate) fn prompts(&self, count: usize) -> Vec<Vec<u32>> {
        let first = |example| Some((example, self.places(example).into_iter().next()?));
        let first = (0..self.examples.file().len()).filter_map(first).collect();
        self.read(without_long_ones(first, count)).map(|prompt| prompt.ids).collect()
    }

    /// Returns all prompts: the first of each example, then the second of each that has one, and so on, and
    /// after these the long ones; of a large set, those of its first examples.
    pub(crate) fn all_prompts(&self) -> impl Iterator<Item = Prompt> {
        let mut all = Vec::new();
        for example in 0..self.examples.file().len().min(MOST_ASKED) {
            all.extend(
                self.places(example).into_iter().enumerate().map(|(nth, place)| (nth, example, place)),
            );
        }
        all.sort_by_key(|(nth, example, _)| (*nth, *example));
        let all = all.into_iter().map(|(_, example, place)| (example, place)).collect();
        self.read(without_long_ones(all, usize::MAX))
    }

    fn places(&self, example: usize) -> Vec<Place> {
        places(&self.examples.file().mask(example).iter().collect::<Vec<_>>())
    }

    fn read(&self, places: Vec<(usize, Place)>) -> impl Iterator<Item = Prompt> {
        places.into_iter().map(|(example, place)| {
            let ids = self.examples.file().tokens(example)[place.prompt.clone()].to_vec();
            Prompt { example, place, ids }
        })
    }

    /// Returns the ids that end an answer.
    pub(crate) fn stop_ids(&self) -> Vec<u32> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.eos_token_ids().to_vec()).unwrap_or_default()
    }

    /// Generates greedy answers to the user's prompts and the first ones of the eval set, and records their
    /// text, on the first rank.
    pub(crate) fn record_samples(&self, session: &Session, model: &Model, step: u64) {
        let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| session.ranks.is_first()) else { return };
        let plan = &session.plan.eval;
        let prompts: Vec<_> =
            self.own_prompts.iter().cloned().chain(self.prompts(plan.sample_count as usize)).collect();
        if prompts.is_empty() {
            return;
        }
        let (model, stop_ids) = (model.frozen(), self.stop_ids());
        for prompt in prompts {
            let mut ids: Vec<u32> = Vec::new();
            for id in Generator::new(&model, &prompt).take(plan.sample_max_tokens as usize) {
                ids.push(id);
                session.still("samples", ids.len() as u64, plan.sample_max_tokens.into(), "tokens");
                if stop_ids.contains(&id) {
                    break;
                }
            }
            session.events.emit(Kind::Sample(Sample {
                step,
                prompt: tokenizer.decode(&prompt),
                text: tokenizer.decode(&ids),
                tokens: ids.len() as u64,
            }));
        }
    }
}

/// Reads the prompts of the user, of which there are none without a file.
fn own_prompts(run: &RunDir, vocabulary: usize) -> io::Result<Vec<Vec<u32>>> {
    let bytes = match read_regular(&run.prompts(), MOST_PROMPT_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let prompts: Vec<Vec<u32>> = serde_json::from_slice(&bytes)?;
    if prompts.iter().any(|ids| ids.is_empty() || ids.iter().any(|id| *id as usize >= vocabulary)) {
        return Err(io::Error::other("a prompt has no tokens, or one that is not of this model"));
    }
    Ok(prompts)
}

/// The bits of the losses of a pack's parts, and the numbers of their terms.
type Sums = Vec<(u64, usize)>;

/// Returns what the ranks have computed in turn, in the order of packs.
fn in_turn<T>(of_ranks: Vec<Vec<T>>) -> Vec<T> {
    let count = of_ranks.iter().map(Vec::len).sum();
    let mut of_ranks: Vec<_> = of_ranks.into_iter().map(Vec::into_iter).collect();
    let ranks = of_ranks.len();
    (0..count).filter_map(|pack| of_ranks[pack % ranks].next()).collect()
}

/// Returns the first `count` of these places of examples whose prompts are not longer than
/// [`LONGEST_PROMPT`]; if there are too few, the shortest others too.
fn without_long_ones(mut prompts: Vec<(usize, Place)>, count: usize) -> Vec<(usize, Place)> {
    // The sort is stable, so that short prompts keep their order.
    prompts.sort_by_key(|(_, place)| match place.prompt.len() {
        length if length <= LONGEST_PROMPT => 0,
        length => length,
    });
    prompts.truncate(count);
    prompts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_compute_in_turn_is_put_together_in_the_order_of_packs() {
        assert_eq!(in_turn(vec![vec![0, 3, 6], vec![1, 4], vec![2, 5]]), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(in_turn(vec![vec![0], vec![], vec![]]), [0]);
        assert!(in_turn::<u8>(vec![vec![], vec![]]).is_empty());
    }

    #[test]
    fn samples_pass_over_prompts_that_would_take_long_unless_there_are_no_others() {
        let place = |length| Place { prompt: 0..length, rest: 1, is_window: false };
        let prompts = [(0, 20_000), (1, 900), (2, 9000), (4, 30), (5, 2048), (6, 1)];
        let prompts = prompts.map(|(example, length)| (example, place(length)));
        let kept = |count| {
            let kept = without_long_ones(prompts.to_vec(), count);
            kept.into_iter().map(|(example, place)| (example, place.prompt.len())).collect::<Vec<_>>()
        };
        assert_eq!(kept(3), [(1, 900), (4, 30), (5, 2048)]);
        assert_eq!(kept(10), [(1, 900), (4, 30), (5, 2048), (6, 1), (2, 9000), (0, 20_000)]);
    }

    #[test]
    fn prompts_with_any_changed_byte_are_tokens_of_the_model_or_refused() {
        let root = tempfile::tempdir().unwrap();
        let run = sparktune_runlog::RunsRoot::new(root.path()).create("m", "lora").unwrap();
        std::fs::create_dir_all(run.data()).unwrap();
        let text = "[[1,22,3],[4]]";
        let changes = ["", "0", "9", "-", "e", "\"", "{", "]", ",", "[", "\u{1b}", "99999999999999999999"];
        let mut read = 0;
        for (at, change) in (0..text.len()).flat_map(|at| changes.map(|change| (at, change))) {
            std::fs::write(run.prompts(), format!("{}{change}{}", &text[..at], &text[at + 1..])).unwrap();
            match own_prompts(&run, 30) {
                Ok(prompts) => {
                    read += 1;
                    assert!(prompts.iter().all(|ids| !ids.is_empty() && ids.iter().all(|id| *id < 30)));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(read > 0);
    }
}
