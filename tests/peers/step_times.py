"""The step model of `bench cluster` beside real steps: ranks that train over links of a known speed.

    python tests/peers/step_times.py SPARKTUNE [--steps 20] [--pack-length 4096]

Each rank is in a network namespace with a link to one switch; `tc` limits both directions of each link. All weights of the
demo's model are trained, with one pack for each rank and step and one thread a rank. For each world size and link, one after the
other:

1. As many processes as there are ranks, but no more than there are processors, train at once, each alone. More ranks take turns:
   computing takes as many times longer as there are too few processors.
2. The ranks sum the gradient's numbers, in as many buckets as in training, by the program that `bench cluster` starts for each.
3. The ranks train together.

It prints, in milliseconds, what the model says of a step and what was measured (medians, without the first five steps): from 1
and the speed of the link; from 1 and 2; and from 1 and 2 with the processor time of the sum added, because ranks that compute
on all processors have none to spare for it. `src/bench/cluster/step_model.rs` has the model.

Needs root, iproute2 with `tbf`, and Python alone. On a machine that others use, `chrt --rr 1` before the command keeps
them out of the way, with /proc/sys/kernel/sched_rr_timeslice_ms at 3, so that threads take turns as usual.
"""

import argparse
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import DEMO

MOST_RANKS = 3
LINKS = {"100 Mb/s": 100e6, "300 Mb/s": 300e6, "1 Gb/s": 1e9}
# As in the model: the share of a link's bits that are gradients, and the share of a micro-batch that is its backward pass.
PAYLOAD = 0.94
BACKWARD = 2 / 3
# The least number of buckets that `src/train/ranks.rs` makes of a gradient.
BUCKETS = 8
SKIPPED = 5
WORDS = "The quick brown fox jumps over the lazy dog. " * 12
TOKEN = "ranks that train for the step model, all on one machine"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Links:
    """A switch, and a machine for each rank with one link to it."""

    def __init__(self, ranks):
        self.switch, self.names = f"step-times-{os.getpid()}", []
        ip("netns", "add", self.switch)
        self.names.append(self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for rank in range(ranks):
            name = f"{self.switch}-{rank}"
            ip("netns", "add", name)
            self.names.append(name)
            ip("-n", self.switch, "link", "add", f"port{rank}", "type", "veth", "peer", "name", "cable", "netns", name)
            ip("-n", self.switch, "link", "set", f"port{rank}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self.address(rank)}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    @staticmethod
    def address(rank):
        return f"10.197.0.{rank + 1}"

    def limit(self, bits_per_s):
        """Lets each direction of each link pass so many bits per second."""
        shape = ["root", "tbf", "rate", f"{bits_per_s:.0f}bit", "burst", "64kb", "limit", "4mb"]
        for rank, name in enumerate(self.names[1:]):
            for place, interface in [(name, "cable"), (self.switch, f"port{rank}")]:
                subprocess.run(["tc", "-n", place, "qdisc", "replace", "dev", interface, *shape], check=True)

    def start(self, rank, command, **more):
        return subprocess.Popen(["ip", "netns", "exec", self.names[rank + 1], *command], **more)


def ended(processes, logs):
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"the ranks ended with {codes}:\n" + "\n".join(log.read_text() for log in logs))


def train(links, ranks, together, arguments):
    """Trains, and returns the steps of all processes: those of rank 0 if they train together."""
    with tempfile.TemporaryDirectory() as folder:
        folder, port = Path(folder), random.randrange(20_000, 32_000)
        # Examples of equal length, so that all packs take as long.
        chat = lambda n: [{"role": "user", "content": f"Say {n:04}."}, {"role": "assistant", "content": WORDS}]
        lines = "".join(json.dumps({"messages": chat(n)}) + "\n" for n in range(600))
        (folder / "train.jsonl").write_text(lines)
        command = [arguments.program, "train", "--preset", DEMO.parent / "demo.toml", "--model", DEMO / "model", "--data", folder / "train.jsonl"]
        command += ["--method", "full", "--learning-rate", "1e-4", "--pack-length", str(arguments.pack_length)]
        command += ["--grad-accum-steps", str(ranks if together else 1), "--max-steps", str(arguments.steps), "--epochs", "1000"]
        command += ["--eval-fraction", "0", "--save-steps", "9999", "--mtp", "none", "--sample-count", "0", "--export", "last", "--non-interactive", "--json"]
        processes, logs = [], []
        for rank in range(ranks):
            environment = os.environ | {"RAYON_NUM_THREADS": "1"}
            if together:
                environment |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "SPARKTUNE_CLUSTER_TOKEN": TOKEN}
                environment |= {"MASTER_ADDR": links.address(0), "MASTER_PORT": str(port)}
            runs = folder / ("runs" if together else f"runs-{rank}")
            logs.append(folder / f"rank-{rank}.log")
            with open(logs[-1], "w") as log:
                processes.append(links.start(rank, [*command, "--runs-dir", runs], env=environment, stdout=log, stderr=log))
        ended(processes, logs)
        found = []
        for run in folder.glob("runs*/*/events"):
            lines = [line for path in sorted(run.iterdir()) for line in path.read_text().splitlines()]
            events = [json.loads(line) for line in lines if line.startswith("{")]
            found += [event for event in events if event["kind"] == "step"][SKIPPED:]
        return found


def summed(links, ranks, numbers, program):
    """The milliseconds of a sum, and those of processors that all ranks took for it."""
    rounds, port = 20, random.randrange(20_000, 32_000)
    job = {"engine": "tcp", "world_size": ranks, "host": links.address(0), "port": port, "token": TOKEN}
    job |= {"numbers": numbers // BUCKETS, "rounds": rounds, "late_ms": 0}
    commands = [[program, "bench", "cluster-rank", "--job", json.dumps(job | {"rank": rank})] for rank in range(ranks)]
    processes = [links.start(rank, command, stdout=subprocess.PIPE) for rank, command in enumerate(commands)]
    answers = [json.loads(process.communicate()[0])["Ok"] for process in processes]
    ms = 1e3 * BUCKETS
    return ms * max(answer["seconds"] for answer in answers), ms * sum(answer["cpu_seconds"] for answer in answers) / rounds


def gradient():
    """How many numbers the gradient of the demo's model has, and the share of the embedding and a layer of them."""
    with open(DEMO / "model/model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(length))
    counts = {name: math.prod(tensor["shape"]) for name, tensor in tensors.items() if name.startswith("model.language_model.")}
    ends = [count for name, count in counts.items() if ".layers.0." in name or ".embed_tokens." in name]
    return sum(counts.values()), sum(ends) / sum(counts.values())


def one_way(ranks):
    return 2 * (ranks - 1) / ranks


def predicted(computes, micro_batch, exchange, share, processors=0):
    """`Step::with` of the model: the time of a step, and what of it waits for the exchange. In a full training, `share` of the
    backward pass is over before any gradient is final, and `share` of them are final last. Beside it, processors that compute
    are busy with what of the exchange is not waited for."""
    waits = max(exchange - micro_batch * BACKWARD * (1 - share), exchange * share)
    return computes + waits + processors * (1 - waits / exchange), waits


def median(steps, name):
    return statistics.median(step[name] for step in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="SPARKTUNE", type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pack-length", type=int, default=4096)
    arguments = parser.parse_args()
    numbers, share = gradient()
    processors = len(os.sched_getaffinity(0))
    print(f"{numbers} numbers, of which {share:.0%} are final last; {processors} processors, load {os.getloadavg()[0]:.1f}")
    print("| ranks, link | computing | sum by the link | sum | its processor time | step by the link | by the sum | with processors |", end="")
    print(" step | waits by the sum | waits |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for ranks in range(2, MOST_RANKS + 1):
        own = min(ranks, processors)
        with Links(ranks) as links:
            for link, bits in LINKS.items():
                links.limit(bits)
                alone = train(links, own, False, arguments)
                by_sum, of_processors = summed(links, ranks, numbers, arguments.program)
                together = train(links, ranks, True, arguments)
                computes = median(alone, "step_ms") * ranks / own
                micro_batch = computes - median(alone, "optimizer_ms") * ranks / own
                by_link = one_way(ranks) * numbers * 4 / (bits / 8 * PAYLOAD) * 1e3
                of_link, _ = predicted(computes, micro_batch, by_link, share)
                of_sum, waits = predicted(computes, micro_batch, by_sum, share)
                with_processors, _ = predicted(computes, micro_batch, by_sum, share, of_processors / own)
                found = [computes, by_link, by_sum, of_processors, of_link, of_sum, with_processors, median(together, "step_ms")]
                found += [waits, median(together, "exchange_ms")]
                print(f"| {ranks}, {link} | " + " | ".join(f"{ms:.0f}" for ms in found) + " |", flush=True)


if __name__ == "__main__":
    main()
