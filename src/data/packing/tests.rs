use proptest::prelude::*;

use super::*;
use crate::token_file::{Header, Origin, TokenFile, TokenFileWriter};

fn packing(strategy: PackStrategy, pack_length: u32, seed: u64) -> Packing {
    Packing::new(strategy, pack_length, seed).unwrap()
}

/// Writes a token file in which all tokens differ.
fn token_file(lengths: &[u32]) -> (tempfile::TempDir, TokenFile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    let mut writer = TokenFileWriter::create(&path, Header::default()).unwrap();
    let mut next = 0;
    for (i, &len) in lengths.iter().enumerate() {
        let tokens: Vec<u32> = (next..next + len).collect();
        let mask: Vec<bool> =
            tokens.iter().map(|&id| id != next && id.wrapping_mul(2_654_435_761) >> 31 == 1).collect();
        writer.push(&tokens, &mask, Origin { file: 0, line: i as u64 + 1 }).unwrap();
        next += len;
    }
    writer.finish().unwrap();
    let file = TokenFile::open(&path).unwrap();
    (folder, file)
}

/// Asserts that each token of each example occurs exactly once.
fn assert_every_token_once(packs: &Packs, lengths: &[u32]) {
    let mut seen: Vec<Vec<bool>> = lengths.iter().map(|&len| vec![false; len as usize]).collect();
    for piece in packs.iter().flatten() {
        assert!(piece.len > 0);
        for t in piece.start..piece.start + piece.len {
            let token = &mut seen[piece.example as usize][t as usize];
            assert!(!std::mem::replace(token, true), "token {t} of example {} twice", piece.example);
        }
    }
    assert!(seen.iter().flatten().all(|&seen| seen), "a token is in no row");
}

fn row_tokens(row: &[Piece]) -> u32 {
    row.iter().map(|piece| piece.len).sum()
}

prop_compose! {
    fn any_lengths()(lengths in prop::collection::vec(prop_oneof![4 => 1u32..60, 1 => 60u32..400, 1 => Just(0u32)], 0..120)) -> Vec<u32> { lengths }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bfd_keeps_examples_whole_and_rows_within_the_pack_length(
        lengths in any_lengths(), pack_length in 1u32..300, seed in any::<u64>(), epoch in 0u64..5
    ) {
        let packs = packing(PackStrategy::Bfd, pack_length, seed).epoch(&lengths, epoch);
        assert_every_token_once(&packs, &lengths);
        let mut half_empty = 0;
        for row in packs.iter() {
            prop_assert!(!row.is_empty());
            prop_assert!(row_tokens(row) <= pack_length || row.len() == 1);
            prop_assert!(row.iter().all(|piece| piece.start == 0 && piece.len == lengths[piece.example as usize]));
            half_empty += u32::from(2 * row_tokens(row) <= pack_length);
        }
        // Two such rows would have been combined.
        prop_assert!(half_empty <= 1);
    }

    #[test]
    fn stream_fills_every_row_but_one_and_cuts_nothing_twice(
        lengths in any_lengths(), pack_length in 1u32..300, seed in any::<u64>(), epoch in 0u64..5
    ) {
        let packs = packing(PackStrategy::Stream, pack_length, seed).epoch(&lengths, epoch);
        assert_every_token_once(&packs, &lengths);
        let total: u32 = lengths.iter().sum();
        prop_assert_eq!(packs.len() as u32, total.div_ceil(pack_length));
        prop_assert!(packs.iter().filter(|row| row_tokens(row) != pack_length).count() <= 1);
        let cuts = packs.iter().flatten().filter(|piece| piece.start > 0).count();
        prop_assert!(cuts < packs.len().max(1));
    }

    #[test]
    fn rows_hold_the_right_tokens_with_exact_borders_positions_and_masks(
        lengths in prop::collection::vec(1u32..100, 1..30), pack_length in 1u32..150, seed in any::<u64>(), stream in any::<bool>()
    ) {
        let strategy = if stream { PackStrategy::Stream } else { PackStrategy::Bfd };
        let (_folder, file) = token_file(&lengths);
        let packs = packing(strategy, pack_length, seed).epoch(file.lengths(), 0);
        let mut tokens = 0;
        let mut pack = Pack::default();
        for row in packs.iter() {
            // In the memory of the row before, which may have been longer, and in new memory.
            pack.refill(&file, row).unwrap();
            prop_assert_eq!(&pack, &Pack::build(&file, row).unwrap());
            prop_assert_eq!(pack.cu_seqlens.len(), row.len() + 1);
            prop_assert_eq!(pack.cu_seqlens[row.len()] as usize, pack.tokens());
            prop_assert_eq!((pack.position_ids.len(), pack.loss_mask.len()), (pack.tokens(), pack.tokens()));
            for (p, piece) in row.iter().enumerate() {
                let (start, end) = (pack.cu_seqlens[p] as usize, pack.cu_seqlens[p + 1] as usize);
                prop_assert_eq!(end - start, piece.len as usize);
                let whole = file.tokens(piece.example as usize);
                let mask = file.mask(piece.example as usize);
                for t in start..end {
                    let within = piece.start as usize + t - start;
                    prop_assert_eq!(pack.input_ids[t], whole[within]);
                    prop_assert_eq!(pack.position_ids[t] as usize, t - start);
                    prop_assert_eq!(pack.loss_mask[t], t > start && mask.get(within));
                }
            }
            tokens += pack.tokens() as u64;
        }
        prop_assert_eq!(tokens, file.total_tokens());
    }

    #[test]
    fn dropping_leaves_out_whole_examples_and_nothing_else(
        lengths in any_lengths(), share in 0.0f64..0.99, seed in any::<u64>(), epoch in 0u64..5
    ) {
        let packing = packing(PackStrategy::Bfd, 128, seed).with_drop(share).unwrap();
        let packs = packing.epoch(&lengths, epoch);
        let kept: Vec<u32> = lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| if dropped(share, seed, epoch)(i as u32) { 0 } else { len })
            .collect();
        assert_every_token_once(&packs, &kept);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_mixed_epoch_has_every_token_as_often_as_its_example_and_resume_gets_the_same_rows(
        lengths in any_lengths(), weights in prop::array::uniform2(0.1f64..3.0), pack_length in 1u32..300,
        seed in any::<u64>(), epoch in 0u64..5, stream in any::<bool>(),
    ) {
        let strategy = if stream { PackStrategy::Stream } else { PackStrategy::Bfd };
        let packing = packing(strategy, pack_length, seed);
        let mixture = Mixture::new((0..lengths.len()).map(|i| i % 2), &weights).unwrap().unwrap();
        let packs = packing.mixed_epoch(&lengths, &mixture, epoch);
        prop_assert_eq!(&packing.mixed_epoch(&lengths, &mixture, epoch), &packs);
        let mut tokens = vec![0u64; lengths.len()];
        packs.iter().flatten().for_each(|piece| tokens[piece.example as usize] += u64::from(piece.len));
        let mut expected = vec![0u64; lengths.len()];
        for example in mixture.occurrences(seed, epoch) {
            expected[example as usize] += u64::from(lengths[example as usize]);
        }
        prop_assert_eq!(tokens, expected);
    }

    #[test]
    fn a_mixture_that_repeats_nothing_is_packed_as_today(
        lengths in any_lengths(), pack_length in 1u32..300, seed in any::<u64>(), epoch in 0u64..5,
        share in 0.0f64..0.5,
    ) {
        // The second set is empty, so its weight changes nothing.
        let mixture = Mixture::new(vec![0; lengths.len()], &[1.0, 2.0]).unwrap().unwrap();
        let packing = packing(PackStrategy::Bfd, pack_length, seed).with_drop(share).unwrap();
        prop_assert_eq!(packing.mixed_epoch(&lengths, &mixture, epoch), packing.epoch(&lengths, epoch));
    }
}

/// Returns lengths like those of chats: log-normal with a median of about 400.
fn chat_lengths(examples: u32) -> Vec<u32> {
    let uniform = |i: u32, salt: u32| {
        f64::from((i ^ salt).wrapping_mul(2_654_435_761).rotate_left(11).wrapping_mul(2_246_822_519) >> 8)
            / f64::from(1 << 24)
    };
    (0..examples)
        .map(|i| {
            let normal = (-2.0 * uniform(i, 1).max(1e-9).ln()).sqrt()
                * (std::f64::consts::TAU * uniform(i, 77_777)).cos();
            (400.0 * (0.8 * normal).exp()).clamp(8.0, 4000.0) as u32
        })
        .collect()
}

#[test]
fn bfd_fills_chat_like_rows_almost_to_the_brim_in_every_epoch() {
    let lengths = chat_lengths(20_000);
    for epoch in 0..3 {
        let packs = packing(PackStrategy::Bfd, 4096, 1).epoch(&lengths, epoch);
        let tokens: u32 = packs.iter().map(row_tokens).sum();
        let fill = f64::from(tokens) / (packs.len() as f64 * 4096.0);
        assert!(fill > 0.995, "{fill}");
    }
}

#[test]
fn epochs_put_other_examples_together_and_resume_puts_the_same() {
    let lengths = chat_lengths(2_000);
    let companions = |packs: &Packs| -> std::collections::HashSet<(u32, u32)> {
        packs
            .iter()
            .flat_map(|row| row.iter().flat_map(move |a| row.iter().map(move |b| (a.example, b.example))))
            .filter(|(a, b)| a < b)
            .collect()
    };
    for strategy in [PackStrategy::Bfd, PackStrategy::Stream] {
        let packing = packing(strategy, 4096, 5);
        let (first, second) = (packing.epoch(&lengths, 0), packing.epoch(&lengths, 1));
        assert_eq!(packing.epoch(&lengths, 0), first);
        let (a, b) = (companions(&first), companions(&second));
        let same = a.intersection(&b).count() as f64 / a.len() as f64;
        assert!(same < 0.1, "{strategy:?}: {same:.2} of the pairs met again");
    }
}

#[test]
fn the_rows_of_an_epoch_are_the_ones_of_the_first_release() {
    let lengths = chat_lengths(1_000);
    let digest = |strategy| {
        let packs = packing(strategy, 4096, 42).epoch(&lengths, 2);
        let mut hasher = blake3::Hasher::new();
        for row in packs.iter() {
            for piece in row {
                for number in [piece.example, piece.start, piece.len] {
                    hasher.update(&number.to_le_bytes());
                }
            }
            hasher.update(b"|");
        }
        hasher.finalize().to_hex()[..16].to_owned()
    };
    assert_eq!(digest(PackStrategy::Bfd), "f82c4d5b5ed5e8f6");
    assert_eq!(digest(PackStrategy::Stream), "bfcbe3591a98555b");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    assert_eq!(Packing::new(PackStrategy::Bfd, 0, 0), Err(PackingError::NoRoom));
    let packing = packing(PackStrategy::Bfd, 128, 0);
    for share in [-0.1, 1.0, f64::NAN] {
        assert!(matches!(packing.with_drop(share), Err(PackingError::BadDropShare(_))));
    }
}
