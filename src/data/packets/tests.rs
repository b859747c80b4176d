//! Tests of packets: golden bytes, round trips, flipped bits, and parts that do not belong together.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use safetensors::tensor::{Dtype as TheirDtype, SafeTensors, TensorView, serialize_to_file};

use super::anatomy::inspect;
use super::assembly::Assembly;
use super::codes::{self, CodeField, Route};
use super::contents::contents_of;
use super::dtype::Dtype;
use super::file::{About, PacketFile, PacketFileWriter};
use super::format::Format;
use super::lab::{Content, Version, encode, every_flip, flip, overhead};
use super::state::{NamedTensor, TensorOptions, pack_tensors, state_id, unpack_tensors, write_tensors};
use super::typed::{PacketFault, StateId, TensorPart, TypedHeader, TypedPacket, packet_len};
use crate::token_file::{
    Exchange, OnDamage, PackFileOptions, TokenFile, TokenFileWriter, pack_file, rebuild, unpack, v1, verify,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tensor(name: &str, shape: &[u64], part: u32, of: u32) -> TensorPart {
    let state = StateId { hash: 7, tensors: 1 };
    TensorPart { name: name.into(), dtype: Dtype::F16, shape: shape.into(), part, of, state }
}

fn header(tensor: TensorPart) -> TypedHeader {
    let route = Route { src: codes::WEIGHTS, dst: codes::LORA };
    TypedHeader { route, typ: tensor.dtype.typ(), number: 0, tensor: Some(tensor) }
}

#[test]
fn packets_of_both_versions_are_these_bytes() {
    let ids = Content::Ids(vec![1, 248_319]);
    let route = Route { src: codes::CODE, dst: 42 };
    let one = encode(Version::V1, route, None, &ids).unwrap();
    assert_eq!(hex(&one), "aa022a010008000000010003c9ff37dd");
    let two = encode(Version::V2, route, None, &ids).unwrap();
    assert_eq!(two.len(), 128);
    let start = concat!(
        "51504b5402000000000000000000000000000000000000000000000001000000",
        "0ecadd4f000000000000000001022a000000000000000000000000006dea3b5f",
        "01000000ffc9030002",
    );
    assert_eq!(hex(&two[..73]), start);
    assert!(two[73..].iter().all(|byte| *byte == 0));
    let typed = encode(Version::V2, route, Some(9), &Content::Bytes(b"hello".to_vec())).unwrap();
    let start = concat!(
        "5154504b022a0900000000000000000005000000000000000000000001000000",
        "0000000000000000000000000000000000000000000000007922d7fcf3bf971e",
        "68656c6c6f00",
    );
    assert_eq!(hex(&typed[..70]), start);
    assert_eq!(typed.len(), 128);
}

#[test]
fn what_a_packet_takes_is_what_the_encoder_writes() {
    for tokens in [1, 2, 15, 16, 17, 100, 16_383, 16_384] {
        let ids = Content::Ids(vec![5; tokens as usize]);
        let of = overhead(tokens);
        let len =
            |version| encode(version, Route::default(), None, &ids).ok().map(|bytes| bytes.len() as u64);
        assert_eq!(len(Version::V1), of.v1_bytes, "{tokens}");
        assert_eq!(len(Version::V2), Some(of.v2_token_bytes), "{tokens}");
        let bytes = Content::Bytes(vec![0; 4 * tokens as usize]);
        let typed = encode(Version::V2, Route::default(), None, &bytes).unwrap();
        assert_eq!(Some(typed.len() as u64), of.v2_typed_bytes);
    }
}

#[test]
fn every_single_flipped_bit_is_noticed_in_both_versions() {
    let contents = [
        Content::Ids(vec![3, 1, 2, 70_000]),
        Content::Bytes(b"<b>\x1b[31m".to_vec()),
        Content::Tensor {
            name: "a.lora_A.weight".into(),
            dtype: Dtype::BF16,
            shape: vec![2, 3],
            bytes: vec![1; 12],
        },
    ];
    for content in &contents {
        for version in [Version::V1, Version::V2] {
            let packet = encode(version, Route::default(), None, content).unwrap();
            let whole = inspect(&packet);
            assert!(whole.is_intact, "{whole:#?}");
            let found = every_flip(&packet);
            assert_eq!((found.noticed, found.missed), (found.bits, Vec::new()));
            for bit in 0..found.bits {
                let mut damaged = packet.clone();
                flip(&mut damaged, bit).unwrap();
                assert_eq!(Format::of(&damaged), whole.format, "bit {bit}");
                assert!(!inspect(&damaged).is_intact, "bit {bit}");
            }
        }
    }
    assert!(flip(&mut [0; 4], 32).unwrap_err().to_string().contains("there is no bit 32"));
}

#[test]
fn the_fields_of_a_packet_cover_it_without_gaps_and_name_unknown_codes() {
    let packet =
        encode(Version::V1, Route { src: 9, dst: 5 }, Some(0x77), &Content::Bytes(vec![7; 3])).unwrap();
    let anatomy = inspect(&packet);
    let values: Vec<_> = anatomy.fields.iter().map(|field| (field.name, field.value.as_str())).collect();
    assert_eq!(
        values[1..5],
        [("SRC", "unknown (9)"), ("DST", "LoRA (5)"), ("TYP", "unknown (119)"), ("LEN", "3")]
    );
    let ids = encode(Version::V2, Route::default(), None, &Content::Ids(vec![1, 2])).unwrap();
    let cut = inspect(&packet[..7]);
    for anatomy in [anatomy, inspect(&ids), cut] {
        let mut at = 0;
        for field in &anatomy.fields {
            assert_eq!(field.offset, at, "{field:?}");
            at += field.len;
        }
        assert_eq!(at, anatomy.bytes);
    }
}

/// Some bytes of any TYP, and packets of token ids with any codes.
fn any_v1_ids() -> impl Strategy<Value = Vec<(u8, u8, Vec<u32>)>> {
    let ids = proptest::collection::vec(0..=i32::MAX as u32, 1..20);
    proptest::collection::vec((any::<u8>(), any::<u8>(), ids), 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn v1_to_v2_to_v1_keeps_every_byte(packets in any_v1_ids(), as_lines in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut bytes = Vec::new();
        for (src, dst, ids) in &packets {
            v1::encode(ids, Route { src: *src, dst: *dst }, &mut bytes).unwrap();
        }
        fs::write(at("one"), &bytes).unwrap();
        pack_file(&at("one"), &at("two"), &PackFileOptions::default()).unwrap();
        prop_assert!(verify(&at("two")).unwrap().is_sound());
        if as_lines {
            unpack(&at("two"), &at("lines"), Exchange::JsonLines, OnDamage::Stop).unwrap();
            pack_file(&at("lines"), &at("two"), &PackFileOptions::default()).unwrap();
        }
        rebuild(&at("two"), &at("three")).unwrap();
        let file = TokenFile::open(&at("three")).unwrap();
        let routes: Vec<_> = (0..file.len()).map(|i| file.route(i).map(|r| (r.src, r.dst))).collect();
        let expected: Vec<_> = packets.iter().map(|(src, dst, _)| Some((*src, *dst))).collect();
        prop_assert_eq!(routes, expected);
        unpack(&at("three"), &at("back"), Exchange::V1, OnDamage::Stop).unwrap();
        prop_assert_eq!(fs::read(at("back")).unwrap(), bytes);
    }

    #[test]
    fn typed_packets_are_read_as_they_were_written(
        codes in any::<[u8; 2]>(),
        number in any::<u64>(),
        name in "\\PC{1,40}",
        shape in proptest::collection::vec(0u64..6, 0..5),
        dtype in 1u8..16,
        typ in prop_oneof![Just(None), (0x90u8..).prop_map(Some)],
        hash in any::<u64>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        before in 0usize..3,
    ) {
        let dtype = Dtype::of_code(dtype).unwrap();
        let total = dtype.bytes_of(&shape).unwrap();
        let payload: Vec<u8> = bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { total as usize }).collect();
        let state = StateId { hash, tensors: 3 };
        let part = TensorPart { name, dtype, shape, part: 0, of: 1, state };
        let route = Route { src: codes[0], dst: codes[1] };
        let header = TypedHeader { route, typ: typ.unwrap_or(dtype.typ()), number, tensor: Some(part) };
        let mut out = vec![0; 64 * before];
        let encoded = header.encode(&payload, &mut out);
        if payload.len() as u64 != total {
            prop_assert!(encoded.is_err());
            return Ok(());
        }
        encoded.unwrap();
        let packet = &out[64 * before..];
        prop_assert_eq!(packet_len(&packet[..64]), Ok(packet.len()));
        let (read, len) = TypedPacket::decode(packet).unwrap();
        prop_assert_eq!((&read.header, read.payload, len), (&header, &payload[..], packet.len()));
        prop_assert!(inspect(packet).is_intact);
        for short in [0, 3, 63, 64, packet.len() - 1] {
            let is_short = matches!(TypedPacket::decode(&packet[..short]), Err(PacketFault::Short { .. }));
            prop_assert!(is_short, "{} bytes", short);
        }
    }

    #[test]
    fn nothing_that_is_taken_apart_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic in 0usize..4) {
        let magic: &[u8] = [&b""[..], &[0xAA], b"QPKT", b"QTPK"][magic];
        let bytes = [magic, &bytes].concat();
        let anatomy = inspect(&bytes);
        prop_assert_eq!(anatomy.fields.iter().map(|field| field.len).sum::<usize>(), bytes.len());
        drop(TypedPacket::decode(&bytes));
    }
}

/// A state with a dtype of each kind, an empty tensor, and one of many parts.
fn adapter(path: &Path) -> Vec<(String, TheirDtype, Vec<usize>, Vec<u8>)> {
    let made = |len: usize| (0..len).map(|at| (at * 31 % 251) as u8).collect::<Vec<u8>>();
    let prefix = "base_model.model.model.layers.3.self_attn.q_proj";
    let tensors = vec![
        (format!("{prefix}.lora_A.weight"), TheirDtype::F32, vec![16, 30], made(16 * 30 * 4)),
        (format!("{prefix}.lora_B.weight"), TheirDtype::F32, vec![30, 16], made(16 * 30 * 4)),
        ("model.layers.0.mlp.up_proj.weight".into(), TheirDtype::BF16, vec![7, 9], made(126)),
        ("model.embed_tokens.weight".into(), TheirDtype::F16, vec![100, 9], made(1800)),
        ("empty".into(), TheirDtype::I64, vec![0, 4], Vec::new()),
        ("scalar\u{1b}[31m<b>".into(), TheirDtype::F64, vec![], made(8)),
        ("mask".into(), TheirDtype::BOOL, vec![3], vec![1, 0, 1]),
    ];
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    serialize_to_file(views, Some(metadata), path).unwrap();
    tensors
}

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the adapter as packets with parts of this size.
    fn packed(&self, part_bytes: u64) -> PathBuf {
        adapter(&self.at("adapter.safetensors"));
        let options = TensorOptions { part_bytes, ..TensorOptions::default() };
        pack_tensors(&self.at("adapter.safetensors"), &self.at("weights.qubgpu"), &options).unwrap();
        self.at("weights.qubgpu")
    }

    /// Writes the packets of a file again, after `change`.
    fn rewritten(&self, file: &Path, change: impl FnOnce(&mut Vec<(TypedHeader, Vec<u8>)>)) -> PathBuf {
        let file = PacketFile::open(file, OnDamage::Stop).unwrap();
        let mut packets: Vec<_> = file.packets().map(|p| (p.header, p.payload.to_vec())).collect();
        change(&mut packets);
        let mut writer = PacketFileWriter::create(&self.at("changed.qubgpu"), file.about()).unwrap();
        packets.iter().for_each(|(header, payload)| writer.push(header, payload).unwrap());
        writer.finish().unwrap();
        self.at("changed.qubgpu")
    }

    fn refusal(&self, file: &Path) -> String {
        let error =
            unpack_tensors(file, &self.at("out.safetensors"), OnDamage::Stop).unwrap_err().to_string();
        assert!(!self.at("out.safetensors").exists());
        assert!(!error.chars().any(char::is_control), "{error}");
        error
    }
}

#[test]
fn every_tensor_of_an_adapter_comes_back_bit_for_bit() {
    let scene = Scene::new();
    for part_bytes in [64, 500, 1 << 20] {
        let file = scene.packed(part_bytes);
        let expected = adapter(&scene.at("adapter.safetensors"));
        let done = unpack_tensors(&file, &scene.at("back.safetensors"), OnDamage::Stop).unwrap();
        assert_eq!((done.tensors, done.damaged, done.other_packets), (7, 0, 0));
        let bytes = fs::read(scene.at("back.safetensors")).unwrap();
        let back = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(back.len(), expected.len());
        for (name, dtype, shape, bytes) in &expected {
            let view = back.tensor(name).unwrap();
            assert_eq!((view.dtype(), view.shape(), view.data()), (*dtype, &shape[..], &bytes[..]), "{name}");
        }
        assert_eq!(bytes, fs::read(scene.at("adapter.safetensors")).unwrap(), "even the files are the same");
    }
}

#[test]
fn parts_that_are_missing_double_or_foreign_are_refused_in_words() {
    let scene = Scene::new();
    let file = scene.packed(500);
    let place = |packets: &[(TypedHeader, Vec<u8>)], part| {
        let is = |(header, _): &(TypedHeader, Vec<u8>)| {
            header.tensor.as_ref().is_some_and(|t| t.part == part && t.name.ends_with("q_proj.lora_A.weight"))
        };
        packets.iter().position(is).unwrap()
    };
    let missing = scene.rewritten(&file, |packets| {
        let gone = place(packets, 2);
        packets.remove(gone);
    });
    let error = scene.refusal(&missing);
    assert!(error.contains("lora_A.weight is incomplete: part 3 of 4 is missing, 3 are there"), "{error}");
    assert!(contents_of(&missing).unwrap().incomplete.unwrap().contains("part 3 of 4 is missing"));
    let double = scene.rewritten(&file, |packets| {
        let again = packets[place(packets, 1)].clone();
        packets.push(again);
    });
    assert!(scene.refusal(&double).contains("part 2 of 4 of base_model"), "{}", scene.refusal(&double));
    assert!(scene.refusal(&double).contains("comes twice"));
    let foreign = scene.rewritten(&file, |packets| {
        let at = place(packets, 1);
        if let Some(tensor) = &mut packets[at].0.tensor {
            tensor.state.hash ^= 1;
        }
    });
    assert!(scene.refusal(&foreign).contains("is foreign: it belongs to the tensors"));
    let other_shape = scene.rewritten(&file, |packets| {
        let at = place(packets, 3);
        if let Some(tensor) = &mut packets[at].0.tensor {
            tensor.shape.reverse();
        }
    });
    assert!(scene.refusal(&other_shape).contains("is foreign: it is F32 [30, 16], and an earlier part says"));
    let no_tensor =
        scene.rewritten(&file, |packets| packets.retain(|(h, _)| h.tensor.as_ref().unwrap().of > 1));
    assert!(scene.refusal(&no_tensor).contains("7 tensors belong together, and 3 are there"));
    let other_bytes = scene.rewritten(&file, |packets| {
        let at = place(packets, 0);
        packets[at].1[5] ^= 1;
    });
    let error = scene.refusal(&other_bytes);
    assert!(error.contains("not those that were written together"), "{error}");
}

#[test]
fn a_damaged_file_of_weights_stops_or_is_counted_and_never_passes() {
    let scene = Scene::new();
    let file = scene.packed(700);
    let sound = fs::read(&file).unwrap();
    let packets = PacketFile::open(&file, OnDamage::Stop).unwrap().len();
    // Every byte of a file of this size takes too long; this covers each kind of place.
    for at in (0..400).chain((400..sound.len()).step_by(61)).chain(sound.len() - 200..sound.len()) {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(scene.at("damaged"), &bytes).unwrap();
        let error = PacketFile::open(&scene.at("damaged"), OnDamage::Stop).unwrap_err().to_string();
        assert!(!error.is_empty(), "byte {at}");
        if let Ok(kept) = PacketFile::open(&scene.at("damaged"), OnDamage::Skip) {
            assert!(kept.defect_count() > 0 && kept.len() + 1 >= packets, "byte {at}: {:?}", kept.defects());
        }
    }
    for len in [0, 7, 24, 64, 200, sound.len() / 2, sound.len() - 64, sound.len() - 1] {
        fs::write(scene.at("cut"), &sound[..len]).unwrap();
        PacketFile::open(&scene.at("cut"), OnDamage::Stop).unwrap_err();
    }
}

#[test]
fn limits_are_refused_in_words_and_nothing_is_written() {
    let mut out = Vec::new();
    let mut refused = |header: &TypedHeader, bytes: usize| {
        let error = header.encode(&vec![0; bytes], &mut out).unwrap_err().to_string();
        assert!(out.is_empty());
        error
    };
    let long = header(tensor(&"x".repeat(1025), &[1], 0, 1));
    assert!(refused(&long, 2).contains("a name of 1025 bytes"));
    assert!(refused(&header(tensor("x", &[1; 9], 0, 1)), 2).contains("9 dimensions"));
    assert!(refused(&header(tensor("x", &[1], 1, 1)), 2).contains("part 2 of 1 of x cannot be"));
    assert!(refused(&header(tensor("x", &[2], 0, 1)), 2).contains("has 4 bytes, but this part has 2"));
    assert!(refused(&header(tensor("x", &[u64::MAX, 9], 0, 1)), 2).contains("too large"));
    assert!(refused(&header(tensor("", &[1], 0, 1)), 2).contains("no name"));
    let bytes = TypedHeader { route: Route::default(), typ: codes::BYTES, number: 0, tensor: None };
    assert!(refused(&bytes, (16 << 20) + 1).contains("a packet holds 16"));
    let ids = TypedHeader { typ: codes::TOKEN_IDS, ..bytes };
    assert!(refused(&ids, 5).contains("not a whole number"));
    let too_long = Content::Bytes(vec![0; 65_536]);
    let error = encode(Version::V1, Route::default(), None, &too_long).unwrap_err().to_string();
    assert!(error.contains("65536 bytes do not fit a packet of version 1"), "{error}");
}

#[test]
fn a_file_lists_what_it_carries_and_where_it_would_go() {
    let scene = Scene::new();
    let shown = contents_of(&scene.packed(1 << 20)).unwrap();
    assert_eq!((shown.packets, shown.tensors.len(), shown.damaged, &shown.incomplete), (7, 7, 0, &None));
    let factor = &shown.tensors[0];
    assert_eq!((factor.to.as_str(), factor.layer, factor.of), ("LoRA (5)", Some(3), 1));
    assert_eq!(factor.module, "model.layers.3.self_attn.q_proj");
    assert_eq!(shown.metadata["format"], "pt");
    let mut bytes = Vec::new();
    v1::encode(&[1, 2], Route { src: 2, dst: 200 }, &mut bytes).unwrap();
    v1::encode_bytes(Route::default(), 3, &[0; 6], &mut bytes).unwrap();
    v1::encode_bytes(Route::default(), 99, b"?", &mut bytes).unwrap();
    fs::write(scene.at("v1"), &bytes).unwrap();
    let shown = contents_of(&scene.at("v1")).unwrap();
    let rows: Vec<_> =
        shown.routes.iter().map(|r| (&*r.from, &*r.to, &*r.encoding, r.payload_bytes)).collect();
    assert_eq!(
        rows,
        [
            ("text corpus (1)", "embedding (1)", "float16 (3)", 6),
            ("text corpus (1)", "embedding (1)", "unknown (99)", 1),
            ("code (2)", "unknown (200)", "token ids (1)", 8),
        ]
    );
    let mut writer = TokenFileWriter::create(&scene.at("v2"), crate::token_file::Header::default()).unwrap();
    writer.push(&[1, 2], &[false, true], Default::default()).unwrap();
    writer.finish().unwrap();
    assert_eq!(contents_of(&scene.at("v2")).unwrap().routes[0].to, "not given");
    fs::write(scene.at("text"), "no packets").unwrap();
    assert!(contents_of(&scene.at("text")).unwrap_err().to_string().contains("no packet of any format"));
}

#[test]
fn a_state_is_known_by_its_tensors_in_any_order() {
    let bytes = [1, 2, 3, 4];
    let a = NamedTensor { name: "a", dtype: Dtype::of_code(2).unwrap(), shape: &[4], bytes: &bytes };
    let b = NamedTensor { name: "b", dtype: Dtype::F32, shape: &[1], bytes: &bytes };
    let of = |tensors: &[NamedTensor<'_>]| state_id(tensors.iter().copied()).unwrap();
    assert_eq!(of(&[a, b]), of(&[b, a]));
    assert_ne!(of(&[a, b]), of(&[a]));
    assert_ne!(of(&[a]), of(&[NamedTensor { shape: &[2, 2], ..a }]));
    let scene = Scene::new();
    let done = write_tensors(&[a, b], &About::default(), &scene.at("x"), &TensorOptions::default()).unwrap();
    assert_eq!((done.tensors, done.packets, done.tensor_bytes), (2, 2, 8));
}

#[test]
fn parts_of_a_stream_may_come_in_any_order() {
    let mut assembly = Assembly::default();
    for part in [2, 0, 1] {
        assembly.add(&tensor("x", &[3], part, 3), 2, part).unwrap();
    }
    let whole = assembly.finish().unwrap();
    assert_eq!((whole.len(), &whole[0].parts), (1, &vec![0, 1, 2]));
    let mut short = Assembly::default();
    short.add(&tensor("x", &[3], 0, 1), 4, ()).unwrap();
    assert!(short.finish().unwrap_err().to_string().contains("have 4 bytes, and its shape needs 6"));
    assert_eq!(CodeField::Typ.describe(Dtype::F32.typ()), "tensor (128)");
}
