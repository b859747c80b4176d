#!/usr/bin/env bash
# Measures sparktune on this machine's NVIDIA GPU and holds every kernel against its reference.
#
#   run.sh [--json FILE] [--seconds N] [--quick] [SECTION...]     all sections, or the named ones; ends within 8 minutes, or N seconds
#
#   facts      device, driver, CUDA, NVRTC, clocks, memory, power limit
#   ceilings   copy bandwidth and bf16 matrix rate by the vendor's library (PyTorch)
#   steps      training steps of the 2B, then losses beside the reference path, then the 0.8B: speed, clock, memory, parts of a step
#   peers      the same steps by transformers and peft, with flash-linear-attention where it can be imported
#   kernels    every kernel against its reference and its floor
#   gemm       the matrix products of all five Qwen3.5 sizes, ours beside the vendor's
#   model      what a step of the 2B asks of the device, op by op, and the speed that follows from the shares measured above
#   sanitizer  compute-sanitizer's memcheck on the kernels at tiny sizes
#
# Only where they are named, each for some minutes:
#
#   whole      loss and gradients of a random 2B beside transformers', on the same weights and tokens
#   ladder     the same LoRA step in plain tensor operations, in our kernels, without recompute, with half of the targets
#   head       steps of the MTP head's training at 8,192 tokens
#   nccl       two ranks on this GPU that sum by NCCL, beside one process in their place
#   sizes      steps of all five sizes by LoRA, and in full where they fit: two packs of 2,048, of 1,024 for the 27B
#
# With --quick everything is tiny, to see whether it works: on the emulated device too (kernels/emulator/driver.sh).
#
# It wants an NVIDIA driver, CUDA 13 (or NVRTC and its headers) and Python 3.9 with PyTorch; PYTHON names another Python. It runs
# from the folder that build.sh made; compiled kernels are kept in its .compiled-kernels unless CUDA_CACHE_PATH is set, which helps
# where the folder is copied anew for each call. Clocks and power are left as they are found and written down.
#
# A table ends the run, and FILE (default: sparktune-gpu-<date>.json here) holds everything. What cannot be done here is skipped, with the
# reason. Exit code: 0 all that was done is right, 1 a comparison failed or a section broke or was cut off, 2 wrong usage,
# 77 nothing could be done here. Speed alone fails nothing.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)

case ${1-} in
-h | --help)
    sed -n '2,/^set /{ /^set /d; s/^# \{0,1\}//; p }' "$here/run.sh"
    exit 0
    ;;
esac

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    printf 'skipped: %s is not Python 3.9 or newer; install it, or name one in PYTHON.\n' "$python" >&2
    exit 77
fi
if [[ -e $here/sparktune.gz && ! -e $here/sparktune ]]; then
    # Whole or not at all: another run may begin meanwhile.
    trap 'rm -f -- "$here/sparktune.$$"' EXIT
    if ! gzip -dc -- "$here/sparktune.gz" >"$here/sparktune.$$"; then
        printf 'sparktune.gz cannot be unpacked into %s; copy the folder to a place that can be written.\n' "$here" >&2
        exit 1
    fi
    chmod +x -- "$here/sparktune.$$"
    mv -- "$here/sparktune.$$" "$here/sparktune"
    trap - EXIT
fi
export PYTHONDONTWRITEBYTECODE=1
exec "$python" "$here/harness.py" "$@"
