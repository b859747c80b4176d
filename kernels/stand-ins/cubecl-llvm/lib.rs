//! A stand-in for `cubecl-llvm`: the types `cubecl-cuda` names, and no LLVM behind them.
//!
//! `cubecl-cuda` 0.11 always compiles both of its compilers: CUDA C++ through NVRTC, and LLVM. The build script of
//! the second downloads a prebuilt LLVM of several hundred megabytes from outside the crate registry, which no offline
//! or audited build can allow. sparktune runs the first one only (feature `cuda-cpp` of `cubecl`), so this crate
//! takes the second one's place through `[patch.crates-io]` and lets the types say that it does not exist: what
//! LLVM would produce are empty enums, and asking for a compilation is an error that names the way out.
//!
//! Delete it, and the patch, once cubecl can be built without LLVM.

use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::BufferIOAttr;
use std::convert::Infallible;
use std::ffi::c_char;
use std::fmt;

/// What LLVM would compile for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// Nothing: there is no LLVM.
    #[default]
    None,
    /// NVIDIA's PTX, which `cubecl-cuda` asks for.
    Nvptx,
}

/// The compiler that is not here.
#[derive(Debug, Clone, Default)]
pub struct PlironCompiler {
    /// The name that was asked for.
    pub target: LlvmTarget,
}

/// The options `cubecl-cuda` fills in; nobody reads them.
#[derive(Debug, Clone, Default)]
pub struct PlironOptions {
    /// The AMD architecture, always `None` here.
    pub arch: Option<Infallible>,
    /// The NVIDIA architecture.
    pub sm_arch: Option<SmArch>,
    /// The PTX version, always `None` here.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether scalars travel in the kernel's parameter block.
    pub grid_constants: bool,
}

/// A module compiled to PTX, which cannot exist.
#[derive(Debug, Clone)]
pub struct NvptxModule {
    /// NUL-terminated PTX.
    pub ptx: Vec<c_char>,
    /// Name of the kernel in it.
    pub entrypoint: String,
    /// The text it was compiled from.
    pub ir: String,
    /// Shared memory of a launch, in bytes.
    pub shared_memory_size: usize,
    /// How each buffer is accessed, in binding order.
    pub io: Vec<BufferIOAttr>,
    /// No value of this type can be made.
    pub never: Infallible,
}

/// The result of a compilation, which cannot exist. The real one has more variants.
#[derive(Clone)]
#[non_exhaustive]
pub enum PlironArtifact {
    /// PTX.
    NvptxCode(NvptxModule),
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NvptxCode(module) = self;
        match module.never {}
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _: KernelDefinition,
        _: &Self::CompilationOptions,
    ) -> Result<Self::Representation, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM; cubecl's feature `cuda-cpp` selects CUDA C++ instead".into(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}

/// What LLVM knows of PTX.
pub mod nvptx {
    /// The version of PTX that a driver loads.
    pub mod ptx_version {
        use std::fmt;

        /// A PTX version, of which no one here has a use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum PtxVersion {}

        impl PtxVersion {
            /// `None`, whatever the driver: no PTX is ever emitted.
            pub fn for_driver(_: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {}
            }
        }
    }
}

/// What LLVM's targets share.
pub mod shared {
    /// What a device advertises, narrowed to what LLVM can compile.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// The targets whose features can be narrowed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA's PTX.
            Nvptx,
        }

        /// Leaves `properties` as they are: `cubecl-cuda` calls this only when it runs LLVM.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}
