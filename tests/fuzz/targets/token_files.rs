//! Token files of both versions, and lines of token ids.

use std::path::Path;

use sparktune_data::token_file::v1::{Item, Reader, encode};
use sparktune_data::token_file::{
    Exchange, Header, OnDamage, Origin, PackFileOptions, TokenFile, TokenFileWriter, contents, is_token_file,
    pack_file, rebuild, unpack, verify,
};

use super::{empty_folder, is_a_sentence, parts};

/// The first part is read as a token file. The second is a list of changes to a sound file, each of three
/// bytes: a place, and what it is xor-ed with. Every change is found, unless whoever made it also made the
/// checksums anew; such a file is read or refused.
pub(super) fn v2(input: &[u8]) {
    let [file, changes] = parts(input);
    let folder = empty_folder("v2");
    let path = folder.join("a.qubgpu");
    std::fs::write(&path, file).expect("the file can be written");
    read(&path);
    change(&folder.join("b.qubgpu"), file, changes);
}

/// v1 packets.
pub(super) fn v1(input: &[u8]) {
    let folder = empty_folder("v1");
    let path = folder.join("a.qubgpu");
    std::fs::write(&path, input).expect("the file can be written");
    let (mut reader, mut found) = (Reader::new(input), 0);
    while let Some(item) = reader.next_item().expect("bytes in memory can be read") {
        found += 1;
        assert!(found <= input.len() + 1, "more packets than bytes");
        let Item::Packet(packet) = item else { continue };
        if let Ok(ids) = packet.token_ids() {
            assert!(4 * ids.len() <= input.len());
            let mut bytes = Vec::new();
            if encode(&ids, packet.route, &mut bytes).is_ok() {
                let mut again = Reader::new(&bytes[..]);
                let Ok(Some(Item::Packet(read))) = again.next_item() else { panic!("our own packet") };
                assert_eq!((read.route, read.token_ids()), (packet.route, Ok(ids)));
            }
        }
    }
    read(&path);
    pack(&path, OnDamage::Stop);
    pack(&path, OnDamage::Skip);
}

/// Lines of token ids.
pub(super) fn lines(input: &[u8]) {
    let path = empty_folder("lines").join("a.jsonl");
    std::fs::write(&path, input).expect("the file can be written");
    if let Err(error) = contents(&path) {
        is_a_sentence(&error);
    }
    pack(&path, OnDamage::Stop);
}

/// Opens, verifies, repairs and unpacks a file.
fn read(path: &Path) {
    let (opened, verified) = (TokenFile::open(path), verify(path));
    assert!(is_token_file(path).is_ok());
    if let Ok(report) = &verified {
        assert!(report.defects.len() as u64 <= report.bytes + 1);
        report.defects.iter().for_each(|defect| is_a_sentence(defect));
    }
    let file = match &opened {
        Ok(file) => file,
        Err(error) => {
            is_a_sentence(error);
            drop(rebuilt(path));
            return;
        }
    };
    for i in 0..file.len() {
        match file.example(i) {
            Ok(example) => assert_eq!(example.tokens.len(), example.mask.len()),
            Err(error) => is_a_sentence(&error),
        }
        is_a_sentence(&file.origin_text(i));
    }
    let is_sound = verified.is_ok_and(|report| report.is_sound());
    for format in [Exchange::JsonLines, Exchange::V1] {
        let text = path.with_extension("text");
        match unpack(path, &text, format, OnDamage::Skip) {
            Err(error) => is_a_sentence(&error),
            Ok(done) => {
                assert!(done.examples <= file.len() as u64);
                let again = path.with_extension("again.qubgpu");
                if is_sound && done.examples > 0 {
                    pack_file(&text, &again, &PackFileOptions::default()).expect("what we wrote can be read");
                    let again = TokenFile::open(&again).expect("what we packed can be read");
                    assert_eq!(again.len(), file.len());
                    for i in 0..file.len() {
                        assert_eq!(again.tokens(i), file.tokens(i));
                        assert!(format == Exchange::V1 || again.mask(i).iter().eq(file.mask(i).iter()));
                    }
                }
            }
        }
    }
    if let Some(again) = rebuilt(path) {
        assert!(!is_sound || again.len() == file.len(), "a sound file was rebuilt with fewer examples");
    }
}

/// Repairs a file. What comes out is sound.
fn rebuilt(path: &Path) -> Option<TokenFile> {
    let output = path.with_extension("rebuilt.qubgpu");
    match rebuild(path, &output) {
        Err(error) => {
            is_a_sentence(&error);
            None
        }
        Ok(done) => {
            assert!(verify(&output).expect("a new file can be verified").is_sound());
            let file = TokenFile::open(&output).expect("a new file can be read");
            assert_eq!(
                (file.len() as u64, file.total_tokens()),
                (done.recovered_examples, done.recovered_tokens)
            );
            Some(file)
        }
    }
}

/// Packs a file. What comes out is sound, and reads as the converter said.
fn pack(path: &Path, on_damage: OnDamage) {
    let output = path.with_extension("packed.qubgpu");
    let options = PackFileOptions { on_damage, ..PackFileOptions::default() };
    match pack_file(path, &output, &options) {
        Err(error) => is_a_sentence(&error),
        Ok(done) => {
            done.notes.iter().for_each(|note| is_a_sentence(note));
            assert!(verify(&output).expect("a new file can be verified").is_sound());
            let file = TokenFile::open(&output).expect("a new file can be read");
            assert_eq!((file.len() as u64, file.total_tokens()), (done.examples, done.tokens));
            assert_eq!(file.target_tokens(), done.target_tokens);
        }
    }
}

/// Writes a file whose tokens are made of these bytes, changes it, and expects that the changes are noticed.
fn change(path: &Path, tokens: &[u8], changes: &[u8]) {
    let header = Header { policy: "of a test".to_owned(), ..Header::default() };
    let mut writer = TokenFileWriter::create(path, header).expect("a file can be begun");
    let mut examples: Vec<Vec<u32>> = Vec::new();
    for piece in tokens.split(|byte| *byte == b'\n').filter(|piece| piece.len() > 1).take(64) {
        let ids: Vec<u32> = piece.iter().map(|byte| u32::from(*byte)).collect();
        let mask: Vec<bool> = ids.iter().enumerate().map(|(i, id)| i > 0 && id % 3 > 0).collect();
        let origin = Origin { file: 0, line: examples.len() as u64 };
        if writer.push(&ids, &mask, origin).is_ok() {
            examples.push(ids);
        }
    }
    if writer.finish().is_err() {
        return;
    }
    let written = std::fs::read(path).expect("the file can be read");
    let mut bytes = written.clone();
    for change in changes.chunks_exact(3).take(8) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    // A new file, because the old one may still be mapped.
    let replace = |bytes: &[u8]| {
        std::fs::remove_file(path).expect("the file can be removed");
        std::fs::write(path, bytes).expect("the file can be written");
    };
    replace(&bytes);
    if bytes != written {
        assert!(!verify(path).is_ok_and(|report| report.is_sound()), "a change was not noticed");
    }
    read(path);
    if let Ok(file) = TokenFile::open(path) {
        assert!(file.len() <= examples.len());
        for (i, written) in examples.iter().enumerate().take(file.len()) {
            let Ok(example) = file.example(i) else { continue };
            assert_eq!(example.tokens, written, "other tokens, and no word about it");
        }
    }
    seal_again(&mut bytes);
    replace(&bytes);
    read(path);
}

/// Makes the checksums of a changed file anew, wherever its numbers lead. `src/data/token_file/v2.rs` has the
/// layout.
fn seal_again(bytes: &mut [u8]) {
    const FOOTER: usize = 128;
    let number =
        |bytes: &[u8], at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or(0) as usize;
    let seal = |block: &mut [u8]| {
        let (content, checksum) = block.split_at_mut(block.len() - 4);
        checksum.copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
    };
    let header = number(bytes, 12);
    if (64..bytes.len()).contains(&header) {
        seal(&mut bytes[..header]);
    }
    let end = bytes.len() - FOOTER;
    for at in (64..end).step_by(64).filter(|at| at + 64 <= end) {
        if &bytes[at..at + 4] != b"QPKT" {
            continue;
        }
        let tokens = number(bytes, at + 4);
        let length = (4 * tokens + tokens.div_ceil(8)).next_multiple_of(64);
        if let Some(payload) = bytes[at + 64..end].get(..length) {
            let checksum = crc32c::crc32c(payload).to_le_bytes();
            bytes[at + 32..at + 36].copy_from_slice(&checksum);
        }
        seal(&mut bytes[at..at + 64]);
    }
    let index = number(bytes, end + 16);
    if let Some(index) = bytes[..end].get(index..) {
        let checksum = crc32c::crc32c(index).to_le_bytes();
        bytes[end + 52..end + 56].copy_from_slice(&checksum);
    }
    let hash = blake3::hash(&bytes[..end]);
    bytes[end + 64..end + 96].copy_from_slice(hash.as_bytes());
    seal(&mut bytes[end..]);
}
