//! What another rank sends: the parts of messages.

use sparktune_cluster::wire::{Assembly, HEAD, Kind, Part};

use super::is_a_sentence;

/// The payloads of frames, each after a byte with its kind and one with its length. What is put together of
/// them is what was given, and no more.
pub(super) fn parts(input: &[u8]) {
    let (mut rest, mut assembly, mut given) = (input, Assembly::new(Kind::Sum, 7, 1 << 16), 0);
    while let [kind, length, payload @ ..] = rest {
        let (payload, others) = payload.split_at(payload.len().min(HEAD + usize::from(*length)));
        rest = others;
        let kind = Kind::of(sparktune_ndp::frame::Codes { src: 0, dst: 0, typ: *kind });
        match Part::parse(payload) {
            Ok(part) => {
                let mut again = Vec::new();
                part.write(&mut again);
                assert_eq!(again, payload);
                match assembly.add(kind, part) {
                    Ok(is_whole) => {
                        given += part.bytes.len();
                        assert!(is_whole == (given as u64 == part.total), "{part:?}");
                        if is_whole {
                            assert_eq!(assembly.into_bytes().len(), given);
                            (assembly, given) = (Assembly::new(Kind::Sum, 7, 1 << 16), 0);
                        }
                    }
                    Err(refused) => is_a_sentence(&refused),
                }
            }
            Err(refused) => is_a_sentence(&refused),
        }
    }
    // The same bytes as a message of another rank.
    let (mut assembly, mut is_whole) = (Assembly::new(Kind::Word, 3, input.len() as u64), false);
    for part in Part::of(3, input) {
        is_whole = assembly.add(Some(Kind::Word), part).expect("our own part");
    }
    assert!(is_whole && assembly.into_bytes() == input);
}
