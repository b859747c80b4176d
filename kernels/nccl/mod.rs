//! Sums over the GPUs of several processes by NCCL, in place on the devices.
//!
//! Enters: an id that all ranks share, and tensors that are lent for a sum. Leaves: the sums where the
//! tensors are. Nothing here waits: a caller polls, so that it can look after the other ranks and end what
//! hangs. It must not know ranks' names, networks or training.
//!
//! A communicator of two ranks adds a + b, which has no order; for more, the order is NCCL's own, and depends
//! on the links, the sizes and the version. All ranks get the same bits.

mod library;

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Tensor, TensorData};
use cubecl::cuda::CudaRuntime;
use cubecl::future::block_on;
use cubecl_server::runtime::Runtime;
use cudarc::driver::result;
use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUevent, CUevent_flags, CUresult, CUstream};
use library::Comm;
pub use library::{Library, VARIABLE};

use crate::cuda::{CudaTensor, as_f32, dims, into_tensor, own, primitive};
use crate::upload::failed;

/// The bytes of an id.
pub const ID_BYTES: usize = 128;
/// The numbers of the host that are summed at a time.
const STAGED: usize = 1 << 20;
/// How long a communicator whose ranks are done may take to end.
const ENDING: Duration = Duration::from_secs(5);
/// The pause between two looks at it.
const LOOK: Duration = Duration::from_micros(200);

/// Tensors that nobody else uses until a sum of them is done.
pub struct Lent {
    tensors: Vec<CudaTensor>,
    /// The addresses and counts of their numbers.
    numbers: Vec<(u64, usize)>,
}

impl Lent {
    /// Takes tensors, as f32 in memory of their own, when the device has computed them. Waits for that.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When a tensor is on the CPU or part of a graph.
    pub fn new(tensors: Vec<Tensor<2>>) -> Result<Self, String> {
        let tensors: Vec<CudaTensor> =
            tensors.into_iter().map(|tensor| own(as_f32(primitive(tensor)))).collect();
        let mut numbers = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            debug_assert_eq!(tensor.dtype, DType::F32);
            let (rows, columns) = dims(tensor);
            let lent = tensor
                .client
                .get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone())
                .map_err(|error| format!("a tensor has no address: {error}"))?;
            // The tensor keeps its memory, which stays where it is.
            numbers.push((lent.resource().ptr, rows * columns));
        }
        if let Some(last) = tensors.last() {
            let all = tensors.iter().map(|tensor| &tensor.handle);
            block_on(last.client.sync_buffers(all)).map_err(|error| error.to_string())?;
        }
        Ok(Self { tensors, numbers })
    }

    /// Returns how many numbers there are.
    pub fn count(&self) -> usize {
        self.numbers.iter().map(|(_, count)| count).sum()
    }

    /// Returns the addresses and counts of the numbers of each tensor.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u64, usize)> {
        self.numbers.iter().copied()
    }

    /// Returns all numbers, copied to the host.
    ///
    /// # Panics
    /// When the device's runtime fails.
    pub fn read(&self) -> Vec<f32> {
        let read = |tensor: &CudaTensor| into_tensor(tensor.clone()).into_data().try_to_vec::<f32>();
        self.tensors.iter().flat_map(|tensor| read(tensor).expect("lent numbers are f32")).collect()
    }

    /// Replaces all numbers by those of the host.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When their count is another one.
    pub fn replace(&mut self, numbers: &[f32]) -> Result<(), String> {
        let mut rest = numbers;
        let tensors = self.tensors.iter().map(|tensor| {
            let (rows, columns) = dims(tensor);
            let (own, others) = rest.split_at(rows * columns);
            rest = others;
            let data = TensorData::new(own.to_vec(), [rows, columns]);
            Tensor::from_data(data, &into_tensor(tensor.clone()).device())
        });
        *self = Self::new(tensors.collect())?;
        Ok(())
    }

    /// Gives the tensors back, outside autodiff.
    pub fn into_tensors(self) -> Vec<Tensor<2>> {
        self.tensors.into_iter().map(into_tensor).collect()
    }
}

/// One rank's end of a communicator on the first CUDA device.
pub struct Communicator {
    library: Arc<Library>,
    ordinal: CUdevice,
    context: cudarc::driver::sys::CUcontext,
    stream: CUstream,
    done: CUevent,
    /// Memory on the device for numbers of the host; 0 until there are some.
    staging: CUdeviceptr,
    comm: Comm,
    is_connected: bool,
    /// Whether `done` is on the stream behind what was queued last.
    is_recorded: bool,
}

// SAFETY: the raw pointers are handles of libraries that may be used by any thread, one at a time; every call
// makes the context current first.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Send for Communicator {}

impl Communicator {
    /// Prepares a stream on the first CUDA device.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn new(library: Arc<Library>) -> Result<Self, String> {
        // SAFETY: the call only tries to load the driver by each of its names.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
        if !has_driver {
            return Err("there is no NVIDIA driver".into());
        }
        result::init().map_err(failed("start"))?;
        let ordinal = result::device::get(0).map_err(failed("find the device"))?;
        // SAFETY: the device exists; `drop` releases what is retained and made here.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            let context = result::primary_ctx::retain(ordinal).map_err(failed("use the device"))?;
            result::ctx::set_current(context).map_err(failed("use the device"))?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
            let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
            Ok(Self {
                library,
                ordinal,
                context,
                stream: stream.map_err(failed("queue work"))?,
                done: result::event::create(flags).map_err(failed("wait"))?,
                staging: 0,
                comm: std::ptr::null_mut(),
                is_connected: false,
                is_recorded: false,
            })
        }
    }

    /// Returns what no other device of this machine has.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn device(&self) -> Result<String, String> {
        let uuid = result::device::get_uuid(self.ordinal).map_err(failed("ask the device"))?;
        Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect())
    }

    /// Returns a new id, for rank 0 to give to all.
    ///
    /// # Errors
    /// NCCL's, in words.
    pub fn new_id(&self) -> Result<[u8; ID_BYTES], String> {
        self.use_device()?;
        Ok(self.library.unique_id()?.bytes)
    }

    /// Begins to connect as this rank of so many; [`is_ready`](Self::is_ready) says when all have come.
    ///
    /// # Errors
    /// NCCL's, in words.
    pub fn connect(&mut self, id: &[u8], rank: usize, ranks: usize) -> Result<(), String> {
        let bytes = id.try_into().map_err(|_| format!("an id has {ID_BYTES} bytes, not {}", id.len()))?;
        self.abort();
        self.use_device()?;
        self.comm = self.library.connect(library::UniqueId { bytes }, rank, ranks)?;
        Ok(())
    }

    /// Returns whether the communicator is connected.
    ///
    /// # Errors
    /// NCCL's, in words.
    pub fn is_ready(&mut self) -> Result<bool, String> {
        self.use_device()?;
        self.is_connected = !self.comm.is_null() && self.library.is_idle(self.comm)?;
        Ok(self.is_connected)
    }

    /// Queues the sums of lent tensors over all ranks, in their places. They have to stay until
    /// [`is_done`](Self::is_done) says so, or the communicator was aborted.
    ///
    /// # Errors
    /// NCCL's, in words.
    pub fn sum(&mut self, lent: &Lent) -> Result<(), String> {
        self.require_connection()?;
        self.is_recorded = false;
        // SAFETY: the device has computed the tensors, and they are lent until this is done.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            self.library.sum(lent.numbers(), self.comm, self.stream.cast())
        }
    }

    /// Queues the sums of numbers of the host: at most [`most_staged`](Self::most_staged), which are copied
    /// to the device.
    ///
    /// # Errors
    /// The driver's or NCCL's, in words.
    pub fn sum_staged(&mut self, numbers: &[f32]) -> Result<(), String> {
        self.require_connection()?;
        self.is_recorded = false;
        assert!(numbers.len() <= STAGED, "the caller cuts what is longer");
        // SAFETY: there is room for the numbers, which this value alone uses; the driver has read them when
        // the call returns, because they are not pinned.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            if self.staging == 0 {
                let room = STAGED * size_of::<f32>();
                self.staging = result::malloc_sync(room).map_err(failed("take memory of the device"))?;
            }
            result::memcpy_htod_async(self.staging, numbers, self.stream).map_err(failed("copy"))?;
            self.library.sum([(self.staging, numbers.len())].into_iter(), self.comm, self.stream.cast())
        }
    }

    /// Copies the sums of the last numbers back, when they are done.
    ///
    /// # Errors
    /// The driver's, in words.
    pub fn take_staged(&mut self, numbers: &mut [f32]) -> Result<(), String> {
        self.use_device()?;
        // SAFETY: the numbers were copied to the staging memory before, and the stream is waited for.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::memcpy_dtoh_async(numbers, self.staging, self.stream).map_err(failed("copy"))?;
            result::stream::synchronize(self.stream).map_err(failed("wait"))
        }
    }

    /// Returns how many numbers of the host can be summed at a time.
    pub fn most_staged(&self) -> usize {
        STAGED
    }

    /// Returns whether everything that was queued is done.
    ///
    /// # Errors
    /// A rank is gone, or the network or a device has failed: NCCL's or the driver's words.
    pub fn is_done(&mut self) -> Result<bool, String> {
        self.use_device()?;
        if !self.library.is_idle(self.comm)? {
            return Ok(false);
        }
        // SAFETY: stream and event live as long as this value.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            // What was queued is on the stream only when nothing is in progress.
            if !std::mem::replace(&mut self.is_recorded, true) {
                result::event::record(self.done, self.stream).map_err(failed("sum"))?;
            }
            match result::event::query(self.done) {
                Ok(()) => Ok(true),
                Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                Err(error) => Err(failed("sum")(error)),
            }
        }
    }

    /// Ends whatever the communicator does, also on the device, and frees it.
    pub fn abort(&mut self) {
        self.end(false);
    }

    /// Ends a communicator whose ranks have done everything.
    pub fn finish(&mut self) {
        if !self.is_connected || self.comm.is_null() || self.use_device().is_err() {
            return self.abort();
        }
        let since = Instant::now();
        let mut is_finalized = self.library.finalize(self.comm).is_ok();
        while is_finalized {
            match self.library.is_idle(self.comm) {
                Ok(true) => break,
                Ok(false) if since.elapsed() < ENDING => std::thread::sleep(LOOK),
                _ => is_finalized = false,
            }
        }
        self.end(is_finalized);
    }

    fn end(&mut self, is_finalized: bool) {
        let _ = self.use_device();
        self.is_connected = false;
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        if !comm.is_null() {
            self.library.free(comm, is_finalized);
            self.drain();
        }
    }

    /// Waits until the device does nothing any more for a communicator that was freed, so that what was lent
    /// to it can be used again.
    fn drain(&self) {
        // SAFETY: the stream lives as long as this value.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let _ = unsafe { result::stream::synchronize(self.stream) };
    }

    fn require_connection(&self) -> Result<(), String> {
        if !self.is_connected || self.comm.is_null() {
            return Err("the ranks are not connected".into());
        }
        self.use_device()
    }

    /// Makes the device's context that of this thread.
    fn use_device(&self) -> Result<(), String> {
        // SAFETY: the context is retained until `drop`.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            result::ctx::set_current(self.context).map_err(failed("use the device"))
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
        // SAFETY: everything was made by this value, is used nowhere else, and is released once. What the
        // driver says to that changes nothing.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::event::destroy(self.done);
            if self.staging != 0 {
                let _ = result::free_sync(self.staging);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.ordinal);
        }
    }
}
