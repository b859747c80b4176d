//! Versions of CUDA: which ones fit together, and the packages that contain them.

use super::check::Check;
use crate::facts::Machine;

/// A major and a minor version.
pub(crate) type Version = (u32, u32);

pub(crate) fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

pub(super) fn words((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

/// The oldest CUDA with which the kernels are compiled in tests.
pub(crate) const NEEDED_CUDA: Version = (13, 0);
/// The first branch of drivers that supports [`NEEDED_CUDA`].
pub(super) const NEEDED_DRIVER: u32 = 580;
/// The oldest compute capability for which the kernels compile: it has products of bf16 matrices,
/// asynchronous copies, and 99 KB of shared memory for a block.
pub(super) const NEEDED_CAPABILITY: Version = (8, 0);

/// Returns the CUDA to install: the newest that works with this driver, or the oldest that is needed, for
/// which the driver has to be updated too.
pub(super) fn installable(facts: &Machine) -> Version {
    facts.cuda.as_deref().and_then(version).map_or(NEEDED_CUDA, |newest| newest.max(NEEDED_CUDA))
}

/// Returns the name of NVIDIA's package for Debian, Ubuntu and DGX OS, such as `cuda-nvrtc-13-0`.
pub(super) fn package(part: &str, (major, minor): Version) -> String {
    // The core libraries have no prefix since CUDA 13.3.
    let prefix = if part == "cccl" && (major, minor) >= (13, 3) { "" } else { "cuda-" };
    // Before CUDA 13 the compiler's package contained its headers.
    let part = if part == "crt" && major < 13 { "nvcc" } else { part };
    format!("{prefix}{part}-{major}-{minor}")
}

pub(super) fn apt(parts: &[&str], version: Version) -> String {
    let packages: Vec<String> = parts.iter().map(|part| package(part, version)).collect();
    format!("`sudo apt install {}` (from NVIDIA's repository, which DGX OS has)", packages.join(" "))
}

/// Describes the alternative without root. Python packages of CUDA 12 are in separate folders, which no
/// single path covers.
pub(super) fn or_pip(parts: &[&str], (major, minor): Version) -> String {
    if major < 13 {
        return String::new();
    }
    let packages: Vec<String> =
        parts.iter().map(|part| format!("'nvidia-cuda-{part}=={major}.{minor}.*'")).collect();
    format!(", or `pip install {}` into the active virtual environment", packages.join(" "))
}

/// Checks that driver, NVRTC and headers fit together.
pub(super) fn versions(facts: &Machine) -> Check {
    const NAME: &str = "versions";
    let nvrtc = facts.cuda_libraries.nvrtc.as_ref().and_then(|library| version(library.version.as_deref()?));
    let driver = facts.cuda.as_deref().and_then(version);
    let (Some(nvrtc), Some(driver)) = (nvrtc, driver) else {
        return Check::unknown(NAME, "the version of the driver or of NVRTC is unknown");
    };
    if nvrtc < NEEDED_CUDA {
        let found = format!(
            "NVRTC is from CUDA {}, and the kernels need that of {} or newer",
            words(nvrtc),
            words(NEEDED_CUDA)
        );
        let newest = installable(facts);
        let parts = ["nvrtc", "cudart-dev", "cccl", "crt"];
        let fix = format!(
            "{}{}; if the older one is still found, put the folder of the newer one first in LD_LIBRARY_PATH",
            apt(&parts, newest),
            or_pip(&["nvrtc", "runtime", "cccl", "crt"], newest)
        );
        return Check::failed(NAME, found, fix);
    }
    if nvrtc > driver {
        let found = format!(
            "NVRTC is from CUDA {}, which is newer than the driver's {}: the driver will reject the kernels that it compiles",
            words(nvrtc),
            words(driver)
        );
        let fix = format!(
            "{}, and put its folder first in LD_LIBRARY_PATH if the newer one is still found; or update the driver",
            apt(&["nvrtc"], driver)
        );
        return Check::failed(NAME, found, fix);
    }
    let headers = facts.cuda_headers.as_ref().and_then(|headers| version(headers.version.as_deref()?));
    if let Some(headers) = headers.filter(|headers| headers.0 != nvrtc.0) {
        let found =
            format!("the headers are from CUDA {}, but NVRTC is from CUDA {}", words(headers), words(nvrtc));
        let fix = format!(
            "kernels may not compile: {}, and set CUDA_PATH to that toolkit",
            apt(&["cudart-dev", "cccl", "crt"], nvrtc)
        );
        return Check::warning(NAME, found, fix);
    }
    Check::ok(NAME, format!("NVRTC {} matches the driver's CUDA {}", words(nvrtc), words(driver)))
}
