//! Token files from another machine, in five layers. Each layer has one module, one contract and its own
//! tests, and knows only the layers below it.
//!
//! | layer | module | adds | checks |
//! |---|---|---|---|
//! | medium | [`medium`] | bytes of a TCP connection | silence, least speed, deadline, cancelling |
//! | frame | [`frame`] | where a packet begins and ends, and its number | length, order, CRC-32C |
//! | stream | [`stream`] | a TLS channel of two that know each other; credit | key, token, credit |
//! | routing | [`routing`] | who takes a packet: SRC, DST, TYP | that somebody does |
//! | payload | [`payload`] | the packets of a token file | every packet on both sides, then the whole file |
//!
//! The channel of the stream layer is for any frames. What is sent on it here is one token file, from
//! [`serve`] to [`receive`], which spools it beside its final place and gives it its name once all of it
//! is verified. A connection that is cut loses at most the packet that was on its way.
//!
//! Enters: an [`Address`] and a [`Token`], or files to serve with a [`ServerKey`]. Leaves: the path of a
//! token file that equals the served one byte for byte. It must not know text, models or plans, and it
//! never prints.

mod address;
mod error;
pub mod frame;
pub mod medium;
mod messages;
pub mod payload;
mod receive;
pub mod routing;
mod secret;
mod serve;
mod strangers;
pub mod stream;

pub use address::Address;
pub use error::Error;
pub use medium::Patience;
pub use receive::{Received, Watch, receive};
pub use secret::{ServerKey, Token};
pub use serve::{Event, Limits, ServedFile, serve};
pub use strangers::{StrangerPlace, Strangers};
