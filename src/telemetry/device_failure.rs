//! Explains failures of the GPU with a remedy for the user.
//!
//! The CUDA runtime reports many failures by a panic, often on a thread of its own, whose caller then fails
//! with a message about something else. Therefore the panic hook passes every message to [`record_panic`],
//! which keeps the first one about the device; the code that ends the run reads it with [`recorded_failure`].
//! Enters: the text of a panic (cubecl 0.11, cudarc 0.19). Leaves: one paragraph that says what happened and
//! what to do, or nothing for a message that is not about the device.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sparktune_base::program_name;
use sparktune_base::units::bytes;

/// Explains a message; returns `None` if it is not about the device.
pub fn device_failure(message: &str) -> Option<String> {
    library(message)
        .or_else(|| compilation(message))
        .or_else(|| memory(message))
        .or_else(|| status(message).and_then(of_status))
        .or_else(|| other(message))
}

/// The longest time between a cause and the panic that ends the run, which follows within a step. The program
/// recovered from older panics, for example of a kernel that was only tried.
const RECENT: Duration = Duration::from_secs(120);

static FIRST: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Keeps the explanation of a panic's message, if it is about the device and there was none recently.
pub fn record_panic(message: &str) {
    // This comes before the lock, because the panic hook must not wait for itself.
    let Some(words) = device_failure(message) else { return };
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if first.as_ref().is_none_or(|(at, _)| at.elapsed() > RECENT) {
        *first = Some((Instant::now(), words));
    }
}

/// Returns the explanation of the first of the recent panics that were about the device.
pub fn recorded_failure() -> Option<String> {
    let first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    first.as_ref().filter(|(at, _)| at.elapsed() <= RECENT).map(|(_, words)| words.clone())
}

fn doctor() -> String {
    format!("`{} doctor` shows what to install", program_name())
}

fn resume() -> String {
    format!("`{} resume` continues from the last checkpoint", program_name())
}

const REPORT: &str =
    "this is a bug in sparktune or in a library that it uses: please report it with the crash report";

fn library(message: &str) -> Option<String> {
    let name = between(message, "Unable to dynamically load the \"", "\"");
    let what = match name {
        Some("cuda" | "nvcuda") => "the driver's library libcuda was not found",
        Some("nvrtc") => "NVRTC, which compiles the kernels, was not found",
        Some(_) => "a CUDA library was not found",
        None if message.contains("CUDA installation not found") => "the CUDA headers were not found",
        None if message.contains("failed to open libnvrtc-builtins") => {
            "NVRTC was found, but not libnvrtc-builtins, which belongs to it: export LD_LIBRARY_PATH with the folder that contains both"
        }
        None if message.contains("Missing symbol cu") => {
            "the driver is too old for this build, because it lacks a function: update it"
        }
        None if message.contains("Missing symbol nvrtc") => {
            "NVRTC is too old for this build, because it lacks a function: install a newer one"
        }
        None => return None,
    };
    Some(format!("{what}. {}", doctor()))
}

fn compilation(message: &str) -> Option<String> {
    let doctor = doctor();
    let log = message.split_once("[Compilation Error]")?.1;
    let log = log.split("[Source]").next().unwrap_or(log);
    Some(if let Some(header) = between(log, "cannot open source file \"", "\"") {
        format!("the CUDA header {header}, which a kernel needs, was not found. {doctor}")
    } else if log.contains("libnvrtc-builtins") {
        return library("failed to open libnvrtc-builtins");
    } else if log.contains("uses too much shared data") {
        format!(
            "NVRTC refuses a kernel with more than 48 KB of shared memory that the launch does not ask for. {doctor}"
        )
    } else if log.contains("--gpu-architecture") {
        format!("NVRTC is too old for this GPU. {doctor}")
    } else {
        let line =
            log.lines().map(str::trim).find(|line| line.contains("error")).unwrap_or("no reason given");
        format!(
            "a kernel does not compile on this machine ({line}); {REPORT}. `{program} doctor` checks whether the parts of CUDA match",
            program = program_name()
        )
    })
}

fn memory(message: &str) -> Option<String> {
    let size = between(message, "out of device memory allocating ", " bytes")
        .or_else(|| between(message, "can't allocate buffer of size: ", "\n"))
        .or_else(|| between(message, "couldn't map storage for a deferred allocation of ", " bytes"))
        .and_then(|digits| digits.parse::<u64>().ok());
    let out = size.is_some()
        || message.contains("An out-of-memory error happened during launch")
        || status(message) == Some("CUDA_ERROR_OUT_OF_MEMORY");
    let for_what = size.map(|size| format!(" ({} more were requested)", bytes(size)));
    out.then(|| {
        format!(
            "the GPU ran out of memory{}. If other programs use it (`nvidia-smi` lists them), end them, and {}; otherwise start a new run with a smaller --pack-length, with --recompute true, or with --method lora",
            for_what.unwrap_or_default(),
            resume()
        )
    })
}

/// Returns the driver's name of the error, from its name or its number in a message.
fn status(message: &str) -> Option<&str> {
    if let Some(at) = message.find("CUDA_ERROR_") {
        let name = &message[at..];
        let end = name.find(|c: char| !(c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit()));
        return Some(&name[..end.unwrap_or(name.len())]);
    }
    let number = message.split_once(" failed with status ")?.1;
    let number = number.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()?;
    Some(NUMBERS.iter().find(|(known, _)| *known == number).map_or("CUDA_ERROR_UNKNOWN", |(_, name)| name))
}

/// The values of `CUresult` in NVIDIA's `cuda.h` that are distinguished here.
const NUMBERS: [(u32, &str); 22] = [
    (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    (34, "CUDA_ERROR_STUB_LIBRARY"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (218, "CUDA_ERROR_INVALID_PTX"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (710, "CUDA_ERROR_ASSERT"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
];

fn of_status(name: &str) -> Option<String> {
    let (doctor, resume) = (doctor(), resume());
    Some(match name.strip_prefix("CUDA_ERROR_")? {
        "NO_DEVICE" | "INVALID_DEVICE" => {
            format!(
                "the driver shows no GPU to this process ({name}). Start a container with --gpus all; otherwise check CUDA_VISIBLE_DEVICES and `nvidia-smi`"
            )
        }
        "STUB_LIBRARY" => format!("a stub of libcuda was loaded instead of the driver's ({name}). {doctor}"),
        "SYSTEM_DRIVER_MISMATCH" => {
            format!(
                "libcuda and the driver's kernel module have different versions ({name}), because the driver was updated: reboot"
            )
        }
        "COMPAT_NOT_SUPPORTED_ON_DEVICE" => {
            format!(
                "cuda-compat's libcuda was loaded, which works only on data-centre GPUs ({name}): uninstall cuda-compat, or remove it from LD_LIBRARY_PATH"
            )
        }
        "SYSTEM_NOT_READY" => {
            format!(
                "the driver is not ready ({name}): on machines with NVSwitch, NVIDIA's fabric manager must run (`systemctl status nvidia-fabricmanager`)"
            )
        }
        "DEVICE_UNAVAILABLE" => {
            format!(
                "another program has exclusive use of the GPU ({name}): end it (`nvidia-smi` lists them), then {resume}"
            )
        }
        "UNSUPPORTED_PTX_VERSION" => {
            format!("NVRTC is newer than the driver, which rejects the compiled kernels ({name}). {doctor}")
        }
        "NO_BINARY_FOR_GPU" | "INVALID_PTX" => {
            format!(
                "the driver does not accept the kernels that NVRTC compiled for this GPU ({name}). {doctor}"
            )
        }
        "JIT_COMPILER_NOT_FOUND" => {
            format!(
                "the driver's own compiler, libnvidia-ptxjitcompiler, was not found ({name}): install the complete driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            )
        }
        "ECC_UNCORRECTABLE" => {
            format!(
                "the GPU's memory has an uncorrectable error ({name}). {resume}; if it happens again, the GPU must be replaced (`nvidia-smi -q -d ECC`)"
            )
        }
        "LAUNCH_TIMEOUT" => {
            format!(
                "a kernel took longer than the driver allows on a GPU that drives a screen ({name}). {resume} with the screen on another GPU, or without a desktop"
            )
        }
        "ILLEGAL_ADDRESS"
        | "CONTEXT_IS_DESTROYED"
        | "ASSERT"
        | "HARDWARE_STACK_ERROR"
        | "ILLEGAL_INSTRUCTION"
        | "MISALIGNED_ADDRESS"
        | "INVALID_ADDRESS_SPACE"
        | "INVALID_PC"
        | "LAUNCH_FAILED" => {
            format!(
                "a kernel failed on the GPU ({name}), and this process can no longer use it. {resume}. If it fails at the same step again, {REPORT}; if it fails at another step, the GPU may be faulty (`sudo dmesg | grep -i xid`)"
            )
        }
        _ => format!(
            "the GPU's driver failed ({name}). {resume}; if it happens again, check the driver and its libraries with `{program} doctor`, and the GPU with `sudo dmesg | grep -i xid`",
            program = program_name()
        ),
    })
}

fn other(message: &str) -> Option<String> {
    let signs = [
        ("The device is poisoned", "a kernel failed on the GPU"),
        ("The device was poisoned", "a kernel failed on the GPU"),
        ("Too much shared memory requested", "a kernel needs more shared memory than this GPU has"),
        ("Too many resources were requested during launch", "a kernel is too large for this GPU"),
        ("An error caused the compilation to fail", "a kernel does not compile"),
        ("All autotune operations failed", "no kernel for a matrix product runs on this GPU"),
        ("The work writing this buffer was torn down", "work on the GPU was abandoned"),
        ("device runner channel disconnected", "the thread that drives the GPU ended"),
        ("Failed to synchronize device runner thread", "the thread that drives the GPU did not start"),
        ("An error happened during execution", "work on the GPU failed"),
        ("A launch error happened", "a kernel could not be started on the GPU"),
    ];
    let (_, what) = signs.iter().find(|(sign, _)| message.contains(sign))?;
    Some(format!("{what}. {}; if it happens again, {REPORT}", resume()))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = text.split_once(before)?.1;
    Some(rest.split_once(after).map_or(rest, |(inside, _)| inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of cudarc 0.19.10 and cubecl 0.11.3, with NVRTC's parts recorded from 13.0, and for each a
    /// word that the explanation must contain.
    const RECORDED: &[(&str, &str)] = &[
        (
            "Unable to dynamically load the \"cuda\" shared library - searched for library names: [\"libcuda.so\", \"libcuda64.so\"]. Ensure that `LD_LIBRARY_PATH` has the correct path to the installed library.",
            "libcuda was not found",
        ),
        (
            "Unable to dynamically load the \"nvrtc\" shared library - searched for library names: [\"libnvrtc.so\"].",
            "NVRTC, which compiles the kernels, was not found",
        ),
        (
            "\n        CUDA installation not found.\n        Please ensure that CUDA is installed and the CUDA_PATH environment variable is set correctly.\n",
            "headers were not found",
        ),
        (
            "An error happened during execution\nCaused by:\n  A compilation error happened during launch\nCaused by:\n  An error caused the compilation to fail\nCaused by:\n  [Compilation Error] \n    nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n      Make sure that libnvrtc-builtins.so.13.0 is installed correctly.\n[Source]  \n#include <cuda_bf16.h>",
            "libnvrtc-builtins",
        ),
        (
            "An error caused the compilation to fail\nCaused by:\n  [Compilation Error] \n    default_program(1): catastrophic error: cannot open source file \"cuda_fp16.h\"\n      #include <cuda_fp16.h>\n[Source]  \n#include <cuda_fp16.h>",
            "header cuda_fp16.h, which a kernel needs, was not found",
        ),
        (
            "An error caused the compilation to fail\nCaused by:\n  [Compilation Error] \n    nvrtc: error: invalid value for --gpu-architecture (-arch)\n[Source]  \nextern",
            "NVRTC is too old for this GPU",
        ),
        (
            "An error caused the compilation to fail\nCaused by:\n  [Compilation Error] \n    default_program(1): error: identifier \"y\" is undefined\n      extern \"C\" __global__ void k(float*x){ y; }\n[Source]  \nextern",
            "default_program(1): error: identifier \"y\" is undefined",
        ),
        (
            "An error caused the compilation to fail\nCaused by:\n  Unable to load the PTX: DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"the provided PTX was compiled with an unsupported toolchain.\")\nBacktrace:\n",
            "NVRTC is newer than the driver",
        ),
        (
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_NO_DEVICE, \"no CUDA-capable device is detected\")",
            "--gpus all",
        ),
        (
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_STUB_LIBRARY, \"CUDA driver is a stub library\")",
            "stub",
        ),
        (
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, \"system has unsupported display driver / cuda driver combination\")",
            "reboot",
        ),
        (
            "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, \"forward compatibility was attempted on non supported HW\")",
            "cuda-compat",
        ),
        (
            "An IO error happened\nCaused by:\n  out of device memory allocating 2147483648 bytes\n   0: cubecl_environment::backtrace::BackTrace::capture\n",
            "2.1 GB more",
        ),
        ("can't allocate buffer of size: 1\n", "1 B more"),
        ("a stream could not be created: cuStreamCreate failed with status 2", "ran out of memory"),
        (
            "Unknown error happened during execution: CUDA memcpy_htod_async failed: DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\"); shape [1], strides [1], elem_size 4, pitch None",
            "--pack-length",
        ),
        (
            "The device is poisoned\nCaused by:\n  cuStreamSynchronize failed with status 700\nBacktrace:\n   0: x",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
        ("The device was poisoned during launch\nCaused by:\n  cuLaunchKernel failed with status 719", "xid"),
        ("cuEventSynchronize failed with status 12345", "CUDA_ERROR_UNKNOWN"),
        (
            "Too many resources were requested during launch\nToo much shared memory requested.\nRequested 120000 bytes, maximum 101376 bytes available.\nBacktrace\n",
            "shared memory",
        ),
        ("Missing symbol cuKernelGetFunction: undefined symbol", "driver is too old"),
        ("All autotune operations failed, no viable operation found.", "matrix product"),
        ("device runner channel disconnected before producing a result", "thread that drives the GPU"),
    ];

    #[test]
    fn what_the_runtime_panics_with_becomes_one_line_with_something_to_do() {
        for (message, word) in RECORDED {
            let words = device_failure(message).unwrap_or_else(|| panic!("not understood: {message}"));
            assert!(words.contains(word), "{message}\n  {words}");
            assert!(!words.contains('\n') && !words.to_lowercase().contains("backtrace"), "{words}");
            let advice = ["sparktune", "reboot", "--gpus", "--pack-length", "cuda-compat", "install"];
            assert!(advice.iter().any(|advice| words.contains(advice)), "{words}");
        }
    }

    #[test]
    fn bugs_of_ours_are_not_laid_at_the_devices_door() {
        let ours = [
            "index out of bounds: the len is 3 but the index is 3",
            "called `Option::unwrap()` on a `None` value",
            "the checkpoint of step 700 is not there",
            "row holds 101 tokens",
            "",
        ];
        for message in ours {
            assert_eq!(device_failure(message), None, "{message}");
        }
    }

    #[test]
    fn the_first_cause_is_kept_and_not_what_follows_from_it() {
        record_panic("index out of bounds: the len is 3 but the index is 3");
        assert_eq!(recorded_failure(), None);
        record_panic(
            "Unable to dynamically load the \"nvrtc\" shared library - searched for library names: []",
        );
        record_panic("The work writing this buffer was torn down before it could say what went wrong");
        assert!(recorded_failure().unwrap().contains("NVRTC"));
    }
}
