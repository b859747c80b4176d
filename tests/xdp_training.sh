#!/usr/bin/env bash
# tests/xdp_training.sh SPARKTUNE [RANKS] [STEPS]: trains the demo's model with ranks in network namespaces, whose gradients the kernel
# adds: as it is, with 5 % of the packets lost each way on purpose, and with results by AF_XDP. The adapters must be the same
# to the last bit. Exit code 77 if this machine cannot do it. Needs root, iproute2 and the repository.
set -euo pipefail
program=$(readlink -f -- "$1")
ranks=${2:-4} steps=${3:-6}
cd -- "$(dirname -- "$0")/.."
folder=$(mktemp -d)
names=()

clean() {
    for name in "${names[@]}"; do
        ip netns pids "$name" 2>/dev/null | xargs --no-run-if-empty kill 2>/dev/null || true
        ip netns delete "$name" || true
    done
    rm -rf -- "$folder"
}
trap clean EXIT

# Makes a part of the network, or skips this test.
made() { "$@" || { echo "skipped: no network namespaces with a bridge can be made here"; exit 77; }; }

for ((rank = 0; rank < ranks; rank++)); do
    name=sparktune-training-$$-$rank
    made ip netns add "$name"
    names+=("$name")
    made ip -n "$name" link set lo up
    if ((rank == 0)); then
        made ip -n "$name" link add bridge type bridge
        made ip -n "$name" address add 10.198.0.1/24 dev bridge
        made ip -n "$name" link set bridge up
        continue
    fi
    made ip -n "${names[0]}" link add dev "port$rank" type veth peer name cable netns "$name"
    made ip -n "${names[0]}" link set dev "port$rank" master bridge
    made ip -n "${names[0]}" link set dev "port$rank" up
    made ip -n "$name" address add "10.198.0.$((rank + 1))/24" dev cable
    made ip -n "$name" link set dev cable up
    # This end receives what the program at the other end sends only if it has a program itself: without a job, it passes everything.
    ip -n "$name" link set dev cable xdp obj src/cluster/xdp/sum.bpf.o sec xdp ||
        { echo "skipped: the kernel takes no program from this process"; exit 77; }
done
ports=$(seq -s, -f 'port%g' 1 $((ranks - 1)))
token=$(head -c 32 /dev/urandom | sha256sum | cut -c1-64)

# train LOST [INTERFACE]: trains with all ranks, whose results come by AF_XDP at this interface if one is given, and prints the hashes
# of the adapters.
train() {
    local lost=$1 af_xdp=${2-} runs=$folder/$1${2-} pids=() rank
    mkdir "$runs"
    for ((rank = 0; rank < ranks; rank++)); do
        ip netns exec "${names[rank]}" env RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK=0 MASTER_ADDR=10.198.0.1 MASTER_PORT=29500 \
            SPARKTUNE_CLUSTER_TOKEN="$token" SPARKTUNE_CLUSTER_ENGINE=xdp SPARKTUNE_XDP_INTERFACES="$ports" SPARKTUNE_XDP_LOST="$lost" \
            SPARKTUNE_AF_XDP_INTERFACE="$af_xdp" "$program" train --model presets/demo/model --data presets/demo/train.jsonl \
            --rank 16 --mtp none --max-steps "$steps" --runs-dir "$runs" --non-interactive --json >"$runs.$rank.out" 2>"$runs.$rank.err" &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" || { tail -n 5 "$runs.$rank.err" >&2; return 1; }
    done
    grep -h 'sums are made in the kernel' "$runs".*.err >&2 || { tail -n 3 "$runs".1.err >&2; return 1; }
    # What the trainer of rank 0 says is in its log.
    if ((lost > 0)) && ! grep -q "of a million packets, $lost are lost on purpose" "$runs".1.err; then
        echo 'no packets were lost on purpose' >&2
        return 1
    fi
    if [[ -n $af_xdp && $(grep -l 'by AF_XDP at' "$runs".*.err | wc -l) != $((ranks - 1)) ]]; then
        tail -n 3 "$runs".1.err >&2
        if grep -q 'the kernel has no sockets of AF_XDP' "$runs".1.err; then return 77; fi
        return 1
    fi
    (cd "$runs"/2* && find outputs -name '*.safetensors' -type f | sort | xargs sha256sum --)
}

same() {
    [[ -n $whole && $1 == "$whole" ]] || { printf 'the adapters differ:\n%s\n%s\n' "$whole" "$1"; exit 1; }
}

began=$SECONDS
whole=$(train 0)
echo "$ranks ranks, $steps steps, nothing lost on purpose: $((SECONDS - began)) s"
began=$SECONDS
lossy=$(train 50000)
echo "$ranks ranks, $steps steps, 5 % lost each way:       $((SECONDS - began)) s"
same "$lossy"
# AF_XDP has a program of its own.
for name in "${names[@]:1}"; do ip -n "$name" link set dev cable xdp off; done
began=$SECONDS code=0
by_af_xdp=$(train 50000 cable) || code=$?
case $code in
0)
    echo "$ranks ranks, $steps steps, 5 % lost, results by AF_XDP: $((SECONDS - began)) s"
    same "$by_af_xdp"
    ;;
77) echo "skipped: results by AF_XDP, because the kernel has no AF_XDP sockets" ;;
*) exit 1 ;;
esac
echo "$whole"
echo "the same bits"
