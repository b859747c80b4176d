//! Connections whose other side is not known yet.
//!
//! Everyone begins as a stranger. There are at most so many of them: when there are too many, the one that
//! has waited longest makes room, so that strangers who keep quiet cannot keep out those who know the token.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time that a stranger has to say who it is, whatever others want. Whoever knows the token needs a few
/// round trips.
const TIME_TO_SAY: Duration = Duration::from_secs(1);

/// The strangers of one listener. A clone counts the same ones.
#[derive(Clone)]
pub struct Strangers {
    waiting: Arc<Mutex<Waiting>>,
    most: usize,
}

#[derive(Default)]
struct Waiting {
    /// The oldest first.
    all: Vec<Stranger>,
    next: u64,
}

struct Stranger {
    number: u64,
    since: Instant,
    stream: TcpStream,
}

/// The place of a stranger. Drop it when the stranger is known or gone.
pub struct StrangerPlace {
    among: Strangers,
    number: u64,
}

impl Strangers {
    /// Nobody yet, and places for `most`.
    pub fn new(most: usize) -> Self {
        Self { waiting: Arc::default(), most }
    }

    /// Gives a connection a place, if necessary that of the one that has waited longest, which is shut down;
    /// none if all have just come.
    pub fn admit(&self, stream: &TcpStream) -> Option<StrangerPlace> {
        self.admit_at(stream, Instant::now())
    }

    fn admit_at(&self, stream: &TcpStream, now: Instant) -> Option<StrangerPlace> {
        let stream = stream.try_clone().ok()?;
        let mut waiting = self.lock();
        if waiting.all.len() >= self.most {
            if waiting.all.first().is_none_or(|oldest| now.duration_since(oldest.since) < TIME_TO_SAY) {
                return None;
            }
            // Its thread finds the connection closed.
            let _ = waiting.all.remove(0).stream.shutdown(Shutdown::Both);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.push(Stranger { number, since: now, stream });
        drop(waiting);
        Some(StrangerPlace { among: self.clone(), number })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        self.among.lock().all.retain(|stranger| stranger.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_oldest_makes_room_once_it_had_time_to_speak_and_a_known_one_is_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let is_open = |client: &mut TcpStream| client.read(&mut [0]).is_err();
        let strangers = Strangers::new(2);
        let (mut known, at_known) = connect();
        let began = Instant::now();
        let too_soon = began + TIME_TO_SAY / 2;
        drop(strangers.admit_at(&at_known, began).unwrap());
        let (mut first, at_first) = connect();
        let (mut second, at_second) = connect();
        let _places = [&at_first, &at_second].map(|stream| strangers.admit_at(stream, began).unwrap());
        let (_third, at_third) = connect();
        assert!(strangers.admit_at(&at_third, too_soon).is_none(), "both have just come");
        let _place = strangers.admit_at(&at_third, began + TIME_TO_SAY).unwrap();
        first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0, "it is closed");
        assert!(is_open(&mut second) && is_open(&mut known));
    }
}
