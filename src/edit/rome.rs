//! ROME and MEMIT: new values for the keys of subjects, written into `down_proj`.
//!
//! - ROME (Meng et al. 2022, arXiv 2202.05262) with r-ROME's correction (arXiv 2403.07175): the key is the
//!   mean over several contexts wherever it stands in the formula. Facts are written one after the other,
//!   each into the model with those before it.
//! - MEMIT (arXiv 2210.07229) in EMMET's form, all facts at once in one layer, with AlphaEdit's projection
//!   (arXiv 2410.02355) where the model leaves room for it: the change has no part in the directions that the
//!   keys of ordinary text use. Keys of earlier patches keep their values.

use sparktune_model::{Model, PackedSequence};

use crate::error::EditError;
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::Matrix;
use crate::low_rank::LowRank;
use crate::tokens::FactTokens;
use crate::update::{Metric, Softness, key_factor};
use crate::value::{Places, Search, find_values};

/// A layer that is edited, and what keys are judged by.
pub(crate) struct Site<'a> {
    pub layer: usize,
    pub statistics: &'a KeyStatistics,
    /// Texts that prompts are read behind; one of them is empty.
    pub prefixes: &'a [Vec<u32>],
}

/// Called after each fact with the number of facts whose values are known; returns whether to go on. It is
/// also asked in between, with the same number.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(usize) -> bool;

/// Packs a fact behind each prefix, and at the end the subject alone.
pub(crate) fn places_of(fact: &FactTokens, prefixes: &[Vec<u32>]) -> Places {
    let (mut ids, mut borders, mut mask, mut rows) = (Vec::new(), vec![0], Vec::new(), Vec::new());
    for prefix in prefixes {
        rows.push(ids.len() + prefix.len() + fact.last);
        let before = ids.len() + prefix.len() + fact.prompt.len();
        ids.extend(prefix.iter().chain(&fact.prompt).chain(&fact.target));
        mask.resize(before, false);
        mask.resize(ids.len(), true);
        borders.push(ids.len() as u32);
    }
    let mut subject_row = None;
    if let Some(subject) = &fact.subject {
        ids.extend(subject);
        mask.resize(ids.len(), false);
        borders.push(ids.len() as u32);
        subject_row = Some(ids.len() - 1);
    }
    let sequence = PackedSequence::new(&ids, &borders, &mask);
    Places { sequence, rows: vec![rows], subject: subject_row }
}

/// Finds key and change of value of a fact.
fn key_and_delta(
    model: &Model,
    site: &Site<'_>,
    fact: &FactTokens,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Vec<f64>, Vec<f64>), EditError> {
    let places = places_of(fact, site.prefixes);
    let mut before = places.before(model, site.layer);
    let (mut deltas, _) = find_values(model, site.layer, &places, &before, Search::ROME, go_on)?;
    Ok((before.keys.remove(0), deltas.remove(0)))
}

/// Writes facts one after the other by r-ROME, also into `model`.
///
/// # Errors
/// A loss is not finite, a key cannot be changed alone, or `progress` says no.
pub(crate) fn rome(
    model: &mut Model,
    site: &Site<'_>,
    facts: &[FactTokens],
    progress: Progress<'_>,
) -> Result<LowRank, EditError> {
    let metric = Metric::inverse(site.statistics)?;
    let mut all: Option<LowRank> = None;
    for (done, fact) in facts.iter().enumerate() {
        let (key, delta) = key_and_delta(model, site, fact, &mut || progress(done))?;
        let keys_NI = Matrix::of_rows(&[key]);
        let nothing = Matrix::zeros(0, keys_NI.columns());
        let a_NI = key_factor(&keys_NI, &nothing, &metric, Softness::Exact)?;
        let update = LowRank::new(site.layer, &Matrix::of_rows(&[delta]), &a_NI, &keys_NI);
        update.add_to(model);
        match &mut all {
            Some(all) => all.append(&update),
            None => all = Some(update),
        }
    }
    all.ok_or_else(|| EditError::request("there are no facts", "Give at least one"))
}

/// Writes all facts at once by MEMIT. `kept` are the keys `[N, I]` of earlier patches in this layer.
///
/// # Errors
/// The same as for [`rome`].
pub(crate) fn memit(
    model: &Model,
    site: &Site<'_>,
    facts: &[FactTokens],
    kept: &Matrix,
    progress: Progress<'_>,
) -> Result<LowRank, EditError> {
    let (mut keys, mut deltas) = (Vec::new(), Vec::new());
    for (done, fact) in facts.iter().enumerate() {
        let (key, delta) = key_and_delta(model, site, fact, &mut || progress(done))?;
        keys.push(key);
        deltas.push(delta);
    }
    let keys_NI = Matrix::of_rows(&keys);
    let metric = Metric::for_keys(site.statistics, &keys_NI)?;
    let a_NI = key_factor(&keys_NI, kept, &metric, Softness::Small)?;
    Ok(LowRank::new(site.layer, &Matrix::of_rows(&deltas), &a_NI, &keys_NI))
}
