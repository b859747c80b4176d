//! Memory of the host, in large pages where some are reserved, which the first CUDA device reads and writes
//! directly.

use std::ffi::c_void;

use cudarc::driver::result;
use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CUcontext, CUdevice, CUdeviceptr, cuMemHostGetDevicePointer_v2,
    cuMemHostRegister_v2, cuMemHostUnregister,
};
use memmap2::{MmapMut, MmapOptions};

use crate::upload::failed;

/// The size of a large page, and its logarithm to base 2.
const LARGE: usize = 2 << 20;
const LARGE_BITS: u8 = 21;

/// Pages that are registered with the driver until this is dropped.
pub(super) struct Arena {
    memory: MmapMut,
    pages: &'static str,
    ordinal: CUdevice,
    context: CUcontext,
    on_device: CUdeviceptr,
}

// SAFETY: the context is a handle that any thread may use, and every call makes it current first.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Send for Arena {}

impl Arena {
    /// Makes room for so many bytes.
    ///
    /// # Errors
    /// The system's or the driver's, in words.
    pub(super) fn new(bytes: usize) -> Result<Self, String> {
        let (memory, pages) = map(bytes.next_multiple_of(LARGE))
            .map_err(|error| format!("{bytes} bytes of memory were refused: {error}"))?;
        result::init().map_err(failed("start"))?;
        let ordinal = result::device::get(0).map_err(failed("find the device"))?;
        // SAFETY: the device exists; `drop` releases what is retained here, also if a call below fails.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(failed("use the device"))?;
        let mut arena = Self { memory, pages, ordinal, context, on_device: 0 };
        arena.use_device()?;
        let start: *mut c_void = arena.memory.as_mut_ptr().cast();
        // SAFETY: the pages are this value's own, and stay mapped until they are unregistered.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            let registered = cuMemHostRegister_v2(start, arena.memory.len(), CU_MEMHOSTREGISTER_DEVICEMAP);
            registered.result().map_err(failed("pin the arena"))?;
            let mut on_device = 0;
            let found = cuMemHostGetDevicePointer_v2(&raw mut on_device, start, 0).result();
            if let Err(error) = found {
                let _ = cuMemHostUnregister(start);
                return Err(failed("reach the arena")(error));
            }
            arena.on_device = on_device;
        }
        Ok(arena)
    }

    /// Returns the number of bytes that there is room for.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Says which pages it consists of.
    pub(super) fn pages(&self) -> &'static str {
        self.pages
    }

    /// Returns the device's address of the bytes.
    pub(super) fn on_device(&self) -> CUdeviceptr {
        self.on_device
    }

    fn use_device(&self) -> Result<(), String> {
        // SAFETY: the context is retained until `drop`.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::ctx::set_current(self.context).map_err(failed("use the device"))
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = self.use_device();
        // SAFETY: the pages were registered if the device has an address for them, everything that reaches
        // them was waited for, and the context is released once. What the driver says changes nothing.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            if self.on_device != 0 {
                let _ = cuMemHostUnregister(self.memory.as_mut_ptr().cast());
            }
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}

/// Maps reserved large pages, which are in memory at once, or else ordinary ones.
fn map(bytes: usize) -> std::io::Result<(MmapMut, &'static str)> {
    let reserved = MmapOptions::new().len(bytes).huge(Some(LARGE_BITS)).populate().map_anon();
    if let Ok(memory) = reserved {
        return Ok((memory, "reserved huge pages"));
    }
    let memory = MmapOptions::new().len(bytes).map_anon()?;
    // The system may make them large; one that cannot refuses the advice, which does no harm.
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok((memory, "ordinary pages, which the system may make large"))
}
