//! The functions that need the feature `cuda`, with replacements that do nothing in other builds.
//!
//! The rest of the crate calls these items in every build, so that the loop is the same code and is
//! type-checked without CUDA.

#[cfg(feature = "cuda")]
pub(crate) use with_cuda::{
    cublaslt, first_device, given_back, lend, quantiser, shared_memory_works, tuning,
};
#[cfg(not(feature = "cuda"))]
pub(crate) use without_cuda::{
    cublaslt, first_device, given_back, lend, quantiser, shared_memory_works, tuning,
};

#[cfg(feature = "cuda")]
mod with_cuda {
    use burn::tensor::{Device, DeviceType, Tensor};
    use sparktune_cluster::Lent;
    pub(crate) use sparktune_kernels::cublaslt;
    pub(crate) use sparktune_kernels::linear::tuning;
    pub(crate) use sparktune_kernels::probe::shared_memory_works;

    use crate::error::TrainError;
    pub(crate) use crate::quantiser::quantiser;

    /// Returns the first CUDA device of this machine.
    pub(crate) fn first_device() -> Result<Device, TrainError> {
        let devices = Device::enumerate(DeviceType::Cuda).into_vec();
        devices.into_iter().next().ok_or_else(|| TrainError::NoDevice("no CUDA device responds".into()))
    }

    /// Lends tensors for a sum, when the device has computed them.
    ///
    /// # Panics
    /// When the device has failed.
    pub(crate) fn lend(tensors: Vec<Tensor<2>>) -> Box<Lent> {
        Box::new(sparktune_kernels::nccl::Lent::new(tensors).expect("the device does what was queued"))
    }

    /// Returns the tensors that were lent.
    pub(crate) fn given_back(lent: Box<Lent>) -> Vec<Tensor<2>> {
        let lent = lent.downcast::<sparktune_kernels::nccl::Lent>();
        lent.expect("this crate has lent them").into_tensors()
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use burn::tensor::{Device, Tensor};
    use sparktune_base::pages::Part;
    use sparktune_cluster::{Lent, Quantiser};

    use crate::error::TrainError;

    pub(crate) fn first_device() -> Result<Device, TrainError> {
        Err(TrainError::NoDevice("this build has no CUDA".into()))
    }

    pub(crate) fn shared_memory_works(_: &Device) -> bool {
        false
    }

    pub(crate) fn lend(_: Vec<Tensor<2>>) -> Box<Lent> {
        unreachable!("no engine takes tensors in this build")
    }

    pub(crate) fn given_back(_: Box<Lent>) -> Vec<Tensor<2>> {
        unreachable!("nothing is lent in this build")
    }

    pub(crate) fn quantiser(
        _: &Device,
        _: Option<bool>,
        _: Option<Part>,
    ) -> Result<(Option<Box<dyn Quantiser>>, String), String> {
        Err("this build has no CUDA".into())
    }

    /// Replaces `sparktune_kernels::cublaslt` in builds without it.
    pub(crate) mod cublaslt {
        use std::path::PathBuf;

        use burn::tensor::Device;

        pub(crate) fn seek(_: &Device, _: &[PathBuf]) -> Option<usize> {
            None
        }

        pub(crate) fn version_in_words(version: usize) -> String {
            version.to_string()
        }
    }

    /// Replaces `sparktune_kernels::linear::tuning` in builds without tiles.
    pub(crate) mod tuning {
        use burn::tensor::Device;

        pub(crate) enum Problem {}

        impl Problem {
            pub(crate) fn measure(&self, _: &Device) -> bool {
                match *self {}
            }
        }

        pub(crate) fn learn(_: &str) -> Result<(), usize> {
            Ok(())
        }

        pub(crate) fn learned() -> String {
            String::new()
        }

        pub(crate) fn use_library(_: Option<usize>) {}

        pub(crate) fn begin_deciding() {}

        pub(crate) fn settle_decisions() {}

        pub(crate) fn decide_as(_: &str) -> Result<(), usize> {
            Ok(())
        }

        pub(crate) fn decisions() -> String {
            String::new()
        }

        pub(crate) fn by_library() -> (usize, usize) {
            (0, 0)
        }

        pub(crate) fn refusals() -> usize {
            0
        }

        pub(crate) fn listen() {}

        pub(crate) fn missed() -> Vec<Problem> {
            Vec::new()
        }
    }
}
