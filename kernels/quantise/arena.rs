//! Memory of the host that the first CUDA device reads and writes directly.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CUcontext, CUdevice, CUdeviceptr, cuMemHostGetDevicePointer_v2,
    cuMemHostRegister_v2, cuMemHostUnregister,
};
use sparktune_base::pages::{Pages, Part};

use crate::upload::failed;

/// A part of pages, all of which are registered with the driver until this is dropped.
pub(super) struct Arena {
    part: Part,
    ordinal: CUdevice,
    context: CUcontext,
    on_device: CUdeviceptr,
}

// SAFETY: the context is a handle that any thread may use, and every call makes it current first.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Send for Arena {}

impl Arena {
    /// Registers the pages of this part with the driver, so that the device can reach all of them.
    ///
    /// # Errors
    /// The driver's, in words.
    pub(super) fn new(part: Part) -> Result<Self, String> {
        result::init().map_err(failed("start"))?;
        let ordinal = result::device::get(0).map_err(failed("find the device"))?;
        // SAFETY: the device exists; `drop` releases what is retained here, also if a call below fails.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(failed("use the device"))?;
        let mut arena = Self { part, ordinal, context, on_device: 0 };
        arena.use_device()?;
        let start: *mut c_void = arena.pages().address().as_ptr().cast();
        // SAFETY: the pages stay mapped as long as their part, so until they are unregistered.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            let registered = cuMemHostRegister_v2(start, arena.pages().len(), CU_MEMHOSTREGISTER_DEVICEMAP);
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
        self.part.len()
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.part.bytes()
    }

    /// Returns the pages that this is a part of.
    pub(super) fn pages(&self) -> &Arc<Pages> {
        self.part.pages()
    }

    /// Returns the device's address of the first byte.
    pub(super) fn on_device(&self) -> CUdeviceptr {
        self.of_pages(self.part.start())
    }

    /// Returns the device's address of a byte of the pages.
    pub(super) fn of_pages(&self, position: usize) -> CUdeviceptr {
        self.on_device + position as CUdeviceptr
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
                let _ = cuMemHostUnregister(self.pages().address().as_ptr().cast());
            }
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}
