#!/usr/bin/env bash
# Builds the image of `run.sh --docker` for real and uses it as far as this machine allows. The last lines say what was
# exercised and what was not. Not part of `./run.sh test`: the first time it takes 15 to 40 minutes and 6 GB.
#
#   tests/docker.sh
#
# It wants Docker or Podman; with Buildah alone the image is built and entered without run.sh. The base is CUDA_IMAGE, else
# NVIDIA's image, else, where no registry is reachable, a stand-in: a Debian or Ubuntu as this one, made with debootstrap
# (by root), with NVRTC and the CUDA headers from PyPI. Exit code 77: nothing could be done here, for the reason printed.
set -euo pipefail
root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
# shellcheck source=run.sh
source "$root/run.sh"
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"

stand_in=localhost/sparktune-cuda-stand-in
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
exercised=() left_out=()

skip() {
    printf 'skipped: %s\n' "$1"
    exit 77
}

ok() {
    exercised+=("$1")
    printf 'ok: %s\n' "$1"
}

wrong() {
    printf 'FAILED: %s\n' "$1"
    [[ ! -s $work/said ]] || tail -n 20 -- "$work/said"
    exit 1
}

# quietly WHAT COMMAND...: its output goes to `said`.
quietly() { "${@:2}" >"$work/said" 2>&1 || wrong "$1"; }

try() {
    quietly "$@"
    ok "$1"
}

choose_engine() {
    if (find_engine) 2>"$work/said"; then
        find_engine
    elif command -v buildah >/dev/null; then
        engine=buildah
    else
        skip "$(sed 's/^run.sh: //; q' "$work/said")"
    fi
    printf 'engine: %s, %s\n' "$engine" "$("$engine" --version)"
}

build_with_buildah() {
    buildah bud --isolation chroot --layers --file "$root/docker/Dockerfile" --tag "$image" \
        --build-arg "CUDA_IMAGE=$CUDA_IMAGE" "$root"
}

# import ARCHIVE NAME: makes an image of a whole file system.
import() {
    if [[ $engine == buildah ]]; then
        local empty
        empty=$(buildah from scratch)
        buildah add --quiet "$empty" "$1" / && buildah commit --quiet --rm "$empty" "$2"
    else
        "$engine" import "$1" "$2"
    fi
}

choose_base() {
    if [[ -n ${CUDA_IMAGE-} ]]; then
        left_out+=("NVIDIA's base image: $CUDA_IMAGE was named instead")
        return
    fi
    CUDA_IMAGE=$(sed -n 's/^ARG CUDA_IMAGE=//p' "$root/docker/Dockerfile")
    if timeout 600 "$engine" pull "$CUDA_IMAGE" >"$work/said" 2>&1; then
        ok "the base is NVIDIA's $CUDA_IMAGE"
    else
        printf 'NVIDIA'\''s image cannot be had: %s\n' "$(tail -n 1 "$work/said")"
        left_out+=("NVIDIA's base image and its packages (no registry was reachable): the build step that installs them did not run")
        CUDA_IMAGE=$stand_in
        "$engine" inspect --type image "$stand_in" >/dev/null 2>&1 || make_stand_in
    fi
    export CUDA_IMAGE
}

make_stand_in() {
    command -v debootstrap >/dev/null || skip "no registry is reachable, and debootstrap is not installed"
    ((EUID == 0)) || skip "no registry is reachable, and debootstrap needs root"
    local base=$work/base cuda=$work/base/usr/local/cuda suite site wheel
    printf 'making a stand-in with debootstrap and PyPI ...\n'
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # shellcheck disable=SC2016 # apt's own notation
    site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
    quietly "debootstrap" debootstrap --variant=minbase "$suite" "$base" "$site"
    quietly "a Python environment" python3 -m venv "$work/venv"
    quietly "NVRTC and headers from PyPI" "$work/venv/bin/pip" download --no-deps --dest "$work/wheels" \
        nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-crt==13.0.88
    for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/cuda"; done
    mkdir -p "$cuda"
    cp -r "$work"/cuda/nvidia/cu13/include "$work"/cuda/nvidia/cu13/lib "$cuda/"
    rm -f -- "$cuda"/lib/*.alt.*
    echo /usr/local/cuda/lib >"$base/etc/ld.so.conf.d/cuda.conf"
    chroot "$base" ldconfig
    # A machine behind a proxy that opens TLS has an authority of its own; nothing is fetched in there without it.
    [[ ! -d /usr/local/share/ca-certificates ]] || cp -r /usr/local/share/ca-certificates "$base/usr/local/share/"
    tar -C "$base" -cf "$work/base.tar" .
    quietly "an image of the stand-in" import "$work/base.tar" "$stand_in"
}

# inside COMMAND...: runs it in a new container, as the image's own user.
inside() {
    if [[ $engine == buildah ]]; then
        local container
        container=$(buildah from "$image")
        buildah run --isolation chroot --volume "$PWD:$PWD" --workingdir "$PWD" "$container" -- "$@"
        buildah rm "$container" >/dev/null
    else
        "$engine" run --rm --entrypoint "" --volume "$PWD:$PWD" --workdir "$PWD" "$image" "$@"
    fi
}

# Compiles a kernel as sparktune does: the library by its bare name, headers from CUDA_PATH.
write_nvrtc_probe() {
    cat >nvrtc.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    const char *source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n#include <cuda/std/cstdint>\n"
                         "extern \"C\" __global__ void twice(__nv_bfloat16 *x) { x[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x]; }";
    char include[4096], cccl[4096], log[8192] = "";
    snprintf(include, sizeof include, "--include-path=%s/include", getenv("CUDA_PATH"));
    snprintf(cccl, sizeof cccl, "--include-path=%s/include/cccl", getenv("CUDA_PATH"));
    const char *options[] = {"--gpu-architecture=sm_121a", include, cccl};
    void *library = dlopen("libnvrtc.so.13", RTLD_NOW), *program;
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*create)(void **, const char *, const char *, int, void *, void *) = dlsym(library, "nvrtcCreateProgram");
    int (*compile)(void *, int, const char **) = dlsym(library, "nvrtcCompileProgram");
    int (*get_log)(void *, char *) = dlsym(library, "nvrtcGetProgramLog");
    int failed = create(&program, source, "twice.cu", 0, NULL, NULL) || compile(program, 3, options);
    if (failed) get_log(program, log), fputs(log, stderr);
    return failed;
}
C
    cc -o nvrtc nvrtc.c
}

holds() { grep -q -- "$1" "$work/said" || wrong "$2"; }

use_image() {
    mkdir "$work/my runs"
    chmod 755 "$work" "$work/my runs"
    cd -- "$work/my runs"
    try "sparktune --version in the image" inside sparktune --version
    holds '^sparktune ' "--version says its name"
    # Exit code 0: the self-tests (packed = alone, gradients) passed.
    try "doctor in the image, with its self-tests" inside sparktune doctor
    if write_nvrtc_probe 2>"$work/said"; then
        try "NVRTC and the headers of the image compile a bf16 kernel for sm_121a" inside ./nvrtc
    else
        left_out+=("compiling a kernel in the image: no C compiler here")
    fi
    # shellcheck disable=SC2016 # for the shell in the image
    if [[ $CUDA_IMAGE == "$(sed -n 's/^ARG CUDA_IMAGE=//p' "$root/docker/Dockerfile")" ]]; then
        try "NCCL and the library for RDMA in the image" inside \
            sh -c 'for name in nccl.so.2 ibverbs.so.1 mlx5.so.1; do ldconfig -p | grep -F "lib$name" || exit 1; done'
    else
        left_out+=("NCCL in the image: only NVIDIA's package source has it")
    fi
    quietly "id in the image" inside id -un
    holds '^sparktune$' "the image's own user is not root"
    ok "the image's own user is not root"
}

# Sets `lease` and `door_pid`.
start_long_run() {
    rm -rf runs
    "${door[@]}" --demo --json --epochs 1000 --max-steps 100000 >"$work/long" 2>&1 &
    door_pid=$!
    until lease=$(compgen -G 'runs/*/lease.lock') && ! flock --nonblock --shared "$lease" true; do
        kill -0 "$door_pid" 2>/dev/null || { cp "$work/long" "$work/said" && wrong "a long run"; }
        sleep 0.2
    done
}

must_have_stopped() {
    local code=0
    wait "$door_pid" || code=$?
    [[ $code == 5 ]] || wrong "$1 stops the run after a checkpoint (exit code $code instead of 5)"
    flock --nonblock --shared "$lease" true || wrong "the lease is free after $1"
    compgen -G 'runs/*/checkpoints/step-*' >"$work/said" || wrong "a checkpoint after $1"
    ok "$1 stops the run after a checkpoint, with exit code 5"
}

use_door() {
    local door=("$root/run.sh" --docker) lease door_pid
    try "run.sh --docker doctor" "${door[@]}" doctor
    try "run.sh --docker --demo, in a folder with a space in its name" "${door[@]}" --demo --json
    holds '"outcome":"completed"' "the demo completes"
    [[ -z $(find . ! -uid "$(id -u)") ]] || wrong "what the container wrote belongs to its caller"
    ok "what it wrote belongs to user $(id -u)"

    start_long_run
    ok "the lease of a run in a container is seen from outside"
    try "another container sees that run" "${door[@]}" runs --json
    holds '"running"' "it is running there"
    kill -s TERM "$door_pid"
    must_have_stopped "a signal to run.sh"
    start_long_run
    quietly "$engine stop" "$engine" stop "$("$engine" ps --quiet --latest)"
    must_have_stopped "'$engine stop'"
    ! { "$engine" image inspect "$image" && "$engine" history --no-trunc "$image"; } | grep -q hf_of_a_test ||
        wrong "a token that was set during the build is not in the image"
    ok "a token that was set during the build is not in the image"
    for _ in {1..50}; do
        [[ -n $("$engine" ps --quiet --filter "ancestor=$image") ]] || break
        sleep 0.2
    done
    [[ -z $("$engine" ps --quiet --filter "ancestor=$image") ]] || wrong "no container is left over"
    ok "no container is left over"
}

use_capabilities() {
    local user rights as_root with_capabilities
    choose_user
    SPARKTUNE_AF_XDP_INTERFACE=lo choose_rights cluster join
    if ((EUID == 0 || ${#as_root[@]} == 0)); then
        left_out+=("the capabilities of a member: only an engine that runs as root, called by another user, gives them")
        return
    fi
    member=$("$engine" run --detach --rm "${user[@]}" "${rights[@]}" --entrypoint sleep "$image" 600) ||
        wrong "a container with capabilities"
    quietly "a process with capabilities" \
        "$engine" exec "${as_root[@]}" "$member" "${with_capabilities[@]}" cat /proc/self/status
    "$engine" rm --force "$member" >/dev/null
    holds "^Uid:[[:space:]]$(id -u)[[:space:]]" "a member runs as its caller"
    # BPF, PERFMON, IPC_LOCK, NET_RAW and NET_ADMIN.
    holds '^CapEff:[[:space:]]000000c000007000$' "a member has the capabilities that it needs, and no others"
    ok "a member runs as its caller, and has the capabilities that it needs and no others"
}

choose_engine
choose_base
if [[ $engine == buildah ]]; then
    try "the image builds" build_with_buildah
    left_out+=("run.sh --docker: neither Docker nor Podman answers here")
    use_image
else
    try "the image builds" env HF_TOKEN=hf_of_a_test "$root/run.sh" --docker --rebuild --version
    use_image
    use_capabilities
    use_door
fi
has_driver || left_out+=("the GPU: no NVIDIA driver here")
[[ $engine == docker ]] || left_out+=("Docker itself: this was $engine")
[[ $(uname -m) == aarch64 ]] || left_out+=("an aarch64 image: this machine is $(uname -m)")
printf '\nexercised:\n'
printf '  %s\n' "${exercised[@]}"
printf 'not exercised:\n'
printf '  %s\n' "${left_out[@]}"
"$engine" images "$image"
