#!/usr/bin/env bash
# Runs the device sources on the CPU: each kernels/<op>/<op>.test.cpp, and the tests of the emulator and of the emulated CUDA device
# (emulator/driver), built with g++ and run.
#
#   kernels/check.sh [NAME...]    all tests, or those of the named folders (emulator, driver, silu_mul, ...)
#
# Prints one row per result of a kernel with the largest error over all its cases. The exit code is 1 when a test failed
# or did not build. Needs g++ and nothing else; takes half a minute on two cores.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)

# Compiling takes longer than running: -O2 would take half as long again for a tenth of the running time.
flags=(-std=c++17 -O1 -Wall -Wextra -Wno-unknown-pragmas)
# Device code reads 16 bytes at a time out of two-byte numbers; the sanitizer watches that it may.
flags+=(-fno-strict-aliasing -fsanitize=alignment -fno-sanitize-recover=all)

command -v g++ >/dev/null || {
    echo "g++ is needed to run the device sources on the CPU." >&2
    exit 1
}
out=$(mktemp -d)
trap 'rm -rf -- "$out"' EXIT

shopt -s nullglob
tests=()
if (($#)); then
    for name in "$@"; do
        found=("$here/$name"/*test.cpp "$here/emulator/$name"/*test.cpp)
        ((${#found[@]})) || {
            echo "kernels/$name has no test of its device source." >&2
            exit 2
        }
        tests+=("${found[@]}")
    done
else
    tests=("$here"/*/*test.cpp "$here"/emulator/*/*test.cpp)
fi

# check SOURCE: builds and runs one test; its output goes to NAME.txt, NAME.ok says that it passed.
check() {
    local name
    name=$(basename -- "$(dirname -- "$1")")
    if g++ "${flags[@]}" "$1" -o "$out/$name" && timeout 120 "$out/$name"; then
        touch -- "$out/$name.ok"
    fi >"$out/$name.txt" 2>&1
}

# Two at a time.
for source in "${tests[@]}"; do
    while (($(jobs -rp | wc -l) >= 2)); do wait -n; done
    check "$source" &
done
wait

failed=()
for source in "${tests[@]}"; do
    name=$(basename -- "$(dirname -- "$source")")
    cat -- "$out/$name.txt"
    [[ -e $out/$name.ok ]] || failed+=("$name")
done
if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
echo "${#tests[@]} tests passed"
