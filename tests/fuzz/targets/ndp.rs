//! What another machine sends: addresses, frames, and the packets of a token file.

use std::path::Path;

use sparktune_data::token_file::{Announced, Spool, TokenFile, verify};
use sparktune_ndp::frame::{self, Codes};
use sparktune_ndp::routing::taker_of;
use sparktune_ndp::{Address, stream};

use super::{empty_folder, is_a_sentence, parts};

/// An address a line.
pub(super) fn addresses(input: &[u8]) {
    for line in String::from_utf8_lossy(input).lines() {
        match Address::parse(line) {
            Ok(address) => {
                assert_eq!(Address::parse(&address.to_string()).expect("an address that we wrote"), address);
                is_a_sentence(&address.short());
            }
            Err(error) => is_a_sentence(&error),
        }
    }
}

/// Frames back to back. What is read of them is what was written, and no more than was given.
pub(super) fn frames(input: &[u8]) {
    let mut rest = input;
    for number in 0.. {
        let before = rest;
        let Ok(read) = frame::read(&mut rest, number, stream::MOST_PAYLOAD) else { break };
        let mut again = Vec::new();
        frame::encode(read.codes, number, &read.payload, &mut again);
        assert_eq!(again, before[..before.len() - rest.len()]);
        if let Err(refused) = taker_of(read.codes) {
            is_a_sentence(&refused);
        }
    }
    // The same bytes as a payload.
    let (codes, mut framed) = (Codes { src: 1, dst: 1, typ: 1 }, Vec::new());
    frame::encode(codes, 7, input, &mut framed);
    assert_eq!(frame::read(&mut framed.as_slice(), 7, input.len()).expect("our own frame").payload, input);
}

/// The first part is what an earlier attempt has left, the second what arrives then, as the file that it
/// claims to be. It becomes a file only if it is sound and the announced one.
pub(super) fn spool(input: &[u8]) {
    let [left, file] = parts(input);
    let target = empty_folder("spool").join("a.qubgpu");
    let hash = file.len().checked_sub(64).and_then(|at| file.get(at..at + 32)?.try_into().ok());
    let hash = hash.unwrap_or([0; 32]);
    let examples = file.len().checked_sub(104).and_then(|at| file.get(at..at + 8)?.try_into().ok());
    let examples = u64::from_le_bytes(examples.unwrap_or_default());
    let announced = Announced { hash, bytes: file.len() as u64, examples };
    std::fs::write(target.with_extension("qubgpu.partial"), left).expect("the file can be written");
    match arrive(&target, file, announced) {
        Ok(()) => {
            assert!(verify(&target).expect("a new file can be verified").is_sound());
            let there = TokenFile::open(&target).expect("a new file can be read");
            // What an earlier attempt has left is not sent again, so the hash says which bytes there are.
            assert_eq!(there.file_hash(), blake3::Hash::from_bytes(hash).to_hex().as_str());
            assert_eq!((there.len() as u64, there.bytes().len()), (examples, file.len()));
        }
        Err(error) => {
            is_a_sentence(&error);
            assert!(!target.exists(), "a file that was refused has its name");
        }
    }
}

/// Lets a file arrive in the parts that its numbers claim.
fn arrive(
    target: &Path,
    file: &[u8],
    announced: Announced,
) -> Result<(), sparktune_data::token_file::TokenFileError> {
    let mut spool = Spool::open(target, announced)?;
    assert!(spool.bytes() <= announced.bytes && spool.next() <= announced.examples);
    let number = |at: usize| {
        file.get(at..at + 4)
            .map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
    };
    let mut at = number(12).min(file.len());
    spool.opening(&file[..at])?;
    let skipped = spool.next();
    for example in 0..announced.examples {
        let tokens = number(at + 4);
        let length = 64 + (4 * tokens + tokens.div_ceil(8)).next_multiple_of(64);
        let Some(packet) = file.get(at..at + length) else { break };
        if example >= skipped {
            spool.packet(packet)?;
        }
        at += length;
    }
    spool.finish(&file[at.min(file.len())..])
}
