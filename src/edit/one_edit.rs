//! One fact on a model in memory, without files and without a judgement: what an edit itself takes.

use sparktune_model::Model;

use crate::compute::contexts;
use crate::error::EditError;
use crate::key_statistics::KeyStatistics;
use crate::rome::{Site, rome};
use crate::tokens::FactTokens;

/// A model, the statistics of one of its layers, and a fact in tokens.
pub struct OneEdit {
    model: Model,
    layer: usize,
    statistics: KeyStatistics,
    prefixes: Vec<Vec<u32>>,
    fact: FactTokens,
}

impl OneEdit {
    /// Computes the statistics of a layer from documents in tokens, which an edit finds in its cache. The
    /// subject is the first `subject` tokens of the prompt.
    ///
    /// # Errors
    /// There is no such layer or no text, or the keys are not finite.
    ///
    /// # Panics
    /// When prompt, subject or target are empty.
    pub fn new(
        model: Model,
        layer: usize,
        text: &[Vec<u32>],
        [prompt, target]: [Vec<u32>; 2],
        subject: usize,
    ) -> Result<Self, EditError> {
        assert!(subject > 0 && subject <= prompt.len() && !target.is_empty(), "a fact has tokens");
        if layer >= model.config().layers.len() || text.is_empty() {
            return Err(EditError::request("there is no such layer, or no text", "Choose another layer"));
        }
        let statistics = KeyStatistics::of(&model, layer, text, &mut || true)?;
        let prefixes = contexts(text);
        let subject = Some(prompt[..subject].to_vec());
        let last = subject.as_ref().map_or(0, Vec::len) - 1;
        Ok(Self { model, layer, statistics, prefixes, fact: FactTokens { prompt, last, target, subject } })
    }

    /// Writes the fact into a copy of the model by r-ROME, as a new process does: with the search for its
    /// value, and the decomposition of the covariance. Returns the losses of the target without and with the
    /// edit, in nats for each token.
    ///
    /// # Errors
    /// A number is not finite.
    pub fn run(&self) -> Result<[f64; 2], EditError> {
        let mut model = self.model.clone();
        let mut site = Site::new(self.layer, self.statistics.clone(), self.prefixes.clone());
        rome(&mut model, &mut site, std::slice::from_ref(&self.fact), &mut |_| true)?;
        Ok([&self.model, &model].map(|model| {
            let sequence = crate::ultraedit::sequence_of(&self.fact);
            model.loss_sum(&sequence).nats() / self.fact.target.len() as f64
        }))
    }
}
