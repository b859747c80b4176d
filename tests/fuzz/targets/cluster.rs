//! What another rank sends: the parts of messages. What other members say, and what anybody may send on the
//! link.

use sparktune_cluster::discovery::{Beacon, LENGTH, addresses_in};
use sparktune_cluster::membership::messages::{Answer, Ask, Message};
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

/// A datagram, as it is and with the right tag, and the kernel's list of addresses.
pub(super) fn beacons(input: &[u8]) {
    const KEY: [u8; 32] = [7; 32];
    let tagged = |bytes: &[u8]| {
        let mut whole: [u8; LENGTH] = bytes.try_into().ok()?;
        let tag = blake3::keyed_hash(&KEY, &whole[..LENGTH - 32]);
        whole[LENGTH - 32..].copy_from_slice(tag.as_bytes());
        Some(whole)
    };
    if let Some(beacon) = Beacon::parse(input, &KEY) {
        assert_eq!(beacon.to_bytes(&KEY), input);
    }
    if let Some(whole) = tagged(input)
        && let Some(beacon) = Beacon::parse(&whole, &KEY)
    {
        assert_eq!(Beacon::parse(&beacon.to_bytes(&KEY), &KEY), Some(beacon));
        assert_eq!(Beacon::parse(&whole, &[8; 32]), None, "another token");
    }
    assert!(addresses_in(&String::from_utf8_lossy(input)).len() <= input.len());
}

/// A message to an agent or from one. What is read is written again as the same, and can be shown.
pub(super) fn messages(input: &[u8]) {
    one_message::<Ask>(input);
    one_message::<Answer>(input);
}

fn one_message<T: Message + PartialEq + std::fmt::Debug>(input: &[u8]) {
    match T::parse(input) {
        Ok(message) => {
            let again = serde_json::to_vec(&message).expect("a message serialises");
            assert_eq!(T::parse(&again).expect("our own message"), message);
            let shown = format!("{message:?}");
            assert!(!shown.contains('\u{1b}') && shown.len() <= 4 * input.len() + 1000);
        }
        Err(refused) => is_a_sentence(&refused),
    }
}
