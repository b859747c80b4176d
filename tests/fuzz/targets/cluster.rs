//! What another rank sends: the parts of messages, and packets of sums in the network, which strangers can
//! send too. What other members say, and what anybody may send on the link.

use std::net::Ipv4Addr;

use sparktune_cluster::discovery::{Beacon, LENGTH, addresses_in};
use sparktune_cluster::membership::messages::{Answer, Ask, Message};
use sparktune_cluster::nccl::preflight::{Asked, Choice, Facts, choose};
use sparktune_cluster::sentry::Summary;
use sparktune_cluster::swarm::RankCounts;
use sparktune_cluster::swarm::notice::Notice;
use sparktune_cluster::wire::{Assembly, HEAD, Kind, Part};
use sparktune_cluster::xdp::frame::{Action, Ends, FRAME, FRAME_HEAD, Route, receive, write_head};
use sparktune_cluster::xdp::slots::{Job, Slots, Verdict};
use sparktune_cluster::xdp::wire::{Header, Key, PACKET, sign};
use sparktune_cluster::{Placement, environment_of};

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

/// Frames, each after a byte that says how it was made and two with its length. Bytes that nobody signed
/// change no slot; whatever is signed changes at most one, and only a complete sum leaves.
pub(super) fn sums(input: &[u8]) {
    let route = Route { port: 13_371, reply_port: 13_372, group: Ipv4Addr::new(239, 195, 1, 2) };
    let job = Job { number: 0x6a6f, workers: 3, muted: 0, key: Key([5, 6]) };
    let (mut slots, mut rest) = (Slots::new(job), input);
    while let [how, low, high, others @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])) % (FRAME + 64);
        let (bytes, others) = others.split_at(others.len().min(length));
        rest = others;
        let mut frame = [0; FRAME];
        let ends = Ends { from: (Ipv4Addr::LOCALHOST, 9), to: (Ipv4Addr::LOCALHOST, route.port) };
        write_head(&mut frame, ends);
        let given = bytes.len().min(PACKET);
        frame[FRAME_HEAD..FRAME_HEAD + given].copy_from_slice(&bytes[..given]);
        let packet: &mut [u8; PACKET] = (&mut frame[FRAME_HEAD..]).try_into().expect("the rest of a frame");
        // A header that says what the job expects, its fields from the input; the values stay.
        if how & 1 != 0 {
            let place = u64::from(how >> 3) * 32 + u64::from(packet[8]);
            let header = Header::contribution(job.number, packet[6] % 4, job.workers, place);
            header.expect("a small number").write(packet);
        }
        if how & 2 != 0 {
            sign(job.key, packet);
        }
        let mut frame = if how & 4 != 0 { bytes.to_vec() } else { frame.to_vec() };
        let before = slots.clone();
        let (action, verdict) = receive(&mut slots, route, &mut frame);
        let changed =
            before.versions().iter().zip(slots.versions()).filter(|(one, other)| one != other).count();
        let is_added = matches!(verdict, Verdict::Added | Verdict::Completed);
        assert_eq!(changed > 0, is_added, "{verdict:?}");
        assert!(changed <= 1, "{verdict:?}");
        assert!(!is_added || how & 2 != 0 || how & 4 != 0, "nobody signed this");
        if matches!(action, Action::Back | Action::ToAll) {
            let header = Header::parse(&frame[FRAME_HEAD..FRAME]).expect("a result is a packet");
            assert_eq!(header.contributors, 0b111, "a sum that is not complete leaves");
        }
        let counted: u64 = slots.counts().0.iter().sum();
        assert_eq!(counted, before.counts().0.iter().sum::<u64>() + 1);
    }
    if let Err(fault) = Header::parse(input) {
        is_a_sentence(&fault);
    }
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

/// What a rank says about who belongs to a swarm, and the numbers of ranks that a replay is told.
pub(super) fn notices(input: &[u8]) {
    match Notice::parse(input) {
        Ok(notice) => {
            assert_eq!(Notice::parse(&notice.to_bytes()), Ok(notice.clone()));
            if let Notice::Regroup { members, lost, .. } = &notice {
                assert!(members.is_sorted() && !members.is_empty());
                assert!(lost.iter().all(|(_, why)| why.chars().count() <= 500));
            }
        }
        Err(refused) => is_a_sentence(&refused),
    }
    if let Ok(counts) = String::from_utf8_lossy(input).parse::<RankCounts>() {
        assert_eq!(counts.to_string().parse(), Ok(counts.clone()));
        for step in [0, 1, 17, u64::MAX] {
            assert_eq!(counts.of_step(step).counts(7).iter().sum::<u32>(), 7, "each is dealt once");
        }
    }
}

/// A message to an agent or from one. What is read is written again as the same, and can be shown.
pub(super) fn messages(input: &[u8]) {
    one_message::<Ask>(input);
    one_message::<Answer>(input);
}

/// Any other word of a rank, what it says of gradients that are judged, and what follows from what it says of
/// its GPU.
pub(super) fn words(input: &[u8]) {
    for (name, holds) in sparktune_cluster::words::read(input) {
        assert!(holds, "a word of the kind {name}");
    }
    if let Ok(facts) = serde_json::from_slice::<Facts>(input) {
        let (gpu, library) = (Ok("a".into()), Ok(22_903));
        let own = Facts { gpu, host: "one".into(), library, links: Vec::new() };
        for facts in [[own.clone(), facts.clone()], [facts, own]] {
            for asked in [Asked::Auto, Asked::Nccl] {
                match choose(asked, &facts) {
                    Ok(Choice::Nccl(_, notes)) => notes.iter().for_each(|note| is_a_sentence(note)),
                    Ok(Choice::Tcp(why)) | Err(why) => is_a_sentence(&why),
                }
            }
        }
    }
    let whole = input.iter().copied().cycle().take(if input.is_empty() { 0 } else { Summary::BYTES });
    let whole: Vec<u8> = whole.collect();
    if let Some(summary) = Summary::parse(&whole) {
        assert_eq!(summary.to_bytes(), whole);
    }
    assert!(Summary::parse(input).is_none() || input.len() == Summary::BYTES);
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

/// Lines `NAME=VALUE`, as torchrun, Open MPI and Slurm set them. A place that was read is what torchrun's
/// variables for it say.
pub(super) fn launchers(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let of = |lines: &[(&str, &str)], name: &str| {
        lines.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    match Placement::from_environment(|name| of(&lines, name)) {
        Err(error) => is_a_sentence(&error),
        Ok(None) => {}
        Ok(Some(read)) => {
            assert!(read.rank < read.world_size && read.local_rank < read.world_size, "{read:?}");
            let variables = environment_of(read.rank, read.world_size, &read.host, read.port);
            let lines: Vec<_> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
            let again = Placement::from_environment(|name| of(&lines, name)).expect("our own variables");
            let again = again.expect("several ranks");
            let place = |one: &Placement| (one.rank, one.world_size, one.host.clone(), one.port);
            assert_eq!(place(&again), place(&read));
        }
    }
}
