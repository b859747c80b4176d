//! The judge on made-up gradients: who is found, and what never happens.

use proptest::prelude::*;
use sparktune_base::random::SplitMix64;

use super::*;

const COUNT: usize = 2048;

fn normal(random: &mut SplitMix64) -> f32 {
    ((0..12).map(|_| random.next_f64()).sum::<f64>() - 6.0) as f32
}

/// Gradients that share a direction, with noise of their own that is as large.
fn honest(random: &mut SplitMix64, members: usize) -> Vec<Vec<f32>> {
    let common: Vec<f32> = (0..COUNT).map(|_| normal(random)).collect();
    let own = |random: &mut SplitMix64| {
        let size = (normal(random) * 0.1).exp();
        common.iter().map(|common| size * (common + normal(random))).collect()
    };
    (0..members).map(|_| own(random)).collect()
}

fn contribution(gradient: &[f32]) -> Contribution {
    let mut summary = Summary::default();
    summary.add(3, 0, gradient);
    Contribution { terms: 100, summary }
}

fn contributions(gradients: &[Vec<f32>]) -> Vec<Contribution> {
    gradients.iter().map(|gradient| contribution(gradient)).collect()
}

/// A judge that has seen so many honest steps.
fn experienced(members: usize, steps: usize) -> (Judge, SplitMix64, usize) {
    let mut random = SplitMix64::new(members as u64);
    let mut judge = Judge::default();
    let mut rejected = 0;
    for _ in 0..steps {
        let verdicts = judge.judge(&contributions(&honest(&mut random, members)), SIGMA);
        rejected += verdicts.iter().filter(|verdict| verdict.reason.is_some()).count();
    }
    (judge, random, rejected)
}

fn decisions(verdicts: &[Verdict]) -> String {
    let letter = |verdict: &Verdict| match verdict.decision {
        Decision::Accept => 'a',
        Decision::Clip(_) => 'c',
        Decision::Drop => 'd',
    };
    verdicts.iter().map(letter).collect()
}

#[test]
fn each_kind_of_lie_is_rejected_and_named_and_nobody_else_is() {
    type Lie = fn(&mut Vec<f32>);
    let lies: [(Lie, char, &str); 8] = [
        (|g| g[77] = f32::NAN, 'd', "not finite"),
        (|g| g[77] = f32::INFINITY, 'd', "not finite"),
        (|g| g.iter_mut().for_each(|x| *x *= 3e6), 'd', "e6 times that of most ranks"),
        (|g| g.iter_mut().for_each(|x| *x *= 3e-6), 'd', "e-6 times"),
        (|g| g.iter_mut().for_each(|x| *x *= 5.0), 'c', "times that of most ranks"),
        (|g| g.iter_mut().for_each(|x| *x = -*x), 'd', "points elsewhere"),
        (|g| g.iter_mut().for_each(|x| *x = 0.0), 'd', "is zero"),
        (|g| g.iter_mut().for_each(|x| *x = 1.4), 'd', "points elsewhere"),
    ];
    for members in [3, 4, 5, 8, 16] {
        let (judge, mut random, rejected) = experienced(members, 100);
        assert!(rejected <= 1, "{rejected} of {members} members");
        for (lie, letter, word) in &lies {
            let mut gradients = honest(&mut random, members);
            lie(&mut gradients[1]);
            let verdicts = judge.clone().judge(&contributions(&gradients), SIGMA);
            let expected: String = (0..members).map(|one| if one == 1 { *letter } else { 'a' }).collect();
            assert_eq!(decisions(&verdicts), expected, "{word}");
            let said = verdicts[1].reason.unwrap().to_string();
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

/// Honest norms differ by any factor where training diverges, and what is usual with them.
#[test]
fn where_training_diverges_no_gradient_counts_with_over_ten_times_the_norm_of_most() {
    let mut random = SplitMix64::new(9);
    for members in [3, 4, 5, 8] {
        let mut judge = Judge::default();
        let mut liars = [0, 0];
        for step in 0..200 {
            let mut gradients = honest(&mut random, members);
            for gradient in &mut gradients {
                let size = (2.0 * normal(&mut random)).exp();
                gradient.iter_mut().for_each(|x| *x *= size);
            }
            let lie = if step % 2 == 0 { 1e6 } else { 100.0 };
            gradients[0].iter_mut().for_each(|x| *x *= lie);
            let contributions = contributions(&gradients);
            let norms: Vec<f64> = contributions.iter().map(|one| one.summary.norm()).collect();
            let verdicts = judge.judge(&contributions, SIGMA);
            let mut sorted = norms.clone();
            sorted.sort_by(f64::total_cmp);
            let middle = (sorted[(members - 1) / 2] * sorted[members / 2]).sqrt();
            let counts = match verdicts[0].decision {
                Decision::Accept => 1.0,
                Decision::Clip(factor) => f64::from(factor),
                Decision::Drop => 0.0,
            };
            assert!(counts * norms[0] <= 10.01 * middle, "{members}, step {step}: {counts} of {norms:?}");
            liars[step % 2] += usize::from(counts > 0.0);
        }
        assert!(liars[0] == 0 && liars[1] > 0, "{liars:?}");
    }
    // Two are compared with what they have done before.
    let mut judge = Judge::default();
    let mut of_two = |lie: f32| {
        let mut gradients = honest(&mut random, 2);
        for gradient in &mut gradients {
            let size = (2.0 * normal(&mut random)).exp();
            gradient.iter_mut().for_each(|x| *x *= size);
        }
        gradients[1].iter_mut().for_each(|x| *x *= lie);
        judge.judge(&contributions(&gradients), SIGMA)[1].decision
    };
    for _ in 0..100 {
        of_two(1.0);
    }
    assert!((0..50).all(|_| of_two(1e6) == Decision::Drop));
}

#[test]
fn gross_lies_are_found_in_the_first_step() {
    let mut random = SplitMix64::new(1);
    for lie in [-1.0, 1e6, f32::NAN, 0.0] {
        let mut gradients = honest(&mut random, 3);
        gradients[2].iter_mut().for_each(|x| *x *= lie);
        assert_eq!(decisions(&Judge::default().judge(&contributions(&gradients), SIGMA)), "aad", "{lie}");
    }
}

#[test]
fn who_stays_below_the_limit_of_a_step_is_found_by_its_record() {
    let (mut judge, mut random, _) = experienced(4, 100);
    let mut found = None;
    for step in 0..40 {
        let mut gradients = honest(&mut random, 4);
        // Twice the deviation of the honest ones, every time.
        gradients[3].iter_mut().for_each(|x| *x *= 1.25);
        let verdicts = judge.judge(&contributions(&gradients), SIGMA);
        assert!(verdicts[..3].iter().all(|verdict| verdict.reason.is_none()));
        if matches!(verdicts[3].reason, Some(Reason::Record { .. })) {
            found.get_or_insert(step);
        }
    }
    assert!(found.is_some_and(|step| step > 2), "{found:?}");
    // It is trusted again when it has behaved.
    let last = (0..100).map(|_| judge.judge(&contributions(&honest(&mut random, 4)), SIGMA)).last().unwrap();
    assert_eq!(decisions(&last), "aaaa");
    assert!(judge.counts()[3].1 > 10, "{:?}", judge.counts());
}

#[test]
fn two_members_are_judged_by_their_norms_over_time_and_never_by_their_directions() {
    let (judge, mut random, rejected) = experienced(2, 100);
    assert!(rejected <= 2, "{rejected}");
    for (factor, expected) in [(1e6, "da"), (5.0, "ca"), (f32::NAN, "da"), (-1.0, "aa")] {
        let mut gradients = honest(&mut random, 2);
        gradients[0].iter_mut().for_each(|x| *x *= factor);
        assert_eq!(decisions(&judge.clone().judge(&contributions(&gradients), SIGMA)), expected, "{factor}");
    }
    // A spike of both is one of the data.
    let mut gradients = honest(&mut random, 2);
    gradients.iter_mut().flatten().for_each(|x| *x *= 20.0);
    assert_eq!(decisions(&judge.clone().judge(&contributions(&gradients), SIGMA)), "aa");
}

#[test]
fn without_a_majority_only_what_needs_no_comparison_is_rejected() {
    let (judge, mut random, _) = experienced(4, 100);
    let mut gradients = honest(&mut random, 4);
    gradients[0].iter_mut().for_each(|x| *x *= 1e3);
    gradients[1].iter_mut().for_each(|x| *x *= 1e6);
    // Nobody knows which two are right. The largest is none of them, whatever the others are.
    assert_eq!(decisions(&judge.clone().judge(&contributions(&gradients), SIGMA)), "adaa");
    gradients[2][0] = f32::NAN;
    assert_eq!(&decisions(&judge.clone().judge(&contributions(&gradients), SIGMA))[2..3], "d");
    // One that points elsewhere does not save one that is too large.
    let mut two = honest(&mut random, 4);
    two[0].iter_mut().for_each(|x| *x *= -1e6);
    two[1].iter_mut().for_each(|x| *x = -*x);
    assert_eq!(&decisions(&judge.clone().judge(&contributions(&two), SIGMA))[..2], "da");
    // If nobody's numbers are finite, the step is at fault.
    gradients.iter_mut().for_each(|gradient| gradient[0] = f32::NAN);
    assert_eq!(decisions(&judge.clone().judge(&contributions(&gradients), SIGMA)), "aaaa");
}

#[test]
fn a_gross_lie_is_dropped_also_in_a_step_in_which_honest_norms_are_far_apart() {
    // Others are a hundred times as large as the rest, as in the first step of a spike.
    for (ranks, larger) in [(3, vec![1]), (4, vec![1]), (4, vec![1, 2]), (8, vec![1, 2, 3])] {
        for steps in [4, 100] {
            let (judge, mut random, _) = experienced(ranks, steps);
            let mut gradients = honest(&mut random, ranks);
            for rank in &larger {
                gradients[*rank].iter_mut().for_each(|value| *value *= 100.0);
            }
            gradients[ranks - 1].iter_mut().for_each(|value| *value *= 1e6);
            let verdicts = judge.clone().judge(&contributions(&gradients), SIGMA);
            assert_eq!(
                verdicts[ranks - 1].decision,
                Decision::Drop,
                "{ranks} ranks, {larger:?}, {steps} steps"
            );
        }
    }
}

#[test]
fn a_squared_norm_below_zero_is_dropped_and_spoils_nothing_that_is_remembered() {
    let (mut judge, mut random, _) = experienced(4, 100);
    let mut step = contributions(&honest(&mut random, 4));
    step[1].summary = step[1].summary.clone().with_squares(-1.0);
    assert_eq!(judge.judge(&step, SIGMA)[1], Verdict::dropped(Reason::NotFinite));
    let mut gradients = honest(&mut random, 4);
    gradients[2].iter_mut().for_each(|value| *value *= 1e6);
    assert_eq!(judge.judge(&contributions(&gradients), SIGMA)[2].decision, Decision::Drop);
}

#[test]
fn a_rank_without_a_share_contributes_nothing_and_one_with_a_small_share_is_not_doubted_for_it() {
    let (judge, mut random, _) = experienced(4, 100);
    let gradients = honest(&mut random, 4);
    let mut all = contributions(&gradients);
    all[3] = Contribution { terms: 0, ..all[3].clone() };
    let verdicts = judge.clone().judge(&all, SIGMA);
    assert_eq!((decisions(&verdicts).as_str(), verdicts[3].reason), ("aaad", Some(Reason::NotDue)));
    all[3] = Contribution { terms: 0, summary: Summary::default() };
    assert_eq!(decisions(&judge.clone().judge(&all, SIGMA)), "aaaa");
    for exponent in [0.5, 1.0] {
        let factor = 0.01_f64.powf(exponent);
        all[3] = Contribution { terms: 1, summary: contribution(&gradients[3]).summary.scaled(factor) };
        assert_eq!(decisions(&judge.clone().judge(&all, SIGMA)), "aaaa", "{exponent}");
    }
}

#[test]
fn a_judge_that_was_stored_decides_as_one_that_was_not() {
    let (mut judge, mut random, _) = experienced(3, 50);
    let text = serde_json::to_string(&judge).unwrap();
    let mut stored: Judge = serde_json::from_str(&text).unwrap();
    assert_eq!(stored, judge);
    assert!(text.len() < 1500, "{}", text.len());
    for _ in 0..20 {
        let step = contributions(&honest(&mut random, 3));
        assert_eq!(stored.judge(&step, SIGMA), judge.judge(&step, SIGMA));
    }
    assert_eq!(stored, judge);
}

/// Contributions with a few numbers, of any sizes and kinds.
fn any_contributions() -> impl Strategy<Value = Vec<Contribution>> {
    let number = prop_oneof![
        4 => -3.0..3.0_f32,
        1 => any::<f32>(),
        1 => prop::sample::select(vec![0.0, f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45]),
    ];
    let gradient = prop::collection::vec(number, 1..20);
    let one = (gradient, prop_oneof![4 => 1..200_u64, 1 => Just(0_u64), 1 => any::<u64>()]);
    prop::collection::vec(
        one.prop_map(|(gradient, terms)| Contribution { terms, ..contribution(&gradient) }),
        0..8,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_numbers_are_judged_without_panics_and_the_state_can_be_stored(
        steps in prop::collection::vec(any_contributions(), 1..50), sigma in prop_oneof![Just(3.5), any::<f64>()],
    ) {
        let mut judge = Judge::default();
        for step in &steps {
            let verdicts = judge.judge(step, sigma);
            prop_assert_eq!(verdicts.len(), step.len());
            for (verdict, contribution) in verdicts.iter().zip(step) {
                prop_assert_eq!(verdict.reason.is_none(), verdict.decision == Decision::Accept);
                if let Decision::Clip(factor) = verdict.decision {
                    prop_assert!((0.0..=1.0).contains(&factor), "{}", factor);
                }
                let any_finite = step.iter().any(|one| one.terms > 0 && one.summary.is_finite());
                if any_finite && !contribution.summary.is_finite() {
                    prop_assert_eq!(verdict.decision, Decision::Drop);
                }
            }
            let stored: Judge = serde_json::from_str(&serde_json::to_string(&judge).unwrap()).unwrap();
            prop_assert_eq!(&stored, &judge);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn members_have_no_order_and_gradients_no_scale(
        seed: u64, members in 2..9_usize, exponent in -20..20_i32, lie in prop::option::of(-2.0..4.0_f32),
    ) {
        let mut random = SplitMix64::new(seed);
        let order = random.permutation(members as u32);
        let scale = 2.0_f32.powi(exponent);
        let [mut judge, mut permuted, mut scaled] = [(); 3].map(|()| Judge::default());
        for step in 0..60 {
            let mut gradients = honest(&mut random, members);
            if let Some(lie) = lie.filter(|_| step % 7 == 3) {
                gradients[0].iter_mut().for_each(|x| *x *= lie);
            }
            let verdicts = judge.judge(&contributions(&gradients), SIGMA);
            let others: Vec<Vec<f32>> = order.iter().map(|of| gradients[*of as usize].clone()).collect();
            let others = permuted.judge(&contributions(&others), SIGMA);
            for (place, of) in order.iter().enumerate() {
                prop_assert_eq!(decisions(&[verdicts[*of as usize]]), decisions(&[others[place]]));
            }
            gradients.iter_mut().flatten().for_each(|x| *x *= scale);
            prop_assert_eq!(decisions(&scaled.judge(&contributions(&gradients), SIGMA)), decisions(&verdicts));
        }
    }
}
