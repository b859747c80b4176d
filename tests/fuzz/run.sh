#!/usr/bin/env bash
# Feeds parsers with changed inputs for as long as one likes, guided by coverage.
#
#   tests/fuzz/run.sh TARGET... [MINUTES]   each of these targets for so many minutes of a processor, by default 30
#   tests/fuzz/run.sh all [MINUTES]         all targets
#
# The targets are the functions in tests/fuzz/targets; libFuzzer (the crate libfuzzer-sys, MIT or Apache-2.0, and NCSA) finds the
# inputs. It works with stable Rust and needs a C++ compiler. JOBS=2 runs two targets at a time. The targets `weights`, `edited` and
# `facts`, and therefore `all`, build the tensor library once more, which takes ten minutes.
#
# target/fuzz/TARGET/corpus grows from run to run. target/fuzz/TARGET/found gets what broke a promise, took over 2 GB of memory or
# over a minute. Such an input is tried again with
#
#   SPARKTUNE_FUZZ_INPUT=FILE cargo test --release --workspace --test fuzz TARGET
#
# When the defect is mended, the input goes into tests/fuzz/corpus/TARGET, named after what it broke. The table at the end is what
# tests/README.md records. The exit code is 1 if anything was found.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "$0")")
root=$here/../..
# shellcheck source=run.sh
source "$root/run.sh"

mapfile -t all < <(sed -n 's/.*Target { name: "\([a-z_]*\)".*/\1/p' "$here/targets/mod.rs" "$here/weights.rs")
minutes=30
chosen=()
for word in "$@"; do
    if [[ $word == all ]]; then
        chosen+=("${all[@]}")
    elif [[ $word =~ ^[0-9]+$ ]]; then
        minutes=$word
    elif [[ " ${all[*]} " == *" $word "* ]]; then
        chosen+=("$word")
    else
        fail "there is no target '$word'." "The targets are: ${all[*]}"
    fi
done
((${#chosen[@]})) || fail "name a target, or 'all'." "The targets are: ${all[*]}"

# The instrumentation that libFuzzer reads; rustc has it as a pass of LLVM, in stable versions too.
instrumented=(-Cpasses=sancov-module)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    instrumented+=("-Cllvm-args=-sanitizer-coverage-$option")
done

build_targets() {
    local features=() host
    if [[ " ${chosen[*]} " =~ " weights "|" facts "|" edited " ]]; then features=(--features model); fi
    host=$(rustc -vV | sed -n 's/^host: //p')
    # The same versions of all dependencies as the program has.
    cp -- "$root/Cargo.lock" "$here/coverage/Cargo.lock"
    # With --target, build scripts are not instrumented.
    (cd -- "$here/coverage" && RUSTFLAGS="${instrumented[*]}" CARGO_TARGET_DIR=$target/fuzz/build \
        cargo build --release --target "$host" "${features[@]}") || fail "the targets could not be built."
    program=$target/fuzz/build/$host/release/coverage
}

# The seconds of processor time that a process has used, with the processes it waited for.
processor_seconds() {
    local stat
    read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
    # After the name, which may contain spaces: field 14 of proc_pid_stat(5) is the eleventh, in hundredths of a second.
    read -ra stat <<<"${stat##*) }"
    printf '%d\n' $(((stat[11] + stat[12] + stat[13] + stat[14]) / 100))
}

# Feeds a target, again and again if something is found, until it has had its minutes of a processor: on a machine that does other
# work, they take longer. Notes each few seconds how many edges were reached by then.
feed() {
    local name=$1 folder=$target/fuzz/$1 used=0 now began fuzzer
    mkdir -p -- "$folder/corpus" "$folder/found"
    rm -f -- "$folder/edges" "$folder/log"
    while ((used < 60 * minutes)); do
        SPARKTUNE_FUZZ_TARGET=$name nice -n 19 "$program" "$folder/corpus" "$here/corpus/$name" \
            -artifact_prefix="$folder/found/" -max_len=16384 -timeout=60 -rss_limit_mb=2048 \
            -reload=0 -print_final_stats=1 >"$folder/output" 2>&1 &
        fuzzer=$!
        began=$used
        while now=$(processor_seconds $fuzzer); do
            used=$((began + now))
            printf '%d %d\n' $used \
                "$(tail -n 20 "$folder/output" | sed -n 's/^#.* cov: \([0-9]*\) .*/\1/p' | tail -n 1)" >>"$folder/edges"
            ((used < 60 * minutes)) || { kill -INT $fuzzer && break; }
            sleep 2
        done
        wait $fuzzer || true
        # One that ended at once counts too, or a defect at the start would go on for ever.
        used=$((used + 1))
        cat -- "$folder/output" >>"$folder/log"
    done
}

# One row of the table: the runs, the edges reached, when the last of them was reached, how many of them in the last ten minutes,
# and what was found.
row() {
    local name=$1 folder=$target/fuzz/$1 found
    found=$(find "$folder/found" -type f | wc -l)
    awk -v name="$name" -v minutes="$minutes" -v found="$found" '
        FILENAME ~ /edges$/ {
            if ($2 > edges) { edges = $2; last = $1 }
            if ($1 <= 60 * minutes - 600) before = edges
        }
        $1 == "stat::number_of_executed_units:" { runs += $2 }
        END { fresh = (minutes > 10) ? edges - before : "–"
            printf "| %s | %d min | %d | %d | %d:%02d | %s | %d |\n", name, minutes, runs, edges, last / 60, last % 60, fresh, found
        }' "$folder/edges" "$folder/log"
}

build_targets
# The files of the targets: in memory, and gone even if a target ends at once.
memory=/dev/shm
[[ -d $memory ]] || memory=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d -- "$memory/sparktune-fuzz-XXXXXX")
export TMPDIR
trap 'rm -rf -- "$TMPDIR"' EXIT
jobs=0
for name in "${chosen[@]}"; do
    if ((jobs >= ${JOBS:-1})); then wait -n && jobs=$((jobs - 1)); fi
    say "feeding $name for $minutes min ..."
    feed "$name" &
    jobs=$((jobs + 1))
done
wait
printf '| target | time | runs | edges | last new edge after | new in the last 10 min | found |\n|---|---|---|---|---|---|---|\n'
for name in "${chosen[@]}"; do row "$name"; done
! find "${chosen[@]/#/$target/fuzz/}" -path '*/found/*' -type f | grep .
