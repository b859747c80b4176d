use std::fs;
use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::packets::codes::Route;
use crate::token_file::v1::{Item, Packet, Reader};

fn packets(tokens: &[&[u32]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tokens in tokens {
        v1::encode(tokens, Route::default(), &mut bytes).unwrap();
    }
    bytes
}

fn items(input: impl Read) -> Vec<Item> {
    let mut reader = Reader::new(input);
    std::iter::from_fn(|| reader.next_item().unwrap()).collect()
}

fn intact(items: &[Item]) -> Vec<Vec<u32>> {
    items
        .iter()
        .filter_map(|item| match item {
            Item::Packet(packet) => Some(packet.token_ids().unwrap()),
            Item::Damage(_) => None,
        })
        .collect()
}

/// Computes a CRC bit by bit, from the definition.
fn slow_crc(bytes: &[u8], start: u16, reflected: bool) -> u16 {
    bytes.iter().fold(start, |crc, &byte| {
        let byte = if reflected { byte.reverse_bits() } else { byte };
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 },
        )
    })
}

#[test]
fn a_v1_packet_is_these_bytes() {
    let bytes = packets(&[&[1, 248_319]]);
    assert_eq!(bytes[..6], [0xAA, 0x01, 0x01, 0x01, 0x00, 0x08]);
    assert_eq!(bytes[6..14], [0, 0, 0, 1, 0, 0x03, 0xC9, 0xFF]);
    assert_eq!(bytes[14..], slow_crc(&bytes[..14], 0xFFFF, false).to_be_bytes());
    assert_eq!(slow_crc(b"123456789", 0xFFFF, false), 0x29B1);
}

#[test]
fn the_reader_recognises_every_reading_of_crc16_ccitt() {
    assert_eq!(slow_crc(b"123456789", 0, false), 0x31C3);
    assert_eq!(slow_crc(b"123456789", 0, true).reverse_bits(), 0x2189);
    for (start, reflected) in [(0xFFFF, false), (0, false), (0, true)] {
        for from in [0, 1, 6] {
            let mut bytes = packets(&[&[1, 2, 3], &[4], &[5, 6]]);
            for range in [0..20, 20..32, 32..48] {
                let packet = &mut bytes[range];
                let end = packet.len() - 2;
                let crc = slow_crc(&packet[from..end], start, reflected);
                let crc = if reflected { crc.reverse_bits() } else { crc };
                packet[end..].copy_from_slice(&crc.to_be_bytes());
            }
            let expected = vec![vec![1, 2, 3], vec![4], vec![5, 6]];
            assert_eq!(intact(&items(&bytes[..])), expected, "{start:x} {reflected} {from}");
            assert_eq!(items(&bytes[..]).len(), 3);
        }
    }
}

#[test]
fn every_flipped_bit_of_v1_packets_costs_its_packet_and_no_other() {
    let examples: [&[u32]; 4] = [&[0xAA, 0x00AA_AAAA, 3], &[4, 170, 171], &[5], &[6, 7, 8, 9]];
    let sound = packets(&examples);
    let ends: Vec<usize> = examples
        .iter()
        .scan(0, |end, tokens| {
            *end += 8 + 4 * tokens.len();
            Some(*end)
        })
        .collect();
    let mut bytes = sound.clone();
    for at in 0..sound.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let hit = ends.iter().position(|&end| at < end).unwrap();
            let found = items(&bytes[..]);
            let expected: Vec<_> = (0..4).filter(|&i| i != hit).map(|i| examples[i].to_vec()).collect();
            assert_eq!(intact(&found), expected, "bit {bit} of byte {at}");
            let lost: u64 =
                found.iter().map(|item| if let Item::Damage(d) = item { d.bytes } else { 0 }).sum();
            assert_eq!(lost, 8 + 4 * examples[hit].len() as u64, "bit {bit} of byte {at}");
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn bytes_that_look_like_long_packets_everywhere_are_passed_over_in_time() {
    let mut bytes = [v1::SYNC, 0xF0, 0xF0, v1::TOKEN_IDS].repeat(1 << 18);
    let damaged = bytes.len() as u64;
    bytes.extend(packets(&[&[1, 2, 3], &[4]]));
    let found = items(&bytes[..]);
    assert_eq!(intact(&found), [vec![1, 2, 3], vec![4]]);
    assert!(matches!(&found[0], Item::Damage(damage) if damage.bytes == damaged), "{:?}", found[0]);
}

#[test]
fn a_packet_that_ends_damage_is_not_lost_however_little_may_still_be_summed() {
    // Each six bytes look like the beginning of a packet of 4096 bytes. What may be summed after them
    // repeats after about 96 of these beginnings.
    let looks_like_packets = [v1::SYNC, 1, 1, v1::TOKEN_IDS, 0x0F, 0xF8];
    let tokens: Vec<u32> = (0..510).collect();
    let sound = packets(&[tokens.as_slice(); 3]);
    for beginnings in (800..896).step_by(4) {
        let mut bytes = looks_like_packets.repeat(beginnings);
        bytes.extend_from_slice(&sound);
        let found = items(&bytes[..]);
        let is_lost = found.windows(2).any(|pair| matches!(pair, [Item::Damage(_), Item::Damage(_)]));
        assert!(!is_lost && matches!(found.last(), Some(Item::Packet(_))), "{beginnings}");
    }
}

#[test]
fn every_truncation_of_v1_packets_keeps_the_whole_ones() {
    let examples: [&[u32]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
    let bytes = packets(&examples);
    for len in 0..=bytes.len() {
        let whole = [20, 32, 48].iter().filter(|&&end| end <= len).count();
        let found = items(&bytes[..len]);
        assert_eq!(intact(&found).len(), whole, "{len} bytes");
        let border = [0, 20, 32, 48].contains(&len);
        assert_eq!(found.len(), whole + usize::from(!border), "{len} bytes");
    }
}

#[test]
fn v2_to_v1_and_back_keeps_tokens_and_says_what_is_lost() {
    let (folder, path, _) = sound_file();
    let (exported, back) = (folder.path().join("v1.qubgpu"), folder.path().join("back.qubgpu"));
    let done = unpack(&path, &exported, Exchange::V1, OnDamage::Stop).unwrap();
    assert_eq!((done.examples, done.tokens), (7, 96));
    assert!(done.notes[0].contains("no loss mask"), "{:?}", done.notes);
    assert!(verify(&exported).unwrap().is_sound());

    let done = pack_file(&exported, &back, &PackFileOptions::default()).unwrap();
    assert!(done.notes[0].contains("every token of an example except the first"), "{:?}", done.notes);
    let read_back = read(&back).unwrap();
    for (i, (before, after)) in samples().iter().zip(&read_back).enumerate() {
        assert_eq!(before.tokens, after.tokens);
        assert_eq!(after.origin, Origin { file: 0, line: i as u64 + 1 });
        assert_eq!(after.mask.iter().filter(|&&t| t).count(), after.tokens.len() - 1);
    }
    assert_eq!(read_back.len(), 7);
    let again = folder.path().join("again.qubgpu");
    unpack(&back, &again, Exchange::V1, OnDamage::Stop).unwrap();
    assert_eq!(fs::read(&again).unwrap(), fs::read(&exported).unwrap(), "byte-exact");
}

#[test]
fn v2_to_json_lines_and_back_keeps_everything_but_the_hashes() {
    let (folder, path, _) = sound_file();
    let (lines, back) = (folder.path().join("ids.jsonl"), folder.path().join("back.qubgpu"));
    let done = unpack(&path, &lines, Exchange::JsonLines, OnDamage::Stop).unwrap();
    assert_eq!(done.notes.len(), 1);
    assert!(done.notes[0].contains("no hashes of tokenizer, template and policy"), "{:?}", done.notes);
    let text = fs::read_to_string(&lines).unwrap();
    let second = text.lines().nth(1).unwrap();
    assert!(second.starts_with(r#"{"input_ids":["#), "{second}");
    assert!(
        second.ends_with(r#""loss_mask":[0,1,0,1,1,0,1],"source_file":"second.jsonl","source_line":13}"#),
        "{second}"
    );
    let done = pack_file(&lines, &back, &PackFileOptions::default()).unwrap();
    assert!(done.notes.is_empty(), "{:?}", done.notes);
    assert_eq!(read(&back).unwrap(), samples());
    let names: Vec<_> =
        TokenFile::open(&back).unwrap().header().sources.iter().map(|s| s.name.clone()).collect();
    assert_eq!(names, ["first.jsonl", "second.jsonl"]);
}

#[test]
fn json_lines_without_masks_are_taken_and_wrong_ones_are_refused_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let (lines, out) = (folder.path().join("ids.jsonl"), folder.path().join("out.qubgpu"));
    let pack = |text: &str| {
        fs::write(&lines, text).unwrap();
        pack_file(&lines, &out, &PackFileOptions::default())
    };
    let done =
        pack("\u{feff}{\"input_ids\":[1,2]}\r\n\r\n{\"input_ids\":[3,4],\"loss_mask\":[true,false]}\n")
            .unwrap();
    assert_eq!((done.examples, done.target_tokens, done.notes.len()), (2, 1, 2));
    assert_eq!(TokenFile::open(&out).unwrap().origin_text(1), "ids.jsonl:3");
    for (line, part) in [
        (r#"{"input_ids":[1,-2]}"#, "invalid value"),
        (r#"{"input_ids":[]}"#, "no tokens"),
        (r#"{"input_ids":[1,2],"loss_mask":[0]}"#, "1 entries for 2 tokens"),
        (r#"{"input_ids":[1,2],"loss_mask":[0,2]}"#, "consist of 0 and 1"),
        (r#"{"input_ids":[1,2],"labels":[-100,2]}"#, "unknown field `labels`"),
        (r#"{"messages":[]}"#, "unknown field `messages`"),
    ] {
        let error = pack(&format!("{{\"input_ids\":[1]}}\n{line}\n")).unwrap_err().to_string();
        assert!(error.contains("ids.jsonl:2:") && error.contains(part), "{error}");
    }
    let endless = format!("{{\"input_ids\":[1]}}\n{{{}", " ".repeat(65 << 20));
    let error = pack(&endless).unwrap_err().to_string();
    assert!(error.contains("ids.jsonl:2: line: it has more than 64 MiB"), "{error}");
}

#[test]
fn an_example_too_long_for_v1_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("long.qubgpu"), folder.path().join("v1.qubgpu"));
    let fits = sample(v1::MAX_TOKENS, 0, Origin { file: 0, line: 1 });
    write(&path, std::slice::from_ref(&fits));
    assert_eq!(v1::MAX_TOKENS, 16_383);
    assert!(unpack(&path, &out, Exchange::V1, OnDamage::Stop).is_ok());
    fs::remove_file(&out).unwrap();
    write(&path, &[fits, sample(v1::MAX_TOKENS + 1, 0, Origin { file: 1, line: 812 })]);
    let error = unpack(&path, &out, Exchange::V1, OnDamage::Stop).unwrap_err().to_string();
    assert!(error.contains("example 1 (second.jsonl:812) has 16384 tokens"), "{error}");
    assert!(!out.exists());
}

#[test]
fn damaged_input_stops_a_conversion_unless_it_is_to_be_skipped() {
    let (folder, path, mut bytes) = sound_file();
    let out = folder.path().join("out");
    let end_of_header = v2::u32_at(&bytes, 12) as usize;
    bytes[end_of_header + 64] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(unpack(&path, &out, Exchange::V1, OnDamage::Stop).is_err() && !out.exists());
    let done = unpack(&path, &out, Exchange::V1, OnDamage::Skip).unwrap();
    assert_eq!((done.examples, done.left_out_count), (6, 1));
    assert_eq!(done.left_out[0].origin.as_deref(), Some("first.jsonl:3"));

    let v1_file = folder.path().join("v1.qubgpu");
    let mut bytes = packets(&[&[1, 2], &[3], &[4, 5]]);
    bytes[20] ^= 0x40;
    fs::write(&v1_file, &bytes).unwrap();
    let mut options = PackFileOptions::default();
    let error = pack_file(&v1_file, &out, &options).unwrap_err().to_string();
    assert!(error.contains("packet at byte 16, example 1: 12 bytes"), "{error}");
    options.on_damage = OnDamage::Skip;
    let done = pack_file(&v1_file, &out, &options).unwrap();
    assert_eq!((done.examples, done.left_out_count), (2, 1));
    assert_eq!(verify(&v1_file).unwrap().defects, done.left_out);
    let again = folder.path().join("again.qubgpu");
    let rebuilt = rebuild(&v1_file, &again).unwrap();
    assert_eq!((rebuilt.recovered_examples, rebuilt.recovered_tokens), (2, done.tokens));
    assert!(verify(&again).unwrap().is_sound());
}

#[test]
fn packets_of_other_kinds_and_negative_ids_are_not_taken_for_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("v1.qubgpu"), folder.path().join("out.qubgpu"));
    let mut floats = packets(&[&[1, 2]]);
    floats[3] = 0x03;
    let crc = slow_crc(&floats[..14], 0xFFFF, false);
    floats[14..].copy_from_slice(&crc.to_be_bytes());
    let mut negative = packets(&[&[1, 2]]);
    negative[6..10].copy_from_slice(&(-100i32).to_be_bytes());
    let crc = slow_crc(&negative[..14], 0xFFFF, false);
    negative[14..].copy_from_slice(&crc.to_be_bytes());

    fs::write(&path, [floats.clone(), packets(&[&[7]])].concat()).unwrap();
    let done = pack_file(&path, &out, &PackFileOptions::default()).unwrap();
    assert_eq!(done.examples, 1);
    assert!(
        done.notes.iter().any(|note| note.starts_with("skipped 1 packet of TYP float16 (3)")),
        "{:?}",
        done.notes
    );
    fs::write(&path, [packets(&[&[7]]), negative].concat()).unwrap();
    let error = pack_file(&path, &out, &PackFileOptions::default()).unwrap_err().to_string();
    assert!(error.contains("-100 is not a token id"), "{error}");
}

/// A reader that returns one byte at a time, like a slow pipe.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = out.len().min(1);
        self.0.read(&mut out[..len])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn v1_accounts_for_every_byte_of_anything(
        noise in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(0xAA), 1 => Just(1), 1 => Just(0)], 0..400),
        tokens in prop::collection::vec(0u32..250_000, 0..20),
        place in any::<prop::sample::Index>(),
    ) {
        let mut bytes = noise.clone();
        let packet = packets(&[&tokens]);
        let at = place.index(noise.len() + 1);
        bytes.splice(at..at, packet);
        let found = items(&bytes[..]);
        let accounted: u64 = found.iter().map(|item| match item {
            Item::Packet(Packet { payload, .. }) => payload.len() as u64 + 8,
            Item::Damage(damage) => damage.bytes,
        }).sum();
        prop_assert_eq!(accounted, bytes.len() as u64);
        prop_assert_eq!(items(Trickle(&bytes)), found);
    }

    #[test]
    fn v1_round_trips_any_tokens(examples in prop::collection::vec(prop::collection::vec(0u32..1 << 31, 0..50), 0..20)) {
        let slices: Vec<&[u32]> = examples.iter().map(Vec::as_slice).collect();
        let found = items(&packets(&slices)[..]);
        prop_assert_eq!(found.len(), examples.len());
        prop_assert_eq!(intact(&found), examples);
    }
}
