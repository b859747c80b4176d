//! Checks whether this machine is ready for training on its GPU. Each check describes what was found and, if
//! something is missing or does not match, what to install or do.
//!
//! Enters: facts that were gathered or recorded. Leaves: verdicts in words. Pure; recorded machines for tests
//! are in `machines/`.
//!
//! Two versions have to match: the driver finishes the compilation of NVRTC's code and refuses code from a
//! newer CUDA than its own, and NVRTC must support the GPU. What cannot be found out is unknown and never ok.

mod check;
mod clock;
mod versions;

pub use check::{Check, Verdict};
pub use clock::clock_under_load;
use sparktune_base::units::bytes;
use versions::{NEEDED_CAPABILITY, NEEDED_DRIVER, apt, installable, or_pip, versions, words};
pub(crate) use versions::{NEEDED_CUDA, Version, version};

use crate::facts::Machine;
use crate::gpu::{DriverFault, GpuFacts};

/// Checks driver, GPUs, libraries and headers. `has_cuda` says whether this build can train on a GPU;
/// otherwise a failure prevents nothing and becomes a warning.
pub fn cuda_checks(facts: &Machine, has_cuda: bool) -> Vec<Check> {
    let mut checks = vec![driver(facts, has_cuda)];
    checks.extend(facts.gpus.iter().map(|one| gpu(one, facts)));
    let parts = [libcuda(facts), nvrtc(facts), headers(facts), versions(facts)];
    checks.extend(parts.map(|part| {
        if facts.gpus.is_empty() { Check::skipped(&part.name, "there is no GPU") } else { part }
    }));
    if !has_cuda {
        checks.iter_mut().for_each(|check| check.verdict = check.verdict.min(Verdict::Warning));
    }
    checks
}

/// Returns, as a clause, why training on the GPU cannot even be tried here, or `None` if it can.
pub fn out_of_reach(facts: &Machine, has_cuda: bool) -> Option<&'static str> {
    let failed = || cuda_checks(facts, true).iter().any(|check| check.verdict == Verdict::Failed);
    match (facts.gpus.is_empty(), has_cuda) {
        (true, _) => Some("there is no GPU"),
        (false, false) => Some("this build has no CUDA"),
        (false, true) => failed().then_some("fix the failed checks first"),
    }
}

fn driver(facts: &Machine, has_cuda: bool) -> Check {
    const NAME: &str = "NVIDIA driver";
    if let Some(fault) = &facts.gpu_driver_fault {
        let (found, fix) = match fault {
            DriverFault::Mismatch => (
                "its library and its kernel module have different versions".to_owned(),
                "it was updated while in use: reboot",
            ),
            DriverFault::NotLoaded => (
                "installed, but not loaded".to_owned(),
                "run `sudo modprobe nvidia`; if that fails after a kernel update, reinstall the driver and reboot",
            ),
            DriverFault::NoPermission => (
                "installed, but this process has no access to it".to_owned(),
                "give this user access to /dev/nvidia*; start a container with --gpus all",
            ),
            DriverFault::Other(message) => (
                format!("installed, but it reports: {message}"),
                "check `nvidia-smi` and `sudo dmesg | grep -i nvrm`; a reboot or a power cycle usually helps",
            ),
        };
        return Check::failed(NAME, found, fix);
    }
    let Some(driver) = &facts.gpu_driver else {
        const FIX: &str = "without it, training runs on the CPU, which suits small models only: install NVIDIA's driver (start a container with --gpus all)";
        return if has_cuda {
            Check::warning(NAME, "none: NVML was not found", FIX)
        } else {
            Check::ok(NAME, "none: NVML was not found")
        };
    };
    let cuda = facts.cuda.as_deref().unwrap_or("unknown");
    let found = format!("version {driver}, CUDA up to {cuda}");
    match facts.cuda.as_deref().and_then(version) {
        Some(cuda) if cuda < NEEDED_CUDA => Check::failed(
            NAME,
            found,
            format!(
                "update it to {NEEDED_DRIVER} or newer: the kernels need CUDA {}, and this driver refuses what that compiles",
                words(NEEDED_CUDA)
            ),
        ),
        Some(_) => Check::ok(NAME, found),
        None => Check::unknown(NAME, found),
    }
}

fn gpu(gpu: &GpuFacts, facts: &Machine) -> Check {
    let name = format!("GPU {}", gpu.index);
    let memory = match (gpu.mem_total_bytes, gpu.mem_free_bytes) {
        // CUDA's own figure of a shared memory follows MemFree, which leaves out what the system would give.
        (None, _) if facts.mem_unified => {
            format!("shares the system's memory ({} available)", bytes(facts.mem_available_bytes))
        }
        (None, _) => "memory unknown".to_owned(),
        (Some(total), None) => bytes(total),
        (Some(total), Some(free)) => format!("{} of {} free", bytes(free), bytes(total)),
    };
    let mut found = format!(
        "{}, compute {}, {memory}",
        gpu.name.as_deref().unwrap_or("unknown"),
        gpu.compute_capability.as_deref().unwrap_or("unknown")
    );
    match (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) {
        (Some(now), Some(max)) => found.push_str(&format!(", SM clock {now} of {max} MHz")),
        (None, Some(max)) => found.push_str(&format!(", SM clock up to {max} MHz")),
        _ => {}
    }
    found.extend(gpu.temperature_celsius.map(|celsius| format!(", {celsius} °C")));
    match (gpu.power_watts, gpu.power_limit_watts) {
        (Some(now), Some(limit)) => found.push_str(&format!(", {now:.0} of {limit:.0} W")),
        (Some(now), None) => found.push_str(&format!(", {now:.0} W")),
        _ => {}
    }
    found.extend(gpu.throttle.iter().map(|why| format!(", clocks limited by: {why}")));
    let capability = gpu.compute_capability.as_deref().and_then(version);
    match capability {
        Some(capability) if capability < NEEDED_CAPABILITY => Check::failed(
            &name,
            found,
            format!(
                "it lacks the bf16 matrix products and the shared memory that the kernels need (compute {} or newer has them): use --device cpu, or another GPU",
                words(NEEDED_CAPABILITY)
            ),
        ),
        // A power cap alone is normal for a busy GPU.
        _ => match gpu.throttle.as_deref().filter(|why| *why != "power cap") {
            None if capability.is_none() || (gpu.mem_total_bytes.is_none() && !facts.mem_unified) => {
                Check::unknown(&name, found)
            }
            None => Check::ok(&name, found),
            Some(_) => Check::warning(
                &name,
                found,
                "let it cool, clear its vents, and check its power adapter (GB10 needs its own); `nvidia-smi -q -d PERFORMANCE` shows details. If the clock stays low, unplug the machine for a minute",
            ),
        },
    }
}

fn libcuda(facts: &Machine) -> Check {
    const NAME: &str = "libcuda";
    let driver = facts.gpu_driver.as_deref();
    let Some(library) = &facts.cuda_libraries.driver else {
        let branch = driver.and_then(|driver| driver.split('.').next()).unwrap_or("580");
        let fix = format!(
            "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility; on the machine itself, install the driver's compute package: `sudo apt install libnvidia-compute-{branch}` (Ubuntu, DGX OS) or libcuda1 (Debian)"
        );
        return Check::failed(NAME, "none: libcuda.so.1 was not found", fix);
    };
    let path = &library.path;
    if library.is_stub() {
        let fix = format!("LD_LIBRARY_PATH contains its folder: remove {} from it", library.folder());
        return Check::failed(NAME, format!("{path} is a stub for linking, not the driver"), fix);
    }
    if library.out_of_sight {
        let fix = format!("export LD_LIBRARY_PATH='{}'", library.folder());
        return Check::failed(NAME, format!("{path}, where the loader does not search"), fix);
    }
    match (library.version.as_deref(), driver) {
        (Some(of_library), Some(driver)) if of_library != driver => {
            let found = format!("{path} belongs to driver {of_library}, but {driver} runs");
            // `cuda-compat` puts a newer libcuda in front of the driver's own, which data-centre GPUs allow.
            if path.contains("/compat/") {
                Check::warning(
                    NAME,
                    found,
                    "forward compatibility works only on data-centre GPUs: on any other, including GB10, uninstall cuda-compat or remove it from LD_LIBRARY_PATH",
                )
            } else {
                Check::failed(
                    NAME,
                    found,
                    "after a driver update, reboot; otherwise remove its folder from LD_LIBRARY_PATH, or uninstall the other driver's packages",
                )
            }
        }
        _ => Check::ok(NAME, path.clone()),
    }
}

fn nvrtc(facts: &Machine) -> Check {
    const NAME: &str = "NVRTC";
    let newest = installable(facts);
    let Some(library) = &facts.cuda_libraries.nvrtc else {
        let fix = format!(
            "it compiles the kernels when they are first used: {}{}",
            apt(&["nvrtc"], newest),
            or_pip(&["nvrtc"], newest)
        );
        return Check::failed(NAME, "none: libnvrtc.so was not found", fix);
    };
    if library.out_of_sight {
        let found = format!("{}, where the loader does not search", library.path);
        return Check::failed(NAME, found, format!("export LD_LIBRARY_PATH='{}'", library.folder()));
    }
    let known = library.version.as_deref().is_some_and(|text| version(text).is_some());
    let version = library.version.as_deref().unwrap_or("version unknown");
    let found = format!("{version}, {}", library.path);
    if known { Check::ok(NAME, found) } else { Check::unknown(NAME, found) }
}

fn headers(facts: &Machine) -> Check {
    const NAME: &str = "CUDA headers";
    let nvrtc = facts.cuda_libraries.nvrtc.as_ref().and_then(|library| version(library.version.as_deref()?));
    let fitting = nvrtc.unwrap_or_else(|| installable(facts));
    let Some(headers) = &facts.cuda_headers else {
        let fix = format!(
            "kernels are compiled with them when they are first used: {}{}; if they are already installed, set CUDA_PATH to the folder that contains include/cuda_fp16.h",
            apt(&["cudart-dev", "cccl", "crt"], fitting),
            or_pip(&["runtime", "cccl", "crt"], fitting)
        );
        return Check::failed(NAME, "none: cuda_fp16.h was not found", fix);
    };
    let found = match &headers.version {
        Some(version) => format!("{version}, {}", headers.folder),
        None => headers.folder.clone(),
    };
    if let Some(path) = &headers.cuda_path {
        let fix = format!("the kernel compiler does not search there: export CUDA_PATH='{path}'");
        return Check::failed(NAME, found, fix);
    }
    let parts = [("cccl", headers.cccl, "nv/target"), ("crt", headers.crt, "crt/mma.h")];
    let missing: Vec<_> = parts.into_iter().filter(|(_, is_there, _)| !is_there).collect();
    if missing.is_empty() {
        return Check::ok(NAME, found);
    }
    let files: Vec<&str> = missing.iter().map(|(_, _, file)| *file).collect();
    let parts: Vec<&str> = missing.iter().map(|(part, ..)| *part).collect();
    let of_headers = headers.version.as_deref().and_then(version).unwrap_or(fitting);
    Check::failed(NAME, format!("{found}, without {}", files.join(" and ")), apt(&parts, of_headers))
}

#[cfg(test)]
mod tests;
