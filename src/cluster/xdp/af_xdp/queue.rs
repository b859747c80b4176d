//! A socket of AF_XDP for one queue of a network card: a ring with what has come, and one with frames for
//! what comes next, both in memory that the kernel shares (`Documentation/networking/af_xdp.rst` of Linux).
//!
//! A frame belongs to the kernel from [`Queue::give`] until [`Queue::take`] returns it.

use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use sparktune_base::pages::Part;

/// The frames of a queue: twice as many as chunks can be on their way. A power of two, as the rings need.
pub(super) const STOCK: usize = 256;
/// The bytes of a frame: a power of two that has room for the packet and for what the kernel puts before it.
pub(super) const FRAME_BYTES: usize = 2048;
/// How long to wait until the kernel frees a queue whose sockets are closed: longer on a busy machine.
const RELEASED: Duration = Duration::from_secs(15);

/// A frame that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// The position of the first byte in the memory of all frames.
    pub(super) at: u64,
    pub(super) length: u32,
}

/// One queue.
pub(super) struct Queue {
    socket: Socket,
    came: SharedRing<libc::xdp_desc>,
    empty: SharedRing<u64>,
}

impl Queue {
    /// Opens the socket of a queue of the interface with this number. `frames` is the memory for what comes.
    /// The first queue registers it with the kernel, and the others share it with the first.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(interface: u32, number: u32, frames: &Part, first: Option<&Self>) -> io::Result<Self> {
        let socket = Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)?;
        if first.is_none() {
            let memory = libc::xdp_umem_reg {
                addr: frames.address().as_ptr() as u64,
                len: frames.len() as u64,
                chunk_size: FRAME_BYTES as u32,
                headroom: 0,
                flags: 0,
                tx_metadata_len: 0,
            };
            set(&socket, libc::XDP_UMEM_REG, &memory)?;
        }
        let entries = STOCK as c_int;
        set(&socket, libc::XDP_UMEM_FILL_RING, &entries)?;
        // The ring for frames that were sent. Nothing is sent, but the kernel wants the ring all the same.
        set(&socket, libc::XDP_UMEM_COMPLETION_RING, &entries)?;
        set(&socket, libc::XDP_RX_RING, &entries)?;
        let offsets = offsets(&socket)?;
        let came = SharedRing::map(&socket, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx)?;
        let empty = SharedRing::map(&socket, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr)?;
        let (flags, shared) = match first {
            // The kernel copies what has come into the frames. In zero-copy mode, the card writes them, must
            // be woken for new ones, and needs more of them for everything else that comes by it.
            None => (libc::XDP_COPY, 0),
            Some(first) => (libc::XDP_SHARED_UMEM, first.socket.as_raw_fd() as u32),
        };
        bind(&socket, &address(interface, number, flags, shared))?;
        Ok(Self { socket, came, empty })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the oldest frame that has come and was not taken.
    pub(super) fn take(&mut self) -> Option<Received> {
        let ring = &mut self.came;
        if ring.producer().load(Ordering::Acquire) == ring.next {
            return None;
        }
        // SAFETY: the entry is inside the ring, and the kernel has written it and leaves it until it is told
        // that it was read.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let libc::xdp_desc { addr, len, .. } = unsafe { ring.entry(ring.next).read() };
        ring.next = ring.next.wrapping_add(1);
        ring.consumer().store(ring.next, Ordering::Release);
        Some(Received { at: addr, length: len })
    }

    /// Gives the kernel a frame that it may write. No queue may have more than [`STOCK`].
    pub(super) fn give(&mut self, frame: u64) {
        let ring = &mut self.empty;
        // SAFETY: the entry is inside the ring, and the kernel reads it only after the store below. A queue
        // has no more frames than the ring has entries, so the kernel has read what was in this entry before.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            ring.entry(ring.next).write(frame);
        }
        ring.next = ring.next.wrapping_add(1);
        ring.producer().store(ring.next, Ordering::Release);
    }
}

/// Binds a socket. The kernel frees a queue only some time after its sockets are closed.
fn bind(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match socket.bind(address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && began.elapsed() < RELEASED => {
                std::thread::sleep(Duration::from_millis(2));
            }
            bound => return bound,
        }
    }
}

/// A ring of [`STOCK`] entries in memory that the kernel shares: one side produces them, the other one
/// consumes them, and both count.
struct SharedRing<T> {
    memory: MmapRaw,
    offsets: libc::xdp_ring_offset,
    /// This side's count, which wraps around.
    next: u32,
    entries: PhantomData<T>,
}

impl<T> SharedRing<T> {
    fn map(socket: &Socket, at: u64, offsets: &libc::xdp_ring_offset) -> io::Result<Self> {
        let length = offsets.desc as usize + STOCK * size_of::<T>();
        let memory = MmapOptions::new().offset(at).len(length).populate().map_raw(socket)?;
        Ok(Self { memory, offsets: *offsets, next: 0, entries: PhantomData })
    }

    fn producer(&self) -> &AtomicU32 {
        self.count(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.count(self.offsets.consumer)
    }

    fn count(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel has put an aligned count of 32 bits there, in memory that stays mapped as long
        // as this value is borrowed, and both sides use it as an atomic one.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset as usize).cast())
        }
    }

    fn entry(&self, count: u32) -> *mut T {
        let place = count as usize % STOCK;
        // SAFETY: the entries lie behind `desc`, inside what was mapped.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            self.memory.as_mut_ptr().add(self.offsets.desc as usize).cast::<T>().add(place)
        }
    }
}

fn set<T>(socket: &Socket, option: c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads so many bytes of a value that has them.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw const *value).cast(), bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns where counts and entries lie in the memory of the rings.
fn offsets(socket: &Socket) -> io::Result<libc::xdp_mmap_offsets> {
    let mut bytes = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    let expected = bytes;
    // SAFETY: zeros are such a value, and the kernel writes at most so many bytes of it.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let (result, offsets) = unsafe {
        let mut offsets: libc::xdp_mmap_offsets = zeroed();
        let place = (&raw mut offsets).cast();
        let option = libc::XDP_MMAP_OFFSETS;
        (libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, place, &raw mut bytes), offsets)
    };
    match result {
        0 if bytes == expected => Ok(offsets),
        0 => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel is older than Linux 5.4; several queues need 5.10",
        )),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the address of a queue.
fn address(interface: u32, queue: u32, flags: u16, shared: u32) -> SockAddr {
    let of_queue = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: an address of AF_XDP is one of those that the storage has room and is aligned for, and all of
    // it is written.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    unsafe {
        *storage.view_as::<libc::sockaddr_xdp>() = of_queue;
        SockAddr::new(storage, size_of::<libc::sockaddr_xdp>() as libc::socklen_t)
    }
}
