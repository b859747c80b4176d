#!/usr/bin/env bash
# Compiles every device source for sm_121a (GB10) and sm_90a (H200) with NVRTC, no GPU and no CUDA installation needed.
#
#   kernels/compile.sh            writes kernels/RESOURCES.md
#   kernels/compile.sh --check    fails when a kernel spills or takes more than RESOURCES.md says
#   kernels/compile.sh NAME...    shows what the kernels of the named folders take (silu_mul, ...)
#   kernels/compile.sh --sass NAME...    shows their instructions by kind, for each kernel and each of its loops
#
# NVRTC comes from PyPI, once, into SPARKTUNE_NVRTC (default: target/nvrtc-VERSION, about 220 MB), and for --sass nvdisasm, 5 MB. Where
# they cannot be had the reason is printed after `skipped:` and the exit code is 77.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)

# No newer than the CUDA the drivers in the field bring.
version=13.0.88
# The oldest on PyPI that knows sm_121.
nvdisasm_version=13.2.51
cache=${SPARKTUNE_NVRTC:-${CARGO_TARGET_DIR:-$here/../target}/nvrtc-$version}

sass=()
if [[ ${1-} == --sass ]]; then
    sass=(--sass)
    shift
    (($#)) || set -- --sass # which is no folder
fi
for name in "$@"; do
    [[ $name == --check && $# == 1 && ${#sass[@]} == 0 ]] || [[ $name != -* && -d $here/$name ]] || {
        printf 'usage: %s [--check | [--sass] NAME...]\n' "$0" >&2
        exit 2
    }
done

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}

library() { find "$cache" -name 'libnvrtc.so.13' -print -quit 2>/dev/null; }

# Installs a package below the cache.
fetch() { # package==version folder
    mkdir -p -- "$cache"
    python3 -m pip --version >/dev/null 2>&1 || python3 -m venv "$cache/venv" >/dev/null 2>&1 ||
        skip "neither pip nor venv in this Python"
    local pip=("$cache/venv/bin/python") log
    [[ -x ${pip[0]} ]] || pip=(python3)
    log=$("${pip[@]}" -m pip install --quiet --disable-pip-version-check --no-deps --target "$cache/$2" "$1" 2>&1) ||
        skip "$1 could not be installed from PyPI: $(tail -n 1 <<<"$log")"
}

command -v python3 >/dev/null || skip "python3 is not installed"
[[ -n $(library) ]] || fetch "nvidia-cuda-nvrtc==$version" packages
if ((${#sass[@]})); then
    nvdisasm=$cache/nvdisasm-$nvdisasm_version/nvidia/cu13/bin/nvdisasm
    [[ -x $nvdisasm ]] || fetch "nvidia-cuda-nvdisasm==$nvdisasm_version" "nvdisasm-$nvdisasm_version"
    sass+=("$nvdisasm")
fi
found=$(library)
# NVRTC opens its built-in functions by their bare name.
export LD_LIBRARY_PATH=${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 -B "$here/compile.py" "$found" ${sass[@]+"${sass[@]}"} "$@"
