//! How edits hold as they become more: the same facts written at once and one after the other, beside two
//! controls on the same prompts.
//!
//! The controls say what an edit has to beat. `lora` trains an adapter on the facts; whoever measures trains
//! it, on [`Measurement::training_lines`], since training is not this crate's. `prompt` leaves the model
//! alone and puts the fact that a prompt is about before it, as a search that always finds the right fact
//! would.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use sparktune_compare::Suite;
use sparktune_infer::{Render, Room};

use crate::compute::{Loaded, Text, Writer};
use crate::error::EditError;
use crate::facts::{Fact, Facts};
use crate::judge::{Aspect, Probe, answers};
use crate::layers::{Chosen, layers_of};
use crate::patch::Method;
use crate::said::{Said, check_lengths, load, said, tokens_of};
use crate::scores::{LossDrift, Scores, Share};
use crate::stack::Stack;
use crate::stage::Stage;
use crate::suite::suite_share;
use crate::text::Document;
use crate::tokens::{FactTokens, Rendering, behind};

/// The method, if nobody has named one.
const DEFAULT: Method = Method::Memit;
/// The most patches that facts are written in one after the other; more facts share a patch.
const MOST_PATCHES: usize = 100;

/// What is measured.
pub struct MeasureRequest<'a> {
    /// The folder of the model, edited before or not.
    pub model: &'a Path,
    /// Where its base is now, if it has moved.
    pub base: Option<&'a Path>,
    /// The facts.
    pub facts: &'a Facts,
    /// The method; without one, `memit`.
    pub method: Option<Method>,
    /// The layers; without any, the method's own.
    pub layers: &'a [usize],
    /// How prompts are read.
    pub rendering: Rendering,
    /// Documents of ordinary text.
    pub text: &'a [Document],
    /// A general suite, whose share of passed prompts is measured too.
    pub suite: Option<&'a Suite>,
    /// Where statistics of text are kept.
    pub cache: Option<&'a Path>,
    /// An empty folder in which edited models are written.
    pub work: &'a Path,
    /// What renders messages by the chat template.
    pub render: Render,
    /// The memory that may be used.
    pub room: Room,
}

/// How facts reach the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// All in one patch.
    Batched,
    /// In one patch after the other.
    Sequential,
    /// By an adapter that was trained on them.
    Lora,
    /// In the prompt.
    Prompt,
}

impl Way {
    /// Returns the word for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batched => "batched",
            Self::Sequential => "sequential",
            Self::Lora => "lora",
            Self::Prompt => "prompt",
        }
    }
}

/// A number of facts that reached the model in one way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredRow {
    /// The number of facts.
    pub count: usize,
    /// How they reached the model.
    pub how: Way,
    /// The number of patches.
    pub patches: usize,
    /// How well they hold.
    pub scores: Option<Scores>,
    /// The share of the suite's prompts that pass.
    pub suite: Option<Share>,
    /// The seconds that writing them took, without judging.
    pub seconds: f64,
    /// Why there are no scores.
    pub error: Option<String>,
}

/// A table of rows, and what they were measured on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The folder of the model.
    pub model: PathBuf,
    /// The method.
    pub method: Method,
    /// The layers that it changes.
    pub layers: Vec<usize>,
    /// Why these, if nobody has named them.
    pub why_layers: Option<String>,
    /// How prompts are read.
    pub rendering: Rendering,
    /// The number of facts that the model does not know.
    pub facts: usize,
    /// The number of facts that it knows, which are left out.
    pub known: usize,
    /// The name of the suite.
    pub suite_name: Option<String>,
    /// The share of its prompts that pass without any fact.
    pub suite_before: Option<Share>,
    /// The rows.
    pub rows: Vec<MeasuredRow>,
}

/// A model that is being measured.
pub struct Measurement<'a> {
    request: MeasureRequest<'a>,
    stack: Stack,
    method: Method,
    layers: Chosen,
    facts: Vec<Fact>,
    known: usize,
    tokens: Vec<FactTokens>,
    text: Text,
    before: Said,
    suite_before: Option<Share>,
}

/// A judged model: its scores, and the share of the suite that it passes.
type Judged = (Scores, Option<Share>);

impl<'a> Measurement<'a> {
    /// Asks the model before any edit. Facts that it knows are left out.
    ///
    /// # Errors
    /// The model cannot be loaded, it knows all facts, a prompt is refused, or `tell` says no.
    pub fn start(
        request: MeasureRequest<'a>,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Self, EditError> {
        let stack = Stack::open(request.model, request.base)?;
        let method = request.method.unwrap_or(DEFAULT);
        // Said before the model is asked.
        let checkpoint = stack.checkpoint()?;
        layers_of(method, request.layers, checkpoint.config().layers.len())?;
        let mut engine = load(request.model, request.room.clone(), request.render.clone())?;
        check_lengths(request.facts, request.rendering, &engine)?;
        let text = Text::of(request.text, request.rendering, &engine)?;
        let all = request.facts.facts();
        let first: Vec<Probe> =
            Probe::of(all).into_iter().filter(|probe| probe.aspect == Aspect::Efficacy).collect();
        let mut go_on = || tell(Stage::Before);
        let first_answers = answers(&mut engine, &first, request.rendering, &mut go_on)?;
        let is_new = |place: &usize| !first[*place].holds(&first_answers[*place], "");
        let facts: Vec<Fact> = (0..all.len()).filter(is_new).map(|place| all[place].clone()).collect();
        if facts.is_empty() {
            return Err(EditError::request(
                "the model knows all of these facts already",
                "Measure with facts that it does not know",
            ));
        }
        let before = said(&mut engine, &Probe::of(&facts), &text, request.rendering, &mut go_on)?;
        let suite_before = suite_share(&mut engine, request.suite, &mut go_on)?;
        let tokens = tokens_of(&facts, request.rendering, &engine)?;
        drop(engine);
        let layers = Chosen::of(method, request.layers, &Loaded::of(stack.clone())?.model, &tokens, tell)?;
        let known = all.len() - facts.len();
        Ok(Self { request, stack, method, layers, facts, known, tokens, text, before, suite_before })
    }

    /// Returns the number of facts that can be measured.
    pub fn facts(&self) -> usize {
        self.facts.len()
    }

    /// Returns the ways in which a method writes facts: ROME writes one after the other in any case.
    pub fn ways(method: Option<Method>) -> &'static [Way] {
        match method.unwrap_or(DEFAULT) {
            Method::Rome => &[Way::Sequential],
            Method::Memit | Method::Ultraedit | Method::Memory => &[Way::Batched, Way::Sequential],
        }
    }

    /// Writes the first facts in one of the method's [ways](Self::ways), and judges the result. A failure of
    /// the computation is a row, too.
    ///
    /// # Errors
    /// `tell` says no.
    pub fn edited(
        &self,
        count: usize,
        how: Way,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<MeasuredRow, EditError> {
        let count = count.min(self.facts.len());
        let share = match how {
            Way::Sequential if self.method != Method::Rome => count.div_ceil(MOST_PATCHES),
            _ => count,
        };
        let patches = count.div_ceil(share);
        let start = Instant::now();
        let written = self.written(count, share, tell);
        let seconds = start.elapsed().as_secs_f64();
        let judged = written.and_then(|stack| {
            let staged = stack.stage(&self.request.work.join("edited"), &mut || tell(Stage::Writing))?;
            self.judged(count, staged.folder(), tell)
        });
        row(count, how, patches, seconds, judged)
    }

    fn written(
        &self,
        count: usize,
        share: usize,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Stack, EditError> {
        let (layers, cache) = (self.layers.layers.clone(), self.request.cache);
        let room = &self.request.room;
        let loaded = Loaded::of(self.stack.clone())?;
        let mut writer = Writer::new(loaded, self.method, layers, &self.text, cache, room, tell)?;
        for (number, start) in (0..count).step_by(share).enumerate() {
            let end = (start + share).min(count);
            let facts = &self.facts[start..end];
            let name = format!("measured-{number}");
            let about =
                writer.stack.about(&name, self.method, self.request.rendering, &self.layers.layers, facts);
            let mut tell_more = |stage| match stage {
                Stage::Facts(done) => tell(Stage::Facts(start + done)),
                other => tell(other),
            };
            let patch = writer.write(about, &self.tokens[start..end], &mut tell_more)?;
            writer.push(self.request.work, patch)?;
        }
        Ok(writer.stack)
    }

    /// Judges a folder that has learned the first facts by training, which took `seconds`.
    ///
    /// # Errors
    /// `tell` says no.
    pub fn trained(
        &self,
        count: usize,
        trained: Result<&Path, String>,
        seconds: f64,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<MeasuredRow, EditError> {
        let count = count.min(self.facts.len());
        let judged = match trained {
            Ok(folder) => self.judged(count, folder, tell),
            Err(why) => Err(EditError::request(
                why,
                "Train on the facts with `train` to see why, or leave this control out with --without lora",
            )),
        };
        row(count, Way::Lora, 0, seconds, judged)
    }

    /// Asks the unchanged model the prompts of the first facts, with its fact before each.
    ///
    /// # Errors
    /// `tell` says no.
    pub fn prompted(
        &self,
        count: usize,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<MeasuredRow, EditError> {
        let count = count.min(self.facts.len());
        let probes = Probe::of(&self.facts[..count]);
        let told = self.facts[..count].iter().flat_map(|fact| {
            let known = format!("{}{}", fact.prompt, behind(&fact.prompt, &fact.target));
            let stop = if known.ends_with(|c: char| c.is_alphanumeric()) { "." } else { "" };
            Probe::of(std::slice::from_ref(fact))
                .into_iter()
                .map(move |probe| Probe { prompt: format!("{known}{stop}\n{}", probe.prompt), ..probe })
        });
        let told: Vec<Probe> = told.collect();
        let judged = load(self.request.model, self.request.room.clone(), self.request.render.clone())
            .and_then(|mut engine| {
                let mut go_on = || tell(Stage::Judging);
                let after = answers(&mut engine, &told, self.request.rendering, &mut go_on)?;
                Ok((Scores::of(&probes, &self.before.answers[..probes.len()], &after, None), None))
            });
        row(count, Way::Prompt, 0, 0.0, judged)
    }

    fn judged(
        &self,
        count: usize,
        folder: &Path,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Judged, EditError> {
        let probes = Probe::of(&self.facts[..count]);
        let mut engine = load(folder, self.request.room.clone(), self.request.render.clone())?;
        let mut go_on = || tell(Stage::Judging);
        let after = said(&mut engine, &probes, &self.text, self.request.rendering, &mut go_on)?;
        let suite = suite_share(&mut engine, self.request.suite, &mut go_on)?;
        let loss = LossDrift::of(&self.before.losses, &after.losses);
        Ok((Scores::of(&probes, &self.before.answers[..probes.len()], &after.answers, loss), suite))
    }

    /// Returns the first facts as lines of training data: prompts with their targets as completions, or for a
    /// chat as turns.
    pub fn training_lines(&self, count: usize) -> String {
        let facts = self.facts.iter().take(count);
        let lines = facts.map(|fact| match self.request.rendering {
            Rendering::Raw => {
                json!({"prompt": fact.prompt, "completion": behind(&fact.prompt, &fact.target)})
            }
            Rendering::Chat => json!({"messages": [
                {"role": "user", "content": fact.prompt},
                {"role": "assistant", "content": fact.target},
            ]}),
        });
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the table of rows.
    pub fn table(&self, rows: Vec<MeasuredRow>) -> Measured {
        Measured {
            model: self.request.model.to_owned(),
            method: self.method,
            layers: self.layers.layers.clone(),
            why_layers: self.layers.why.clone(),
            rendering: self.request.rendering,
            facts: self.facts.len(),
            known: self.known,
            suite_name: self.request.suite.map(|suite| suite.name.clone()),
            suite_before: self.suite_before,
            rows,
        }
    }
}

fn row(
    count: usize,
    how: Way,
    patches: usize,
    seconds: f64,
    judged: Result<Judged, EditError>,
) -> Result<MeasuredRow, EditError> {
    let (scores, suite, error) = match judged {
        Ok((scores, suite)) => (Some(scores), suite, None),
        Err(error) if error.is_stop() => return Err(error),
        Err(error) => (None, None, Some(error.to_string())),
    };
    Ok(MeasuredRow { count, how, patches, scores, suite, seconds, error })
}
