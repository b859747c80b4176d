"""Ranks of one training on this machine: what sending gradients during the backward pass saves on a slow link, what rare
exchanges (`--sync diloco:H`) cost in loss, and what judging gradients (`--sentry`) costs in time.

    python tests/peers/ranks.py diloco SPARKTUNE [--steps 80] [--method lora]
    python tests/peers/ranks.py overlap SPARKTUNE [SPARKTUNE ...] [--rate 40]
    python tests/peers/ranks.py sentry SPARKTUNE [SPARKTUNE ...] [--steps 80] [--ranks 3]

`diloco` trains the demo's model on the demo's data for the same number of steps, and so of tokens, with `--sync step`,
`diloco:5` and `diloco:20`, and prints the loss on the held-out data and the bytes that rank 0 exchanged.

`overlap` trains all weights of the demo's model in packs of 1,024 tokens over a link whose rate is limited: rank 1
reaches rank 0 through a proxy in this program that passes so many MB/s. Sums need both directions, so one slow
direction is enough. It prints the median step and the median time that a step waited for the exchange, for each
program that it is given, in turn, so that two versions are measured under the same conditions.

`sentry` trains with three ranks, LoRA and all weights, three times without a judge, with `warn` and with `drop`, in turn. It
prints the median step, and how long judging took as rank 0 says at the end, of each and in percent of the time. With more
ranks than processors, a part of that time is another rank's; `--ranks` of as many as processors leaves it out.

Needs Python alone. A machine with two cores computes two ranks no faster than one process, so step times here say
nothing about the speed of several machines; the waiting times of `overlap` do show what is hidden.
"""

import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

DEMO = Path(__file__).parents[2] / "presets" / "demo"


def free_port():
    """A port below those that Linux gives to connections by itself, which could take it before rank 0 listens."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


class Proxy:
    """Passes connections on to a port. What goes there passes at `rate` bytes per second, over all connections."""

    def __init__(self, port, rate):
        self.target, self.rate, self.due, self.lock = port, rate, 0.0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()  # rank 0 does not listen yet
                continue
            for pair, limited in [((near, far), True), ((far, near), False)]:
                threading.Thread(target=self.copy, args=(*pair, limited), daemon=True).start()

    def copy(self, source, sink, limited):
        try:
            while piece := source.recv(1 << 16):
                if limited:
                    with self.lock:
                        self.due = max(self.due, time.monotonic()) + len(piece) / self.rate
                        wait = self.due - time.monotonic()
                    if wait > 0:
                        time.sleep(wait)
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def train(program, more, rate=None, ranks=2):
    """Trains as so many ranks, and returns the events of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ports = [port] + (ranks - 1) * [Proxy(port, rate).port if rate else port]
        command = [program, "train", "--preset", str(DEMO.parent / "demo.toml"), "--model", str(DEMO / "model")]
        command += ["--data", str(DEMO / "train.jsonl"), "--runs-dir", str(Path(folder) / "runs"), "--mtp", "none"]
        command += ["--sample-count", "0", "--export", "last", "--non-interactive", "--json", *more]
        processes = []
        for rank in range(ranks):
            environment = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
            environment |= {"MASTER_PORT": ports[rank], "RAYON_NUM_THREADS": 1}
            environment = os.environ | {key: str(value) for key, value in environment.items()}
            log = open(Path(folder) / f"rank-{rank}.log", "w")
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        codes = [process.wait() for process in processes]
        if any(codes):
            logs = [(Path(folder) / f"rank-{rank}.log").read_text() for rank in range(ranks)]
            sys.exit(f"the ranks ended with {codes}:\n" + "\n".join(logs))
        (run,) = [path for path in (Path(folder) / "runs").iterdir() if (path / "events").is_dir()]
        lines = [line for path in sorted((run / "events").iterdir()) for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]


def diloco(arguments):
    print(f"| {arguments.method}, {arguments.steps} steps | exchanges | MB exchanged | held-out loss before | last | best |")
    print("|---|---|---|---|---|---|")
    for sync in ["step", "diloco:5", "diloco:20"]:
        more = ["--method", arguments.method, "--max-steps", str(arguments.steps), "--epochs", "100"]
        more += ["--eval-every-steps", "20", "--sync", sync]
        if arguments.learning_rate:
            more += ["--learning-rate", arguments.learning_rate]
        events = train(arguments.programs[0], more)
        steps = [event for event in events if event["kind"] == "step"]
        evals = [event["loss_nats"] for event in events if event["kind"] == "eval"]
        exchanged = [event["exchange_bytes"] for event in steps if event.get("exchange_bytes")]
        print(
            f"| `{sync}` | {len(exchanged)} | {sum(exchanged) / 1e6:.1f} | {evals[0]:.4f} | {evals[-1]:.4f} | {min(evals):.4f} |",
            flush=True,
        )


def overlap(arguments):
    print(f"| {arguments.rate} MB/s | median step, ms | median wait for the exchange, ms |")
    print("|---|---|---|")
    for turn in range(2):
        for program in arguments.programs:
            more = ["--method", "full", "--max-steps", "24", "--epochs", "100", "--pack-length", "1024"]
            more += ["--grad-accum-steps", "2", "--eval-every-steps", "1000", "--save-steps", "1000"]
            more += ["--learning-rate", "1e-4"]
            steps = [event for event in train(program, more, arguments.rate * 1e6) if event["kind"] == "step"][4:]
            median = lambda name: statistics.median(step[name] for step in steps)
            name = f"{Path(program).name}, turn {turn + 1}"
            print(f"| {name} | {median('step_ms'):.0f} | {median('exchange_ms'):.0f} |", flush=True)


def sentry(arguments):
    print("| ranks, program, method | step without a judge, ms | with warn | with drop | judging with warn, ms | with drop |")
    print("|---|---|---|---|---|---|")
    for program in arguments.programs:
        for method in ["lora", "full"]:
            more = ["--method", method, "--max-steps", str(arguments.steps), "--epochs", "100", "--pack-length", "1024"]
            more += ["--grad-accum-steps", str(arguments.ranks), "--eval-every-steps", "1000", "--save-steps", "1000"]
            more += ["--learning-rate", "1e-4"]
            steps, judging = {"off": [], "warn": [], "drop": []}, {"warn": [], "drop": []}
            for _ in range(3):
                for judge in steps:
                    events = train(program, [*more, "--sentry", judge], ranks=arguments.ranks)
                    steps[judge] += [event["step_ms"] for event in events if event["kind"] == "step"][4:]
                    said = [event["detail"] for event in events if event.get("phase") == "sentry"]
                    if judge in judging:
                        judging[judge].append(re.search("judging took ([0-9.]+) ms .* ([0-9.]+) % of", said[-1]).groups())
            medians = " | ".join(f"{statistics.median(steps[judge]):.0f}" for judge in steps)
            took = " | ".join(", ".join(f"{ms} ({share} %)" for ms, share in judging[judge]) for judge in judging)
            print(f"| {arguments.ranks}, {Path(program).name}, {method} | {medians} | {took} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["diloco", "overlap", "sentry"])
    parser.add_argument("programs", nargs="+", metavar="SPARKTUNE")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--method", choices=["lora", "full"], default="lora")
    parser.add_argument("--learning-rate")
    parser.add_argument("--rate", type=float, default=40)
    arguments = parser.parse_args()
    {"diloco": diloco, "overlap": overlap, "sentry": sentry}[arguments.what](arguments)


if __name__ == "__main__":
    main()
