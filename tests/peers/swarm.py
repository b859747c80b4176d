"""A swarm of ranks on this machine whose members are killed, stopped and cut off, and what is left of it.

    python tests/peers/swarm.py SPARKTUNE [--faults 200] [--ranks 4] [--seed 1] [--partitions] [--tiny]
                                [--silence-s 2]

Each run trains the demo's model with some ranks (LoRA, packed rows, `--swarm true`). At times that the seed chooses, one
of them is killed (SIGKILL), stopped (SIGSTOP), or killed and started or stopped and continued after it was left out,
after which it has to be let in again. Now and then it is the coordinator, after which the next rank has to take its
place, and lets others in; the machine of the old one may come back with another number. Rarely it is stopped while all
meet again, until another one leads the meeting. With two ranks, all are started again with `resume`. On a busy machine
a rank may be silent for too long without a fault, and another one than expected may take its place: the script goes
where the run goes. When a run is complete, one process trains the same steps with the numbers and shares of ranks of
its `members` events (`--sum-as`): losses, norms and weights have to be the same to the last bit. With
`--partitions`, which needs root and iproute2, each rank has a network namespace of its own, and a link may be taken down
too, after which the rank is started again.

Prints a line for each run and the number of faults of each kind. Needs Python alone.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

DEMO = Path(__file__).parents[2] / "presets" / "demo"
TINY = Path(__file__).parents[1] / "fixtures" / "qwen35" / "checkpoint"
STEPS = 60
PATIENCE_S = 300


def free_port():
    """A port below those that Linux gives to connections by itself, which could take it before rank 0 listens."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


class Network:
    """A namespace for each rank, with a link to a bridge in that of rank 0."""

    def __init__(self, ranks):
        self.names = [f"sparktune-swarm-{os.getpid()}-{rank}" for rank in range(ranks)]
        for rank, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if rank == 0:
                ip("-n", name, "link", "add", "bridge", "type", "bridge")
                ip("-n", name, "address", "add", "10.197.0.1/24", "dev", "bridge")
                ip("-n", name, "link", "set", "bridge", "up")
                continue
            first, port = self.names[0], f"port{rank}"
            ip("-n", first, "link", "add", "dev", port, "type", "veth", "peer", "name", "cable", "netns", name)
            ip("-n", first, "link", "set", "dev", port, "master", "bridge")
            ip("-n", first, "link", "set", "dev", port, "up")
            ip("-n", name, "address", "add", f"10.197.0.{rank + 1}/24", "dev", "cable")
            ip("-n", name, "link", "set", "dev", "cable", "up")

    def cut(self, rank, state):
        ip("-n", self.names[0], "link", "set", "dev", f"port{rank}", state)

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


# What was read of each log, so that a look costs no more than what is new: how far, and the events.
READ = {}


def events(run):
    """The events of a run. A run that is renamed meanwhile has none, and is found at the next look."""
    for path in sorted((run / "events").glob("*")):
        offset, seen = READ.get(path, (0, []))
        try:
            with open(path, "rb") as log:
                log.seek(offset)
                new = log.read()
        except FileNotFoundError:
            return
        # The last line may be being written.
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                seen.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # what a killed process left
        READ[path] = (offset + len(whole), seen)
        yield from seen


class Training:
    def __init__(self, program, folder, ranks, network):
        self.program, self.folder, self.ranks, self.network = program, folder, ranks, network
        self.processes = []
        # Who has the run, since which event, and what was seen before that.
        self.coordinator, self.taken_at, self.before = 0, None, []
        self.log = open(folder / "log", "w")
        self.token = hashlib.sha256(os.urandom(32)).hexdigest()

    def start(self, words):
        self.words = words
        first = ("127.0.0.1", free_port()) if self.network is None else ("10.197.0.1", 29_500)
        # By the numbers of ranks: their processes, what their launcher says of the first one, and their machines.
        self.processes, self.first, self.machines = {}, {}, {}
        for rank in range(self.ranks):
            self.start_rank(rank, first, rank)

    def start_rank(self, rank, first=None, machine=None):
        """Starts a rank, or starts it again as it was."""
        host, port = self.first[rank] = first or self.first[rank]
        if machine is not None:
            self.machines[rank] = machine
        size = str(max(self.ranks, rank + 1))
        environment = dict(
            os.environ,
            RANK=str(rank), WORLD_SIZE=size, LOCAL_RANK=str(rank), MASTER_ADDR=host, MASTER_PORT=str(port),
            SPARKTUNE_GRAD_ACCUM_STEPS="5", SPARKTUNE_CLUSTER_TOKEN=self.token,
        )  # fmt: skip
        inside = []
        if self.network is not None:
            inside = ["ip", "netns", "exec", self.network.names[self.machines[rank]]]
        command = [*inside, str(self.program), *self.words, "--runs-dir", str(self.folder / "runs")]
        self.processes[rank] = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def has_moved(self):
        return self.taken_at is not None

    def folders(self):
        """The folder of the run, and those of other ranks, which may take its place."""
        return [path for path in (self.folder / "runs").glob("*") if (path / "events").is_dir()]

    def run(self):
        if self.has_moved():
            # Its folder is renamed when its part ends.
            found = (run for run in self.folders() if any(e["time_us"] == self.taken_at for e in events(run)))
            return next(found, None)
        runs = sorted(path for path in self.folders() if not path.name.startswith("."))
        return runs[0] if runs else None

    def of_coordinator(self):
        run = self.run()
        seen = list(events(run)) if run else []
        if self.has_moved():
            seen = self.before + [event for event in seen if event["time_us"] >= self.taken_at]
        return seen

    def seen(self):
        """The events of whoever has the run, which is found here."""
        seen = self.of_coordinator()
        taken = [event for run in self.folders() for event in events(run) if self.is_taking_over(event, run)]
        if not taken:
            return seen
        event = min(taken, key=lambda event: event["time_us"])
        self.before = [before for before in seen if before.get("step", 0) < event["step"]]
        self.coordinator, self.taken_at = event["members"][0], event["time_us"]
        return self.seen()

    def is_taking_over(self, event, run):
        """Whether the rank of this folder says that it goes on without the one that has the run."""
        if event["kind"] != "members" or event["time_us"] <= (self.taken_at or 0):
            return False
        if self.coordinator not in [lost["rank"] for lost in event.get("lost", [])]:
            return False
        # All ranks log the change; the one that has the run now also warns of it.
        words = "this rank takes the place of the one that had the run"
        said = (other for other in events(run) if other["kind"] == "warning" and other.get("step") == event["step"])
        return any(words in other["message"] for other in said)

    def steps_after_takeover(self, before):
        """Whether another rank has taken over and trained since the takeover `before`."""
        seen = self.seen()
        return self.taken_at != before and any(
            event["kind"] == "step" and event["time_us"] > self.taken_at for event in seen
        )

    def steps(self):
        return max((event["step"] for event in self.seen() if event["kind"] == "step"), default=0)

    def members(self):
        """The numbers of the ranks that train, and none while they meet."""
        said = [event for event in self.seen() if event["kind"] in ("members", "run_started")]
        return said[-1].get("members", []) if said else []

    def has_ended(self):
        seen = self.seen()
        if not seen or seen[-1]["kind"] != "run_finished":
            return False
        if seen[-1]["outcome"] == "stopped":
            # Others may go on, and say so at the end of their step.
            time.sleep(3)
            seen = self.seen()
        return bool(seen) and seen[-1]["kind"] == "run_finished"

    def address(self):
        """Where the coordinator lets ranks in that have never been there, as it has said."""
        said = [event["message"] for event in events(self.run()) if event["kind"] == "warning"]
        found = [re.search(r"MASTER_ADDR=(\S+) and MASTER_PORT=(\d+)", message) for message in said]
        found = [match for match in found if match]
        return (found[-1][1], int(found[-1][2])) if found else None

    def trainer(self):
        return json.loads((self.run() / "lease.lock").read_text())["pid"]

    def wait(self, what, holds):
        """Waits until it holds. On a busy machine that takes long, so only time without a step counts."""
        since, seen = time.monotonic(), None
        while not holds():
            steps = self.steps()
            if steps != seen:
                since, seen = time.monotonic(), steps
            if time.monotonic() - since > PATIENCE_S:
                for process in self.processes.values():
                    process.kill()
                sys.exit(f"waited {PATIENCE_S} s for {what}; look at {self.folder}")
            time.sleep(0.1)

    def clear(self):
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}


def stopped_while_all_meet(training, rank):
    """Lets a rank come back, and stops the coordinator when all begin to meet again, until another one leads them, or
    until the meeting is over. Returns what was seen."""
    training.processes[rank].kill()
    training.processes[rank].wait()
    training.wait("the others", lambda: rank not in training.members() or training.has_ended())

    def meetings():
        said = [event for event in training.seen() if event["kind"] == "phase"]
        return sum("all ranks meet again" in (event.get("detail") or "") for event in said)

    before, taken_at = meetings(), training.taken_at
    trainer = training.trainer()
    training.start_rank(rank)
    training.wait("a meeting", lambda: meetings() > before or training.has_ended())
    if training.has_ended():
        return "kill and start"
    os.kill(trainer, signal.SIGSTOP)
    since = time.monotonic()
    try:
        while time.monotonic() - since < 150 and not training.steps_after_takeover(taken_at):
            time.sleep(0.2)
    finally:
        os.kill(trainer, signal.SIGCONT)
    if training.steps_after_takeover(taken_at):
        return "coordinator stopped while all meet"
    training.wait("a step or the end", lambda begun=training.steps(): training.steps() > begun or training.has_ended())
    return "coordinator stopped after all met" + (", all resume" if training.has_ended() else "")


def all_resume(training):
    training.start(["resume", "latest", "--json", "--non-interactive"])
    before = len(training.seen())
    training.wait("a resumed step", lambda: "step" in [e["kind"] for e in training.seen()[before:]])


def replay_words(training):
    counts = []
    for event in training.seen():
        if event["kind"] == "members":
            shares = "+".join(str(share) for share in event.get("shares", [])) or len(event["members"])
            counts = [(step, shared) for step, shared in counts if step < event["step"]]
            counts.append((event["step"], shares))
    return ",".join(str(count) if step == 1 else f"{count}@{step}" for step, count in counts)


def numbers(seen):
    return {event["step"]: (event["loss_nats"], event.get("grad_norm")) for event in seen if event["kind"] == "step"}


def weights(run):
    files = sorted((run / "outputs").rglob("*.safetensors"))
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def one_run(options, choose, counted, network):
    # What is left of a run that fails is looked at.
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    model = TINY if options.tiny else DEMO / "model"
    train = ["train", "--model", str(model), "--data", str(DEMO / "train.jsonl"), "--rank", "4", "--device", "cpu"]
    train += ["--max-rejected", "0.2", "--pack-length", "128"] * options.tiny
    train += ["--mtp", "none", "--epochs", "400", "--max-steps", str(STEPS), "--save-steps", "5"]
    train += ["--eval-steps", "5", "--swarm", "true", "--silence-s", str(options.silence_s)]
    train += ["--non-interactive", "--json"]
    training = Training(options.program, folder, options.ranks, network)
    training.start(train)
    stopped, faults = [], []
    while not training.has_ended() and len(faults) < (40 if options.tiny else 12):
        training.wait("members", lambda: training.members() or training.has_ended())
        members = training.members()
        begun = training.steps()
        delay = choose.random() * (0.2 if options.tiny else 0.8)
        training.wait("a step", lambda: training.steps() > begun or training.has_ended())
        time.sleep(delay)
        others = members[1:]
        if training.has_ended() or (not others and choose.random() < 0.7):
            break
        # Those that return leave more for the next fault.
        kinds = (["kill", "stop"] + ["kill and start", "stop and continue"] * 2) * bool(others)
        if len(members) > 2:
            # Too few would not go on.
            kinds += ["coordinator killed", "coordinator killed, comes back", "coordinator stopped and continued"]
            kinds += ["coordinator stopped while all meet"] * (not training.has_moved() and choose.random() < 0.3)
        elif not training.has_moved():
            kinds += ["coordinator killed, all resume"]
        kinds += ["kill and start twice"] * bool(others)
        kinds += ["partition and start"] * bool(network and others)
        if not kinds:
            break
        kind = choose.choice(kinds)
        if kind.endswith("while all meet"):
            kind = stopped_while_all_meet(training, choose.choice(others))
            if kind.endswith("all resume"):
                for process in stopped:
                    process.kill()
                stopped = []
                training.clear()
                all_resume(training)
        elif kind.startswith("coordinator") and not kind.endswith("resume"):
            taken_at = training.taken_at
            trainer, machine = training.trainer(), training.machines.get(members[0], 0)
            is_stopped = "stopped" in kind
            os.kill(trainer, signal.SIGSTOP if is_stopped else signal.SIGKILL)
            training.wait(
                "another coordinator",
                lambda before=taken_at: training.steps_after_takeover(before) or training.has_ended(),
            )
            if is_stopped:
                os.kill(trainer, signal.SIGCONT)
            if kind.endswith("back") and not training.has_ended():
                left = training.members()
                training.start_rank(max(training.processes) + 1, training.address(), machine)
                training.wait("the return", lambda: len(training.members()) > len(left) or training.has_ended())
        elif kind.startswith("coordinator"):
            os.kill(training.trainer(), signal.SIGKILL)
            for process in stopped:
                process.kill()
            stopped = []
            training.clear()
            all_resume(training)
        else:
            rank = choose.choice(others)
            process, machine = training.processes[rank], training.machines[rank]
            # The links of all machines end at the first one.
            if kind.startswith("partition") and machine == 0:
                continue
            if kind.startswith("partition"):
                network.cut(machine, "down")
            else:
                process.send_signal(signal.SIGKILL if kind.startswith("kill") else signal.SIGSTOP)
            training.wait("the others", lambda: rank not in training.members() or training.has_ended())
            if kind.startswith("partition"):
                network.cut(machine, "up")
            if " and " in kind and not training.has_ended():
                left = training.members()

                def is_over():
                    return training.has_ended()

                def is_back():
                    return len(training.members()) > len(left) or is_over()

                if kind.endswith("twice"):
                    # It is killed again at any time: while it waits, meets the others, heals or trains.
                    process.wait()
                    training.start_rank(rank)
                    time.sleep(choose.random() * 4)
                    process = training.processes[rank]
                    process.kill()
                    process.wait()
                    training.wait("a step", lambda begun=training.steps(): training.steps() > begun or is_over())
                    left = [member for member in training.members() if member != rank]
                    if not training.has_ended():
                        training.start_rank(rank)
                elif kind.endswith("start"):
                    # One whose link was cut may hear that it was left out, and come back by itself.
                    training.wait("its end", lambda: process.poll() is not None or is_back())
                    if process.poll() is not None and not training.has_ended():
                        training.start_rank(rank)
                else:
                    process.send_signal(signal.SIGCONT)
                training.wait("the return", is_back)
            if kind == "stop":
                stopped.append(process)
        faults.append(kind)
    training.wait("the end", training.has_ended)
    for process in stopped:
        process.kill()
    training.clear()
    end = training.seen()[-1]
    if end["outcome"] != "completed":
        print(f"{len(faults):2} faults: STOPPED at {folder}: {end.get('reason')}", flush=True)
        counted.update(faults)
        return False
    counts = replay_words(training)
    (folder / "alone").mkdir()
    alone = Training(options.program, folder / "alone", 1, None)
    command = [str(options.program), *train, f"--sum-as={counts}", "--runs-dir", str(folder / "alone" / "runs")]
    environment = dict(os.environ, SPARKTUNE_GRAD_ACCUM_STEPS="5")
    subprocess.run(command, env=environment, check=True, stdout=alone.log, stderr=alone.log)
    is_same = numbers(training.seen()) == numbers(alone.seen())
    is_same = is_same and weights(training.run()) == weights(alone.run()) != {}
    counted.update(faults)
    if is_same:
        shutil.rmtree(folder)
    print(f"{len(faults):2} faults, --sum-as={counts}: {'the same bits' if is_same else 'OTHER BITS'}", flush=True)
    return is_same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="train the model of the tests, for a busy machine")
    parser.add_argument("--silence-s", type=int, default=2, help="more on a busy machine")
    parser.add_argument("--folder", default=None, help="where runs are made")
    options = parser.parse_args()
    options.program = options.program.resolve()
    choose, counted, differing = random.Random(options.seed), Counter(), 0
    network = Network(options.ranks) if options.partitions else None
    try:
        while counted.total() < options.faults:
            differing += not one_run(options, choose, counted, network)
    finally:
        if network:
            network.close()
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(counted.items())))
    sys.exit(f"{differing} runs differ from their replay" if differing else 0)


if __name__ == "__main__":
    main()
