//! Typed packets, files of them, and single packets of any format.

use sparktune_data::packets::PacketError;
use sparktune_data::packets::anatomy::inspect;
use sparktune_data::packets::contents::contents_of;
use sparktune_data::packets::file::{PacketFile, PacketFileWriter};
use sparktune_data::packets::lab::{from_hex, to_hex};
use sparktune_data::packets::names::place_of;
use sparktune_data::packets::state::unpack_tensors;
use sparktune_data::packets::typed::TypedPacket;
use sparktune_data::token_file::OnDamage;

use super::{empty_folder, is_a_sentence, parts};

/// The first part is a file; the second is a packet, as bytes or as hex digits. Bytes that are a packet are
/// what our encoder writes for it, and what a file carries can be written and read again.
pub(super) fn packets(input: &[u8]) {
    let [file, packet] = parts(input);
    let given = std::str::from_utf8(packet).ok().and_then(from_hex);
    for bytes in [file, packet, given.as_deref().unwrap_or_default()] {
        one(bytes);
    }
    let folder = empty_folder("packets");
    let (path, again) = (folder.join("a.qubgpu"), folder.join("b.qubgpu"));
    std::fs::write(&path, file).expect("the file can be written");
    said(contents_of(&path));
    said(unpack_tensors(&path, &folder.join("a.safetensors"), OnDamage::Skip));
    said(PacketFile::open(&path, OnDamage::Stop));
    let Ok(read) = PacketFile::open(&path, OnDamage::Skip) else { return };
    let mut writer = PacketFileWriter::create(&again, read.about()).expect("what was read can be written");
    for packet in read.packets() {
        writer.push(&packet.header, packet.payload).expect("what was read can be written");
        if let Some(tensor) = &packet.header.tensor {
            assert!(place_of(&tensor.name).module.len() <= tensor.name.len());
        }
    }
    writer.finish().expect("the file can be written");
    let written = PacketFile::open(&again, OnDamage::Stop).expect("our own file is sound");
    assert_eq!(written.len(), read.len());
    for (one, other) in read.packets().zip(written.packets()) {
        assert_eq!(
            (one.header.route, one.header.tensor, one.payload),
            (other.header.route, other.header.tensor, other.payload)
        );
    }
}

fn one(bytes: &[u8]) {
    let anatomy = inspect(bytes);
    assert_eq!(anatomy.fields.iter().map(|field| field.len).sum::<usize>(), bytes.len());
    for text in anatomy.fields.iter().map(|field| &field.value) {
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    anatomy.checks.iter().for_each(|check| is_a_sentence(&check.says));
    assert_eq!(from_hex(&to_hex(bytes)).unwrap_or_default(), bytes);
    match TypedPacket::decode(bytes) {
        Ok((packet, len)) => {
            let mut again = Vec::new();
            packet.header.encode(packet.payload, &mut again).expect("what was read can be written");
            assert_eq!(again, bytes[..len], "there is one encoding of a packet");
            assert!(anatomy.is_intact);
        }
        Err(fault) => is_a_sentence(&fault),
    }
}

fn said<T>(result: Result<T, PacketError>) {
    if let Err(error) = result {
        is_a_sentence(&error);
    }
}
