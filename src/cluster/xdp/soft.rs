//! The switch in user space: a thread that adds the packets that come to a socket.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::xdp::packets::Packets;
use crate::xdp::slots::{Counts, Job, Slots, Verdict};
use crate::xdp::wire::PACKET;

/// The pause between two looks at whether it is to end: 50 ms.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The thread, which ends when this is dropped.
pub(crate) struct Soft {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counts>>,
}

impl Soft {
    /// Adds what comes to a socket.
    pub(crate) fn start(socket: UdpSocket, job: Job) -> io::Result<Self> {
        let packets = Packets::new(socket)?;
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let serve = move || serve(packets, Slots::new(job), &is_over);
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

fn serve(mut packets: Packets, mut slots: Slots, is_over: &AtomicBool) -> Counts {
    // Where a rank is follows from its contributions: no stranger can sign one, and who repeats one from
    // elsewhere is a duplicate.
    let mut ranks: BTreeMap<u8, SocketAddr> = BTreeMap::new();
    let mut results: Vec<(SocketAddr, [u8; PACKET])> = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        match packets.refill() {
            Ok(true) => {}
            Ok(false) => {
                let _ = poll(&mut [PollFd::new(packets.socket(), PollFlags::IN)], Some(&LOOK));
                continue;
            }
            // What a network says of an earlier packet.
            Err(_) => {
                std::thread::yield_now();
                continue;
            }
        }
        while let Some((packet, from)) = packets.next() {
            let worker = packet.get(6).copied();
            let verdict = slots.receive(packet);
            if let (Verdict::Added | Verdict::Completed, Some(worker)) = (verdict, worker) {
                ranks.insert(worker, from);
            }
            let Ok(result) = <[u8; PACKET]>::try_from(&*packet) else { continue };
            match verdict {
                Verdict::Completed => results.extend(ranks.values().map(|to| (*to, result))),
                Verdict::Resent => results.push((from, result)),
                _ => {}
            }
        }
        // A result that cannot be sent is asked for again.
        for (to, result) in results.drain(..) {
            let _ = packets.send(to, &result);
        }
        let _ = packets.flush();
    }
    slots.counts()
}
