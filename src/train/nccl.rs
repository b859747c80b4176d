//! The first CUDA device with NCCL, as the engine of the ranks uses it.

use std::path::Path;
use std::sync::Arc;

use sparktune_cluster::Lent;
use sparktune_cluster::nccl::preflight::Facts;
use sparktune_cluster::nccl::{Gpu, machine};
use sparktune_kernels::nccl::{Communicator, Lent as Tensors, Library};

/// Finds the device, the library and the links of this machine. The device is there if the facts say so.
pub fn find_gpu() -> (Facts, Option<Box<dyn Gpu>>) {
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let root = Path::new("/");
    let (host, links) = (machine::host(root, get), machine::links(root, get));
    let library = Library::load().map(Arc::new);
    let version = library.as_ref().map(|library| library.version()).map_err(Clone::clone);
    let communicator = match library {
        Ok(library) => Communicator::new(library),
        Err(_) => Err("it was not looked for without NCCL".into()),
    };
    let device = communicator.and_then(|communicator| Ok((communicator.device()?, communicator)));
    let (gpu, communicator) = match device {
        Ok((name, communicator)) => (Ok(name), Some(communicator)),
        // What is missing first is said.
        Err(_) if version.is_err() => (Ok(String::new()), None),
        Err(why) => (Err(why), None),
    };
    let facts = Facts { gpu, host, library: version, links };
    (facts, communicator.map(|communicator| Box::new(First(communicator)) as Box<dyn Gpu>))
}

/// The first CUDA device.
struct First(Communicator);

impl Gpu for First {
    fn new_id(&mut self) -> Result<Vec<u8>, String> {
        self.0.new_id().map(|id| id.to_vec())
    }

    fn connect(&mut self, id: &[u8], rank: usize, ranks: usize) -> Result<(), String> {
        self.0.connect(id, rank, ranks)
    }

    fn is_ready(&mut self) -> Result<bool, String> {
        self.0.is_ready()
    }

    fn sum_lent(&mut self, lent: &mut Lent) -> Result<usize, String> {
        let tensors = lent.downcast_mut::<Tensors>().ok_or("what was lent is not of this device")?;
        self.0.sum(tensors).map(|()| tensors.count())
    }

    fn most(&self) -> usize {
        self.0.most_staged()
    }

    fn sum(&mut self, numbers: &[f32]) -> Result<(), String> {
        self.0.sum_staged(numbers)
    }

    fn take(&mut self, numbers: &mut [f32]) -> Result<(), String> {
        self.0.take_staged(numbers)
    }

    fn is_done(&mut self) -> Result<bool, String> {
        self.0.is_done()
    }

    fn abort(&mut self) {
        self.0.abort();
    }

    fn finish(&mut self) {
        self.0.finish();
    }
}
