//! Conversions of device tensors for kernels.

use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Shape, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::Handle;

use super::launch::{Buffer, Kernel, sizes};

/// A tensor on a CUDA device.
pub type CudaTensor = CubeTensor;

impl Buffer for CudaTensor {
    fn handle(&self) -> Handle {
        debug_assert!(self.is_contiguous(), "kernels read rows one after the other");
        self.handle.clone()
    }

    fn client(&self) -> Option<cubecl::client::Client> {
        Some(self.client.clone())
    }
}

/// Returns the device tensor of one of burn's tensors outside autodiff, in the layout that kernels need.
pub fn primitive(tensor: Tensor<2>) -> CudaTensor {
    contiguous(tensor.try_into_primitive::<Cube>().expect("a device tensor outside autodiff"))
}

/// Returns the tensor as one of burn's.
pub fn into_tensor(tensor: CudaTensor) -> Tensor<2> {
    Tensor::from_primitive::<Cube>(tensor)
}

/// Returns rows and columns of a 2-D tensor.
pub fn dims(tensor: &CudaTensor) -> (usize, usize) {
    let shape = tensor.meta.shape();
    (shape[0], shape[1])
}

/// Returns the tensor with contiguous rows, at an address from which kernels can read 16 bytes at a time.
pub(crate) fn contiguous(tensor: CudaTensor) -> CudaTensor {
    let tensor = into_contiguous(tensor);
    if tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16) {
        return tensor;
    }
    copy(&tensor)
}

/// Copies the numbers to new memory.
pub fn copy(tensor: &CudaTensor) -> CudaTensor {
    contiguous(Cube::float_mul_scalar(tensor.clone(), 1.0f32.into()))
}

/// Returns a tensor that is not shared, so that it can be changed in place.
pub(crate) fn own(tensor: CudaTensor) -> CudaTensor {
    if tensor.handle.can_mut() { tensor } else { copy(&tensor) }
}

/// Returns an uninitialised tensor on the device of `like`.
pub(crate) fn empty(like: &CudaTensor, shape: [usize; 2], dtype: DType) -> CudaTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// Returns an uninitialised tensor of the shape and type of another.
pub(crate) fn empty_like(tensor: &CudaTensor) -> CudaTensor {
    let (rows, columns) = dims(tensor);
    empty(tensor, [rows, columns], tensor.dtype)
}

/// Returns the first numbers of a tensor in another shape.
pub(crate) fn view(tensor: CudaTensor, shape: [usize; 2]) -> CudaTensor {
    let (rows, columns) = dims(&tensor);
    let behind = (rows * columns - shape[0] * shape[1]) * tensor.dtype.size();
    let handle = tensor.handle.offset_end(behind as u64);
    CudaTensor::new_contiguous(tensor.client, tensor.device, Shape::new(shape), handle, tensor.dtype)
}

/// Returns some numbers of a tensor with one row, in its own memory if kernels can read them there.
pub(crate) fn part(row: &CudaTensor, first: usize, count: usize) -> CudaTensor {
    let bytes = |numbers: usize| (numbers * row.dtype.size()) as u64;
    let behind = dims(row).1 - first - count;
    let handle = row.handle.clone().offset_start(bytes(first)).offset_end(bytes(behind));
    let (client, device, shape) = (row.client.clone(), row.device.clone(), Shape::new([1, count]));
    contiguous(CudaTensor::new_contiguous(client, device, shape, handle, row.dtype))
}

/// Returns some rows of a tensor, in its own memory if kernels can read them there.
pub(crate) fn rows(tensor: &CudaTensor, first: usize, count: usize) -> CudaTensor {
    let (height, width) = dims(tensor);
    let row = view(tensor.clone(), [1, height * width]);
    view(part(&row, first * width, count * width), [count, width])
}

/// Returns zeros on the device of `like`.
pub(crate) fn zeros(like: &CudaTensor, shape: [usize; 2], dtype: DType) -> CudaTensor {
    contiguous(Cube::float_zeros(Shape::new(shape), &like.device, float(dtype)))
}

fn float(dtype: DType) -> FloatDType {
    if dtype == DType::F32 { FloatDType::F32 } else { FloatDType::BF16 }
}

/// # Panics
/// When the tensor holds neither bf16 nor f32 numbers.
fn cast(tensor: CudaTensor, dtype: DType) -> CudaTensor {
    if tensor.dtype == dtype {
        return tensor;
    }
    let (rows, columns) = dims(&tensor);
    let kernel = match (tensor.dtype, dtype) {
        (DType::F32, DType::BF16) => "cast_to_bf16",
        (DType::BF16, DType::F32) => "cast_to_fp32",
        (other, _) => unreachable!("device tensors are bf16 or f32, not {other:?}"),
    };
    let result = empty(&tensor, [rows, columns], dtype);
    Kernel::new("cast/cast.cuh", kernel)
        .blocks((rows * columns).div_ceil(2048))
        .threads(256)
        .read(&tensor)
        .write(&result)
        .launch(sizes![(rows * columns) as u64]);
    result
}

/// Returns the tensor in bf16, rounded to nearest even if it is wider.
pub fn as_bf16(tensor: CudaTensor) -> CudaTensor {
    cast(tensor, DType::BF16)
}

/// Returns the tensor in f32.
pub fn as_f32(tensor: CudaTensor) -> CudaTensor {
    cast(tensor, DType::F32)
}
