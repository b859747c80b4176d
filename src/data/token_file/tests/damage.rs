use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::packets::codes::Route;
use crate::token_file::v2::{FOOTER, packet_len, u32_at, u64_at};

/// The byte ranges of an intact file's parts.
struct Layout {
    header: Range<usize>,
    packets: Vec<Range<usize>>,
    index: Range<usize>,
    footer: Range<usize>,
}

fn layout(bytes: &[u8]) -> Layout {
    let header = 0..u32_at(bytes, 12) as usize;
    let footer = bytes.len() - FOOTER..bytes.len();
    let index = u64_at(bytes, footer.start + 16) as usize..footer.start;
    let mut end = header.end;
    let packets = samples()
        .iter()
        .map(|s| {
            let start = end;
            end += packet_len(s.tokens.len() as u32) as usize;
            start..end
        })
        .collect();
    assert_eq!(end, index.start);
    Layout { header, packets, index, footer }
}

/// Flips each bit of the file on disk in turn, and calls `check`.
fn for_each_flipped_bit(path: &Path, sound: &[u8], mut check: impl FnMut(usize, u32)) {
    let file = File::options().write(true).open(path).unwrap();
    for (at, &byte) in sound.iter().enumerate() {
        for bit in 0..8 {
            file.write_all_at(&[byte ^ 1 << bit], at as u64).unwrap();
            check(at, bit);
        }
        file.write_all_at(&[byte], at as u64).unwrap();
    }
}

#[test]
fn every_flipped_bit_is_found_by_verify_and_named() {
    let (_folder, path, sound) = sound_file();
    let parts = layout(&sound);
    for_each_flipped_bit(&path, &sound, |at, bit| {
        let report = verify(&path).unwrap_or_else(|e| panic!("bit {bit} of byte {at}: {e}"));
        let place = format!("bit {bit} of byte {at}: {:?}", report.defects);
        if let Some(example) = parts.packets.iter().position(|packet| packet.contains(&at)) {
            let [defect] = &report.defects[..] else { panic!("{place}") };
            let origin = header().describe(samples()[example].origin);
            assert_eq!(defect.part, Part::Packet, "{place}");
            assert_eq!(
                (defect.example, defect.origin.as_ref()),
                (Some(example as u64), Some(&origin)),
                "{place}"
            );
            assert_eq!(defect.offset, parts.packets[example].start as u64, "{place}");
            assert_eq!(report.intact_examples, samples().len() as u64 - 1, "{place}");
        } else {
            let part =
                [(&parts.header, Part::Header), (&parts.index, Part::Index), (&parts.footer, Part::Footer)]
                    .into_iter()
                    .find_map(|(range, part)| range.contains(&at).then_some(part));
            assert!(report.defects.iter().all(|defect| Some(defect.part) == part), "{place}");
            assert!(!report.is_sound(), "{place}");
            assert_eq!(report.intact_examples, samples().len() as u64, "{place}");
        }
    });
}

#[test]
fn a_flipped_bit_in_an_index_entry_names_the_example() {
    let (_folder, path, mut bytes) = sound_file();
    let lengths = layout(&bytes).index.start + 2 * 64;
    bytes[lengths + 4 * 5] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let report = verify(&path).unwrap();
    assert!(
        report
            .defects
            .iter()
            .any(|d| d.part == Part::Index && d.origin.as_deref() == Some("second.jsonl:53"))
    );
}

#[test]
fn no_flipped_bit_reaches_the_packer() {
    let (_folder, path, sound) = sound_file();
    for_each_flipped_bit(&path, &sound, |at, bit| {
        assert!(read(&path).is_err(), "bit {bit} of byte {at} went unnoticed");
    });
}

#[test]
fn a_damaged_packet_stops_at_its_example_and_leaves_the_others_readable() {
    let (_folder, path, mut bytes) = sound_file();
    let packet = layout(&bytes).packets[4].clone();
    bytes[packet.start + 70] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let file = TokenFile::open(&path).unwrap();
    assert!(file.example(3).is_ok() && file.example(5).is_ok());
    for _ in 0..2 {
        let error = file.example(4).unwrap_err().to_string();
        assert!(error.contains("example 4 (first.jsonl:43)"), "{error}");
    }
}

#[test]
fn a_mask_that_no_writer_writes_is_damage_of_its_example_alone() {
    let (folder, path, sound) = sound_file();
    let place = layout(&sound).packets[4].clone();
    let mask = 64 + 4 * samples()[4].tokens.len();
    for (trained, what) in [(0, "first token is marked"), (15, "after the last one"), (2, "different number")]
    {
        let mut bytes = sound.clone();
        let packet = &mut bytes[place.clone()];
        // With as many trained tokens as stated, but for the last change.
        packet[mask] &= if trained == 2 { !0 } else { !2 };
        packet[mask + trained / 8] |= 1 << (trained % 8);
        let crc = crc32c::crc32c(&packet[64..]);
        packet[32..36].copy_from_slice(&crc.to_le_bytes());
        reseal(&mut packet[..64]);
        fs::write(&path, &bytes).unwrap();
        let file = TokenFile::open(&path).unwrap();
        let error = file.example(4).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("first.jsonl:43"), "{error}");
        assert!(file.example(3).is_ok() && file.example(5).is_ok());
        let done = unpack(&path, &folder.path().join("out"), Exchange::V1, OnDamage::Skip).unwrap();
        assert_eq!((done.examples, done.left_out_count), (6, 1));
    }
}

#[test]
fn every_truncation_is_refused_and_every_whole_packet_in_it_recovered() {
    let (folder, path, sound) = sound_file();
    let parts = layout(&sound);
    let rebuilt = folder.path().join("rebuilt.qubgpu");
    let file = File::options().write(true).open(&path).unwrap();
    for len in (1..sound.len()).rev() {
        file.set_len(len as u64).unwrap();
        assert!(TokenFile::open(&path).is_err(), "{len} bytes");
        let whole = parts.packets.iter().filter(|packet| packet.end <= len).count();
        match verify(&path) {
            Ok(report) => {
                assert!(!report.is_sound() && report.intact_examples == whole as u64, "{len} bytes")
            }
            Err(_) => assert!(len < 8, "{len} bytes"),
        }
        // Packets end at multiples of 64. Other lengths are skipped, because each rebuild costs an fsync.
        if !matches!(len % 64, 63 | 0 | 1) {
            continue;
        }
        let result = rebuild(&path, &rebuilt).unwrap();
        assert_eq!(result.header_recovered, len >= parts.header.end, "{len} bytes");
        assert_eq!(read(&rebuilt).unwrap(), samples()[..whole], "{len} bytes");
        assert!(verify(&rebuilt).unwrap().is_sound(), "{len} bytes");
    }
    fs::write(&path, []).unwrap();
    assert!(matches!(TokenFile::open(&path), Err(TokenFileError::Truncated { .. })));
    assert!(verify(&path).is_err() && rebuild(&path, &rebuilt).is_err());
}

#[test]
fn rebuild_recovers_the_packets_around_each_kind_of_damage() {
    let (folder, path, sound) = sound_file();
    let parts = layout(&sound);
    let rebuilt = folder.path().join("rebuilt.qubgpu");
    let without =
        |lost: usize| samples().into_iter().enumerate().filter(move |(i, _)| *i != lost).map(|(_, s)| s);
    for (at, lost) in
        [(parts.packets[2].start + 4, 2), (parts.packets[2].start + 66, 2), (parts.header.start + 30, 99)]
    {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let result = rebuild(&path, &rebuilt).unwrap();
        assert_eq!(read(&rebuilt).unwrap(), without(lost).collect::<Vec<_>>());
        assert_eq!(result.header_recovered, lost == 2);
    }
}

#[test]
fn what_a_killed_writer_left_can_be_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    let mut writer = TokenFileWriter::create(&path, header()).unwrap();
    let long = sample(300_000, 1, Origin { file: 1, line: 9 });
    for _ in 0..3 {
        writer.push(&long.tokens, &long.mask, long.origin).unwrap();
    }
    let partial = folder.path().join("train.qubgpu.partial");
    assert!(matches!(rebuild(&partial, &path), Err(TokenFileError::BeingWritten { .. })));

    // This is the state after SIGKILL: some bytes, no lock, and no destructor was run.
    let left = fs::read(&partial).unwrap();
    drop(writer);
    fs::write(&partial, &left[..left.len() - 100_000]).unwrap();
    assert_eq!(rebuild(&partial, &path).unwrap().recovered_examples, 2);
    assert_eq!(read(&path).unwrap(), [long.clone(), long]);
}

#[test]
fn bytes_added_exchanged_or_left_out_are_found() {
    let (_folder, path, sound) = sound_file();
    let parts = layout(&sound);
    let (a, b) = (parts.packets[1].clone(), parts.packets[2].clone());
    assert_eq!(a.len(), b.len());
    let mut swapped = sound.clone();
    swapped[a.clone()].copy_from_slice(&sound[b.clone()]);
    swapped[b.clone()].copy_from_slice(&sound[a.clone()]);
    let mut twice = sound.clone();
    twice[b.clone()].copy_from_slice(&sound[a.clone()]);
    let mut missing = sound.clone();
    missing.drain(a);
    let mut longer = sound.clone();
    longer.extend([0; 64]);
    for (what, bytes) in [("swapped", swapped), ("twice", twice), ("missing", missing), ("longer", longer)] {
        fs::write(&path, &bytes).unwrap();
        assert!(!verify(&path).unwrap().is_sound(), "{what}");
        assert!(read(&path).is_err(), "{what}");
    }
}

#[test]
fn files_of_other_kinds_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.qubgpu");
    let mut packet = Vec::new();
    v1::encode(&[1, 2, 3], Route::default(), &mut packet).unwrap();
    fs::write(&path, &packet).unwrap();
    let error = TokenFile::open(&path).unwrap_err().to_string();
    assert!(error.contains("v1") && error.contains("sparktune pack"), "{error}");
    fs::write(&path, "PK\x03\x04 nothing of ours").unwrap();
    assert!(matches!(TokenFile::open(&path), Err(TokenFileError::NotTokenFile { .. })));
    assert!(matches!(verify(&path), Err(TokenFileError::NotTokenFile { .. })));
    assert!(matches!(TokenFile::open(&folder.path().join("none")), Err(TokenFileError::Io { .. })));
}

#[test]
fn a_later_format_version_is_refused_by_number() {
    let (_folder, path, mut bytes) = sound_file();
    bytes[8] = 3;
    let header = layout(&bytes).header;
    reseal(&mut bytes[header]);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(TokenFile::open(&path), Err(TokenFileError::UnsupportedVersion { version: 3, .. })));
}

fn reseal(block: &mut [u8]) {
    let end = block.len() - 4;
    let crc = crc32c::crc32c(&block[..end]);
    block[end..].copy_from_slice(&crc.to_le_bytes());
}

/// Reads one file with all readers, none of which may panic.
fn read_all_ways(path: &Path) -> (bool, bool) {
    let sound = verify(path).is_ok_and(|report| report.is_sound());
    let readable = read(path).is_ok();
    let _ = rebuild(path, &path.with_extension("rebuilt"));
    let _ = pack_file(path, &path.with_extension("packed"), &PackFileOptions::default());
    (sound, readable)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), magic in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.qubgpu");
        let mut bytes = bytes;
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"QUBGPU2\n");
        }
        fs::write(&path, &bytes).unwrap();
        prop_assert_eq!(read_all_ways(&path), (false, false));
    }

    /// Checksums are corrected after the damage, so that the checks after them are tested.
    #[test]
    fn wrong_numbers_under_right_checksums_never_panic_nor_lead_out_of_the_file(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        part in 0usize..3,
    ) {
        let (_folder, path, mut bytes) = sound_file();
        let sound = bytes.clone();
        let Layout { header, packets, index, footer } = layout(&bytes);
        let range = [header.clone(), index.clone(), footer.clone()][part].clone();
        for (at, value) in edits {
            let place = range.start + at.index(range.len());
            bytes[place] = value;
        }
        // The length of the header is kept, because without it there is no checksum to correct.
        bytes[12..16].copy_from_slice(&sound[12..16]);
        reseal(&mut bytes[header]);
        let index_crc = crc32c::crc32c(&bytes[index]);
        bytes[footer.start + 52..footer.start + 56].copy_from_slice(&index_crc.to_le_bytes());
        reseal(&mut bytes[footer]);
        fs::write(&path, &bytes).unwrap();
        let (found_sound, _) = read_all_ways(&path);
        prop_assert!(!found_sound || bytes == sound);
        prop_assert_eq!(packets.len(), samples().len());
    }

    #[test]
    fn several_damaged_places_are_found_and_what_is_recovered_is_genuine(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..12),
    ) {
        let (folder, path, mut bytes) = sound_file();
        let sound = bytes.clone();
        for (at, flip) in edits {
            let place = at.index(bytes.len());
            bytes[place] ^= flip;
        }
        fs::write(&path, &bytes).unwrap();
        let (found_sound, readable) = read_all_ways(&path);
        prop_assert_eq!((found_sound, readable), (bytes == sound, bytes == sound));
        let rebuilt = folder.path().join("rebuilt.qubgpu");
        rebuild(&path, &rebuilt).unwrap();
        let genuine = samples();
        for recovered in read(&rebuilt).unwrap() {
            prop_assert!(genuine.contains(&recovered));
        }
    }
}
