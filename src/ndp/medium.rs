//! The first layer: bytes of a TCP connection that never hang.
//!
//! Contract: a read or a write moves at least one byte, or ends within a tenth of a second after the user
//! cancelled, after [`Patience::silence`] without a byte, at a deadline, or when fewer than
//! [`Patience::FEWEST`] bytes moved while it was waited for [`Patience::period`]. Only time spent waiting
//! counts, so a side that is slow itself does not blame the other one. Nothing is known of what the bytes
//! mean.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sparktune_base::units::bytes;

/// The limits on attempts and waiting.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The number of consecutive attempts without a new packet.
    pub attempts: u32,
    /// The pause after the first failure; it doubles each time, up to 30 s.
    pub first_wait: Duration,
    /// The longest silence of a peer.
    pub silence: Duration,
    /// The time for a connection, from the first byte until both sides know each other.
    pub handshake: Duration,
    /// The time of waiting after which the bytes that moved in it are counted.
    pub period: Duration,
}

impl Patience {
    /// The number of bytes that must move in each [`Patience::period`].
    pub const FEWEST: u64 = 64 << 10;

    /// Returns the pause after the `n`-th consecutive failure, counted from 1.
    pub fn wait(&self, n: u32) -> Duration {
        const LONGEST: Duration = Duration::from_secs(30);
        self.first_wait.saturating_mul(1 << (n - 1).min(16)).min(LONGEST)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 5,
            first_wait: Duration::from_secs(1),
            silence: Duration::from_secs(20),
            handshake: Duration::from_secs(10),
            period: Duration::from_secs(60),
        }
    }
}

/// The reason why a connection is given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediumFault {
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Nothing moved.
    #[error("the other side was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// Too little moved.
    #[error("only {} arrived or left in {} s of waiting", bytes(*moved), after.as_secs())]
    TooSlow {
        /// The bytes that moved.
        moved: u64,
        /// The time that was waited.
        after: Duration,
    },
    /// The deadline passed.
    #[error("the other side did not say who it is in time")]
    Late,
}

impl From<MediumFault> for io::Error {
    fn from(fault: MediumFault) -> Self {
        Self::new(io::ErrorKind::TimedOut, fault)
    }
}

/// Returns whether to give up.
pub type Cancelled<'a> = Arc<dyn Fn() -> bool + Send + Sync + 'a>;

/// The time after which a wait looks up.
const LOOK_UP: Duration = Duration::from_millis(100);

/// One connection.
pub struct Medium<'a> {
    stream: TcpStream,
    patience: Patience,
    cancelled: Cancelled<'a>,
    deadline: Option<Instant>,
    /// The time that was waited, and the bytes that moved in it, since they were last compared.
    waited: Duration,
    moved: u64,
}

impl<'a> Medium<'a> {
    /// Connects to a host. All its addresses are tried.
    ///
    /// # Errors
    /// The name is unknown, or nobody answers.
    pub fn connect(host: &str, port: u16, patience: Patience, cancelled: Cancelled<'a>) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            if cancelled() {
                return Err(MediumFault::Cancelled.into());
            }
            match TcpStream::connect_timeout(&address, patience.handshake) {
                Ok(stream) => return Self::new(stream, patience, cancelled),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Takes an accepted connection. Until [`Medium::trust`], all of it has to happen within
    /// [`Patience::handshake`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(stream: TcpStream, patience: Patience, cancelled: Cancelled<'a>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_UP))?;
        stream.set_write_timeout(Some(LOOK_UP))?;
        let deadline = Some(Instant::now() + patience.handshake);
        Ok(Self { stream, patience, cancelled, deadline, waited: Duration::ZERO, moved: 0 })
    }

    /// Lifts the deadline, once the other side is known.
    pub fn trust(&mut self) {
        self.deadline = None;
    }

    /// Repeats an operation until it moves something or the contract ends it.
    fn move_some(
        &mut self,
        mut operation: impl FnMut(&mut TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            if (self.cancelled)() {
                return Err(MediumFault::Cancelled.into());
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(MediumFault::Late.into());
            }
            match operation(&mut self.stream) {
                Ok(count) => {
                    self.waited += since.elapsed();
                    self.moved += count as u64;
                    return self.judge().map(|()| count);
                }
                Err(error) if is_only_late(&error) => {
                    if since.elapsed() >= self.patience.silence {
                        return Err(MediumFault::Silent(self.patience.silence).into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn judge(&mut self) -> io::Result<()> {
        if self.waited < self.patience.period {
            return Ok(());
        }
        let (moved, after) = (std::mem::take(&mut self.moved), std::mem::take(&mut self.waited));
        if moved < Patience::FEWEST { Err(MediumFault::TooSlow { moved, after }.into()) } else { Ok(()) }
    }
}

fn is_only_late(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(error.kind(), E::WouldBlock | E::TimedOut | E::Interrupted)
}

impl Read for Medium<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.move_some(|stream| stream.read(buffer))
    }
}

impl Write for Medium<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.move_some(|stream| stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const QUICK: Patience = Patience {
        attempts: 2,
        first_wait: Duration::from_millis(1),
        silence: Duration::from_millis(300),
        handshake: Duration::from_secs(5),
        period: Duration::from_millis(400),
    };

    fn pair(patience: Patience, cancelled: Cancelled<'static>) -> (Medium<'static>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let medium = Medium::connect("127.0.0.1", port, patience, cancelled).unwrap();
        (medium, listener.accept().unwrap().0)
    }

    fn fault(error: io::Error) -> MediumFault {
        *error.into_inner().unwrap().downcast().unwrap()
    }

    #[test]
    fn a_silent_peer_is_given_up_and_so_is_one_that_sends_single_bytes() {
        let (mut medium, _peer) = pair(QUICK, Arc::new(|| false));
        medium.trust();
        assert_eq!(fault(medium.read(&mut [0; 9]).unwrap_err()), MediumFault::Silent(QUICK.silence));

        // Who drips may wait for a processor for longer than a silence of `QUICK`.
        let slow = Patience { silence: Duration::from_secs(120), ..QUICK };
        let (mut medium, mut peer) = pair(slow, Arc::new(|| false));
        medium.trust();
        let dripping = std::thread::spawn(move || {
            while peer.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let mut before = 0;
        let slow = loop {
            match medium.read(&mut [0; 9]) {
                Ok(count) => before += count as u64,
                Err(error) => break fault(error),
            }
        };
        // The last bytes count too, although nobody gets them any more.
        let MediumFault::TooSlow { moved, .. } = slow else { panic!("{slow:?}") };
        assert!((before + 1..=before + 9).contains(&moved), "{slow:?} after {before}");
        drop(medium);
        dripping.join().unwrap();
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        // The last bytes that the system takes may be few for a time that is long on a busy machine.
        let stuck = Patience { period: Duration::MAX, ..QUICK };
        let (mut medium, _peer) = pair(stuck, Arc::new(|| false));
        medium.trust();
        let stuck = loop {
            if let Err(error) = medium.write(&[0; 1 << 16]) {
                break fault(error);
            }
        };
        assert_eq!(stuck, MediumFault::Silent(QUICK.silence));
    }

    #[test]
    fn a_deadline_and_a_cancel_end_a_wait_soon() {
        let late = Patience { handshake: Duration::from_millis(150), ..Patience::default() };
        let (mut medium, _peer) = pair(late, Arc::new(|| false));
        assert_eq!(fault(medium.read(&mut [0; 9]).unwrap_err()), MediumFault::Late);

        // It is cancelled while it waits: it asks before it connects, before it reads, and at each look up.
        let looks = AtomicUsize::new(0);
        let cancelled = move || looks.fetch_add(1, Ordering::SeqCst) > 3;
        let [silence, handshake] = [Duration::from_secs(600); 2];
        let (mut medium, _peer) = pair(Patience { silence, handshake, ..QUICK }, Arc::new(cancelled));
        let since = Instant::now();
        assert_eq!(fault(medium.read(&mut [0; 9]).unwrap_err()), MediumFault::Cancelled);
        assert!(since.elapsed() < Duration::from_secs(120));
    }

    #[test]
    fn own_slowness_is_not_the_other_sides() {
        let (mut medium, mut peer) = pair(QUICK, Arc::new(|| false));
        medium.trust();
        for _ in 0..4 {
            peer.write_all(b"x").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(medium.read(&mut [0; 9]).unwrap(), 1);
        }
    }
}
