//! The third layer: a channel between two sides that know each other.
//!
//! Contract: after [`Channel::connect`] or [`Gate::admit`], every frame comes from the holder of the
//! private key of the address on one side, and from a holder of the token on the other; nobody else can
//! read, change, repeat or leave out one. The sender is never further ahead than [`WINDOW`] bytes, and one
//! frame, of what the receiver has dealt with. What a frame means is not known here.
//!
//! The token itself is never sent. The client sends a keyed hash of bytes that only the two ends of this
//! connection can compute (RFC 8446, section 7.5), so not even a server that was trusted by mistake learns
//! it.

mod tls;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, StreamOwned};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::tls::wrong_key;
use crate::address::{Address, from_hex};
use crate::error::Error;
use crate::frame::{self, CONTROL, Codes, Frame, FrameFault};
use crate::medium::{Cancelled, Medium, MediumFault, Patience};
use crate::secret::{ServerKey, Token};

/// The bytes that a sender may be ahead.
pub const WINDOW: u64 = 4 << 20;
/// The largest payload of a message of the channel.
pub const MOST_CONTROL: usize = 64 << 10;
/// The largest payload of any other frame: an example of sixteen million tokens.
pub const MOST_PAYLOAD: usize = 80 << 20;
/// Frames are gathered up to this size before they are encrypted.
const GATHERED: usize = 64 << 10;

/// A channel whose both ends know each other.
pub struct Channel<'a> {
    link: Box<dyn Link + 'a>,
    /// Frames that were not sent yet.
    gathered: Vec<u8>,
    /// The other side, for messages.
    place: String,
    sent: u64,
    received: u64,
    /// The bytes that may be sent.
    credit: u64,
    /// The bytes that were dealt with since credit was given.
    dealt_with: u64,
}

trait Link: Read + Write + Send {}

impl<T: Read + Write + Send> Link for T {}

/// The first message of a client.
#[derive(Debug, Serialize, Deserialize)]
struct Knock {
    proof: String,
}

/// The answer of a server.
#[derive(Debug, Serialize, Deserialize)]
struct Admission {
    admitted: bool,
}

/// What a receiver says while packets flow.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// It has dealt with this many more bytes.
    Credit(u64),
    /// It has everything.
    Farewell,
}

/// The server's side of new channels.
pub struct Gate {
    config: Arc<ServerConfig>,
    token: Token,
}

impl Gate {
    /// Creates the gate of a server with this key and token.
    pub fn new(key: &ServerKey, token: &Token) -> Self {
        Self { config: tls::server_config(key), token: token.clone() }
    }

    /// Admits a client that knows the token.
    ///
    /// # Errors
    /// It does not, or does not say so in time.
    pub fn admit<'a>(
        &self,
        stream: TcpStream,
        patience: Patience,
        cancelled: Cancelled<'a>,
    ) -> Result<Channel<'a>, Error> {
        let place = stream.peer_addr().map_or_else(|_| "a client".into(), |address| address.ip().to_string());
        let failed = |error: io::Error| fault(&place, error);
        let refused = |why: rustls::Error| Error::Tls { place: place.clone(), why: why.to_string() };
        let mut medium = Medium::new(stream, patience, cancelled).map_err(failed)?;
        let mut tls = tls::server(&self.config).map_err(refused)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut medium).map_err(failed)?;
        }
        let binding = tls.export_keying_material([0; 32], tls::BINDING, None).map_err(refused)?;
        let mut stream = StreamOwned::new(tls, medium);
        let knock: Knock = {
            let frame = frame::read(&mut stream, 0, MOST_CONTROL).map_err(|error| fault(&place, error))?;
            message(&place, &frame)?
        };
        // Two hashes are compared in constant time.
        let is_right = from_hex(&knock.proof)
            .is_some_and(|proof| blake3::Hash::from_bytes(proof) == self.token.proof(&binding));
        stream.sock.trust();
        let mut channel = Channel::new(stream, place.clone());
        channel.received = 1;
        channel.tell(&Admission { admitted: is_right })?;
        if is_right { Ok(channel) } else { Err(Error::Refused { place }) }
    }
}

impl<'a> Channel<'a> {
    /// Connects to the server of an address.
    ///
    /// # Errors
    /// Nobody answers, another server does, or it refuses the token.
    pub fn connect(
        address: &Address,
        token: &Token,
        patience: Patience,
        cancelled: Cancelled<'a>,
    ) -> Result<Self, Error> {
        let place = address.short();
        let failed = |error: io::Error| fault(&place, error);
        let mut medium =
            Medium::connect(&address.host, address.port, patience, cancelled).map_err(|error| {
                if error.get_ref().is_some_and(|inner| inner.is::<MediumFault>()) {
                    return failed(error);
                }
                Error::Unreachable { place: place.clone(), source: error }
            })?;
        let refused = |why: rustls::Error| Error::Tls { place: place.clone(), why: why.to_string() };
        let mut tls = tls::client(address.key).map_err(refused)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut medium).map_err(failed)?;
        }
        // The server is the one that was wanted; from here on the other limits hold.
        medium.trust();
        let binding = tls.export_keying_material([0; 32], tls::BINDING, None).map_err(refused)?;
        let mut channel = Self::new(StreamOwned::new(tls, medium), place.clone());
        channel.tell(&Knock { proof: token.proof(&binding).to_hex().to_string() })?;
        let Admission { admitted } = channel.hear()?;
        if admitted { Ok(channel) } else { Err(Error::Refused { place }) }
    }

    fn new(link: impl Read + Write + Send + 'a, place: String) -> Self {
        Self {
            link: Box::new(link),
            gathered: Vec::with_capacity(GATHERED),
            place,
            sent: 0,
            received: 0,
            credit: WINDOW,
            dealt_with: 0,
        }
    }

    /// Returns the other side, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Sends a message of the channel at once.
    ///
    /// # Errors
    /// The connection failed.
    pub fn tell(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let payload = serde_json::to_vec(message).expect("messages always serialise");
        self.write(CONTROL, &payload)?;
        self.flush()
    }

    /// Receives a message of the channel.
    ///
    /// # Errors
    /// The connection failed, or something else arrives.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let frame = self.receive(MOST_CONTROL)?;
        message(&self.place, &frame)
    }

    /// Receives the bytes of a message of the channel, and takes the credit for packets that came before it.
    /// For sides that send packets and then go on talking.
    ///
    /// # Errors
    /// The connection failed, or something else arrives.
    pub fn hear_bytes(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            let frame = self.receive(MOST_CONTROL)?;
            if frame.codes != CONTROL {
                let place = self.place.clone();
                return Err(Error::Protocol { place, what: "a packet arrived where a message was due" });
            }
            match serde_json::from_slice(&frame.payload) {
                Ok(Word::Credit(credit)) => self.credit = self.credit.saturating_add(credit).min(WINDOW),
                _ => return Ok(frame.payload),
            }
        }
    }

    /// Sends a packet, after waiting until the receiver has room for it. It may stay in a buffer until
    /// [`Channel::flush`].
    ///
    /// # Errors
    /// The connection failed.
    pub fn send(&mut self, codes: Codes, payload: &[u8]) -> Result<(), Error> {
        while self.credit == 0 {
            self.flush()?;
            let Word::Credit(credit) = self.hear()? else {
                let place = self.place.clone();
                return Err(Error::Protocol { place, what: "a farewell came before everything was sent" });
            };
            self.credit = self.credit.saturating_add(credit).min(WINDOW);
        }
        self.credit = self.credit.saturating_sub(size(payload));
        self.write(codes, payload)
    }

    /// Sends what is in the buffer.
    ///
    /// # Errors
    /// The connection failed.
    pub fn flush(&mut self) -> Result<(), Error> {
        let sent = self.link.write_all(&self.gathered).and_then(|()| self.link.flush());
        self.gathered.clear();
        sent.map_err(|error| fault(&self.place, error))
    }

    /// Receives a frame with at most `most` bytes of payload.
    ///
    /// # Errors
    /// The connection failed or ended, or the frame is not the next one.
    pub fn receive(&mut self, most: usize) -> Result<Frame, Error> {
        let frame = frame::read(&mut self.link, self.received, most);
        let frame = frame.map_err(|error| fault(&self.place, error))?;
        self.received += 1;
        Ok(frame)
    }

    /// Says that a packet was dealt with, which makes room for others.
    ///
    /// # Errors
    /// The connection failed.
    pub fn deal_with(&mut self, frame: &Frame) -> Result<(), Error> {
        self.dealt_with += size(&frame.payload);
        if self.dealt_with < WINDOW / 2 {
            return Ok(());
        }
        let credit = std::mem::take(&mut self.dealt_with);
        self.tell(&Word::Credit(credit))
    }

    /// Says that everything has arrived.
    ///
    /// # Errors
    /// The connection failed.
    pub fn bid_farewell(mut self) -> Result<(), Error> {
        self.tell(&Word::Farewell)
    }

    /// Waits until the other side says that everything has arrived.
    ///
    /// # Errors
    /// It does not, or the connection fails.
    pub fn wait_for_farewell(&mut self) -> Result<(), Error> {
        loop {
            if let Word::Farewell = self.hear()? {
                return Ok(());
            }
        }
    }

    fn write(&mut self, codes: Codes, payload: &[u8]) -> Result<(), Error> {
        frame::encode(codes, self.sent, payload, &mut self.gathered);
        self.sent += 1;
        if self.gathered.len() < GATHERED { Ok(()) } else { self.flush() }
    }
}

/// The bytes for which a packet counts. An empty one would otherwise be free.
fn size(payload: &[u8]) -> u64 {
    (frame::HEAD + payload.len()) as u64
}

/// Reads a message of the channel from a frame.
pub(crate) fn message<T: DeserializeOwned>(place: &str, frame: &Frame) -> Result<T, Error> {
    let place = || place.to_owned();
    if frame.codes != CONTROL {
        return Err(Error::Protocol { place: place(), what: "a packet arrived where a message was due" });
    }
    let unknown = |_| Error::Protocol { place: place(), what: "a message arrived that is not due here" };
    serde_json::from_slice(&frame.payload).map_err(unknown)
}

/// Interprets the failure of a connection.
fn fault(place: &str, error: io::Error) -> Error {
    let (place, kind) = (place.to_owned(), error.kind());
    let Some(inner) = error.into_inner() else { return Error::Cut { place } };
    let inner = match inner.downcast::<MediumFault>() {
        Ok(fault) if *fault == MediumFault::Cancelled => return Error::Cancelled,
        Ok(fault) => return Error::Medium { place, fault: *fault },
        Err(inner) => inner,
    };
    let inner = match inner.downcast::<FrameFault>() {
        Ok(fault) => return Error::Frame { place, fault: *fault },
        Err(inner) => inner,
    };
    match inner.downcast::<rustls::Error>() {
        Ok(fault) if *fault == wrong_key() => Error::WrongKey { place },
        Ok(fault) => Error::Tls { place, why: fault.to_string() },
        Err(_) if kind == io::ErrorKind::InvalidData => {
            Error::Tls { place, why: "what arrives is not encrypted".into() }
        }
        Err(_) => Error::Cut { place },
    }
}
