#!/usr/bin/env bash
# Compiles every device source for sm_121a (GB10) and sm_90a (H200) with NVRTC, no GPU and no CUDA installation needed.
#
#   kernels/compile.sh            writes kernels/RESOURCES.md
#   kernels/compile.sh --check    fails when a kernel spills or takes more than RESOURCES.md says
#   kernels/compile.sh NAME...    shows what the kernels of the named folders take (silu_mul, ...)
#
# NVRTC comes from PyPI, once, into SPARKTUNE_NVRTC (default: target/nvrtc-VERSION, about 220 MB). Where it cannot be had
# the reason is printed after `skipped:` and the exit code is 77.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)

# No newer than the CUDA the drivers in the field bring.
version=13.0.88
cache=${SPARKTUNE_NVRTC:-${CARGO_TARGET_DIR:-$here/../target}/nvrtc-$version}

for name in "$@"; do
    [[ $name == --check && $# == 1 ]] || [[ $name != -* && -d $here/$name ]] || {
        printf 'usage: %s [--check | NAME...]\n' "$0" >&2
        exit 2
    }
done

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}

library() { find "$cache" -name 'libnvrtc.so.13' -print -quit 2>/dev/null; }

command -v python3 >/dev/null || skip "python3 is not installed"
if [[ -z $(library) ]]; then
    mkdir -p -- "$cache"
    python3 -m pip --version >/dev/null 2>&1 || python3 -m venv "$cache/venv" >/dev/null 2>&1 ||
        skip "neither pip nor venv in this Python"
    pip=("$cache/venv/bin/python")
    [[ -x ${pip[0]} ]] || pip=(python3)
    if ! log=$("${pip[@]}" -m pip install --quiet --disable-pip-version-check --no-deps --target "$cache/packages" \
        "nvidia-cuda-nvrtc==$version" 2>&1); then
        skip "nvidia-cuda-nvrtc $version could not be installed from PyPI: $(tail -n 1 <<<"$log")"
    fi
fi
found=$(library)
# NVRTC opens its built-in functions by their bare name.
export LD_LIBRARY_PATH=${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 "$here/compile.py" "$found" "$@"
