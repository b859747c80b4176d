#!/usr/bin/env bash
# Builds the emulated CUDA device: a driver, an NVRTC and an NVML with which programs that ask for a GPU run on a machine without one.
#
#   kernels/emulator/driver.sh OUT_DIR
#
# Then, with both variables set to OUT_DIR, a program that loads libcuda finds one device and runs its kernels in the emulator:
#
#   LD_LIBRARY_PATH=OUT_DIR CUDA_PATH=OUT_DIR sparktune train --device cuda ...
#
# A program finds the emulated cuBLASLt only with OUT_DIR/cublaslt in LD_LIBRARY_PATH too (driver/cublaslt.cpp says what it listens to).
#
# The folder holds all that is needed but g++ and may be moved. What has been built from the same sources stays. The program may
# be told: EMULATED_CUDA_CAPABILITY (12.1), EMULATED_CUDA_MEMORY (bytes, 4294967296), EMULATED_CUDA_CACHE (where compiled kernels
# are kept, OUT_DIR/cache), EMULATED_CUDA_KEEP (any value: keep the C++ of kernels there too), EMULATED_CUDA_TRACE (a file that gets
# a line for each launch), EMULATED_CUDA_COPIES (a file that gets a line for each copy from the host to the device),
# EMULATED_CUDA_BUILDS (a file that gets a line for each compilation and for each module), EMULATED_CUDA_SEED (1: in which order
# streams work; 0 does everything at once), EMULATED_CUDA_DRIVER and EMULATED_NVRTC_VERSION (13.0), EMULATED_CUDA_FILL (255: the byte
# that memory is full of until it is written; a result that depends on it is made from memory nobody wrote), EMULATED_CUDA_UNDONE (any
# value: launches are checked and written down, but no kernel runs).
#
# An emulated NCCL for processes of one machine is in OUT_DIR/nccl, because a program is to run without one too: LD_LIBRARY_PATH names
# that folder besides. It may be told: EMULATED_NCCL_VERSION (22809) and EMULATED_NCCL_TRACE (a file that gets a line for each thing that
# it does). NCCL_HOSTID has to differ between processes, as on one real device.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
(($# == 1)) || {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
command -v g++ >/dev/null || {
    echo "g++ is needed to build the emulated CUDA device." >&2
    exit 1
}
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd)

# What a kernel is compiled with. Device code reads 16 bytes at a time out of two-byte numbers; a misaligned access traps.
kernel_flags="-std=c++17 -DEMULATOR_MODULE -O1 -fPIC -fvisibility=hidden -fno-gnu-unique -fno-strict-aliasing -fwrapv -w -fsanitize=alignment -fsanitize-undefined-trap-on-error"
cd -- "$here"
# What compiled kernels depend on, and what the libraries depend on.
kernels=$( (g++ --version && echo "$kernel_flags" && find . -name "*.hpp" -o -path "./driver/include/*" -type f | LC_ALL=C sort | xargs cat -- driver/{nvrtc,source}.cpp) | sha256sum | cut -c1-16)
version=$kernels-$(cat -- driver.sh driver/*.cpp | sha256sum | cut -c1-16)

exec 9>"$out/lock"
flock 9
built=$(cat -- "$out/version" 2>/dev/null || true)
[[ $built == "$version" ]] && exit 0
rm -rf -- "$out/version" "$out/emulator" "$out/include" "$out/cublaslt" "$out/nccl" "$out"/lib*
[[ ${built%-*} == "$kernels" ]] || rm -rf -- "$out/cache"
mkdir -p -- "$out/emulator" "$out/cache"
cp -- *.hpp "$out/emulator/"
cp -r -- driver "$out/emulator/driver"
ln -s emulator/driver/include "$out/include"

library_flags=(-std=c++17 -O2 -Wall -Wextra -fPIC -shared -fvisibility=hidden)
(
    g++ "${library_flags[@]}" driver/{core,device,memory,stream,module}.cpp -Wl,-soname,libcuda.so.1 -ldl -o "$out/libcuda.so.1"
) &
(
    g++ "${library_flags[@]}" -DEMULATOR_VERSION="\"$kernels\"" -DEMULATOR_FLAGS="\"$kernel_flags\"" \
        driver/{nvrtc,source}.cpp -Wl,-soname,libnvrtc.so.13 -ldl -o "$out/libnvrtc.so.13"
) &
nvrtc=$!
mkdir -- "$out/cublaslt"
g++ "${library_flags[@]}" driver/cublaslt.cpp -Wl,-soname,libcublasLt.so.13 -ldl -o "$out/cublaslt/libcublasLt.so.13" &
cublaslt=$!
mkdir -- "$out/nccl"
g++ "${library_flags[@]}" driver/nccl.cpp -Wl,-soname,libnccl.so.2 -ldl -o "$out/nccl/libnccl.so.2" &
g++ "${library_flags[@]}" driver/nvml.cpp -Wl,-soname,libnvidia-ml.so.1 -o "$out/libnvidia-ml.so.1"
# shellcheck disable=SC2086
g++ $kernel_flags -x c++-header "$out/emulator/driver/kernel.hpp" -o "$out/emulator/driver/kernel.hpp.gch"
wait "$nvrtc"
wait "$cublaslt"
wait
[[ -e $out/libcuda.so.1 && -e $out/nccl/libnccl.so.2 ]]
ln -sf libcuda.so.1 "$out/libcuda.so"
ln -sf libnvrtc.so.13 "$out/libnvrtc.so"
# A real NVRTC has such a file beside it, whose name says the version.
: >"$out/libnvrtc-builtins.so.13.0"
echo "$version" >"$out/version"
