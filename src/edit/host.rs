//! Numbers of tensors in the memory of the host.

use burn::tensor::{Tensor, TensorData};

/// Returns the numbers of a tensor.
pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data: TensorData = tensor.inner().into_data().convert::<f32>();
    data.try_to_vec().expect("was converted to f32")
}
