//! Opens the sockets of a rank and of the switch.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs, UdpSocket};

use socket2::SockRef;
use sparktune_base::escape::escape;

use crate::environment::Placement;
use crate::xdp::opened::Opened;
use crate::xdp::packets::KEPT;

/// The bytes that a packet takes in a socket's buffer: a page and the kernel's own data about it.
const PACKET_KEPT: usize = 4608;

/// A rank's own end.
pub(super) struct Here {
    pub(super) socket: UdpSocket,
    /// How many results may come before this rank looks.
    pub(super) window: usize,
    /// Where results are sent to this rank.
    pub(super) address: SocketAddrV4,
    /// Where it sends contributions.
    pub(super) switch: SocketAddr,
}

/// Opens the socket of the switch. A thread takes another port if another job has this one.
pub(super) fn switch_socket(port: u16, in_kernel: bool) -> Result<UdpSocket, String> {
    let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).or_else(|error| {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse && !in_kernel;
        if is_taken { UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) } else { Err(error) }
    });
    bound.map_err(|error| format!("UDP port {port} cannot be used: {error}"))
}

/// Opens the socket on which results come: from the kernel or from a thread.
pub(super) fn reach(placement: &Placement, opened: &Opened, is_first: bool) -> Result<Here, String> {
    let found =
        (placement.host.as_str(), opened.port).to_socket_addrs().map_err(|error| error.to_string())?;
    let switch = found.into_iter().find_map(|at| match at {
        SocketAddr::V4(at) => Some(at),
        SocketAddr::V6(_) => None,
    });
    let name = escape(&placement.host);
    let switch =
        switch.ok_or_else(|| format!("{name} has no IPv4 address, which sums in the network need"))?;
    let port = match opened.group {
        Some(_) if !is_first => opened.reply_port()?,
        _ => 0,
    };
    let opened_socket = || -> io::Result<(UdpSocket, Ipv4Addr)> {
        let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        probe.connect(switch)?;
        let IpAddr::V4(own) = probe.local_addr()?.ip() else { return Err(io::ErrorKind::Unsupported.into()) };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        if let (Some(group), false) = (opened.group, is_first) {
            socket.join_multicast_v4(&group, &own)?;
        }
        Ok((socket, own))
    };
    let (socket, own) = opened_socket().map_err(|error| format!("results cannot be received: {error}"))?;
    // The system may give less; then fewer chunks are on their way.
    let options = SockRef::from(&socket);
    let _ = options.set_recv_buffer_size(KEPT);
    let window = options.recv_buffer_size().map_or(1, |bytes| bytes / PACKET_KEPT);
    let port = socket.local_addr().map_err(|error| error.to_string())?.port();
    // Rank 0's own address, as the others see it, may be none of its interfaces.
    let switch = if is_first && opened.group.is_none() {
        (Ipv4Addr::LOCALHOST, opened.port).into()
    } else {
        switch.into()
    };
    Ok(Here { socket, window, address: SocketAddrV4::new(own, port), switch })
}
