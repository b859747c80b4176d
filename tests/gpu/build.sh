#!/usr/bin/env bash
# Makes the folder that tests/gpu/run.sh runs from on a machine without Rust, registry or network.
#
#   tests/gpu/build.sh OUT [WHEEL...]     builds sparktune with CUDA for this machine's processor and fills the new folder OUT
#
# In it: the stripped program, packed by gzip (run.sh unpacks it), run.sh, the Python files, the shapes of the models that they
# read, the demo's model and data, and the commit. The kernels' sources are in the program. Besides, in packages/, flash-linear-attention for the peers, from
# PyPI where that can be reached, and the given wheels: causal-conv1d has one for each PyTorch, CUDA and Python. Fails when the folder
# is over 60 MB.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
root=$(cd -- "$here/../.." && pwd)
limit=$((60 * 1000 * 1000))

fail() {
    printf 'build.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

(($# >= 1)) || fail "usage: $0 OUT [WHEEL...]" 2
out=$1
shift
[[ ! -e $out ]] || fail "$out exists already: name a new folder" 2

target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$PWD/$target
# The whole workspace, as run.sh of the checkout builds it: another selection means other features of the dependencies, and a second build.
(cd -- "$root" && CARGO_TARGET_DIR=$target cargo build --locked --release --workspace --features cuda) ||
    fail "the build failed; the reason stands above"

mkdir -p -- "$out"
cp -- "$target/release/sparktune" "$here/run.sh" "$here"/*.py "$here/shapes.json" "$out/"
# Two ranks by NCCL train the demo's model.
mkdir -p -- "$out/presets/demo"
cp -r -- "$root/presets/demo/model" "$root/presets/demo/train.jsonl" "$out/presets/demo/"
strip -- "$out/sparktune"
gzip -- "$out/sparktune"
commit=$(git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null) || commit=unknown
printf '%s\n' "$commit" >"$out/COMMIT"

# Pure Python, without what it depends on: the machine has PyTorch and Triton, or no peer at all.
wheels=$(mktemp -d)
trap 'rm -rf -- "$wheels"' EXIT
if ! timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" \
    flash-linear-attention==0.6.0 fla-core==0.6.0; then
    printf 'build.sh: without flash-linear-attention, which could not be downloaded; the peers run with what the machine has\n' >&2
fi
(($# == 0)) || cp -- "$@" "$wheels/"
shopt -s nullglob
for wheel in "$wheels"/*.whl; do
    mkdir -p -- "$out/packages"
    python3 -m zipfile -e "$wheel" "$out/packages"
done

size=$(find "$out" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
((size <= limit)) || fail "$out holds $((size / 1000000)) MB, more than $((limit / 1000000)) MB"
printf '%s: %d.%d MB, commit %s, for %s\n' "$out" $((size / 1000000)) $((size / 100000 % 10)) "$commit" "$(uname -m)"
