# shellcheck shell=bash
# Docker or Podman behind `run.sh --docker`: which of them is here, the image, and a container in which sparktune is at
# home: the same paths, user, settings and caches as outside, and the GPU. run.sh sources this file, which uses run.sh's
# `root`, `say`, `fail`, `has_driver` and `nothing_is_newer`.

image=sparktune
# What the image is made of; nothing else makes it old.
image_sources=(.cargo Cargo.lock Cargo.toml docker kernels presets run.sh src)
# What sparktune reads from the environment. Only names are handed over: no value of HF_TOKEN is in a command line or image.
variables=(
    HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_ENDPOINT
    HF_HUB_OFFLINE TRANSFORMERS_OFFLINE HF_HUB_DOWNLOAD_TIMEOUT
    ALL_PROXY all_proxy HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY no_proxy
    HOME XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME
    TERM COLORTERM NO_COLOR LANG LC_ALL LC_CTYPE CI SSH_CONNECTION CUDA_VISIBLE_DEVICES
)

# Sets `engine`, and `about` to what the engine says of itself.
find_engine() {
    local refused=
    # Podman may be there under Docker's name.
    if command -v docker >/dev/null && [[ $(docker --version 2>/dev/null) != podman* ]]; then
        engine=docker
        about=$(docker info --format '{{json .Runtimes}} {{json .SecurityOptions}}' 2>&1) && return
        refused=$about
    fi
    if command -v podman >/dev/null; then
        engine=podman
        about=$(podman info --format 'rootless={{.Host.Security.Rootless}}' 2>&1) && return
        refused=$about
    fi
    [[ -z $refused ]] || fail "$engine is installed but does not answer: ${refused##*$'\n'}" \
        "Docker's daemon: sudo systemctl start docker" \
        "Permission denied: sudo usermod -aG docker \"\$USER\", then log in again."
    fail "--docker needs Docker or Podman, and neither is installed. DGX OS brings Docker." \
        "Debian, Ubuntu: apt-get install podman" \
        "Or run this without --docker: then it builds on this machine itself."
}

# Whether the image is there, was built from this checkout, and none of its sources has changed since.
image_is_current() {
    local built
    built=$("$engine" image inspect --format '{{index .Config.Labels "sparktune.built"}}' "$image" 2>/dev/null) || return 1
    [[ $built == *" $root" ]] && nothing_is_newer "${image_sources[@]}" -newermt "@${built%% *}"
}

# build_image [clean]
build_image() {
    # Noted when it begins: what is edited meanwhile counts as newer.
    local began=${EPOCHREALTIME/,/.}
    local flags=(--network host --file "$root/docker/Dockerfile" --tag "$image" --build-arg "BUILT=$began $root")
    [[ -z ${CUDA_IMAGE-} ]] || flags+=(--build-arg "CUDA_IMAGE=$CUDA_IMAGE")
    [[ ${1-} != clean ]] || flags+=(--no-cache --build-arg "FRESH=$began")
    say "building the image '$image' with $engine; the first time this takes 10 to 20 minutes and 4 GB, later a few seconds or minutes ..."
    SECONDS=0
    DOCKER_BUILDKIT=1 "$engine" build "${flags[@]}" "$root" >&2 ||
        fail "the image could not be built (after ${SECONDS} s); the reason stands above." \
            "No base image: the network, or a mirror's in CUDA_IMAGE (CUDA 13, no newer than what your driver brings)." \
            "Without Docker: ./run.sh builds on this machine itself."
    # The one it replaces has no name any more.
    "$engine" image prune --force --filter label=sparktune.built >/dev/null || true
}

# Sets `gpu` to the flags that hand the GPU to a container; where there is none to hand over, says so.
find_gpu() {
    gpu=()
    if ! has_driver; then
        say "no NVIDIA driver here: sparktune will train on the CPU."
    elif [[ $engine == docker ]]; then
        if [[ $about == *nvidia* ]] || command -v nvidia-container-runtime-hook >/dev/null; then
            gpu=(--gpus all)
        else
            no_gpu "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        fi
    elif [[ $(nvidia-ctk cdi list 2>/dev/null) == *nvidia.com/gpu=all* ]]; then
        gpu=(--device nvidia.com/gpu=all)
    else
        no_gpu "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    fi
}

no_gpu() {
    say "there is an NVIDIA driver, but $engine cannot hand the GPU to a container: sparktune will train on the CPU."
    say "To change that, install NVIDIA's package nvidia-container-toolkit, then: $1"
}

# Sets `user`, so that what sparktune writes belongs to who called it.
choose_user() {
    user=(--user "$(id -u):$(id -g)")
    case "$engine $about" in
    docker*name=rootless*) user=(--user 0:0) ;; # which is the caller, outside
    podman*rootless=true*) user+=(--userns keep-id) ;;
    esac
}

# Mounts the folder $1 at its own path, unless it lies in one that is mounted already.
share() {
    local have
    for have in "${shared[@]}"; do
        [[ $1 != "$have" && $1 != "$have"/* ]] || return 0
    done
    [[ $1 != *[,$'\n']* ]] || fail "$1: a folder with a comma in its name cannot be mounted into a container. Rename it."
    shared+=("$1")
    mounts+=(--mount "type=bind,source=$1,target=$1")
}

# Whether the image has its own $1, which a mount would hide.
is_of_the_image() {
    local first=${1#/}
    case ${first%%/*} in
    bin | boot | dev | etc | lib* | proc | sbin | sys | usr) return 0 ;;
    "" | opt | run | var) [[ $1 != /*/* || $1 == /opt/sparktune* ]] ;;
    *) return 1 ;;
    esac
}

# Mounts the folder that $1 is, or is in or will be in: where it is said to be, and where links lead.
share_path() {
    local path
    for path in "$1" "$(readlink -m -- "$1")"; do
        [[ $path == /* ]] || path=$PWD/$path
        while [[ ! -d $path ]]; do
            path=${path%/*}
            path=${path:-/}
        done
        path=$(cd -- "$path" 2>/dev/null && pwd) || continue
        is_of_the_image "$path" || share "$path"
    done
}

# Sets `mounts` to all that sparktune, called with these arguments, may want to open: this folder, caches, settings,
# the checkout with its presets, and every path it was given.
choose_mounts() {
    shared=() mounts=()
    ! is_of_the_image "$PWD" ||
        fail "$PWD cannot be a container's working folder: the image has its own." "Call this from a folder of yours."
    share_path "$PWD"
    share_path "$root"
    local cache=${XDG_CACHE_HOME:-$HOME/.cache} folder
    # The last two keep compiled kernels: cubecl's and the driver's.
    for folder in "${HF_HOME:-$cache/huggingface}" ${HF_HUB_CACHE:+"$HF_HUB_CACHE"} \
        ${HUGGINGFACE_HUB_CACHE:+"$HUGGINGFACE_HUB_CACHE"} "${XDG_CONFIG_HOME:-$HOME/.config}/sparktune" \
        "${XDG_STATE_HOME:-$HOME/.local/state}/sparktune" ${gpu[0]:+"$cache/cubecl" "$HOME/.nv"}; do
        folder=${folder/#"~/"/"$HOME/"}
        mkdir -p -- "$folder" || fail "the folder $folder cannot be made."
        share_path "$folder"
    done
    local name argument
    for name in HF_TOKEN_PATH $(compgen -e SPARKTUNE_); do
        [[ -z ${!name-} ]] || share_path "${!name}"
    done
    for argument in "$@"; do share_path "${argument#--*=}"; done
}

# Sets `environment`.
choose_environment() {
    # The checkout's presets and demo, so that a run that began in here goes on out there.
    export SPARKTUNE_HOME=${SPARKTUNE_HOME:-$root}
    environment=()
    local name
    for name in "${variables[@]}" $(compgen -e SPARKTUNE_); do
        [[ -z ${!name+set} ]] || environment+=(--env "$name")
    done
}

# run_in_container ARGUMENTS...: ends this script with sparktune's exit code.
run_in_container() {
    : "${HOME:?"run.sh needs HOME to find caches and settings"}"
    local gpu user shared mounts environment terminal=() container client signal again=yes code
    find_gpu
    choose_user
    choose_mounts "$@"
    choose_environment
    [[ ! -t 0 || ! -t 1 ]] || terminal=(-it)
    # The network as it is out here, for proxies and mirrors. CUDA in one process wants no larger shared memory or limits.
    container=$("$engine" run --detach --rm --network host --stop-timeout 60 --security-opt label=disable \
        "${gpu[@]}" "${user[@]}" "${mounts[@]}" "${environment[@]}" --workdir "$PWD" --entrypoint stay.sh "$image") ||
        fail "no container could be started; the reason stands above."
    # An engine's `exec` hands on what is typed, but no signal.
    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064 # now is when they are known
        trap "again=yes; '$engine' exec $container sh -c 'kill -s $signal \$(cat /dev/shm/sparktune.pid)' &>/dev/null || true" "$signal"
    done
    "$engine" exec "${terminal[@]}" "$container" \
        sh -c 'echo $$ >/dev/shm/sparktune.pid && exec sparktune "$@"' sparktune "$@" <&0 &
    client=$!
    # A signal ends `wait`, not the client.
    while [[ -n $again ]]; do
        again='' code=0
        wait "$client" || code=$?
    done
    exit "$code"
}
