//! ROME and MEMIT: new values for the keys of subjects, written into `down_proj`.
//!
//! - ROME (Meng et al. 2022, arXiv 2202.05262) with r-ROME's correction (arXiv 2403.07175): the key is the
//!   mean over several contexts wherever it stands in the formula. Facts are written one after the other,
//!   each into the model with those before it.
//! - MEMIT (arXiv 2210.07229) in EMMET's form, all facts at once in one layer or spread over several, with
//!   AlphaEdit's projection (arXiv 2410.02355) where the model leaves room for it: the change has no part in
//!   the directions that the keys of ordinary text use. Keys of earlier patches keep their values.

use sparktune_model::{Model, PackedSequence};
use sparktune_plan::architecture::Place;

use crate::error::EditError;
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::Matrix;
use crate::low_rank::LowRank;
use crate::stage::Progress;
use crate::tokens::FactTokens;
use crate::update::{Metrics, Softness, key_factor};
use crate::value::{Places, Search, find_values};

/// A layer that is edited, and what keys are judged by.
pub(crate) struct Site {
    pub layer: usize,
    statistics: KeyStatistics,
    /// Texts that prompts are read behind; one of them is empty.
    prefixes: Vec<Vec<u32>>,
    /// Keys of earlier patches in this layer, `[N, I]`, which keep their values.
    pub kept: Matrix,
    metrics: Metrics,
}

impl Site {
    /// Describes a layer without earlier patches.
    pub(crate) fn new(layer: usize, statistics: KeyStatistics, prefixes: Vec<Vec<u32>>) -> Self {
        let kept = Matrix::zeros(0, statistics.covariance.columns());
        Self { layer, statistics, prefixes, kept, metrics: Metrics::default() }
    }

    /// Computes the inverse of the covariance, or reads it where it is kept, if that was not done.
    ///
    /// # Errors
    /// A key is not finite.
    pub(crate) fn prepare(&mut self) -> Result<(), EditError> {
        self.metrics.inverse(&self.statistics).map(drop)
    }

    /// Keeps the values of the keys of a change, if it is one of this layer.
    pub(crate) fn keep(&mut self, change: &LowRank) {
        if change.layer == self.layer {
            self.kept = self.kept.above(&change.key_matrix());
        }
    }
}

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
    site: &Site,
    fact: &FactTokens,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Vec<f64>, Vec<f64>), EditError> {
    let places = places_of(fact, &site.prefixes);
    let mut before = places.before(model, site.layer);
    let mut deltas = find_values(model, site.layer, &places, &before, Search::ROME, go_on)?;
    Ok((before.keys.remove(0), deltas.remove(0)))
}

/// Writes facts one after the other by r-ROME, also into `model`.
///
/// # Errors
/// A loss is not finite, a key cannot be changed alone, or `progress` says no.
pub(crate) fn rome(
    model: &mut Model,
    site: &mut Site,
    facts: &[FactTokens],
    progress: Progress<'_>,
) -> Result<LowRank, EditError> {
    let mut all: Option<LowRank> = None;
    for (done, fact) in facts.iter().enumerate() {
        let (key, delta) = key_and_delta(model, site, fact, &mut || progress(done))?;
        let keys_NI = Matrix::of_rows(&[key]);
        let nothing = Matrix::zeros(0, keys_NI.columns());
        let weighting = site.metrics.inverse(&site.statistics)?;
        let a_NI = key_factor(&keys_NI, &nothing, weighting, Softness::Exact)?;
        let update = LowRank::new(site.layer, &Matrix::of_rows(&[delta]), &a_NI, &keys_NI);
        update.add_to(model);
        match &mut all {
            Some(all) => all.append(&update),
            None => all = Some(update),
        }
    }
    all.ok_or_else(|| EditError::request("there are no facts", "Give at least one"))
}

/// Writes all facts at once by MEMIT, also into `model`. With several sites the values are found at the last
/// of them, and what the residual stream lacks of them there is spread over the sites: each gets its share of
/// what is left, with keys and rest computed anew behind the changes before it (MEMIT, section 4.3).
///
/// # Errors
/// The same as for [`rome`]; also, several layers of a family that normalises the output of its MLPs.
pub(crate) fn memit(
    model: &mut Model,
    sites: &mut [Site],
    facts: &[FactTokens],
    progress: Progress<'_>,
) -> Result<Vec<LowRank>, EditError> {
    let Some(last) = sites.last().map(|site| site.layer) else {
        return Err(EditError::request("no layer was named", "Name one with --layer"));
    };
    if sites.len() > 1 && model.config().layers[last].norm(Place::AfterMlp).is_some() {
        return Err(EditError::request(
            "the layers of this family normalise what an MLP adds, so a change cannot be spread over several of them",
            "Name one layer with --layer",
        ));
    }
    let places: Vec<Places> = facts.iter().map(|fact| places_of(fact, &sites[0].prefixes)).collect();
    let mut deltas = Vec::new();
    let mut wanted = Vec::new();
    for (done, places) in places.iter().enumerate() {
        let before = places.before(model, last);
        let mut go_on = || progress(done);
        let delta = find_values(model, last, places, &before, Search::ROME, &mut go_on)?.remove(0);
        if sites.len() > 1 {
            let stream = places.means(model.stream_before(last + 1, &places.sequence)).remove(0);
            wanted.push(stream.iter().zip(&delta).map(|(x, d)| x + d).collect::<Vec<f64>>());
        }
        deltas.push(delta);
    }
    let mut changes = Vec::new();
    let count = sites.len();
    for (i, site) in sites.iter_mut().enumerate() {
        let mut keys = Vec::new();
        for (place, places) in places.iter().enumerate() {
            if !progress(facts.len()) {
                return Err(EditError::Stopped);
            }
            keys.push(places.before(model, site.layer).keys.remove(0));
            if count > 1 {
                let stream = places.means(model.stream_before(last + 1, &places.sequence)).remove(0);
                let share = |(wanted, is): (&f64, f64)| (wanted - is) / (count - i) as f64;
                deltas[place] = wanted[place].iter().zip(stream).map(share).collect();
            }
        }
        let keys_NI = Matrix::of_rows(&keys);
        let mut go_on = || progress(facts.len());
        let weighting = site.metrics.for_keys(&site.statistics, &keys_NI, &mut go_on)?;
        let a_NI = key_factor(&keys_NI, &site.kept, weighting, Softness::Small)?;
        let change = LowRank::new(site.layer, &Matrix::of_rows(&deltas), &a_NI, &keys_NI);
        change.add_to(model);
        changes.push(change);
    }
    Ok(changes)
}
