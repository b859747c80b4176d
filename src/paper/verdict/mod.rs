//! Whether each claim holds here, by rules that are the same for every result.
//!
//! A speed-up holds if ours is at least nine tenths of the claimed one; it holds in part if ours is more than
//! chance, and more than the 2 % that nobody would notice. Without measurements there is no verdict.

mod compared;
mod outcome;
mod speed;
mod types;

pub(crate) use compared::{fine_percent, three};
pub(crate) use outcome::drop_difference;
#[cfg(test)]
pub(crate) use outcome::same_losses;
use types::Found;
pub use types::{Judged, Verdict};

use crate::claims::{CLAIMS, Claim};
use crate::results::Results;
use crate::speeds::Speeds;

/// Judges all claims by these results, and by what loading has reached on some machine.
pub fn judge(results: &Results, speeds: &Speeds) -> Vec<Judged> {
    let judged = |id: &str| -> Found {
        match id {
            "loading-samples" => speed::loading_samples(results),
            "loading-tokens" => speed::loading_tokens(results),
            "load-time" => speed::load_time(results, speeds),
            "throughput" => speed::throughput(results),
            "loss" => outcome::loss(results),
            "wall-time" => speed::wall_time(results),
            "quality" => outcome::quality(results),
            "waiting" => speed::waiting(results),
            "crc-drop" => outcome::drop(results),
            "layers" => speed::layers(),
            "zero-copy" => speed::zero_copy(results, speeds),
            _ => outcome::answers(results),
        }
    };
    let of = |claim: &Claim| {
        let (published, fair, verdict, why) = judged(claim.id);
        Judged { id: claim.id, claim: claim.says, published, fair, verdict, why }
    };
    CLAIMS.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::testing::{results, speeds};

    fn verdict_on(results: &Results, id: &str) -> Judged {
        judge(results, &speeds()).into_iter().find(|judged| judged.id == id).unwrap()
    }

    #[test]
    fn every_claim_is_judged_and_says_why() {
        let judged = judge(&results(), &speeds());
        assert_eq!(judged.len(), CLAIMS.len());
        for one in &judged {
            assert!(one.why.len() > 40 && one.why.ends_with('.'), "{one:?}");
        }
    }

    #[test]
    fn a_speed_up_that_comes_from_counting_padding_does_not_hold() {
        let judged = verdict_on(&results(), "throughput");
        // 1,024 positions against 200 tokens in the same time; the same targets in the same time.
        assert!(
            judged.published.starts_with("5.12 ×") && judged.published.contains("alike 1.00 ×"),
            "{judged:?}"
        );
        assert!(judged.fair.starts_with("5.00 ×"), "{judged:?}");
        assert_eq!(judged.verdict, Verdict::DoesNotHold);
    }

    #[test]
    fn what_is_as_large_as_claimed_holds() {
        let judged = verdict_on(&results(), "loading-samples");
        assert_eq!((judged.fair.as_str(), judged.verdict), ("40.0 × (40.0 to 40.0)", Verdict::Holds));
        assert_eq!(verdict_on(&results(), "waiting").verdict, Verdict::Holds);
    }

    #[test]
    fn dropping_is_judged_by_the_interval_over_the_seeds() {
        let mut results = results();
        assert!(verdict_on(&results, "crc-drop").why.contains("harms"));
        for (at, one) in results.training.iter_mut().filter(|one| one.pipeline.drops()).enumerate() {
            let shift = [-0.05, 0.06, -0.02][at % 3] - 0.05;
            for evaluation in &mut one.evaluations {
                evaluation.loss = evaluation.loss.map(|loss| loss + shift);
            }
        }
        let judged = verdict_on(&results, "crc-drop");
        assert!(judged.why.contains("no effect") && judged.verdict == Verdict::DoesNotHold, "{judged:?}");
        results.training.retain(|one| one.seed == 0);
        assert_eq!(verdict_on(&results, "crc-drop").verdict, Verdict::NotMeasured);
    }

    #[test]
    fn losses_of_the_packed_pipelines_are_compared_bit_by_bit() {
        let mut results = results();
        assert_eq!(same_losses(&results), Some(true));
        let one = results.training.iter_mut().find(|one| one.pipeline == Pipeline::JsonlPacked).unwrap();
        one.loss[3] = one.loss[3].map(|loss| f64::from_bits(loss.to_bits() + 1));
        assert_eq!(same_losses(&results), Some(false));
        assert!(verdict_on(&results, "loss").why.contains("defect"));
    }

    #[test]
    fn zero_copies_are_judged_by_the_ways_to_a_device_that_were_measured() {
        let results = results();
        let judged = verdict_on(&results, "zero-copy");
        assert_eq!(judged.verdict, Verdict::InPart);
        assert_eq!(judged.fair, "none for packets, some for rows");
        assert!(judged.why.contains("pageable at 10,000 MB/s (copied once)"), "{judged:?}");
        let without = judge(&results, &Speeds::default());
        let without = without.iter().find(|one| one.id == "zero-copy").unwrap();
        assert_eq!((without.fair.as_str(), without.verdict), ("copies remain", Verdict::DoesNotHold));
        assert!(without.why.contains("no GPU was there"), "{without:?}");
    }

    #[test]
    fn the_load_time_is_set_beside_what_one_core_reads() {
        let why = verdict_on(&results(), "load-time").why;
        assert!(
            why.contains("1,080 MB/s") && why.contains("27.0 MB/s") && why.contains("2,400 MB/s"),
            "{why}"
        );
    }

    #[test]
    fn one_seed_is_too_little_to_judge_the_speed_of_answers() {
        let mut results = results();
        assert_eq!(verdict_on(&results, "answers").verdict, Verdict::DoesNotHold);
        results.quality.retain(|one| one.trained.is_none_or(|trained| trained.seed == 0));
        let judged = verdict_on(&results, "answers");
        assert!(judged.verdict == Verdict::NotMeasured && judged.fair.contains("tok/s"), "{judged:?}");
        assert!(judged.why.contains("too few seeds"), "{judged:?}");
    }

    #[test]
    fn without_measurements_there_are_no_verdicts_except_on_what_code_shows() {
        let mut results = results();
        results.loading.clear();
        results.training.clear();
        results.quality.clear();
        let measured =
            judge(&results, &Speeds::default()).into_iter().filter(|one| one.verdict != Verdict::NotMeasured);
        assert_eq!(measured.map(|one| one.id).collect::<Vec<_>>(), ["layers", "zero-copy"]);
    }
}
