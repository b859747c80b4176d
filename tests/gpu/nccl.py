"""Two ranks that sum by NCCL on one GPU, beside one process that adds in their place: the same bits.

    nccl.py --json FILE --binary SPARKTUNE [--seconds N] [--quick]

NCCL refuses two ranks on one GPU unless NCCL_HOSTID says that they are two machines; they then talk over sockets. The model and the
data are the demo's, beside this file or in the checkout. The first process of a build also runs its self-tests on the GPU.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import time

from rows import Rows, skip

HERE = pathlib.Path(__file__).resolve().parent
DEMOS = (HERE / "presets" / "demo", HERE.parent.parent / "presets" / "demo")


def train(binary, demo, runs, steps, more=()):
    command = [binary, "train", "--non-interactive", "--json", "--device", "cuda", "--model", demo / "model", "--data", demo / "train.jsonl"]
    few = ["--mtp", "none", "--max-steps", steps, "--rank", 8, "--pack-length", 256, "--runs-dir", runs]
    return [str(word) for word in (*command, *few, *more)]


def port():
    """A port below those that Linux gives to connections by itself, which could take it before rank 0 listens."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def environment(rank, place, engine):
    ours = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": place}
    ours |= {"NCCL_HOSTID": f"sparktune {rank}", "NCCL_SOCKET_IFNAME": "lo", "SPARKTUNE_CLUSTER_ENGINE": engine}
    return os.environ | {"SPARKTUNE_GRAD_ACCUM_STEPS": "3", "SPARKTUNE_SAMPLE_COUNT": "0"} | {name: str(value) for name, value in ours.items()}


def alone(command, seconds):
    variables = os.environ | {"SPARKTUNE_GRAD_ACCUM_STEPS": "3", "SPARKTUNE_SAMPLE_COUNT": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
    return done.returncode, done.stderr


def together(command, engine, seconds):
    """What both ranks said, and their exit codes."""
    place, ends = port(), time.monotonic() + seconds
    start = lambda rank: subprocess.Popen(
        command, env=environment(rank, place, engine), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    ranks = [start(rank) for rank in (0, 1)]
    try:
        said = [rank.communicate(timeout=max(1.0, ends - time.monotonic()))[1] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    return [rank.returncode for rank in ranks], said


def steps(run):
    """Loss and norm of each step, as their text in the events, and the milliseconds that steps waited for each other."""
    lines = [line for file in sorted((run / "events").iterdir()) for line in file.read_text(encoding="utf-8").splitlines()]
    found = [event for event in map(json.loads, lines) if event.get("kind") == "step"]
    bits = [(event["step"], repr(event["loss_nats"]), repr(event.get("grad_norm"))) for event in found]
    return bits, [event.get("exchange_ms") for event in found]


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "outputs").rglob("*.safetensors"))}


def run_in(folder):
    return next(path for path in sorted(folder.iterdir()) if (path / "events").is_dir() and not path.name.startswith("."))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--seconds", type=float, default=300.0)
    arguments.add_argument("--quick", action="store_true")
    asked = arguments.parse_args()
    demo = next((path for path in DEMOS if (path / "model").is_dir()), None)
    if demo is None:
        skip("presets/demo is neither beside nccl.py nor in a checkout")
    rows, ends, count = Rows(asked.json), time.monotonic() + asked.seconds, 3 if asked.quick else 20
    left = lambda: max(10.0, ends - time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        code, said = alone(train(asked.binary, demo, place / "alone", count, ["--sum-as=2"]), left())
        if code != 0:
            rows.add(name="one process that adds like two ranks", failed=said.strip()[-300:])
            return
        expected = run_in(place / "alone")
        for engine in ("nccl", "tcp"):
            name = f"two ranks on one GPU, {engine}"
            codes, said = together(train(asked.binary, demo, place / engine, count), engine, left())
            if "has no NCCL" in said[0]:
                rows.add(name=name, skipped=said[0].strip()[-300:])
                continue
            if codes != [0, 0]:
                rows.add(name=name, failed=f"exit codes {codes}: {(said[1] or said[0]).strip()[-300:]}")
                continue
            run = run_in(place / engine)
            (bits, waited), (wanted, _) = steps(run), steps(expected)
            differ = sum(one != other for one, other in zip(bits, wanted)) + abs(len(bits) - len(wanted))
            differ += weights(run) != weights(expected)
            waited = sorted(ms for ms in waited if ms is not None)
            note = f"waits {waited[len(waited) // 2]:.1f} ms a step" if waited else ""
            rows.add(name=name, errors=differ, steps=len(bits), note=f"steps and weights that differ from one process; {note}")


if __name__ == "__main__":
    main()
