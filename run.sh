#!/usr/bin/env bash
# Builds and runs sparktune.
#
#   ./run.sh [ARGUMENTS]           builds sparktune if necessary, then runs it with these arguments
#   ./run.sh --docker [ARGUMENTS]  the same in a container, with Docker or Podman
#   ./run.sh test [ARGUMENTS]      runs all tests; the arguments are passed to `cargo test`
#   ./run.sh install [FOLDER]      puts a link named `sparktune` into FOLDER, by default ~/.local/bin
#
# --rebuild, before any other argument, builds even if nothing has changed; --rebuild=clean deletes the previous build first.
#
# The script needs git, curl and a C toolchain. It installs Rust if there is none, and builds with CUDA if it finds an NVIDIA
# driver; SPARKTUNE_CUDA=yes or =no overrides that. Its own messages go to standard error, because standard output belongs to
# sparktune. sparktune receives the name it was called by in SPARKTUNE_COMMAND, and uses it in its hints.
#
# .ci/run, docker/Dockerfile and some tests source this file for its functions; then nothing runs.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$PWD/$target
binary=$target/release/sparktune
# What the program is built from. A change to any other file needs no new build.
sources=(.cargo Cargo.lock Cargo.toml kernels presets src tests/peers)
# Contains the features of the last successful build. Its modification time is the moment at which that build began.
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
    # Called inside the checkout, because rustup's answer depends on the folder. rustup must not download anything unannounced.
    version=$(cd -- "$root" && RUSTUP_AUTO_INSTALL=0 "$1" --version 2>/dev/null | sed -n 's/^[a-z]* \([0-9.]*\).*/\1/p') || return 1
    [[ -n $version && $(printf '%s\n' "$rust_version" "$version" | sort -V | head -n 1) == "$rust_version" ]]
}

has_recent_rust() { is_recent cargo && is_recent rustc; }

# Ensures that `cargo` on PATH can build the workspace. Installs Rust if necessary.
find_rust() {
    export CARGO_HOME=${CARGO_HOME:-${HOME:?"run.sh needs HOME to find or install Rust"}/.cargo}
    if has_recent_rust; then return; fi
    export PATH=$CARGO_HOME/bin:$PATH
    if has_recent_rust; then return; fi
    if command -v rustup >/dev/null; then
        say "sparktune needs Rust $rust_version or newer, which is not installed."
        say "Adding toolchain $rust_version with rustup (about 600 MB). Your default toolchain does not change."
        rustup toolchain install "$rust_version" --profile minimal --no-self-update >&2 ||
            rust_failed "'rustup update stable' is another way to get it."
        export RUSTUP_TOOLCHAIN=$rust_version
    else
        install_rust
    fi
    hash -r
    has_recent_rust ||
        fail "Rust was installed, but 'cargo --version' is still older than $rust_version." \
            "'command -v cargo' and 'rustup show' print which Rust is used."
}

install_rust() {
    command -v curl >/dev/null ||
        fail "curl, which is needed to download Rust, is not installed." "Debian, Ubuntu: apt-get install curl ca-certificates"
    say "Rust $rust_version or newer is not installed. Installing it with rustup, the official installer, into $CARGO_HOME"
    say "and ${RUSTUP_HOME:-$HOME/.rustup} (about 600 MB). Your shell profile does not change. 'rustup self uninstall' removes it."
    installer=$(mktemp) || fail "cannot create a temporary file in ${TMPDIR:-/tmp}. Is the disk full?"
    trap 'rm -f -- "$installer"' EXIT
    # The script behind https://sh.rustup.rs, from the server that also provides the toolchains, or from its mirror.
    local url=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/rustup-init.sh
    curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location --retry 3 --output "$installer" "$url" ||
        rust_failed "$url could not be downloaded."
    # The check would refuse where the distribution's Rust is installed, which does no harm: only this script uses the new one.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --quiet --no-modify-path \
        --profile minimal --default-toolchain "$rust_version" >/dev/null || rust_failed
    rm -f -- "$installer"
    trap - EXIT
}

rust_failed() {
    fail "Rust could not be installed; the reason is printed above." "$@" \
        "Without a network: connect, set HTTPS_PROXY, or name a mirror in RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER." \
        "If the disk is full: Rust needs 600 MB, and $(free_space "$HOME") are free in $HOME." \
        "You can also install Rust $rust_version or newer yourself, then run this again."
}

has_driver() { command -v nvidia-smi >/dev/null || [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]]; }

# Sets `features` to the cargo flags for this machine.
choose_features() {
    local cuda=${SPARKTUNE_CUDA-}
    [[ -n $cuda ]] || { has_driver && cuda=yes; } || cuda=no
    case $cuda in
    yes) features=(--features cuda) ;;
    no) features=() ;;
    *) fail "SPARKTUNE_CUDA is '$cuda'. It must be yes or no." ;;
    esac
}

free_space() { df -Ph -- "$1" 2>/dev/null | awk 'NR == 2 { print $4 "B" }'; }

need_c_compiler() {
    command -v cc >/dev/null ||
        fail "there is no C compiler ('cc'), which Rust needs for linking." "Debian, Ubuntu: apt-get install build-essential"
}

# Runs cargo in the workspace, so that .cargo/config.toml applies wherever run.sh is called from.
in_workspace() { (cd -- "$root" && CARGO_TARGET_DIR=$target cargo "$@"); }

# nothing_is_newer FIND-ARGUMENTS...: whether `find` with these arguments finds nothing in the checkout.
nothing_is_newer() {
    local newer
    newer=$(cd -- "$root" && find "$@" -print -quit) && [[ -z $newer ]]
}

# Whether the binary exists, has the right features, and is newer than all of its sources.
is_built() {
    [[ -x $binary && -f $stamp && $(<"$stamp") == "${features[*]}" ]] && nothing_is_newer "${sources[@]}" -newer "$stamp"
}

build() {
    need_c_compiler
    find_rust
    if [[ ! -x $binary ]]; then
        say "building sparktune${features[1]:+ with ${features[1]}} for the first time; this takes 5 to 15 minutes, longer on a busy machine. Later starts need no build."
    fi
    mkdir -p -- "$target/release" || fail "cannot write to the build folder $target."
    # Written before the build starts: a file that is edited during the build counts as newer.
    printf '%s\n' "${features[*]}" >"$stamp.new" || fail "cannot write to the build folder $target. Is the disk full?"
    SECONDS=0
    # The whole workspace, as for the tests: a different selection means different features of the dependencies, and a second
    # build of them.
    in_workspace build --release --workspace "${features[@]}" >&2 ||
        fail "the build failed after ${SECONDS} s; the reason is printed above." \
            "If a download failed: check the network and HTTPS_PROXY, then run this again. It continues where it stopped." \
            "If the disk is full: a build needs 2 GB, and $(free_space "$target") are free at $target." \
            "Otherwise this is a bug in sparktune. Please report the lines above."
    mv -- "$stamp.new" "$stamp"
    ((SECONDS < 20)) || say "built in $((SECONDS / 60)) min $((SECONDS % 60)) s."
}

# Deletes the previous build. CARGO_TARGET_DIR may hold other projects too, so there only this workspace's files are deleted.
clean() {
    find_rust
    rm -f -- "$stamp"
    in_workspace clean --release ${CARGO_TARGET_DIR:+--workspace} >&2 || fail "the previous build could not be deleted."
}

test_all() {
    need_c_compiler
    find_rust
    say "building and running all tests; the first time this takes 10 to 20 minutes."
    in_workspace test --release --workspace --no-fail-fast "${features[@]}" "$@"
}

# Prints how the caller names this script, in a form that a shell can read: ./run.sh, or sparktune if a link of that name on
# PATH leads here.
called_as() {
    local name=$0
    if [[ $(command -v -- "${0##*/}") -ef $0 ]]; then
        name=${0##*/}
    elif [[ $0 != */* ]]; then
        name=./$0 # as in `bash run.sh`
    fi
    printf '%q' "$name"
}

# install_link [FOLDER]: puts a link to this script, named `sparktune`, into the folder. Never replaces a file.
install_link() {
    local folder=${1:-${HOME:?"run.sh needs HOME to find ~/.local/bin"}/.local/bin}
    local link=$folder/sparktune self=$root/run.sh first
    (($# < 2)) || fail "install takes one folder, and got $#."
    mkdir -p -- "$folder" || fail "the folder $folder cannot be created."
    if [[ $link -ef $self ]]; then
        say "$link is already a link to $self."
    elif [[ -e $link || -L $link ]]; then
        fail "$link already exists and does not lead to $self. It has not been changed." \
            "Delete it first, or name another folder: $(called_as) install FOLDER"
    else
        ln -s -- "$self" "$link" || fail "cannot create a link in $folder."
        say "$link is now a link to $self. To uninstall it, delete the link."
    fi
    first=$(command -v sparktune) || first=
    if [[ $first -ef $link ]]; then
        say "You can now type 'sparktune' in any folder."
    elif [[ -n $first ]]; then
        say "'sparktune' still starts $first, which comes earlier on your PATH."
    else
        say "$folder is not on your PATH. To add it, append this line to ~/.profile and log in again:"
        # shellcheck disable=SC2016 # the line is for the reader's shell
        printf '        export PATH=%q:"$PATH"\n' "$(cd -- "$folder" && pwd)" >&2
    fi
}

main() {
    local where=here rebuild=
    while true; do
        case ${1-} in
        --docker) where=container ;;
        --rebuild) rebuild=yes ;;
        --rebuild=clean) rebuild=clean ;;
        --rebuild=*) fail "$1 is unknown. Use --rebuild or --rebuild=clean." ;;
        *) break ;;
        esac
        shift
    done
    if [[ $where == container ]]; then
        # shellcheck source=docker/engine.sh
        source "$root/docker/engine.sh"
        find_engine
        { [[ -z $rebuild ]] && image_is_current; } || build_image "$rebuild"
        export SPARKTUNE_COMMAND
        SPARKTUNE_COMMAND="$(called_as) --docker"
        run_in_container "$@"
    fi
    if [[ ${1-} == install ]]; then
        install_link "${@:2}"
        return
    fi
    choose_features
    [[ $rebuild != clean ]] || clean
    if [[ ${1-} == test ]]; then
        test_all "${@:2}"
    else
        { [[ -z $rebuild ]] && is_built; } || build
        SPARKTUNE_COMMAND=$(called_as) exec "$binary" "$@"
    fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    main "$@"
fi
