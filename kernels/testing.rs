//! The CUDA device that the tests of all crates use: a GPU, or the emulated one (`emulator/driver.sh`).

use burn::tensor::{Device, DeviceType};

/// What the path of every test on a device contains: by these words CI finds those that run on the emulated
/// one.
const WORDS: &str = "on_device";

/// The first CUDA device. Where there is none it says so and the test is to be skipped, but with the variable
/// `SPARKTUNE_NEEDS_CUDA` it fails.
///
/// # Panics
/// Also in a test that CI would not run on the emulated device, for its path lacks `on_device`.
pub fn cuda_device() -> Option<Device> {
    // The test harness names a thread after its test. With a single thread it is the program's first.
    if let Some(test) = std::thread::current().name().filter(|name| *name != "main") {
        assert!(test.contains(WORDS), "{test} uses a CUDA device, but its path lacks `{WORDS}`");
    }
    let device = Device::enumerate(DeviceType::Cuda).into_vec().into_iter().next();
    if device.is_none() {
        assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "no CUDA device");
        eprintln!("skipped on CUDA: there is no device");
    }
    device
}
