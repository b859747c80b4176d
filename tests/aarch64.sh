#!/usr/bin/env bash
# Builds sparktune for aarch64 with CUDA, as a DGX Spark runs it, and runs the tests of its crates, the self-tests of
# `doctor` and a short `--demo` under emulation on x86-64: other vector instructions (NEON), another memory model's code,
# another C. To be run after each change of dependencies; an hour on 2 cores the first time. CI only type-checks.
#
#   tests/aarch64.sh          builds and tests, and when everything passed notes it in tests/aarch64.passed
#   tests/aarch64.sh --stamp  whether it has passed with the dependencies that are in Cargo.lock now; CI asks this
#
# An emulator takes 100 to 300 times as long as this machine. So the tests of the root package are left out, which start whole
# trainings and terminals against deadlines, and those of the trainer that train for long: the demo's few steps stand for them.
# Where no service manager registers QEMU, these do, as root: `mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` and
# `update-binfmts --enable qemu-aarch64`. It needs a target folder of its own: cargo locks it to the end.
# Exit code 77: nothing could be done here, or it has not passed yet, for the reason printed.
set -euo pipefail
root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
cd -- "$root"
# shellcheck source=run.sh
source ./run.sh

arm=aarch64-unknown-linux-gnu
passed=tests/aarch64.passed

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}

lock_hash() { sha256sum <Cargo.lock | cut -d' ' -f1; }

if [[ ${1-} == --stamp ]]; then
    grep -qs "$(lock_hash)" "$passed" ||
        skip "tests/aarch64.sh has not passed since Cargo.lock changed; run it once (an hour)"
    exit
fi

[[ $(uname -m) == x86_64 ]] || skip "this is $(uname -m): './run.sh test' runs everything natively on aarch64"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no cross compiler: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
# Registered with the kernel, for tests start programs of their own.
[[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]] ||
    skip "the kernel cannot start aarch64 programs: apt-get install qemu-user-static binfmt-support"
find_rust
if command -v rustup >/dev/null; then rustup target add "$arm"; fi

export CARGO_TARGET_DIR=$target CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Where the emulator finds the loader and the C library.
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
flags=(--locked --release --target "$arm" --workspace --features cuda)
log=$(mktemp)
runs=$(mktemp -d)
trap 'rm -rf -- "$log" "$runs"' EXIT

# All tests but the root package's, named one by one: leaving out the package would be other features of the dependencies,
# and a second build of them.
tests_of_members() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        if "test" in target["kind"] and package["name"] not in ("sparktune", "sparktune-train"):
            print("--test=" + target["name"])'
}
mapfile -t tests < <(tests_of_members)

cargo build "${flags[@]}"
# One test reads the loader's cache of this machine, whose libraries are not an aarch64 program's; two train for an hour; one
# waits for answers that an emulated server is too slow to give. The emulator has no BPF, reports no error when a program that
# does not exist is started, and has signal handlers of its own in a process that starts another program.
skipped=(--skip the_cache_of_this_machine_is_understood --skip the_small_model_learns_a_little_in_thirty_steps
    --skip the_packed_pipelines_have_the_same_losses --skip silence_is_given_up_and_the_download_continues
    --skip xdp::oracle:: --skip xdp::a_kernel_that_refuses --skip xdp::root_without_capabilities --skip xdp::a_liar_is_known
    --skip xdp::sums_in_the_kernel --skip of_a_rank_that_ends_by_itself
    --skip a_judge_that_fails_is_told_in_words --skip a_peer_that_is_not_there_cannot_be_started
    --skip the_signal_to_stop_is_one_that_the_process_handles)
cargo test "${flags[@]}" --lib "${tests[@]}" --no-fail-fast -- "${skipped[@]}" 2>&1 | tee "$log"
count=$(awk '/^test result: ok/ { n += $4 } END { print n }' "$log")

binary=$target/$arm/release/sparktune
export SPARKTUNE_HOME=$root
"$binary" --version
"$binary" doctor
"$binary" --demo --max-steps 4 --mtp none --json --runs-dir "$runs" | tail -n 1

{
    printf 'Written by tests/aarch64.sh when everything in it passed.\n'
    printf 'Cargo.lock: sha256 %s\n' "$(lock_hash)"
    printf '%s: %s tests, doctor and the demo in %s min, %s, %s\n' "$(date -u +%F)" "$count" $((SECONDS / 60)) \
        "$(sed -n 's/^interpreter //p' /proc/sys/fs/binfmt_misc/qemu-aarch64)" "$(rustc --version)"
} >"$passed"
cat -- "$passed"
