//! Numbers that the host computes and kernels read: boundaries, positions, ids, angles.

#[cfg(feature = "cuda")]
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::{Mutex, OnceLock};

#[cfg(feature = "cuda")]
use cubecl::server::Handle;

#[cfg(feature = "cuda")]
use crate::cuda::CudaTensor;

/// Shared numbers, which are copied to the device once, when the first kernel needs them.
#[derive(Clone)]
pub struct Table<T = u32> {
    host: Arc<[T]>,
    #[cfg(feature = "cuda")]
    device: Arc<OnceLock<Handle>>,
    #[cfg(feature = "cuda")]
    derived: Arc<Mutex<Vec<Derived>>>,
}

/// A value derived from the numbers of a table, with the key it was derived for.
#[cfg(feature = "cuda")]
type Derived = ([usize; 3], Arc<dyn Any + Send + Sync>);

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
            #[cfg(feature = "cuda")]
            derived: Arc::default(),
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
impl<T> Table<T> {
    /// Returns the value that `make` computes from the numbers. It is computed once for each type and `key`,
    /// for all layers that share the table.
    pub(crate) fn derived<D: Any + Send + Sync>(
        &self,
        key: [usize; 3],
        make: impl FnOnce(&[T]) -> D,
    ) -> Arc<D> {
        let mut derived = self.derived.lock().expect("nothing panics while it derives");
        let known = derived.iter().filter(|(of, _)| *of == key);
        if let Some(known) = known.filter_map(|(_, known)| known.clone().downcast::<D>().ok()).next() {
            return known;
        }
        let new = Arc::new(make(&self.host));
        derived.push((key, new.clone()));
        new
    }
}

#[cfg(feature = "cuda")]
impl<T: bytemuck::NoUninit> Table<T> {
    /// Returns the numbers on the device of `like`.
    pub(crate) fn on_device(&self, like: &CudaTensor) -> Handle {
        let upload = || like.client.create_from_slice(bytemuck::cast_slice(&self.host));
        self.device.get_or_init(upload).clone()
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_table_is_made_once_for_each_key_and_type() {
        let table: Table = vec![1, 2, 3].into();
        let sum = |table: &Table, key| table.derived([key, 0, 0], |numbers| numbers.iter().sum::<u32>() + 1);
        let first = sum(&table, 0);
        assert!(*first == 7 && Arc::ptr_eq(&first, &sum(&table.clone(), 0)));
        assert!(!Arc::ptr_eq(&first, &sum(&table, 1)));
        assert_eq!(*table.derived([0; 3], <[u32]>::len), 3);
    }
}
