//! Whether the eval set can show that a model improves.
//!
//! Pure: the size of the eval set enters, and a warning leaves. The plan gives it before a run, and the
//! trainer for plans that do not have it.

use sparktune_base::units::counted;

/// Below this number of trained tokens in the eval set, chance alone may change its loss by about 0.1 nats.
const FEW_TOKENS: u64 = 300;

/// Returns a warning if the eval set cannot show whether the model improves. `eval` is its number of examples
/// and of trained tokens, if there is one.
pub fn too_little_to_judge(eval: Option<(u64, u64)>) -> Option<String> {
    let Some((examples, tokens)) = eval else {
        return Some(
            "there is no eval set, so nothing shows whether the model improves on text that it was not trained on. Give --eval-data, or an --eval-fraction above 0"
                .to_owned(),
        );
    };
    (tokens < FEW_TOKENS).then(|| {
        format!(
            "the eval set is too small to judge the run: {} in {}, so chance alone may change its loss by 0.1. Give more --eval-data, or a higher --eval-fraction",
            counted(tokens, "trained token"),
            counted(examples, "example")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_tiny_eval_set_is_told_with_what_to_do() {
        assert!(too_little_to_judge(None).unwrap().contains("--eval-data"));
        let few = too_little_to_judge(Some((3, 120))).unwrap();
        assert!(
            few.contains("120 trained tokens in 3 examples")
                && few.contains("its loss by 0.1")
                && few.contains("--eval-fraction"),
            "{few}"
        );
        assert_eq!(too_little_to_judge(Some((8, 2_000))), None);
    }
}
