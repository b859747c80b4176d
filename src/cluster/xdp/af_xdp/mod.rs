//! Takes a rank's results straight from a network interface by AF_XDP: an XDP program there hands them to
//! sockets, and the kernel copies each into a frame of an arena, where it is read.
//!
//! Owns the frames, the queues ([`queue`]) and the program (`deliver.bpf.c`), which is removed from the
//! kernel when this is dropped. Enters: frames that came. Leaves: packets, which may be anything, and may
//! stay where they are until they are [released](AfXdp::release). It must not know ranks or sums.
//!
//! Each queue of the interface has [`STOCK`] frames. When a packet is kept, its queue gets a spare frame for
//! the packet's. When no spare frame is left, packets cannot be kept, and the caller has to copy them.

mod queue;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use aya::maps::{Array, XskMap};
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, include_bytes_aligned};
use sparktune_base::pages::Part;

use crate::xdp::af_xdp::queue::{FRAME_BYTES, Queue, Received, STOCK};
use crate::xdp::frame::{FRAME, FRAME_HEAD};
use crate::xdp::kernel::{Refusal, in_words, index_of, refusal};
use crate::xdp::wire::PACKET;

/// What clang made of `deliver.bpf.c`.
static OBJECT: &[u8] = include_bytes_aligned!("deliver.bpf.o");
/// The bytes of `struct route`.
const ROUTE: usize = 12;
/// The most queues that have sockets; what comes by others comes to the ordinary socket.
const MOST_QUEUES: usize = 256;

/// The frames and the queues of an interface.
pub(crate) struct AfXdp {
    // Dropped first: it must not deliver to sockets that are closed.
    _program: Ebpf,
    queues: Vec<Queue>,
    /// The memory of the frames, and the positions of those that no queue has and nobody keeps.
    frames: Arc<Part>,
    spare: Vec<u64>,
    /// The queue that is looked at next.
    at: usize,
    /// The frame of the last packet, with its queue, if it is not kept.
    last: Option<(usize, u64)>,
    kept: Vec<u64>,
    delivered: u64,
}

impl AfXdp {
    /// Opens sockets for the interface's queues and attaches the program, which takes what is sent to the
    /// rank's own address, or to the ranks' group at the same port. The frames belong to this value alone
    /// while it exists.
    ///
    /// # Errors
    /// The kernel does not let this process do so, or there is no such interface.
    ///
    /// # Panics
    /// When somebody else uses the frames.
    pub(crate) fn open(
        interface: &str,
        own: SocketAddrV4,
        group: Option<Ipv4Addr>,
        frames: &Arc<Part>,
    ) -> Result<Self, Refusal> {
        let refused = |why: String| Refusal::Sockets { interface: interface.to_owned(), why };
        assert_eq!(Arc::strong_count(frames), 1, "what was opened before is closed");
        if std::fs::exists(format!("/sys/class/net/{interface}/bonding")).unwrap_or(false) {
            return Err(refused("it is a bond, and packets come by the queues of its ports".into()));
        }
        let mut program = Ebpf::load(OBJECT).map_err(|error| refusal(&error))?;
        let mut route = [0; ROUTE];
        route[..4].copy_from_slice(&own.ip().octets());
        route[4..8].copy_from_slice(&group.unwrap_or(*own.ip()).octets());
        route[8..10].copy_from_slice(&own.port().to_be_bytes());
        let lacks = |part: &str| Refusal::Program(format!("it has no {part}"));
        let map = program.map_mut("route").ok_or_else(|| lacks("route"))?;
        let mut map: Array<_, [u8; ROUTE]> = map.try_into().map_err(|error| refusal(&error))?;
        map.set(0, route, 0).map_err(|error| refusal(&error))?;

        let index = index_of(interface).map_err(|error| refused(error.to_string()))?;
        let count = queues_of(interface).map_err(|error| refused(error.to_string()))?.min(MOST_QUEUES);
        let mut spare: Vec<u64> =
            (0..frames.len() / FRAME_BYTES).map(|at| (at * FRAME_BYTES) as u64).collect();
        let map = program.map_mut("sockets").ok_or_else(|| lacks("sockets"))?;
        let mut map: XskMap<_> = map.try_into().map_err(|error| refusal(&error))?;
        let mut queues: Vec<Queue> = Vec::new();
        for number in 0..count.min(spare.len() / STOCK) as u32 {
            let opened = Queue::open(index, number, frames, queues.first());
            let mut queue = opened.map_err(|error| refused(socket_in_words(&error)))?;
            spare.drain(spare.len() - STOCK..).for_each(|frame| queue.give(frame));
            map.set(number, queue.socket(), 0).map_err(|error| refused(in_words(&error)))?;
            queues.push(queue);
        }
        let part: &mut Xdp = program
            .program_mut("deliver")
            .ok_or_else(|| lacks("part that delivers"))?
            .try_into()
            .map_err(|error| refusal(&error))?;
        part.load().map_err(|error| refusal(&error))?;
        part.attach_to_if_index(index, XdpMode::Default).map_err(|error| refused(in_words(&error)))?;
        let frames = Arc::clone(frames);
        let (last, kept) = (None, Vec::new());
        Ok(Self { _program: program, queues, frames, spare, at: 0, last, kept, delivered: 0 })
    }

    /// Returns the bytes of memory that the frames of an interface need if this many packets may be kept.
    ///
    /// # Errors
    /// There is no such interface.
    pub(crate) fn room(interface: &str, kept: usize) -> Result<usize, Refusal> {
        let refused =
            |error: io::Error| Refusal::Sockets { interface: interface.to_owned(), why: error.to_string() };
        let queues = queues_of(interface).map_err(refused)?.min(MOST_QUEUES);
        Ok((queues * STOCK + kept) * FRAME_BYTES)
    }

    /// Takes the next packet. Returns its position in the memory of the frames, if there is one. Until the
    /// next call it stays there, and longer if it is [kept](Self::keep).
    pub(crate) fn take(&mut self) -> Option<usize> {
        if let Some((queue, frame)) = self.last.take() {
            self.queues[queue].give(frame);
        }
        let mut looked = 0;
        while looked < self.queues.len() {
            let at = self.at;
            let Some(Received { at: start, length }) = self.queues[at].take() else {
                (self.at, looked) = ((at + 1) % self.queues.len(), looked + 1);
                continue;
            };
            let frame = start / FRAME_BYTES as u64 * FRAME_BYTES as u64;
            if length as usize != FRAME || start + FRAME as u64 > frame + FRAME_BYTES as u64 {
                self.queues[at].give(frame);
                continue;
            }
            self.last = Some((at, frame));
            self.delivered += 1;
            return Some(start as usize + FRAME_HEAD);
        }
        None
    }

    /// Returns the packet at the position that [`take`](Self::take) returned last.
    pub(crate) fn packet(&self, position: usize) -> &[u8; PACKET] {
        let is_last =
            self.last.is_some_and(|(_, frame)| position / FRAME_BYTES * FRAME_BYTES == frame as usize);
        assert!(is_last && position % FRAME_BYTES + PACKET <= FRAME_BYTES, "it is not the last packet");
        assert!(position + PACKET <= self.frames.len(), "the packet ends inside the memory of the frames");
        // SAFETY: the frame is inside the memory of the frames, which lives as long as this. The kernel has
        // written it and does not write it again before `take` gives it back, which borrows this exclusively.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            &*self.frames.address().as_ptr().add(position).cast()
        }
    }

    /// Returns whether the last packet can be [kept](Self::keep).
    pub(crate) fn has_spare(&self) -> bool {
        self.last.is_some() && !self.spare.is_empty()
    }

    /// Lets the last packet stay where it is until [`release`](Self::release), if there is a spare frame.
    pub(crate) fn keep(&mut self) {
        if let (Some((queue, frame)), true) = (self.last, self.has_spare())
            && let Some(spare) = self.spare.pop()
        {
            self.last = None;
            self.kept.push(frame);
            self.queues[queue].give(spare);
        }
    }

    /// Gives up all packets that were kept.
    pub(crate) fn release(&mut self) {
        self.spare.append(&mut self.kept);
    }

    /// Returns the position of the frames in the pages that they are a part of.
    pub(crate) fn start(&self) -> usize {
        self.frames.start()
    }

    /// Returns how many packets were taken.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns how many queues have sockets.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }
}

/// Returns how many queues an interface has for what comes.
fn queues_of(interface: &str) -> io::Result<usize> {
    // Also finds out whether it is the name of one.
    index_of(interface)?;
    let entries = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"))?;
    let is_receiving = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("rx-");
    Ok(entries.flatten().filter(is_receiving).count().max(1))
}

fn socket_in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "a socket of AF_XDP needs root, or the capability CAP_NET_RAW".into(),
        Some(libc::ENOBUFS) => {
            "the memory for packets is more than this process may lock. Raise `ulimit -l`, or run as root or with CAP_IPC_LOCK"
                .into()
        }
        Some(libc::EAFNOSUPPORT) => "the kernel has no sockets of AF_XDP".into(),
        Some(libc::EBUSY) => "another AF_XDP socket already uses one of its queues".into(),
        Some(libc::EINVAL) => "the kernel refuses a queue. Several queues need Linux 5.10".into(),
        _ => error.to_string(),
    }
}
