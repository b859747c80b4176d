# shellcheck shell=bash
# What `run.sh --docker` does: finds Docker or Podman, builds the image, and runs sparktune in a container with the paths,
# user, settings, caches and GPU of the host. run.sh sources this file, which uses run.sh's `root`, `sources`, `say`, `fail`,
# `has_driver` and `nothing_is_newer`.

image=sparktune
# The files that the image is built from. A change to any other file needs no new image.
image_sources=("${sources[@]}" docker run.sh)
# The variables that sparktune reads. Only their names are passed to the engine, so that the value of HF_TOKEN appears in no
# command line and no image.
variables=(
    HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_ENDPOINT
    HF_HUB_OFFLINE TRANSFORMERS_OFFLINE HF_HUB_DOWNLOAD_TIMEOUT
    ALL_PROXY all_proxy HTTPS_PROXY https_proxy HTTP_PROXY http_proxy NO_PROXY no_proxy
    HOME XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME
    RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE
    SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_STEP_NODELIST SLURM_STEP_NUM_TASKS
    SLURM_STEP_NUM_NODES SLURM_STEPID SLURM_STEP_ID SLURM_NNODES
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    TERM COLORTERM NO_COLOR LANG LC_ALL LC_CTYPE CI SSH_CONNECTION CUDA_VISIBLE_DEVICES
)

# Sets `engine`, and `about` to the engine's description of itself.
find_engine() {
    local refused=
    # Podman may be installed under Docker's name.
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
    fail "--docker needs Docker or Podman, and neither is installed. DGX OS includes Docker." \
        "Debian, Ubuntu: apt-get install podman" \
        "Without --docker, sparktune is built directly on this machine."
}

# Whether the image exists, was built from this checkout, and is newer than all of its sources.
image_is_current() {
    local built
    built=$("$engine" image inspect --format '{{index .Config.Labels "sparktune.built"}}' "$image" 2>/dev/null) || return 1
    [[ $built == *" $root" ]] && nothing_is_newer "${image_sources[@]}" -newermt "@${built%% *}"
}

# build_image [clean]
build_image() {
    # Taken before the build starts: a file that is edited during the build counts as newer.
    local began=${EPOCHREALTIME/,/.}
    local flags=(--network host --file "$root/docker/Dockerfile" --tag "$image" --build-arg "BUILT=$began $root")
    [[ -z ${CUDA_IMAGE-} ]] || flags+=(--build-arg "CUDA_IMAGE=$CUDA_IMAGE")
    [[ ${1-} != clean ]] || flags+=(--no-cache --build-arg "FRESH=$began")
    say "building the image '$image' with $engine; the first time this takes 10 to 20 minutes and 4 GB, later much less."
    SECONDS=0
    DOCKER_BUILDKIT=1 "$engine" build "${flags[@]}" "$root" >&2 ||
        fail "the image could not be built (after ${SECONDS} s); the reason is printed above." \
            "If the base image is missing: check the network, or name a mirror's image in CUDA_IMAGE. It must have CUDA 13, and" \
            "no newer version than the driver supports." \
            "Without --docker, sparktune is built directly on this machine."
    # The previous image has lost its name to the new one.
    "$engine" image prune --force --filter label=sparktune.built >/dev/null || true
}

# Sets `gpu` to the flags that give a container access to the GPU. Prints a message if it cannot have any.
find_gpu() {
    gpu=()
    if ! has_driver; then
        say "there is no NVIDIA driver on this machine: sparktune will train on the CPU."
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
    say "there is an NVIDIA driver, but $engine cannot give a container access to the GPU: sparktune will train on the CPU."
    say "To change that, install NVIDIA's package nvidia-container-toolkit, then run: $1"
}

# Sets `user`, so that the files that sparktune writes belong to the caller.
choose_user() {
    user=(--user "$(id -u):$(id -g)")
    case "$engine $about" in
    docker*name=rootless*) user=(--user 0:0) ;; # outside the container, that is the caller
    podman*rootless=true*) user+=(--userns keep-id) ;;
    esac
}

# Sets `ranks` to the number of ranks that a launcher has started and `rank` to the number of this one, both empty without a
# launcher. It reads the same variables in the same order as src/cluster/environment.rs, which trims and checks them.
find_rank() {
    rank='' ranks=''
    if [[ -n ${RANK-}${WORLD_SIZE-} ]]; then
        rank=${RANK-} ranks=${WORLD_SIZE-}
    elif [[ -n ${OMPI_COMM_WORLD_RANK-}${OMPI_COMM_WORLD_SIZE-} ]]; then
        rank=${OMPI_COMM_WORLD_RANK-} ranks=${OMPI_COMM_WORLD_SIZE-}
    elif [[ -n ${SLURM_PROCID-} ]]; then
        rank=$SLURM_PROCID ranks=${SLURM_STEP_NUM_TASKS:-${SLURM_NTASKS-}}
    fi
}

# Whether sparktune, called with these arguments, is a member of a cluster or one of several ranks.
is_member() {
    case " $* " in
    " cluster "* | *" --cluster "*) return 0 ;;
    esac
    [[ $ranks =~ ^[0-9]{1,9}$ ]] && ((10#$ranks > 1))
}

# Sets `rights` to the flags for what a member of a cluster needs, called with these arguments: shared memory for NCCL; where
# there is a card for RDMA, its devices and memory that stays where it is; only for programs in the kernel the capabilities to
# load them, and for AF_XDP those for its sockets and their memory. Sets `as_root` and `with_capabilities` to how sparktune is
# started with the latter.
choose_rights() {
    rights=() as_root=() with_capabilities=()
    local rank ranks capabilities=() devices=${INFINIBAND_DEVICES:-/dev/infiniband}
    find_rank
    is_member "$@" || return 0
    rights=(--shm-size 1g)
    if [[ -d $devices ]]; then
        rights+=(--device "$devices")
        allow_locked_memory
    fi
    # The kernel adds at rank 0 only, and AF_XDP takes results at all others. Without a launcher, this may become any rank.
    if [[ ${rank:-0} == 0 && ${SPARKTUNE_CLUSTER_ENGINE-} == xdp && -n ${SPARKTUNE_XDP_INTERFACES-} ]]; then
        capabilities=(bpf net_admin perfmon)
    fi
    if [[ $rank != 0 && -n ${SPARKTUNE_AF_XDP_INTERFACE-} ]]; then
        capabilities=(bpf net_admin perfmon net_raw ipc_lock)
    fi
    ((${#capabilities[@]} == 0)) || add_capabilities
}

# A rootless engine cannot give more than it has: Podman has the caller's hard limit, and that of Docker's daemon is not known.
allow_locked_memory() {
    local limit=unlimited
    case "$engine $about" in
    docker*name=rootless*) return 0 ;;
    podman*rootless=true*) limit=$(ulimit -H -l) ;;
    esac
    if [[ $limit == unlimited ]]; then limit=-1; else limit=$((limit * 1024)); fi
    rights+=(--ulimit "memlock=$limit:$limit")
}

# Adds `capabilities` to the container. In Docker, only root has what is added to a container, so root starts sparktune: it
# becomes the caller first, who then has these capabilities and can gain no others.
add_capabilities() {
    local without="gradients are added and results taken without it. To use the kernel, run this without --docker"
    case "$engine $about" in
    docker*name=rootless* | podman*rootless=true*)
        say "$engine runs without root, so the kernel takes no programs from its containers: $without, or with an engine that runs as root."
        return 0
        ;;
    docker*name=no-new-privileges*)
        say "Docker's daemon does not let containers gain privileges, so the kernel takes no programs from them: $without."
        return 0
        ;;
    esac
    local name names=
    # By number, because an older libcap-ng does not know the newer names.
    local -A numbers=([net_admin]=12 [net_raw]=13 [ipc_lock]=14 [perfmon]=38 [bpf]=39)
    for name in "${capabilities[@]}"; do
        rights+=(--cap-add "${name^^}")
        names+=+cap_${numbers[$name]},
    done
    names=${names%,}
    as_root=(--user 0:0)
    with_capabilities=(setpriv --reuid "$(id -u)" --regid "$(id -g)" --clear-groups --no-new-privs --inh-caps "$names" --ambient-caps "$names")
}

# Mounts the folder $1 at its own path, unless it is inside a folder that is already mounted.
share() {
    local have
    for have in "${shared[@]}"; do
        [[ $1 != "$have" && $1 != "$have"/* ]] || return 0
    done
    [[ $1 != *[,$'\n']* ]] || fail "$1: a folder with a comma in its name cannot be mounted in a container. Rename it."
    shared+=("$1")
    mounts+=(--mount "type=bind,source=$1,target=$1")
}

# Whether the image has a folder $1 of its own, which a mount would hide.
is_of_the_image() {
    local first=${1#/}
    case ${first%%/*} in
    bin | boot | dev | etc | lib* | proc | sbin | sys | usr) return 0 ;;
    "" | opt | run | var) [[ $1 != /*/* || $1 == /opt/sparktune* ]] ;;
    *) return 1 ;;
    esac
}

# Mounts the nearest existing folder at or above the path $1, both as it is written and with its links resolved.
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

# Sets `mounts` to the flags for all folders that sparktune, called with these arguments, may open: the working folder, the
# caches, the settings, the checkout with its presets, and every path among the arguments.
choose_mounts() {
    shared=() mounts=()
    ! is_of_the_image "$PWD" ||
        fail "$PWD cannot be the working folder of a container, because the image has a folder of that name." \
            "Change to one of your own folders and run this again."
    share_path "$PWD"
    share_path "$root"
    local cache=${XDG_CACHE_HOME:-$HOME/.cache} folder
    # The last two contain compiled kernels: cubecl's and the driver's.
    for folder in "${HF_HOME:-$cache/huggingface}" ${HF_HUB_CACHE:+"$HF_HUB_CACHE"} \
        ${HUGGINGFACE_HUB_CACHE:+"$HUGGINGFACE_HUB_CACHE"} "${XDG_CONFIG_HOME:-$HOME/.config}/sparktune" \
        "${XDG_STATE_HOME:-$HOME/.local/state}/sparktune" ${gpu[0]:+"$cache/cubecl" "$HOME/.nv"}; do
        folder=${folder/#"~/"/"$HOME/"}
        mkdir -p -- "$folder" || fail "the folder $folder cannot be created."
        share_path "$folder"
    done
    local name argument
    for name in HF_TOKEN_PATH $(compgen -e SPARKTUNE_) $(compgen -e NCCL_); do
        [[ -z ${!name-} || $name == SPARKTUNE_COMMAND ]] || share_path "${!name}"
    done
    for argument in "$@"; do share_path "${argument#--*=}"; done
}

# Sets `environment`. NCCL_* are for the library, and sparktune reads some of them too.
choose_environment() {
    # The checkout's presets and demo, so that a run that began in a container can be resumed outside it.
    export SPARKTUNE_HOME=${SPARKTUNE_HOME:-$root}
    environment=()
    local name
    for name in "${variables[@]}" $(compgen -e SPARKTUNE_) $(compgen -e NCCL_); do
        [[ -z ${!name+set} ]] || environment+=(--env "$name")
    done
}

# run_in_container ARGUMENTS...: ends this script with sparktune's exit code.
run_in_container() {
    : "${HOME:?"run.sh needs HOME to find caches and settings"}"
    local gpu user rights as_root with_capabilities shared mounts environment terminal=() container client signal again=yes code
    find_gpu
    choose_user
    choose_rights "$@"
    choose_mounts "$@"
    choose_environment
    [[ ! -t 0 || ! -t 1 ]] || terminal=(-it)
    # The host's network, for proxies, mirrors and other members. CUDA in a single process needs no larger shared memory or limits.
    container=$("$engine" run --detach --rm --network host --stop-timeout 60 --security-opt label=disable \
        "${gpu[@]}" "${user[@]}" "${rights[@]}" "${mounts[@]}" "${environment[@]}" --workdir "$PWD" --entrypoint stay.sh "$image") ||
        fail "no container could be started; the reason is printed above."
    # `docker exec` passes on what is typed, but no signals.
    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064 # expanded now, because the variables are local
        trap "again=yes; '$engine' exec $container sh -c 'kill -s $signal \$(cat /dev/shm/sparktune.pid)' &>/dev/null || true" "$signal"
    done
    "$engine" exec "${terminal[@]}" "${as_root[@]}" "$container" "${with_capabilities[@]}" \
        sh -c 'echo $$ >/dev/shm/sparktune.pid && exec sparktune "$@"' sparktune "$@" <&0 &
    client=$!
    # A signal interrupts `wait`, but the client goes on.
    while [[ -n $again ]]; do
        again='' code=0
        wait "$client" || code=$?
    done
    exit "$code"
}
