//! Stands in for AF_XDP on systems other than Linux, and in builds without it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use sparktune_base::pages::Part;

use crate::xdp::kernel::Refusal;
use crate::xdp::wire::PACKET;

/// Sockets that do not exist.
pub(crate) struct AfXdp(Infallible);

impl AfXdp {
    pub(crate) fn open(
        _: &str,
        _: SocketAddrV4,
        _: Option<Ipv4Addr>,
        _: &Arc<Part>,
    ) -> Result<Self, Refusal> {
        Err(Refusal)
    }

    pub(crate) fn room(_: &str, _: usize) -> Result<usize, Refusal> {
        Err(Refusal)
    }

    pub(crate) fn take(&mut self) -> Option<usize> {
        match self.0 {}
    }

    pub(crate) fn packet(&self, _: usize) -> &[u8; PACKET] {
        match self.0 {}
    }

    pub(crate) fn has_spare(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn keep(&mut self) {
        match self.0 {}
    }

    pub(crate) fn release(&mut self) {
        match self.0 {}
    }

    pub(crate) fn start(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn delivered(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn queues(&self) -> usize {
        match self.0 {}
    }
}
