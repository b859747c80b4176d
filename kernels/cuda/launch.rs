//! Launches a kernel of a device source, in order with everything else on the device's stream.
//!
//! Arguments are the buffers in the order of the calls, then one struct of sizes by value: cubecl passes a
//! kernel the addresses of its buffers, followed by the packed words of `info` (`launch_checked` in
//! cubecl-cuda 0.11).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cubecl::ir::attributes::BufferIOAttr;
use cubecl::ir::metadata::Info;
use cubecl::ir::settings::Dim3;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use cubecl::server::{Handle, KernelArguments, MetadataBindingInfo};

use super::source::{Define, Source, source};

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of launches of our kernels by this process. burn's own are not counted.
pub fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// A kernel that is about to be launched.
pub(crate) struct Kernel {
    source: &'static str,
    entry: &'static str,
    defines: Vec<Define>,
    blocks: [usize; 3],
    threads: usize,
    arguments: KernelArguments,
    client: Option<cubecl::client::Client>,
}

/// A value whose address can be passed to a kernel.
pub(crate) trait Buffer {
    fn handle(&self) -> Handle;
    fn client(&self) -> Option<cubecl::client::Client>;
}

impl Buffer for Handle {
    fn handle(&self) -> Handle {
        self.clone()
    }

    fn client(&self) -> Option<cubecl::client::Client> {
        None
    }
}

impl Kernel {
    /// Creates the launch of the kernel `entry` in the device source at `source`, a path below `kernels/`.
    pub(crate) fn new(source: &'static str, entry: &'static str) -> Self {
        let arguments = KernelArguments::new();
        Self { source, entry, defines: Vec::new(), blocks: [1; 3], threads: 1, arguments, client: None }
    }

    /// Defines a compile-time constant of the source.
    pub(crate) fn define(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    pub(crate) fn blocks(self, x: usize) -> Self {
        self.grid(x, 1, 1)
    }

    pub(crate) fn grid(mut self, x: usize, y: usize, z: usize) -> Self {
        self.blocks = [x, y, z];
        self
    }

    pub(crate) fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Adds an argument: a buffer that the kernel only reads.
    pub(crate) fn read(self, buffer: &impl Buffer) -> Self {
        self.buffer(buffer, BufferIOAttr::ReadOnly)
    }

    /// Adds an argument: a buffer that the kernel writes without reading it.
    pub(crate) fn write(self, buffer: &impl Buffer) -> Self {
        self.buffer(buffer, BufferIOAttr::WriteOnly)
    }

    /// Adds an argument: a buffer that the kernel reads and writes.
    pub(crate) fn update(self, buffer: &impl Buffer) -> Self {
        self.buffer(buffer, BufferIOAttr::ReadWrite)
    }

    fn buffer(mut self, buffer: &impl Buffer, io: BufferIOAttr) -> Self {
        self.arguments = self.arguments.with_buffer_io(buffer.handle().binding(), io);
        self.client = self.client.or(buffer.client());
        self
    }

    /// Queues the kernel on the device; `sizes` is its last argument.
    pub(crate) fn launch(self, sizes: Sizes) {
        let [x, y, z] = self.blocks.map(|blocks| u32::try_from(blocks).expect("a grid fits 32 bits"));
        let words = sizes.words();
        // All words belong to the struct; none of them is shape metadata, which cubecl would pass as a
        // buffer.
        let info = MetadataBindingInfo { dynamic_metadata_offset: words.len(), data: words };
        let client = self.client.expect("a kernel has at least one tensor");
        let raw = Raw {
            source: source(self.source, self.entry, &self.defines),
            entry: self.entry,
            threads: Dim3 { x: self.threads as u32, y: 1, z: 1 },
        };
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        client.launch(Box::new(raw), CubeCount::Static(x, y, z), self.arguments.with_info(info));
    }
}

/// The fields of a kernel's struct of sizes, laid out as C does.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sizes {
    bytes: Vec<u8>,
}

impl Sizes {
    /// Appends a field of 4 or 8 bytes, aligned to its size.
    pub(crate) fn push<T: bytemuck::NoUninit>(&mut self, field: T) {
        let size = size_of::<T>();
        self.bytes.resize(self.bytes.len().next_multiple_of(size), 0);
        self.bytes.extend_from_slice(bytemuck::bytes_of(&field));
    }

    fn words(mut self) -> Vec<u64> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        bytemuck::pod_collect_to_vec(&self.bytes)
    }
}

/// Creates the struct of sizes with these fields, in order. Their types must match the device source.
macro_rules! sizes {
    ($($field:expr),* $(,)?) => {{
        let mut sizes = $crate::cuda::Sizes::default();
        $(sizes.push($field);)*
        sizes
    }};
}
pub(crate) use sizes;

/// A device source in the form that cubecl takes.
#[derive(Clone)]
struct Raw {
    source: Arc<Source>,
    entry: &'static str,
    threads: Dim3,
}

impl KernelMetadata for Raw {
    fn id(&self) -> KernelId {
        KernelId::new::<Self>().info((self.entry, self.source.hash)).cube_dim(self.threads)
    }

    fn address_type(&self) -> ElemType {
        ElemType::UInt(UIntKind::U32)
    }
}

impl CubeKernel for Raw {
    fn define(&self) -> KernelDefinition {
        let settings = KernelSettings::new(self.threads, ExecutionMode::Unchecked, AddressType::U32);
        KernelDefinition { body: Scope::root(settings.clone()), settings, info: Info::default() }
    }

    fn source(&self) -> Option<PrecompiledSource> {
        let source = self.source.text.clone();
        Some(PrecompiledSource { source, entrypoint_name: self.entry.into(), lang: "cuda" })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_lie_where_c_puts_them() {
        let words = sizes![1u32, 2u64, 0.5f32, 3u32].words();
        assert_eq!(words, [1, 2, (3 << 32) | u64::from(0.5f32.to_bits())]);
    }
}
