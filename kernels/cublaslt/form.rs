//! What a product is to the library: its three matrices, and which of them it reads transposed.
//!
//! The library has columns one after the other, our matrices rows. A row-major matrix is its transposed one
//! to the library, so `C = A·B` is asked for as `Cᵀ = Bᵀ·Aᵀ`, and nothing is copied.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::algorithm::Algorithm;
use super::library::Library;
use super::sys::{
    ALGORITHM_WORDS, ALIGNMENT, AS_IT_IS, BF16, COMPUTE_F32, CONFIG_REDUCTION_SCHEME, CONFIG_SPLITS,
    DESCRIPTION_TRANSPOSE_A, DESCRIPTION_TRANSPOSE_B, F32, NO_REDUCTION, Object, PREFERENCE_ALIGNMENT_A,
    PREFERENCE_REDUCTION_SCHEMES, PREFERENCE_WORKSPACE_BYTES, Status, Suggestion, TRANSPOSED,
    WORKSPACE_BYTES,
};

/// A product `C [m, n] = A·B` of whole bf16 matrices, summed in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    m: usize,
    n: usize,
    k: usize,
    /// A lies as `[k, m]` and not as `[m, k]`.
    a_is_transposed: bool,
    /// B lies as `[n, k]` and not as `[k, n]`.
    b_is_transposed: bool,
    /// C is f32 and not bf16.
    is_f32: bool,
}

impl Form {
    /// `x [m, k] · w [n, k]ᵀ`, bf16.
    pub(crate) fn forward([m, n, k]: [usize; 3]) -> Self {
        Self { m, n, k, a_is_transposed: false, b_is_transposed: true, is_f32: false }
    }

    /// `dy [m, k] · w [k, n]`, bf16.
    pub(crate) fn input([m, n, k]: [usize; 3]) -> Self {
        Self { m, n, k, a_is_transposed: false, b_is_transposed: false, is_f32: false }
    }

    /// `dy [k, m]ᵀ · x [k, n]`, f32.
    pub(crate) fn weight([m, n, k]: [usize; 3]) -> Self {
        Self { m, n, k, a_is_transposed: true, b_is_transposed: false, is_f32: true }
    }

    /// Returns whether the rows of all matrices begin at multiples of 16 bytes, as all fast algorithms need.
    pub(crate) fn is_aligned(&self) -> bool {
        let a_row = if self.a_is_transposed { self.m } else { self.k };
        let b_row = if self.b_is_transposed { self.k } else { self.n };
        [a_row, b_row, self.n].iter().all(|row| row.is_multiple_of(8))
    }
}

/// The addresses of a product on the device, and the factors: `C = alpha · A·B + beta · C`.
pub(super) struct Operands {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) workspace: u64,
    pub(super) alpha: f32,
    pub(super) beta: f32,
}

/// What a call did not do, in words.
pub(super) type Refused = String;

fn checked(what: &str, status: Status) -> Result<(), Refused> {
    if status == 0 { Ok(()) } else { Err(format!("cuBLASLt could not {what}: status {status}")) }
}

/// A product's descriptors. The library's first operand is our second one.
struct Described<'a> {
    library: &'a Library,
    product: Object,
    first: Object,
    second: Object,
    result: Object,
}

impl<'a> Described<'a> {
    fn new(library: &'a Library, form: &Form) -> Result<Self, Refused> {
        let functions = &library.functions;
        let mut described =
            Self { library, product: null_mut(), first: null_mut(), second: null_mut(), result: null_mut() };
        // SAFETY: each call writes one object, which `drop` releases.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        checked("describe a product", unsafe {
            (functions.describe)(&raw mut described.product, COMPUTE_F32, F32)
        })?;
        let Form { m, n, k, a_is_transposed, b_is_transposed, is_f32 } = *form;
        for (attribute, is_turned) in
            [(DESCRIPTION_TRANSPOSE_A, b_is_transposed), (DESCRIPTION_TRANSPOSE_B, a_is_transposed)]
        {
            let operation = if is_turned { TRANSPOSED } else { AS_IT_IS };
            // SAFETY: the attribute is an `int`, which is copied.
            #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
            checked("describe a product", unsafe {
                let value: *const c_int = &raw const operation;
                (functions.set_description)(described.product, attribute, value.cast(), size_of::<c_int>())
            })?;
        }
        let (b_rows, b_columns) = if b_is_transposed { (k, n) } else { (n, k) };
        let (a_rows, a_columns) = if a_is_transposed { (m, k) } else { (k, m) };
        described.first = layout(library, BF16, b_rows, b_columns)?;
        described.second = layout(library, BF16, a_rows, a_columns)?;
        described.result = layout(library, if is_f32 { F32 } else { BF16 }, n, m)?;
        Ok(described)
    }
}

fn layout(library: &Library, kind: c_int, rows: usize, columns: usize) -> Result<Object, Refused> {
    let mut layout = null_mut();
    // SAFETY: the call writes one object, which `Described` releases.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let status = unsafe {
        (library.functions.lay_out)(&raw mut layout, kind, rows as u64, columns as u64, rows as i64)
    };
    checked("describe a matrix", status)?;
    Ok(layout)
}

impl Drop for Described<'_> {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        // SAFETY: the objects were made by `new`, or are null where it did not come so far.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            for layout in [self.first, self.second, self.result].into_iter().filter(|x| !x.is_null()) {
                (functions.drop_layout)(layout);
            }
            if !self.product.is_null() {
                (functions.drop_description)(self.product);
            }
        }
    }
}

/// A search's conditions.
struct Preference<'a> {
    library: &'a Library,
    object: Object,
}

impl<'a> Preference<'a> {
    fn new(library: &'a Library) -> Result<Self, Refused> {
        let mut object = null_mut();
        // SAFETY: the call writes one object, which `drop` releases.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        checked("search", unsafe { (library.functions.prefer)(&raw mut object) })?;
        Ok(Self { library, object })
    }

    fn set<T>(&self, attribute: c_int, value: T) -> Result<(), Refused> {
        // SAFETY: the value has the attribute's type and is copied.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        checked("search", unsafe {
            let value: *const T = &raw const value;
            (self.library.functions.set_preference)(self.object, attribute, value.cast(), size_of::<T>())
        })
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        // SAFETY: the object was made by `new`.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            (self.library.functions.drop_preference)(self.object);
        }
    }
}

/// Asks the library for its best algorithms, at most `most`, the one it thinks fastest first. Left out are
/// those that would split `k`: what several blocks add to one number may come in any order.
pub(super) fn search(library: &Library, form: &Form, most: usize) -> Result<Vec<Algorithm>, Refused> {
    let described = Described::new(library, form)?;
    let preference = Preference::new(library)?;
    preference.set(PREFERENCE_WORKSPACE_BYTES, WORKSPACE_BYTES as u64)?;
    preference.set(PREFERENCE_REDUCTION_SCHEMES, NO_REDUCTION)?;
    for matrix in 0..4 {
        preference.set(PREFERENCE_ALIGNMENT_A + matrix, ALIGNMENT)?;
    }
    let mut found = vec![Suggestion::default(); most];
    let mut count: c_int = 0;
    // SAFETY: there is room for `most` suggestions.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let status = unsafe {
        (library.functions.suggest)(
            library.handle,
            described.product,
            described.first,
            described.second,
            described.result,
            described.result,
            preference.object,
            c_int::try_from(most).expect("a few"),
            found.as_mut_ptr(),
            &raw mut count,
        )
    };
    checked("find an algorithm", status)?;
    found.truncate(usize::try_from(count).unwrap_or(0));
    let usable = found.into_iter().filter(|one| {
        one.state == 0
            && one.workspace_bytes <= WORKSPACE_BYTES
            && config(library, &one.algorithm, CONFIG_REDUCTION_SCHEME) == Some(NO_REDUCTION)
            && config(library, &one.algorithm, CONFIG_SPLITS).is_some_and(|splits| splits <= 1)
    });
    let algorithm = |one: Suggestion| Algorithm {
        version: library.version,
        workspace_bytes: one.workspace_bytes,
        words: one.algorithm,
    };
    Ok(usable.map(algorithm).collect())
}

/// Asks the library whether an algorithm computes products of this form on this device. Returns the algorithm
/// with the workspace that it takes for them; `None` if it does not.
pub(super) fn fitting(
    library: &Library,
    form: &Form,
    algorithm: &Algorithm,
) -> Result<Option<Algorithm>, Refused> {
    if algorithm.version != library.version {
        return Ok(None);
    }
    let described = Described::new(library, form)?;
    let mut found = Suggestion::default();
    // SAFETY: the call reads the objects and the words of the algorithm, and writes one suggestion.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let status = unsafe {
        (library.functions.check)(
            library.handle,
            described.product,
            described.first,
            described.second,
            described.result,
            described.result,
            algorithm.words.as_ptr(),
            &raw mut found,
        )
    };
    let fits = status == 0 && found.state == 0 && found.workspace_bytes <= WORKSPACE_BYTES;
    Ok(fits.then_some(Algorithm { workspace_bytes: found.workspace_bytes, ..*algorithm }))
}

/// Returns a number of an algorithm's configuration.
fn config(library: &Library, algorithm: &[u64; ALGORITHM_WORDS], attribute: c_int) -> Option<u32> {
    let (mut value, mut written) = (0u32, 0usize);
    // SAFETY: the attribute has four bytes.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let status = unsafe {
        let to: *mut u32 = &raw mut value;
        (library.functions.config_of)(algorithm.as_ptr(), attribute, to.cast(), 4, &raw mut written)
    };
    (status == 0).then_some(value)
}

/// Queues a product on a stream.
///
/// # Safety
/// The addresses are those of matrices of the form in memory of the device, and of as many bytes of workspace
/// as the algorithm needs; they stay valid until the stream is past the product.
#[expect(unsafe_code, reason = "the caller answers for addresses on the device")]
pub(super) unsafe fn multiply(
    library: &Library,
    form: &Form,
    algorithm: &Algorithm,
    operands: &Operands,
    stream: *mut c_void,
) -> Result<(), Refused> {
    if algorithm.version != library.version {
        return Err(format!(
            "the algorithm is one of cuBLASLt {}, and {} is loaded",
            algorithm.version, library.version
        ));
    }
    let described = Described::new(library, form)?;
    let at = |address: u64| address as usize as *mut c_void;
    let Operands { a, b, c, workspace, alpha, beta } = operands;
    // SAFETY: the factors are on the host and read before the call returns; the rest is the caller's.
    let status = unsafe {
        let (alpha, beta): (*const f32, *const f32) = (alpha, beta);
        (library.functions.multiply)(
            library.handle,
            described.product,
            alpha.cast(),
            at(*b),
            described.first,
            at(*a),
            described.second,
            beta.cast(),
            at(*c),
            described.result,
            at(*c),
            described.result,
            algorithm.words.as_ptr(),
            at(*workspace),
            algorithm.workspace_bytes,
            stream,
        )
    };
    checked("multiply", status)
}
