//! Products of two matrices by the vendor's library, cuBLASLt: loaded at run time, and one more candidate
//! beside the tiles of `linear.cuh` (`linear/tuning.rs`).
//!
//! Enters: device tensors, the form of a product, and an algorithm. Leaves: the product, queued in order with
//! everything else on the device's stream. It must not decide when the library is used.
//!
//! **The library is absent without harm.** Nothing links to it; [`seek`] opens it when something asks, and it
//! is never asked for in a run with `--products own`.
//!
//! **The same bits in every run with the same record.** An algorithm that was chosen is used by its
//! description, never by asking the heuristic again. Only algorithms are taken that form each number's sum in
//! one sequence: reduction scheme NONE and no split of `k`, asked for and checked. One that gives other bits
//! in a second launch is dropped (`repeated`). Algorithms differ in their bits, from each other and from our
//! tiles. For another number of tokens than the measured one, the library is asked whether the algorithm
//! computes that too (`fitting`).
//!
//! **Stream order.** cubecl keeps its stream to itself, but its server runs tasks on the thread that queues
//! launches, and its toolkit for servers (cubecl-server) gives out the stream there. A product is such a
//! task: it waits for other streams where a launch would, and a failure marks the result as one that was
//! never written, as a failed launch does.

mod algorithm;
mod form;
mod library;
mod sys;

use std::cell::Cell;
use std::path::PathBuf;

pub use algorithm::Algorithm;
use burn::tensor::{DType, Device, Tensor, TensorData};
use cubecl::cuda::CudaRuntime;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::stream::StreamId;
use cubecl_server::runtime::Runtime;
use cubecl_server::server::{BufferBinding, ServerError, ServerStorage};
use cubecl_server::stream::{ExecuteScope, WriteScoped, failed_writing};
pub(crate) use form::Form;
use form::Operands;

use crate::cuda::{CudaTensor, dims, empty, into_tensor, primitive};

/// What queues launches on a CUDA device.
type Server = <CudaRuntime as Runtime>::Server;

thread_local! {
    static PRODUCTS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of products that this thread has left to the library.
pub fn products() -> u64 {
    PRODUCTS.get()
}

fn queue_of(tensor: &CudaTensor) -> DeviceHandle<Server> {
    DeviceHandle::new(tensor.client.service_id().device)
}

/// Loads the library, unless this process has tried before: the first of `from` that can be opened, or where
/// the loader and `CUDA_PATH` lead if `from` is empty. Returns its version, or `None` if there is none.
pub fn seek(device: &Device, from: &[PathBuf]) -> Option<usize> {
    // Any tensor leads to the device's queue, on whose thread its context is current.
    let like = primitive(Tensor::zeros([1, 1], device));
    let found = queue_of(&like).submit_blocking(|_| library::load(from).map(|library| library.version));
    found.ok().flatten()
}

/// Returns a version of the library in the usual form: 13.0.2 for 130002.
pub fn version_in_words(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Returns the algorithms that the library thinks fastest for a product, at most `most`. There are none if it
/// is not loaded or has none.
pub(crate) fn search(form: Form, like: &CudaTensor, most: usize) -> Vec<Algorithm> {
    let Some(library) = library::loaded() else { return Vec::new() };
    let found = queue_of(like).submit_blocking(move |_| form::search(library, &form, most));
    found.ok().and_then(Result::ok).unwrap_or_default()
}

/// Asks the library whether each of these algorithms computes products of the form beside it. Returns them
/// with the workspace that they take for these forms; `None` if one of them does not, or the library is not
/// loaded.
pub(crate) fn fitting(parts: Vec<(Form, Algorithm)>, like: &CudaTensor) -> Option<Vec<Algorithm>> {
    let library = library::loaded()?;
    let each =
        move |(form, algorithm): &(Form, Algorithm)| form::fitting(library, form, algorithm).ok().flatten();
    queue_of(like).submit_blocking(move |_| parts.iter().map(each).collect()).ok().flatten()
}

/// Queues `c = scale · a·b`, or adds that to `c`. The matrices are whole and contiguous.
pub(crate) fn multiply(
    form: Form,
    algorithm: Algorithm,
    scale: f32,
    a: &CudaTensor,
    b: &CudaTensor,
    c: &CudaTensor,
    added: bool,
) {
    let workspace = algorithm.workspace_bytes;
    let workspace = (workspace > 0).then(|| empty(c, [1, workspace.div_ceil(4)], DType::F32));
    let tensors = [a, b, c].into_iter().chain(&workspace);
    let buffers: Vec<BufferBinding> = tensors.map(|tensor| tensor.handle.clone().binding()).collect();
    PRODUCTS.set(PRODUCTS.get() + 1);
    let beta = f32::from(u8::from(added));
    queue_of(c).submit(move |server| queue(server, form, algorithm, [scale, beta], &buffers));
}

/// Queues a product on the stream of the current task, on the thread of the device's queue.
fn queue(
    server: &mut Server,
    form: Form,
    algorithm: Algorithm,
    factors: [f32; 2],
    buffers: &[BufferBinding],
) {
    let stream = StreamId::current();
    let written = vec![buffers[2].clone()];
    let resources = buffers.iter().map(|buffer| server.get_resource(buffer.clone(), stream));
    let resources = match resources.collect::<Result<Vec<_>, _>>() {
        Ok(resources) => resources,
        // A matrix was never written: neither is the product.
        Err(error) => return failed_writing(server, stream, written, error),
    };
    let _ = ExecuteScope::over(server, stream, written).execute(|server| {
        let mut streams = server.write_streams().resolve(stream, buffers.iter())?;
        let queue = streams.current().sys;
        let at = |place: usize| resources.get(place).map_or(0, |resource| resource.resource().ptr);
        let [alpha, beta] = factors;
        let operands = Operands { a: at(0), b: at(1), c: at(2), workspace: at(3), alpha, beta };
        let library = library::loaded().ok_or_else(|| failed("cuBLASLt is not loaded".into()))?;
        // SAFETY: the server gave the addresses and keeps the memory, which the bindings hold, until the
        // stream is past what is queued now.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let done = unsafe { form::multiply(library, &form, &algorithm, &operands, queue.cast()) };
        // Only then are memory and events of other streams let go of.
        drop(streams);
        done.map_err(failed)
    });
}

fn failed(reason: String) -> ServerError {
    ServerError::Generic { reason, backtrace: BackTrace::capture() }
}

/// Returns the numbers of a product if two launches give the same bits. `c` says what the result looks like.
pub(crate) fn repeated(form: Form, algorithm: Algorithm, [a, b, c]: [&CudaTensor; 3]) -> Option<TensorData> {
    let run = || {
        let (rows, columns) = dims(c);
        let result = empty(c, [rows, columns], c.dtype);
        multiply(form, algorithm, 1.0, a, b, &result, false);
        into_tensor(result).into_data()
    };
    let first = run();
    (first.as_bytes() == run().as_bytes()).then_some(first)
}

#[cfg(test)]
pub(crate) mod on_device;
