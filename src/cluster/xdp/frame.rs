//! Packets in Ethernet frames, as the program in the kernel sees them. Pure.
//!
//! [`receive`] is what that program does with a whole frame. It is the other half of its specification,
//! beside [`Slots`].

use std::net::Ipv4Addr;

use crate::xdp::slots::{Slots, Verdict};
use crate::xdp::wire::PACKET;

/// The bytes of the heads of Ethernet, IPv4 and UDP.
pub const FRAME_HEAD: usize = 42;
/// The bytes of a frame with a packet.
pub const FRAME: usize = FRAME_HEAD + PACKET;

/// What happens to a frame. The numbers are the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It ends here.
    Drop = 1,
    /// The network of this machine gets it, as if there was no program.
    Pass = 2,
    /// It is sent back to where it came from.
    Back = 3,
    /// It is sent to all ranks.
    ToAll = 4,
}

/// Where the packets of a job go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The port that contributions are sent to.
    pub port: u16,
    /// The port that results are sent to.
    pub reply_port: u16,
    /// The group of all ranks: a multicast address.
    pub group: Ipv4Addr,
}

/// Where a frame comes from and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The sender's address and port.
    pub from: (Ipv4Addr, u16),
    /// The receiver's.
    pub to: (Ipv4Addr, u16),
}

/// Writes the heads of a frame before its packet. The addresses of the hardware stay as they are.
pub fn write_head(frame: &mut [u8; FRAME], ends: Ends) {
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip = &mut frame[14..34];
    // Version and length, type of service, total length, identification, fragment, time to live, UDP.
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&((28 + PACKET) as u16).to_be_bytes());
    ip[4..12].copy_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip[12..16].copy_from_slice(&ends.from.0.octets());
    ip[16..20].copy_from_slice(&ends.to.0.octets());
    frame[34..36].copy_from_slice(&ends.from.1.to_be_bytes());
    frame[36..38].copy_from_slice(&ends.to.1.to_be_bytes());
    frame[38..40].copy_from_slice(&((8 + PACKET) as u16).to_be_bytes());
    frame[40..42].fill(0);
    write_checksum(&mut frame[14..34]);
}

/// Deals with a frame, which becomes the frame of the result if there is one.
pub fn receive(slots: &mut Slots, route: Route, frame: &mut [u8]) -> (Action, Verdict) {
    let Some(packet) = packet_of(route.port, frame) else { return (Action::Pass, slots.pass()) };
    let verdict = match packet {
        Some(packet) => slots.receive(packet),
        // Whatever it is, it is no packet.
        None => slots.receive(&mut []),
    };
    let action = match verdict {
        Verdict::Completed => Action::ToAll,
        Verdict::Resent => Action::Back,
        _ => return (Action::Drop, verdict),
    };
    let [sender, receiver] = [26, 30].map(|at| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let from_port = [frame[34], frame[35]];
    let (hardware_of_receiver, hardware_of_sender) = frame.split_at_mut(6);
    hardware_of_receiver.swap_with_slice(&mut hardware_of_sender[..6]);
    let (to, to_port) = if verdict == Verdict::Resent {
        (sender, from_port)
    } else {
        let group = route.group.octets();
        frame[..6].copy_from_slice(&[0x01, 0x00, 0x5e, group[1] & 0x7f, group[2], group[3]]);
        (group, route.reply_port.to_be_bytes())
    };
    frame[26..30].copy_from_slice(&receiver);
    frame[30..34].copy_from_slice(&to);
    frame[34..36].copy_from_slice(&route.port.to_be_bytes());
    frame[36..38].copy_from_slice(&to_port);
    frame[40..42].fill(0);
    write_checksum(&mut frame[14..34]);
    (action, verdict)
}

/// Returns what a frame carries to this port: a packet, or something of another size. A frame that is not for
/// this port gives `None`.
fn packet_of(port: u16, frame: &mut [u8]) -> Option<Option<&mut [u8]>> {
    let head: &[u8; FRAME_HEAD] = frame.first_chunk()?;
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    // A fragment, or the first of several.
    let is_part = number(20) & 0x3fff != 0;
    if number(12) != 0x0800 || head[14] != 0x45 || is_part || head[23] != 17 || number(36) != port {
        return None;
    }
    let is_fitting = usize::from(number(16)) == 28 + PACKET && usize::from(number(38)) == 8 + PACKET;
    Some(if is_fitting { frame.get_mut(FRAME_HEAD..FRAME) } else { None })
}

fn write_checksum(head: &mut [u8]) {
    head[10..12].fill(0);
    let sum: u32 = head.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    // The carries are added, so it has 16 bits.
    head[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
