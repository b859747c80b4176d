//! Ways of bytes from memory of the host to a CUDA device, for measuring them side by side.
//!
//! Enters: bytes, such as the pages of a mapped file. Leaves: the same bytes in memory of the device, when
//! the call returns. It must not know files, clocks or rows of tables.
//!
//! | way | copies on the host |
//! |---|---|
//! | [`Upload::direct`] from pageable memory | one: by the driver, into pinned memory of its own |
//! | [`Upload::staged`] | one: here, into two pinned buffers in turn |
//! | [`Upload::direct`] under [`Upload::register`] | none: the device fetches the pinned pages |
//! | [`Upload::in_place`] | none: a kernel reads the pages where they lie |
//!
//! A training run takes none of them by itself: cubecl copies what it is given into pinned memory.

use std::ffi::c_void;
use std::marker::PhantomData;

use burn::tensor::{DType, Device, Tensor};
use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_READ_ONLY, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags,
    CUstream, cuMemHostRegister_v2, cuMemHostUnregister,
};
use cudarc::driver::{DriverError, result};

use crate::cuda::{CudaTensor, Kernel, empty, into_tensor, primitive, sizes};

/// Bytes of a pinned buffer. Larger ones are no faster, and leave the caches of a processor.
const STAGED: usize = 4 << 20;
/// What addresses and sizes must be multiples of, for a kernel reads 16 bytes at a time.
const WIDTH: usize = 16;

/// Memory of the first CUDA device, and what bytes reach it by.
pub struct Upload {
    ordinal: CUdevice,
    target: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    staging: [Staging; 2],
    staged_bytes: u64,
    reads_in_place: bool,
    like: CudaTensor,
    in_place: Option<CudaTensor>,
}

/// A pinned buffer, and when the device has fetched what is in it.
struct Staging {
    memory: *mut u8,
    fetched: CUevent,
}

/// Memory that is pinned where it lies, until this is dropped.
pub struct Registered<'a> {
    start: *mut c_void,
    bytes: PhantomData<&'a [u8]>,
}

impl Upload {
    /// Makes room for so many bytes on the first CUDA device, which is burn's `device`.
    ///
    /// # Errors
    /// The driver's, in words.
    ///
    /// # Panics
    /// When the device's runtime fails.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, String> {
        // burn has started the driver and keeps the device's context.
        let like = primitive(Tensor::zeros([1, 1], device));
        result::init().map_err(failed("start"))?;
        let ordinal = result::device::get(0).map_err(failed("find the device"))?;
        // SAFETY: the device exists; `drop` releases what is retained here.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(failed("use the device"))?;
        // SAFETY: the context is retained; the buffers and events belong to it and are released before it.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::ctx::set_current(context).map_err(failed("use the device"))?;
            let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
            let reads =
                result::device::get_attribute(ordinal, attribute).map_err(failed("ask the device"))?;
            let staging = || -> Result<Staging, String> {
                let memory = result::malloc_host(STAGED, 0).map_err(failed("pin memory"))?.cast();
                let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
                Ok(Staging { memory, fetched: result::event::create(flags).map_err(failed("wait"))? })
            };
            Ok(Self {
                ordinal,
                target: result::malloc_sync(bytes).map_err(failed("take memory of the device"))?,
                bytes,
                stream: result::stream::create(result::stream::StreamKind::NonBlocking)
                    .map_err(failed("queue work"))?,
                staging: [staging()?, staging()?],
                staged_bytes: 0,
                reads_in_place: reads != 0,
                like,
                in_place: None,
            })
        }
    }

    /// Returns the bytes that [`staged`](Self::staged) has copied on the host so far.
    pub fn staged_bytes(&self) -> u64 {
        self.staged_bytes
    }

    /// Lets the driver copy bytes from where they lie.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn direct(&mut self, from: &[u8]) -> Result<(), String> {
        self.check(from)?;
        // SAFETY: the target has room, and `from` is borrowed until the stream has fetched it.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::memcpy_htod_async(self.target, from, self.stream).map_err(failed("copy"))?;
        }
        self.wait()
    }

    /// Copies bytes into pinned memory, from where the device fetches them.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn staged(&mut self, from: &[u8]) -> Result<(), String> {
        self.check(from)?;
        for (i, part) in from.chunks(STAGED).enumerate() {
            let Staging { memory, fetched } = self.staging[i % 2];
            let target = self.target + (i * STAGED) as u64;
            // SAFETY: the event says that the device has fetched what was in the buffer, which has room for a
            // part and is this value's own; an event that was never recorded does not wait.
            #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
            unsafe {
                result::event::synchronize(fetched).map_err(failed("wait"))?;
                let staged = std::slice::from_raw_parts_mut(memory, part.len());
                staged.copy_from_slice(part);
                result::memcpy_htod_async(target, &*staged, self.stream).map_err(failed("copy"))?;
                result::event::record(fetched, self.stream).map_err(failed("wait"))?;
            }
            self.staged_bytes += part.len() as u64;
        }
        self.wait()
    }

    /// Pins memory where it lies, so that [`direct`](Self::direct) needs no copy on the host.
    ///
    /// # Errors
    /// The driver's, in words: it may refuse pages of a file.
    pub fn register<'a>(&self, bytes: &'a [u8]) -> Result<Registered<'a>, String> {
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the bytes are borrowed until they are unregistered, and the device only reads them.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let registered = unsafe { cuMemHostRegister_v2(start, bytes.len(), CU_MEMHOSTREGISTER_READ_ONLY) };
        registered.result().map_err(failed("pin the pages of the file"))?;
        Ok(Registered { start, bytes: PhantomData })
    }

    /// Lets a kernel read bytes where they lie.
    ///
    /// # Errors
    /// The device cannot read memory that a program has not pinned.
    ///
    /// # Panics
    /// When the device's runtime fails.
    pub fn in_place(&mut self, from: &[u8]) -> Result<(), String> {
        self.check(from)?;
        if !self.reads_in_place {
            return Err("this device cannot read memory of a program in place".into());
        }
        if from.as_ptr().align_offset(WIDTH) != 0 || !from.len().is_multiple_of(WIDTH) {
            return Err(format!("it reads {WIDTH} bytes at a time, and these begin or end elsewhere"));
        }
        let words = from.len() / size_of::<u32>();
        let to = empty(&self.like, [1, words], DType::F32);
        Kernel::new("upload/upload.cuh", "read_in_place")
            .blocks(words.div_ceil(1024))
            .threads(256)
            .write(&to)
            .launch(sizes![from.as_ptr().addr() as u64, words as u64]);
        // Reading a number waits for the kernel, and `from` is borrowed until then.
        let _ = into_tensor(to.clone()).slice([0..1, 0..1]).into_data();
        self.in_place = Some(to);
        Ok(())
    }

    /// Returns whether the device got these bytes by the last call of [`direct`](Self::direct) or
    /// [`staged`](Self::staged), and forgets them.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn got(&mut self, expected: &[u8]) -> Result<bool, String> {
        let mut found = vec![0_u8; expected.len()];
        self.check(expected)?;
        // SAFETY: both sides have room, and nothing is queued that writes to the target.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::memcpy_dtoh_sync(&mut found, self.target).map_err(failed("copy back"))?;
            result::memset_d8_sync(self.target, 0x55, self.bytes).map_err(failed("clear"))?;
        }
        Ok(found == expected)
    }

    /// Returns whether the last call of [`in_place`](Self::in_place) made a tensor of these bytes, and drops
    /// it.
    ///
    /// # Panics
    /// When the device's runtime fails.
    pub fn got_in_place(&mut self, expected: &[u8]) -> bool {
        self.in_place.take().is_some_and(|tensor| into_tensor(tensor).into_data().as_bytes() == expected)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let room = self.bytes;
        if bytes.len() > room {
            return Err(format!("{} bytes do not fit into the {room} on the device", bytes.len()));
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), String> {
        // SAFETY: the stream lives as long as this value.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::stream::synchronize(self.stream).map_err(failed("wait"))
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // SAFETY: everything was made by `new`, is used nowhere else, and is released once. What the driver
        // says to that changes nothing.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            for Staging { memory, fetched } in &self.staging {
                let _ = result::event::destroy(*fetched);
                let _ = result::free_host(memory.cast());
            }
            let _ = result::free_sync(self.target);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: the memory was registered, and all copies from it have been waited for.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let _ = unsafe { cuMemHostUnregister(self.start) };
    }
}

/// Says what the driver could not do, and why.
pub(crate) fn failed(what: &'static str) -> impl Fn(DriverError) -> String {
    move |error| {
        let why = error.error_string().map(|words| words.to_string_lossy().into_owned());
        format!(
            "the driver could not {what}: {}",
            why.unwrap_or_else(|_| format!("error {}", error.0 as i32))
        )
    }
}

#[cfg(test)]
mod on_device {
    use super::*;
    use crate::testing::cuda_device;

    /// More than two pinned buffers, and a rest.
    fn bytes() -> Vec<u32> {
        (0..(2 * STAGED + STAGED / 2 + 64) as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761)).collect()
    }

    #[test]
    fn every_way_brings_all_bytes_to_the_device() {
        let Some(device) = cuda_device() else { return };
        let words = bytes();
        // The allocator aligns large vectors to 16 bytes at least.
        let from: &[u8] = bytemuck::cast_slice(&words);
        let mut upload = Upload::new(&device, from.len()).unwrap();
        assert!(!upload.got(from).unwrap());
        upload.direct(from).unwrap();
        assert!(upload.got(from).unwrap() && !upload.got(from).unwrap());
        upload.staged(from).unwrap();
        assert!(upload.got(from).unwrap());
        assert_eq!(upload.staged_bytes(), from.len() as u64);
        // A device may refuse the two ways without a copy.
        if let Ok(registered) = upload.register(from) {
            upload.direct(from).unwrap();
            assert!(upload.got(from).unwrap());
            drop(registered);
        }
        if upload.in_place(from).is_ok() {
            assert!(upload.got_in_place(from) && !upload.got_in_place(from));
        }
        assert_eq!(upload.staged_bytes(), from.len() as u64);
    }

    #[test]
    fn more_bytes_than_there_is_room_for_are_refused() {
        let Some(device) = cuda_device() else { return };
        let mut upload = Upload::new(&device, 64).unwrap();
        for refused in [upload.direct(&[0; 80]), upload.staged(&[0; 80]), upload.in_place(&[0; 80])] {
            assert_eq!(refused.unwrap_err(), "80 bytes do not fit into the 64 on the device");
        }
    }
}
