"""What this machine is, from the driver's library, nvidia-smi and /proc: no PyTorch needed.

    machine.py --json FILE     the section `facts`
"""

import argparse
import ctypes
import glob
import os
import pathlib
import platform
import re
import shutil
import subprocess

from rows import Rows, skip

# CUdevice_attribute, by the numbers of cuda.h.
ATTRIBUTES = {"multiprocessors": 16, "clock_khz": 13, "l2_bytes": 38, "shared_bytes": 97, "major": 75, "minor": 76}
SMI_FIELDS = (
    "clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,temperature.gpu,clocks_event_reasons.active,"
    "persistence_mode,memory.total,memory.used"
)
# Bits of clocks_event_reasons.active that hold clocks down, by the names of nvml.h.
HELD_DOWN = {
    0x2: "a clock setting",
    0x4: "the power limit",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "a power brake",
}


class NoDevice(Exception):
    """There is no CUDA device here; says why."""


def device():
    """The first CUDA device: its name, driver, and attributes."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoDevice("no NVIDIA driver: libcuda.so.1 was not found") from None
    if code := cuda.cuInit(0):
        raise NoDevice(f"libcuda.so.1 is there, but cuInit answers {code}")
    count, first, driver = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        raise NoDevice("the driver shows no device")
    cuda.cuDeviceGet(ctypes.byref(first), 0)
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, len(name), first)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), first)
    found = {"name": name.value.decode(), "devices": count.value, "memory_bytes": memory.value}
    found["driver_cuda"] = f"{driver.value // 1000}.{driver.value % 1000 // 10}"
    for word, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, first)
        found[word] = value.value
    return found


def smi():
    """What nvidia-smi says of the first device, by field; empty where it does not answer. Reads only, sets nothing."""
    if not shutil.which("nvidia-smi"):
        return {}
    asked = ["nvidia-smi", f"--query-gpu=driver_version,{SMI_FIELDS}", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    fields = ["driver_version", *SMI_FIELDS.split(",")]
    if done.returncode or len(values) != len(fields):
        return {}
    return {field: value for field, value in zip(fields, values) if not value.startswith("[")}


def clocks_in_words(said):
    """SM clock now, its highest, and what holds it down."""
    if "clocks.sm" not in said:
        return "nvidia-smi tells no clocks"
    try:
        bits = int(said.get("clocks_event_reasons.active", "0x0"), 16)
    except ValueError:
        bits = 0
    held = [word for bit, word in HELD_DOWN.items() if bits & bit]
    words = f"SM {said['clocks.sm']} of {said.get('clocks.max.sm', '?')} MHz"
    return f"{words}, held down by {' and '.join(held)}" if held else f"{words}, nothing holds them down"


def nvrtc():
    """Version and place of each NVRTC that the program may find."""
    places = [os.environ.get("CUDA_PATH", ""), os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    files = [file for place in places if place for file in glob.glob(f"{place}/lib*/libnvrtc.so*")]
    files += glob.glob("/usr/lib/*-linux-gnu/libnvrtc.so*")
    found = {}
    for file in sorted({os.path.realpath(file) for file in files if "builtins" not in file and "alt" not in file}):
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            if ctypes.CDLL(file).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
                found[file] = f"{major.value}.{minor.value}"
        except (OSError, AttributeError):
            continue
    return found


def nvcc():
    """Version of the toolkit, where its compiler is on the PATH or under /usr/local/cuda."""
    program = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(program):
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    version = re.search(r"release ([\d.]+)", done.stdout)
    return version.group(1) if version else None


def meminfo():
    """Total and available memory of the system, bytes."""
    text = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
    return [int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024 for name in ("MemTotal", "MemAvailable")]


def package(name):
    """Version of a Python package, without importing it."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts():
    """(name, value) pairs in the order they are shown; raises NoDevice."""
    gpu, said = device(), smi()
    total, available = meminfo()
    yield "device", gpu["name"] + (f" (first of {gpu['devices']})" if gpu["devices"] > 1 else "")
    yield "compute capability", f"{gpu['major']}.{gpu['minor']}"
    yield "multiprocessors", str(gpu["multiprocessors"])
    yield "shared memory", f"{gpu['shared_bytes'] // 1024} KB a block; L2 {gpu['l2_bytes'] / 2**20:.0f} MB"
    yield "driver", f"{said.get('driver_version', '?')}, CUDA up to {gpu['driver_cuda']}"
    yield "toolkit", nvcc() or "nvcc was not found"
    yield "NVRTC", ", ".join(f"{version} ({file})" for file, version in nvrtc().items()) or "not found"
    yield "clocks at rest", clocks_in_words(said)
    yield "power limit", f"{said['power.limit']} W" if "power.limit" in said else "nvidia-smi does not tell"
    yield "device memory", f"{gpu['memory_bytes'] / 1e9:.1f} GB" + ("" if "memory.total" in said else ", shared with the processor")
    yield "system memory", f"{available / 1e9:.1f} of {total / 1e9:.1f} GB available"
    yield "processor", f"{os.cpu_count()} threads, {platform.machine()}"
    yield "Python", platform.python_version()
    for name in ("torch", "triton", "transformers", "peft", "flash-linear-attention", "causal-conv1d"):
        yield name, package(name) or "not installed"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    rows = Rows(arguments.parse_args().json)
    try:
        for name, value in facts():
            rows.add(name=name, value=value)
    except NoDevice as reason:
        skip(str(reason))


if __name__ == "__main__":
    main()
