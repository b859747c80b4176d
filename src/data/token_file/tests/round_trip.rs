use std::fs;

use proptest::prelude::*;

use super::v2::FILE_MAGIC;
use super::*;

#[test]
fn a_file_gives_back_tokens_masks_origins_and_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    let written = write(&path, &samples());
    let file = TokenFile::open(&path).unwrap();

    assert_eq!(read(&path).unwrap(), samples());
    assert_eq!(file.header(), &header());
    assert_eq!(file.lengths(), [1, 7, 8, 9, 15, 16, 40]);
    assert_eq!(file.total_tokens(), 96);
    assert_eq!(file.max_token_id(), samples().iter().flat_map(|s| s.tokens.clone()).max().unwrap());
    let targets = samples().iter().flat_map(|s| s.mask.clone()).filter(|&t| t).count() as u64;
    assert_eq!((file.target_tokens(), written.target_tokens), (targets, targets));
    assert_eq!(file.target_counts().iter().map(|&n| u64::from(n)).sum::<u64>(), targets);
    assert_eq!(written.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(file.origin_text(3), "second.jsonl:33");
    assert!(file.example(6).unwrap().mask.get(1) == samples()[6].mask[1]);
    assert!(verify(&path).unwrap().is_sound());
}

#[test]
fn token_pages_and_packets_are_aligned_to_64_bytes() {
    let (_folder, path, _) = sound_file();
    let file = TokenFile::open(&path).unwrap();
    for i in 0..file.len() {
        assert_eq!(file.offsets()[i] % 64, 0);
        assert_eq!(file.tokens(i).as_ptr() as usize % 64, 0);
    }
}

#[test]
fn a_file_without_examples_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eval.qubgpu");
    write(&path, &[]);
    assert!(TokenFile::open(&path).unwrap().is_empty());
    assert!(verify(&path).unwrap().is_sound());
}

#[test]
fn the_writer_refuses_what_cannot_be_trained() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenFileWriter::create(&folder.path().join("x.qubgpu"), header()).unwrap();
    let origin = Origin { file: 0, line: 812 };
    let message = |result: Result<(), TokenFileError>| result.unwrap_err().to_string();
    assert!(message(writer.push(&[], &[], origin)).contains("first.jsonl:812): it has no tokens"));
    assert!(message(writer.push(&[1, 2], &[false], origin)).contains("differ in length"));
    assert!(message(writer.push(&[1, 2], &[true, true], origin)).contains("first token"));
    writer.push(&[1, 2], &[false, true], origin).unwrap();
    assert_eq!(writer.finish().unwrap().examples, 1);
}

#[test]
fn an_unfinished_file_has_no_name_and_an_abandoned_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    let mut writer = TokenFileWriter::create(&path, header()).unwrap();
    writer.push(&[1, 2, 3], &[false, true, true], Origin::default()).unwrap();
    assert!(!path.exists());
    assert!(matches!(TokenFileWriter::create(&path, header()), Err(TokenFileError::BeingWritten { .. })));
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_new_file_replaces_the_old_one_only_when_it_is_whole() {
    let (_folder, path, bytes) = sound_file();
    let mut writer = TokenFileWriter::create(&path, header()).unwrap();
    writer.push(&[5], &[false], Origin::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    writer.finish().unwrap();
    assert_eq!(TokenFile::open(&path).unwrap().len(), 1);
}

#[test]
fn what_a_killed_writer_left_is_overwritten_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    let partial = folder.path().join("train.qubgpu.partial");
    // After a power cut, what was not flushed may be missing, or zeros.
    let begun = [&FILE_MAGIC[..], &[7; 100_000]].concat();
    for left in [&begun[..], &begun[..5], &[0; 100_000], b""] {
        fs::write(&partial, left).unwrap();
        write(&path, &samples());
        assert_eq!(read(&path).unwrap(), samples());
    }
}

#[test]
fn a_file_of_the_user_with_the_name_of_an_unfinished_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let [path, partial, own] =
        ["train.qubgpu", "train.qubgpu.partial", "own"].map(|name| folder.path().join(name));
    let announced = Announced { hash: [0; 32], bytes: 100, examples: 1 };
    let refused = || {
        let refused = TokenFileWriter::create(&path, header()).err().unwrap();
        let spool = Spool::open(&path, announced).unwrap_err();
        [refused, spool]
            .iter()
            .all(|error| matches!(error, TokenFileError::InTheWay { path } if *path == partial))
    };
    fs::write(&partial, "{\"text\": \"mine\"}\n").unwrap();
    assert!(refused());
    assert_eq!(fs::read_to_string(&partial).unwrap(), "{\"text\": \"mine\"}\n");
    fs::rename(&partial, &own).unwrap();
    std::os::unix::fs::symlink(&own, &partial).unwrap();
    assert!(refused());
    fs::remove_file(&partial).unwrap();
    fs::write(&own, FILE_MAGIC).unwrap();
    fs::hard_link(&own, &partial).unwrap();
    assert!(refused());
    assert_eq!(fs::read(&own).unwrap(), FILE_MAGIC);
    fs::remove_file(&partial).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &partial, rustix::fs::Mode::RWXU).unwrap();
    assert!(refused());
}

#[test]
fn names_from_data_are_escaped_where_they_are_shown() {
    let sources = vec![Source { name: "a\x1b[2J\u{202e}b".into(), ..Source::default() }];
    let header = Header { sources, ..Header::default() };
    assert_eq!(header.describe(Origin { file: 0, line: 1 }), "a\\u{1b}[2J\\u{202e}b:1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_examples_come_back_as_they_were_pushed(
        lengths in prop::collection::vec((1usize..300, any::<u32>(), any::<u32>(), any::<u64>()), 0..40)
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any.qubgpu");
        let samples: Vec<Sample> = lengths
            .into_iter()
            .map(|(len, salt, file, line)| {
                let tokens = (0..len as u32).map(|t| salt.wrapping_mul(t + 1)).collect();
                let mask = (0..len as u32).map(|t| t > 0 && salt.rotate_left(t) & 1 == 1).collect();
                Sample { tokens, mask, origin: Origin { file, line } }
            })
            .collect();
        write(&path, &samples);
        prop_assert_eq!(read(&path).unwrap(), samples);
        prop_assert!(verify(&path).unwrap().is_sound());
    }
}
