//! The results that are part of the program: `measured/demo.json`, which `measured/README.md` describes.

use crate::results::{Results, ResultsError};

const DEMO: &str = include_str!("measured/demo.json");

/// Returns the results of the demo's model and data, from which the white paper is made unless others are
/// given.
///
/// # Errors
/// None in a program that was tested.
pub fn committed() -> Result<Results, ResultsError> {
    Results::from_json(DEMO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Arrangement;
    use crate::verdict::same_losses;

    #[test]
    fn the_committed_results_are_whole() {
        let results = committed().unwrap();
        assert!(results.command.contains("bench pipelines --demo"), "{}", results.command);
        for arrangement in [Arrangement::Published, Arrangement::Fair] {
            for pipeline in arrangement.pipelines() {
                let found = results.trainings(arrangement, *pipeline);
                assert_eq!(found.len(), results.settings.seeds.len(), "{arrangement:?} {pipeline:?}");
                assert!(found.iter().all(|one| one.loss.len() as u64 == results.settings.steps));
            }
        }
        assert_eq!(same_losses(&results), Some(true));
    }
}
