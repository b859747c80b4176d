//! Numbers that the host knows and kernels read: borders, positions, ids, angles.

#[cfg(feature = "cuda")]
use crate::cuda::CudaTensor;
#[cfg(feature = "cuda")]
use cubecl::server::Handle;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

/// Shared numbers; brought to the device once, when the first kernel asks for them.
#[derive(Clone)]
pub struct Table<T = u32> {
    host: Arc<[T]>,
    #[cfg(feature = "cuda")]
    device: Arc<OnceLock<Handle>>,
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.host
    }
}

impl<T, S: Into<Arc<[T]>>> From<S> for Table<T> {
    fn from(numbers: S) -> Self {
        Self {
            host: numbers.into(),
            #[cfg(feature = "cuda")]
            device: Arc::default(),
        }
    }
}

impl<T> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        numbers.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.host.fmt(f)
    }
}

#[cfg(feature = "cuda")]
impl<T: bytemuck::NoUninit> Table<T> {
    /// The numbers on the device of `beside`.
    pub(crate) fn on_device(&self, beside: &CudaTensor) -> Handle {
        let upload = || beside.client.create_from_slice(bytemuck::cast_slice(&self.host));
        self.device.get_or_init(upload).clone()
    }
}
