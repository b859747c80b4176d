//! Which layers an edit changes.
//!
//! ROME and MEMIT write where the model recalls what it knows of a subject. Where that is depends on the
//! model: in large ones it is a third of the way up, in one of four layers with attention in the second it is
//! the first, since attention has carried the subject to the end of the prompt before the second MLP. So a
//! few of the facts are traced, as `--trace` does, but at the last token of the subject alone.

use sparktune_model::Model;

use crate::error::EditError;
use crate::patch::Method;
use crate::stage::Stage;
use crate::tokens::FactTokens;
use crate::trace::recalled;

/// The facts that are traced.
const TRACED: usize = 4;
/// The least gain of the answer's probability at which a trace says something.
pub const LEAST_GAIN: f64 = 0.05;

/// Layers, and why these, if nobody has named them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub layers: Vec<usize>,
    pub why: Option<String>,
}

impl Chosen {
    /// Chooses the layers that a method changes: those that were named, those where the model recalls what
    /// it says of the facts' subjects, or the method's own.
    ///
    /// # Errors
    /// Those of [`layers_of`]; also, a number is not finite, or `tell` says no.
    pub(crate) fn of(
        method: Method,
        named: &[usize],
        model: &Model,
        facts: &[FactTokens],
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Self, EditError> {
        let layers = layers_of(method, named, model.config().layers.len())?;
        if !named.is_empty() || !matches!(method, Method::Rome | Method::Memit) {
            return Ok(Self { layers, why: None });
        }
        let about: Vec<_> = facts.iter().filter_map(FactTokens::with_subject).take(TRACED).collect();
        if about.is_empty() {
            let why = "a quarter of the way up; with subjects, the facts would be traced".to_owned();
            return Ok(Self { layers, why: Some(why) });
        }
        let mut go_on = || tell(Stage::Tracing);
        if !go_on() {
            return Err(EditError::Stopped);
        }
        let gains = recalled(model, &about, &mut go_on)?;
        let best = (0..gains.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b])).unwrap_or(0);
        let traced = match about.len() {
            1 => "a trace of one fact".to_owned(),
            count => format!("a trace of {count} of the facts"),
        };
        if gains[best] < LEAST_GAIN {
            let why = format!("a quarter of the way up; {traced} says little");
            return Ok(Self { layers, why: Some(why) });
        }
        let why = format!(
            "in {traced}, the MLPs around it bring back most of the answer at the subject: {:.0} percentage points",
            gains[best] * 100.0
        );
        Ok(Self { layers: vec![best], why: Some(why) })
    }
}

/// Returns the layers that a method changes: those that were named, or its own. Facts are recalled in early
/// layers at the subject (ROME, section 2), where no trace says more; corrections of single tokens work
/// best where the answer is nearly made.
///
/// # Errors
/// The model has no such layer, or the method changes one layer and several were named.
pub(crate) fn layers_of(method: Method, named: &[usize], count: usize) -> Result<Vec<usize>, EditError> {
    if let Some(layer) = named.iter().find(|layer| **layer >= count) {
        let what = format!("there is no layer {layer}: the model has {count}, counted from 0");
        return Err(EditError::request(what, "Name another one with --layer"));
    }
    let mut layers = named.to_vec();
    layers.sort_unstable();
    layers.dedup();
    if layers.len() > 1 && matches!(method, Method::Rome | Method::Memory) {
        let what = format!("{} changes one layer, and {} were named", method.name(), layers.len());
        return Err(EditError::request(what, "Name one layer, or use the method memit or ultraedit"));
    }
    if layers.is_empty() {
        layers = match method {
            Method::Rome | Method::Memit => vec![count / 4],
            Method::Ultraedit => (count / 2..count).collect(),
            Method::Memory => vec![(count * 3 / 4).min(count - 1)],
        };
    }
    Ok(layers)
}
