//! What the ranks say to each other when they open the way for sums: where the switch is, how they reach it,
//! and whether the first sum came. Pure, because what other ranks say is read here.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;

/// What rank 0 says of the switch that it has opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(super) nonce: [u8; 16],
    pub(super) job: u16,
    pub(super) port: u16,
    /// The group that the kernel sends results to.
    pub(super) group: Option<Ipv4Addr>,
    /// Why something else was not opened.
    pub(super) why: Option<String>,
}

impl Opened {
    /// Returns the port that the kernel sends results to: the next one after that of the switch.
    pub(crate) fn reply_port(&self) -> Result<u16, String> {
        let next = self.port.checked_add(1);
        next.ok_or_else(|| format!("results need the UDP port after {}, and there is none", self.port))
    }

    /// Returns why something else was not opened, for a terminal.
    pub(crate) fn why(&self) -> Option<String> {
        self.why.as_ref().map(|why| escape(why).into_owned())
    }
}

/// What each rank says of its way to the switch: where results for it go, or why there is no way.
pub(crate) type Place = Result<SocketAddrV4, String>;

/// What each rank says of the first sum: whether it got the sum, and whether AF_XDP was open and nothing came
/// by it.
pub(crate) type Tried = (Result<(), String>, bool);
