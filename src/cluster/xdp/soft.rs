//! The switch in user space: a thread that adds the packets that come to a socket.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::xdp::slots::{Counts, Job, Slots, Verdict};
use crate::xdp::transport::lossy;
use crate::xdp::wire::PACKET;

/// The pause between two looks at whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The thread, which ends when this is dropped.
pub(crate) struct Soft {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counts>>,
}

impl Soft {
    /// Adds what comes to a socket.
    pub(crate) fn start(socket: UdpSocket, job: Job) -> io::Result<Self> {
        socket.set_read_timeout(Some(LOOK))?;
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let serve = move || serve(&socket, Slots::new(job), &is_over);
        let thread = Builder::new().name("sums".into()).spawn(serve)?;
        Ok(Self { ends, thread: Some(thread) })
    }

    /// Ends it, and returns what became of the packets.
    pub(crate) fn end(&mut self) -> Counts {
        self.ends.store(true, Ordering::SeqCst);
        let counts = self.thread.take().and_then(|thread| thread.join().ok());
        counts.unwrap_or_default()
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(socket: &UdpSocket, mut slots: Slots, is_over: &AtomicBool) -> Counts {
    // Where a rank is follows from its contributions: no stranger can sign one, and who repeats one from
    // elsewhere is a duplicate.
    let mut ranks: BTreeMap<u8, SocketAddr> = BTreeMap::new();
    // One byte more, so that a longer packet is noticed.
    let mut bytes = [0; PACKET + 1];
    while !is_over.load(Ordering::SeqCst) {
        let (length, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            // What a network says of an earlier packet.
            Err(_) => {
                std::thread::yield_now();
                continue;
            }
        };
        let worker = bytes[6];
        let packet = &mut bytes[..length];
        let verdict = slots.receive(packet);
        if matches!(verdict, Verdict::Added | Verdict::Completed) {
            ranks.insert(worker, from);
        }
        // A result that cannot be sent is asked for again.
        match verdict {
            Verdict::Completed => ranks.values().for_each(|to| {
                let _ = lossy(socket.send_to(packet, to).map(drop));
            }),
            Verdict::Resent => {
                let _ = lossy(socket.send_to(packet, from).map(drop));
            }
            _ => {}
        }
    }
    slots.counts()
}
