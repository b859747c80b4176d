#!/usr/bin/env bash
# The one door to sparktune.
#
#   ./run.sh [flags]           build what is not built yet, then run sparktune with these flags
#   ./run.sh --docker [flags]  the same in a container, with Docker or Podman
#   ./run.sh test [...]        every test there is; what follows goes to `cargo test`
#
# Before sparktune's own flags, --rebuild builds in any case, and --rebuild=clean throws away first what was built before.
#
# It needs git, curl and a C toolchain, finds or installs Rust by itself, and builds with CUDA where it finds an NVIDIA
# driver. All it has to say goes to standard error: standard output belongs to sparktune.
#
# .ci/run and docker/Dockerfile source this file for `find_rust`; nothing runs then.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$PWD/$target
binary=$target/release/sparktune
# Holds the features of the last successful build, and by its age the moment that build began.
stamp=$target/release/.built-by-run-sh

say() { printf 'run.sh: %s\n' "$*" >&2; }

fail() {
    say "$1"
    shift
    local line
    for line in "$@"; do printf '        %s\n' "$line" >&2; done
    exit 1
}

# Whether the program $1 is a Rust tool of at least the version the workspace asks for.
is_recent() {
    local version
    # Asked inside the checkout, for rustup's answer depends on the folder; and rustup must not download without a word.
    version=$(cd -- "$root" && RUSTUP_AUTO_INSTALL=0 "$1" --version 2>/dev/null | sed -n 's/^[a-z]* \([0-9.]*\).*/\1/p') || return 1
    [[ -n $version && $(printf '%s\n' "$rust_version" "$version" | sort -V | head -n 1) == "$rust_version" ]]
}

has_recent_rust() { is_recent cargo && is_recent rustc; }

# Makes `cargo` on PATH one that can build the workspace: the one that is there, else one from Rust's own installer.
find_rust() {
    export CARGO_HOME=${CARGO_HOME:-${HOME:?"run.sh needs HOME to find or install Rust"}/.cargo}
    if has_recent_rust; then return; fi
    export PATH=$CARGO_HOME/bin:$PATH
    if has_recent_rust; then return; fi
    if command -v rustup >/dev/null; then
        say "sparktune needs Rust $rust_version or newer, and yours is older or has no toolchain."
        say "Adding toolchain $rust_version beside it (about 600 MB); your default stays as it is ..."
        rustup toolchain install "$rust_version" --profile minimal --no-self-update >&2 ||
            rust_failed "'rustup update stable' would do as well."
        export RUSTUP_TOOLCHAIN=$rust_version
    else
        install_rust
    fi
    hash -r
    has_recent_rust ||
        fail "Rust was installed, but 'cargo --version' still is not $rust_version or newer." \
            "Look at what 'command -v cargo' and 'rustup show' say."
}

install_rust() {
    command -v curl >/dev/null ||
        fail "curl is missing, and without it Rust cannot be fetched." "Debian, Ubuntu: apt-get install curl ca-certificates"
    say "no Rust $rust_version or newer here. Installing it with rustup, Rust's own installer, into $CARGO_HOME"
    say "and ${RUSTUP_HOME:-$HOME/.rustup} (about 600 MB). No shell profile is changed; 'rustup self uninstall' removes it."
    installer=$(mktemp) || fail "no temporary file can be made in ${TMPDIR:-/tmp}: is the disk full?"
    trap 'rm -f -- "$installer"' EXIT
    # What https://sh.rustup.rs hands out, from the place that also serves the toolchains (or its mirror).
    local url=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/rustup-init.sh
    curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location --retry 3 --output "$installer" "$url" ||
        rust_failed "$url could not be fetched."
    # An older Rust from the distribution does not disturb: this one is only used from here.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --quiet --no-modify-path \
        --profile minimal --default-toolchain "$rust_version" >/dev/null || rust_failed
    rm -f -- "$installer"
    trap - EXIT
}

rust_failed() {
    fail "Rust could not be installed; the reason stands above." "$@" \
        "No network: connect, or set HTTPS_PROXY, or a mirror in RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER." \
        "Disk: $(free_space "$HOME") are free in $HOME; Rust takes 600 MB." \
        "Or install Rust $rust_version or newer in your own way and run this again."
}

has_driver() { command -v nvidia-smi >/dev/null || [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]]; }

# Sets `features` to the cargo flags this machine calls for.
choose_features() {
    features=()
    ! has_driver || features=(--features cuda)
}

free_space() { df -Ph -- "$1" 2>/dev/null | awk 'NR == 2 { print $4 "B" }'; }

need_c_compiler() {
    command -v cc >/dev/null ||
        fail "no C compiler ('cc'), which Rust needs to link." "Debian, Ubuntu: apt-get install build-essential"
}

# Runs cargo in the workspace, so that .cargo/config.toml holds wherever run.sh was called from.
in_workspace() { (cd -- "$root" && CARGO_TARGET_DIR=$target cargo "$@"); }

# nothing_is_newer FIND-ARGUMENTS...: whether find, in the checkout, finds nothing by these.
nothing_is_newer() {
    local newer
    newer=$(cd -- "$root" && find "$@" -print -quit) && [[ -z $newer ]]
}

# Whether the binary is there, has these features, and nothing in the checkout is newer.
is_built() {
    [[ -x $binary && -f $stamp && $(<"$stamp") == "${features[*]}" ]] &&
        nothing_is_newer . -mindepth 1 \( -path ./.git -o -path ./runs -o -path ./target \) -prune -o -newer "$stamp"
}

build() {
    need_c_compiler
    find_rust
    if [[ ! -x $binary ]]; then
        say "building sparktune${features[1]:+ with ${features[1]}} for the first time; this takes 5 to 15 minutes, later starts take none ..."
    fi
    mkdir -p -- "$target/release" || fail "the build folder $target cannot be written."
    # The stamp's age is that of the build's beginning: what is edited meanwhile counts as newer.
    printf '%s\n' "${features[*]}" >"$stamp.new" || fail "the build folder $target cannot be written: is the disk full?"
    SECONDS=0
    # The whole workspace, as the tests do: another selection means other features of the dependencies, and a second build.
    in_workspace build --release --workspace "${features[@]}" >&2 ||
        fail "the build failed after ${SECONDS} s; the reason stands above." \
            "If a download failed: the network, or HTTPS_PROXY. What was fetched and built so far is kept." \
            "If the disk is full: $(free_space "$target") are free at $target; a build takes 2 GB." \
            "Otherwise it is a fault of sparktune: please report the lines above."
    mv -- "$stamp.new" "$stamp"
    ((SECONDS < 20)) || say "built in $((SECONDS / 60)) min $((SECONDS % 60)) s."
}

# Throws away what run.sh built. In a target folder that others may use too, only the workspace's own.
clean() {
    find_rust
    rm -f -- "$stamp"
    in_workspace clean --release ${CARGO_TARGET_DIR:+--workspace} >&2 || fail "what was built before could not be removed."
}

test_all() {
    need_c_compiler
    find_rust
    say "building and running all tests; the first time this takes 10 to 20 minutes ..."
    in_workspace test --release --workspace --no-fail-fast "${features[@]}" "$@"
}

main() {
    local where=here rebuild=
    while true; do
        case ${1-} in
        --docker) where=container ;;
        --rebuild) rebuild=yes ;;
        --rebuild=clean) rebuild=clean ;;
        --rebuild=*) fail "${1}: it is --rebuild or --rebuild=clean." ;;
        *) break ;;
        esac
        shift
    done
    if [[ $where == container ]]; then
        # shellcheck source=docker/engine.sh
        source "$root/docker/engine.sh"
        find_engine
        { [[ -z $rebuild ]] && image_is_current; } || build_image "$rebuild"
        run_in_container "$@"
    fi
    choose_features
    [[ $rebuild != clean ]] || clean
    if [[ ${1-} == test ]]; then
        test_all "${@:2}"
    else
        { [[ -z $rebuild ]] && is_built; } || build
        exec "$binary" "$@"
    fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    main "$@"
fi
