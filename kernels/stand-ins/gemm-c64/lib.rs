//! Products of complex f64 matrices that cannot be computed, in the place of `gemm-c64`.
//!
//! `gemm` 0.19 depends on its complex kernels in every build and chooses among the element types when it is called.
//! sparktune and burn's CPU backend multiply real matrices only, while the complex kernels took 17 seconds of a first
//! build. This crate has what `gemm` needs in order to compile. It can be deleted, with its line in `[patch.crates-io]`,
//! once `gemm` makes these kernels optional.

/// The one module that `gemm` uses.
pub mod gemm {
    /// Complex numbers of two f64.
    pub mod f64 {
        use gemm_common::Parallelism;
        use num_complex::Complex;

        /// The signature of all kernels of `gemm`: dimensions, then each matrix with its strides, then factors and flags.
        type Kernel = unsafe fn(
            usize,
            usize,
            usize,
            *mut Complex<f64>,
            isize,
            isize,
            bool,
            *const Complex<f64>,
            isize,
            isize,
            *const Complex<f64>,
            isize,
            isize,
            Complex<f64>,
            Complex<f64>,
            bool,
            bool,
            bool,
            Parallelism,
        );

        /// Returns the kernel for this machine, of which there is none.
        ///
        /// # Panics
        /// Always.
        pub fn get_gemm_fn() -> Kernel {
            panic!("sparktune is built without products of complex matrices (kernels/stand-ins/gemm-c64)")
        }
    }
}
