//! Explains failures of the GPU in words that a user can act on.
//!
//! The CUDA runtime reports much of what goes wrong by a panic, often on a thread of its own, whose caller
//! then fails with a message about something else. So the panic hook gives every message to [`note_panic`],
//! the first that is understood is kept, and whoever ends the run asks for it. Enters: the text of a panic
//! (cubecl 0.11, cudarc 0.19). Leaves: one paragraph, what happened and what to do; nothing for a message
//! that is not about the device.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sparktune_base::program_name;
use sparktune_base::units::bytes;

/// Returns the meaning of a message; `None` if it does not concern the device.
pub fn device_failure(message: &str) -> Option<String> {
    library(message)
        .or_else(|| compilation(message))
        .or_else(|| memory(message))
        .or_else(|| status(message).and_then(of_status))
        .or_else(|| other(message))
}

/// A panic that ends a run follows its cause within a step. An older one was got over: a kernel that was only
/// tried.
const RECENT: Duration = Duration::from_secs(120);

static FIRST: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Keeps what the message of a panic means, if it speaks of the device and none did so of late.
pub fn note_panic(message: &str) {
    // Before the lock: this runs in the hook of a panic, which must not wait for itself.
    let Some(words) = device_failure(message) else { return };
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if first.as_ref().is_none_or(|(at, _)| at.elapsed() > RECENT) {
        *first = Some((Instant::now(), words));
    }
}

/// Returns the meaning of the first of the recent panics that concern the device.
pub fn noted_failure() -> Option<String> {
    let first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    first.as_ref().filter(|(at, _)| at.elapsed() <= RECENT).map(|(_, words)| words.clone())
}

fn doctor() -> String {
    format!("`{} doctor` says what to install", program_name())
}

fn resume() -> String {
    format!("`{} resume` continues from the last checkpoint", program_name())
}

const REPORT: &str =
    "this is a bug in sparktune or in a library under it: please report it with the crash report";

fn library(message: &str) -> Option<String> {
    let name = between(message, "Unable to dynamically load the \"", "\"");
    let what = match name {
        Some("cuda" | "nvcuda") => "the driver's library libcuda was not found",
        Some("nvrtc") => "NVRTC, which compiles the kernels, was not found",
        Some(_) => "a library of CUDA was not found",
        None if message.contains("CUDA installation not found") => "the CUDA headers were not found",
        None if message.contains("failed to open libnvrtc-builtins") => {
            "NVRTC was found, but not libnvrtc-builtins, which belongs to it: export LD_LIBRARY_PATH with the folder of both"
        }
        None if message.contains("Missing symbol cu") => {
            "the driver is too old for this build: it lacks a function; update it"
        }
        None if message.contains("Missing symbol nvrtc") => {
            "NVRTC is too old for this build: it lacks a function; install a newer one"
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
        format!("the CUDA header {header} was not found, which a kernel needs. {doctor}")
    } else if log.contains("libnvrtc-builtins") {
        return library("failed to open libnvrtc-builtins");
    } else if log.contains("--gpu-architecture") {
        format!("NVRTC is too old to know this GPU. {doctor}")
    } else {
        let line =
            log.lines().map(str::trim).find(|line| line.contains("error")).unwrap_or("no reason given");
        format!(
            "a kernel does not compile on this machine ({line}); {REPORT}. `{program} doctor` checks whether the parts of CUDA \
             fit together",
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
    let for_what = size.map(|size| format!(" ({} more were asked for)", bytes(size)));
    out.then(|| {
        format!(
            "the GPU's memory ran out{}. If other programs use it (`nvidia-smi`), end them, and {}; else start a new run \
             with a smaller --pack-length, with --recompute true, or with --method lora",
            for_what.unwrap_or_default(),
            resume()
        )
    })
}

/// The driver's own name of what went wrong, from its name or its number in a message.
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

/// `CUresult` in NVIDIA's `cuda.h`, as far as it is told apart here.
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
                "the driver shows no GPU to this process ({name}). In a container start it with --gpus all; else look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"
            )
        }
        "STUB_LIBRARY" => format!("a stub of libcuda was loaded instead of the driver's ({name}). {doctor}"),
        "SYSTEM_DRIVER_MISMATCH" => {
            format!(
                "libcuda and the driver in the kernel are of different versions ({name}): the driver was updated; reboot"
            )
        }
        "COMPAT_NOT_SUPPORTED_ON_DEVICE" => {
            format!(
                "cuda-compat's libcuda was loaded, which is for data-centre GPUs only ({name}): remove cuda-compat, or take it out of LD_LIBRARY_PATH"
            )
        }
        "SYSTEM_NOT_READY" => {
            format!(
                "the driver is not ready ({name}): on machines with NVSwitch, NVIDIA's fabric manager must run (`systemctl status nvidia-fabricmanager`)"
            )
        }
        "DEVICE_UNAVAILABLE" => {
            format!(
                "another program has the GPU for itself ({name}): end it (`nvidia-smi` lists them), then {resume}"
            )
        }
        "UNSUPPORTED_PTX_VERSION" => {
            format!("NVRTC is newer than the driver, which refuses what it compiled ({name}). {doctor}")
        }
        "NO_BINARY_FOR_GPU" | "INVALID_PTX" => {
            format!(
                "the driver does not accept the kernels that NVRTC compiled for this GPU ({name}). {doctor}"
            )
        }
        "JIT_COMPILER_NOT_FOUND" => {
            format!(
                "the driver's own compiler, libnvidia-ptxjitcompiler, was not found ({name}): install the driver whole; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            )
        }
        "ECC_UNCORRECTABLE" => {
            format!(
                "the GPU's memory has an error that could not be corrected ({name}). {resume}; if it happens again, the GPU must be replaced (`nvidia-smi -q -d ECC`)"
            )
        }
        "LAUNCH_TIMEOUT" => {
            format!(
                "a kernel took longer than the driver allows a GPU that draws a screen ({name}). {resume} with the screen on another GPU, or without a desktop"
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
                "a kernel failed on the GPU ({name}), and this process can no longer use it. {resume}. If it fails at the same \
                 step again, {REPORT}; if at another, the GPU may be unwell (`sudo dmesg | grep -i xid`)"
            )
        }
        _ => format!(
            "the GPU's driver failed ({name}). {resume}; if it happens again, `{program} doctor` checks driver and libraries, and \
             `sudo dmesg | grep -i xid` the GPU",
            program = program_name()
        ),
    })
}

fn other(message: &str) -> Option<String> {
    let signs = [
        ("The device is poisoned", "a kernel failed on the GPU"),
        ("The device was poisoned", "a kernel failed on the GPU"),
        ("Too much shared memory requested", "a kernel asks for more shared memory than this GPU has"),
        ("Too many resources were requested during launch", "a kernel is too large for this GPU"),
        ("An error caused the compilation to fail", "a kernel does not compile"),
        ("All autotune operations failed", "no kernel for a matrix product runs on this GPU"),
        ("The work writing this buffer was torn down", "work on the GPU was given up"),
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

    /// Messages as they are written by cudarc 0.19.10 and cubecl 0.11.3, NVRTC's own parts recorded from
    /// 13.0, and a word each that the user must hear.
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
            "header cuda_fp16.h was not found",
        ),
        (
            "An error caused the compilation to fail\nCaused by:\n  [Compilation Error] \n    nvrtc: error: invalid value for --gpu-architecture (-arch)\n[Source]  \nextern",
            "NVRTC is too old to know this GPU",
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
        ("a stream could not be created: cuStreamCreate failed with status 2", "memory ran out"),
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
        note_panic("index out of bounds: the len is 3 but the index is 3");
        assert_eq!(noted_failure(), None);
        note_panic(
            "Unable to dynamically load the \"nvrtc\" shared library - searched for library names: []",
        );
        note_panic("The work writing this buffer was torn down before it could say what went wrong");
        assert!(noted_failure().unwrap().contains("NVRTC"));
    }
}
