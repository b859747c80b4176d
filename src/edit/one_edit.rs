//! One fact on a model in memory, without files and without a judgement: what an edit itself takes, for
//! whoever measures the program.

use std::path::Path;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use sparktune_data::ChatTokenizer;
use sparktune_model::{Checkpoint, Model};

use crate::compute::contexts;
use crate::error::EditError;
use crate::facts::Facts;
use crate::key_statistics::KeyStatistics;
use crate::layers::Chosen;
use crate::patch::Method;
use crate::rome::{Site, rome};
use crate::text::{Document, documents};
use crate::tokens::FactTokens;

/// What one edit came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// The losses of the target without and with the edit, in nats for each token.
    pub losses: [f64; 2],
    /// The time of all of it.
    pub whole: Duration,
    /// The part in which the covariance was decomposed; an edit finds that in its cache after the first one.
    pub decomposition: Duration,
}

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
        Ok(Self {
            model,
            layer,
            statistics,
            prefixes,
            fact: FactTokens { prompt, first: 0, last, target, subject },
        })
    }

    /// Takes the first fact of a file and the text of another, and the layer that `edit` would choose for
    /// this fact.
    ///
    /// # Errors
    /// A file cannot be used, or a number is not finite.
    pub fn of_files(model: &Path, facts: &Path, text: &Path) -> Result<Self, EditError> {
        let facts = Facts::read(facts)?;
        let tokenizer = ChatTokenizer::open(model, None)?;
        let fact = &facts.facts()[0];
        let fact = FactTokens::of(fact, &fact.prompt, &tokenizer)?;
        let encode = |said: &str| tokenizer.encode(said).map_err(EditError::Text);
        let text = documents(text)?
            .iter()
            .flat_map(Document::messages)
            .map(encode)
            .collect::<Result<Vec<_>, _>>()?;
        let model = Model::load(&Checkpoint::open(model)?, &Device::flex(), &mut |_, _| ())?;
        let chosen = Chosen::of(Method::Rome, &[], &model, std::slice::from_ref(&fact), &mut |_| true)?;
        let layer = chosen.layers[0];
        let statistics = KeyStatistics::of(&model, layer, &text, &mut || true)?;
        Ok(Self { model, layer, statistics, prefixes: contexts(&text), fact })
    }

    /// Writes the fact into a copy of the model by r-ROME, as the first edit of a model does: with the search
    /// for its value, and the decomposition of the covariance.
    ///
    /// # Errors
    /// A number is not finite.
    pub fn run(&self) -> Result<Took, EditError> {
        let mut model = self.model.clone();
        let mut site = Site::new(self.layer, self.statistics.clone(), self.prefixes.clone());
        let start = Instant::now();
        site.prepare()?;
        let decomposition = start.elapsed();
        rome(&mut model, &mut site, std::slice::from_ref(&self.fact), &mut |_| true)?;
        let whole = start.elapsed();
        let losses = [&self.model, &model].map(|model| {
            let sequence = self.fact.sequence();
            model.loss_sum(&sequence).nats() / self.fact.target.len() as f64
        });
        Ok(Took { losses, whole, decomposition })
    }
}
