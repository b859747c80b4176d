//! The three products of a linear layer, and what each is to the vendor's library.

use crate::cublaslt::Form;

/// The three products of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Product {
    /// The product `x [m, k] · w [n, k]ᵀ`, bf16.
    Forward,
    /// The product `dy [m, k] · w [k, n]`, bf16.
    Input,
    /// The product `dy [k, m]ᵀ · x [k, n]`, f32.
    Weight,
}

impl Product {
    /// Returns the library's form of a product with these `m`, `n` and `k`.
    pub(crate) fn form(self, size: [usize; 3]) -> Form {
        match self {
            Product::Forward => Form::forward(size),
            Product::Input => Form::input(size),
            Product::Weight => Form::weight(size),
        }
    }
}
