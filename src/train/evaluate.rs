//! Loss on the held-out examples, and a few generations to look at.

use crate::TrainError;
use crate::batches::{open_tokens, row};
use crate::session::Session;
use crate::stage::{Subject, milliseconds};
use crate::state::Stage;
use sparktune_data::ChatTokenizer;
use sparktune_data::packing::{Pack, PackStrategy, Packing, Packs};
use sparktune_data::token_file::TokenFile;
use sparktune_model::{Generator, Loss, Model, Row};
use sparktune_plan::Plan;
use sparktune_runlog::{Eval, Kind, Sample};
use std::path::Path;
use std::time::Instant;

/// The held-out examples, packed once.
pub(crate) struct Evaluation {
    file: TokenFile,
    packs: Packs,
    tokenizer: Option<ChatTokenizer>,
}

impl Evaluation {
    /// Opens the eval token file of a run, if it has one with anything to evaluate.
    pub(crate) fn open(
        plan: &Plan,
        path: &Path,
        model_folder: &Path,
        vocabulary: usize,
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<Self>, TrainError> {
        if !path.exists() {
            return Ok(None);
        }
        let file = open_tokens(path, vocabulary)?;
        if file.target_tokens() == 0 {
            return Ok(None);
        }
        let packing = Packing::new(PackStrategy::Bfd, plan.pack.length, plan.seed)?;
        let packs = packing.epoch(file.lengths(), 0);
        let tokenizer = match ChatTokenizer::from_dir(model_folder) {
            Ok(tokenizer) => Some(tokenizer),
            Err(error) => {
                warn(format!("no sample generations: {error}"));
                None
            }
        };
        Ok(Some(Self { file, packs, tokenizer }))
    }

    /// The held-out examples as packed rows.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = Result<Row, TrainError>> {
        self.packs.iter().map(|pieces| Ok(row(&Pack::build(&self.file, pieces)?)))
    }

    /// Mean loss per target in nats; recorded as an `eval` event for the text model.
    pub(crate) fn loss(
        &self,
        session: &mut Session,
        subject: &dyn Subject,
        step: u64,
    ) -> Result<f64, TrainError> {
        let started = Instant::now();
        let (mut sum, mut target_tokens) = (0.0, 0u64);
        // The device works on one row while the next is prepared.
        let mut under_way: Option<Loss> = None;
        for (done, row) in self.rows().enumerate() {
            let row = row?;
            let before = under_way.replace(subject.loss_sum(&row));
            sum += before.map_or(0.0, |loss| loss.nats());
            target_tokens += subject.target_tokens(&row) as u64;
            session.sample_machine();
            if self.packs.len() > 16 && done % 16 == 15 {
                session.progress("eval", done as u64 + 1, self.packs.len() as u64, "packs");
            }
        }
        let sum = sum + under_way.map_or(0.0, |loss| loss.nats());
        let loss = sum / target_tokens.max(1) as f64;
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { what: "loss on the held-out examples", value: loss, step });
        }
        match subject.stage() {
            Stage::Main => session.events.emit(Kind::Eval(Eval {
                step,
                loss_nats: loss,
                target_tokens,
                examples: self.file.len() as u64,
                eval_ms: Some(milliseconds(started)),
            })),
            Stage::Mtp => session.phase("mtp", format!("loss on the held-out examples {loss:.4}")),
        }
        Ok(loss)
    }

    /// Prompts of the first examples: everything before their first target.
    pub(crate) fn prompts(&self, count: usize) -> Vec<Vec<u32>> {
        (0..self.file.len())
            .filter_map(|i| {
                let tokens = self.file.tokens(i);
                let first_target = self.file.mask(i).iter().position(|target| target)?;
                (first_target > 0).then(|| tokens[..first_target].to_vec())
            })
            .take(count)
            .collect()
    }

    /// The ids that end an answer.
    pub(crate) fn stops(&self) -> Vec<u32> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.eos_token_ids().to_vec()).unwrap_or_default()
    }

    /// Generates greedily from the first prompts and records the text.
    pub(crate) fn samples(&self, session: &Session, model: &Model, step: u64) {
        let Some(tokenizer) = &self.tokenizer else { return };
        let plan = &session.plan.eval;
        if plan.sample_count == 0 {
            return;
        }
        let (model, stops) = (model.frozen(), self.stops());
        for prompt in self.prompts(plan.sample_count as usize) {
            let mut ids: Vec<u32> = Vec::new();
            for id in Generator::new(&model, &prompt).take(plan.sample_max_tokens as usize) {
                ids.push(id);
                if stops.contains(&id) {
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
