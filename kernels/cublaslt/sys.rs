//! The functions of cuBLASLt that are used, found in the library at run time, and the numbers of its headers
//! (`cublasLt.h`, `library_types.h`; the same from CUDA 12.0 to 13.4).

use std::ffi::{c_int, c_void};

use libloading::Library;

/// What every call returns; 0 is success (`cublasStatus_t`).
pub(super) type Status = c_int;
/// An object of the library: a handle, a descriptor, a layout or a preference.
pub(super) type Object = *mut c_void;

/// The bytes of an algorithm (`cublasLtMatmulAlgo_t`), which may be stored for the same version of the
/// library.
pub(super) const ALGORITHM_WORDS: usize = 8;

/// What the heuristic says about an algorithm (`cublasLtMatmulHeuristicResult_t`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Suggestion {
    pub(super) algorithm: [u64; ALGORITHM_WORDS],
    pub(super) workspace_bytes: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    pub(super) reserved: [c_int; 4],
}

/// `CUDA_R_32F` and `CUDA_R_16BF`.
pub(super) const F32: c_int = 0;
pub(super) const BF16: c_int = 14;
/// `CUBLAS_COMPUTE_32F`.
pub(super) const COMPUTE_F32: c_int = 68;
/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
pub(super) const AS_IT_IS: c_int = 0;
pub(super) const TRANSPOSED: c_int = 1;
/// Attributes of a product (`cublasLtMatmulDescAttributes_t`).
pub(super) const DESCRIPTION_TRANSPOSE_A: c_int = 3;
pub(super) const DESCRIPTION_TRANSPOSE_B: c_int = 4;
/// Attributes of a search (`cublasLtMatmulPreferenceAttributes_t`).
pub(super) const PREFERENCE_WORKSPACE_BYTES: c_int = 1;
pub(super) const PREFERENCE_REDUCTION_SCHEMES: c_int = 3;
/// The alignment of A; those of B, C and D follow.
pub(super) const PREFERENCE_ALIGNMENT_A: c_int = 5;
/// Attributes of an algorithm (`cublasLtMatmulAlgoConfigAttributes_t`).
pub(super) const CONFIG_SPLITS: c_int = 2;
pub(super) const CONFIG_REDUCTION_SCHEME: c_int = 3;
/// `CUBLASLT_REDUCTION_SCHEME_NONE`: each sum is formed in one sequence.
pub(super) const NO_REDUCTION: u32 = 0;

/// The most bytes that an algorithm may use beside the matrices. The library's own default on H200, and what
/// the plan counts (`src/plan/memory.rs`).
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Addresses are multiples of so many bytes.
pub(super) const ALIGNMENT: u32 = 16;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// The functions, valid as long as the library is loaded, which is until the process ends.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            _library: Library,
        }

        impl Functions {
            /// Finds all functions in a library.
            pub(super) fn of(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the library's header.
                #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
                unsafe {
                    $(let $name = *library.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol)?;)*
                    Ok(Self { $($name,)* _library: library })
                }
            }
        }
    };
}

functions! {
    version = "cublasLtGetVersion": fn() -> usize;
    create = "cublasLtCreate": fn(*mut Object) -> Status;
    describe = "cublasLtMatmulDescCreate": fn(*mut Object, c_int, c_int) -> Status;
    set_description = "cublasLtMatmulDescSetAttribute": fn(Object, c_int, *const c_void, usize) -> Status;
    drop_description = "cublasLtMatmulDescDestroy": fn(Object) -> Status;
    lay_out = "cublasLtMatrixLayoutCreate": fn(*mut Object, c_int, u64, u64, i64) -> Status;
    drop_layout = "cublasLtMatrixLayoutDestroy": fn(Object) -> Status;
    prefer = "cublasLtMatmulPreferenceCreate": fn(*mut Object) -> Status;
    set_preference = "cublasLtMatmulPreferenceSetAttribute": fn(Object, c_int, *const c_void, usize) -> Status;
    drop_preference = "cublasLtMatmulPreferenceDestroy": fn(Object) -> Status;
    suggest = "cublasLtMatmulAlgoGetHeuristic": fn(
        Object, Object, Object, Object, Object, Object, Object, c_int, *mut Suggestion, *mut c_int,
    ) -> Status;
    check = "cublasLtMatmulAlgoCheck": fn(
        Object, Object, Object, Object, Object, Object, *const u64, *mut Suggestion,
    ) -> Status;
    config_of = "cublasLtMatmulAlgoConfigGetAttribute": fn(
        *const u64, c_int, *mut c_void, usize, *mut usize,
    ) -> Status;
    multiply = "cublasLtMatmul": fn(
        Object, Object, *const c_void, *const c_void, Object, *const c_void, Object, *const c_void,
        *const c_void, Object, *mut c_void, Object, *const u64, *mut c_void, usize, *mut c_void,
    ) -> Status;
}
