"""Ranks of a swarm on this machine, which are killed, stopped and cut off, and the bits of their runs.

    python tests/peers/swarm.py SPARKTUNE [--faults 200] [--ranks 4] [--seed 1] [--partitions] [--tiny]
                                [--silence-s 2] [--folder FOLDER]

Each run trains the demo's model with some ranks (LoRA, packed rows, `--swarm true`). At times that the seed
chooses, a fault happens to one of them, which may be the coordinator: it is killed (SIGKILL), stopped
(SIGSTOP), or, with `--partitions`, its link is cut. When the others go on, it stays away or comes back:

- A rank that was killed is started again. One that was stopped or cut off is continued or gets its link back;
  if it has not ended by then, it asks to be let in, and otherwise it is started again. Some are killed once
  more while they come back.
- After a fault of the coordinator, the next rank has to take its place. The old one ends when it is
  continued or has its link again, and its machine comes back as another rank.
- Rarely, the fault happens to the coordinator just when all begin to meet again.
- The coordinator of two ranks is only killed. The other rank ends too, and all are started again with
  `resume`. The same is done whenever a run ends early, and the line of the run says why it did.

On a busy machine a rank may be silent for too long without a fault. The script follows the run to whoever
has it, and says how many ranks were lost in that way. When a run is complete, one process trains the same
steps with the numbers and shares of ranks that the `members` events say (`--sum-as`): losses, norms and
weights have to be the same to the last bit.

The script prints a line for each run, also if it gives the run up, and at the end the number of faults of
each kind. `--partitions` needs root and iproute2: each rank then has a network namespace. Needs Python alone.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ranks import DEMO, free_port

TINY = Path(__file__).parents[1] / "fixtures" / "qwen35" / "checkpoint"
STEPS = 120
# A run is given up after so long without a step.
PATIENCE_S = 300
# The ranks that have nothing to do any more end within this time.
ENDING_S = 60
MOST_RESUMES = 3
WAYS = ["killed", "stopped", "cut off"]
COMES_BACK = ", comes back"
ALL_RESUME = ", all resume"
WHILE_ALL_MEET = " while all meet"


class GivenUp(Exception):
    """Something that the script waited for did not happen."""


class Network:
    """A namespace for each rank, and one without a rank that connects them, so that any can be cut off."""

    def __init__(self, ranks):
        self.switch = f"sparktune-swarm-{os.getpid()}-switch"
        self.names = [f"sparktune-swarm-{os.getpid()}-{machine}" for machine in range(ranks)]
        for name in [self.switch, *self.names]:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for machine, name in enumerate(self.names):
            port = f"port{machine}"
            peer = ["peer", "name", "cable", "netns", name]
            ip("-n", self.switch, "link", "add", "dev", port, "type", "veth", *peer)
            ip("-n", self.switch, "link", "set", "dev", port, "master", "bridge")
            ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "cable")
            ip("-n", name, "link", "set", "dev", "cable", "up")
            self.set_cable(machine, "up")

    def address(self, machine):
        return f"10.197.0.{machine + 1}"

    def set_cable(self, machine, state):
        """Cuts a cable ("down") or mends it ("up"). No connection is closed by that."""
        ip("-n", self.switch, "link", "set", "dev", f"port{machine}", state)

    def close(self):
        for name in [self.switch, *self.names]:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


# What was read of each log, so that a look costs no more than what is new: the first line, how far, and the
# events.
READ = {}


def events(run):
    """The events of a run. A run that is renamed meanwhile has none, and is found at the next look."""
    for path in sorted((run / "events").glob("*")):
        try:
            with open(path, "rb") as log:
                first = log.readline()
                # A rank that is started again may begin the log of this name anew.
                known, offset, seen = READ.get(path, (first, 0, []))
                if known != first:
                    offset, seen = 0, []
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
        if whole:
            READ[path] = (first, offset + len(whole), seen)
        yield from seen


def folders(runs):
    """The folder of a run, and those of other ranks, which may take its place. A rank that has done so uses a
    link with its hidden name."""
    return [path for path in runs.glob("*") if (path / "events").is_dir() and not path.is_symlink()]


class Swarm:
    """The ranks of a run: their processes and machines, and what their events say. Their numbers here are
    those that their launcher gave them."""

    def __init__(self, program, folder, ranks, network):
        self.program, self.folder, self.ranks, self.network = program, folder, ranks, network
        # Who has the run, by which event, and what others have logged before its attempt.
        self.coordinator, self.taken_at, self.attempt, self.before = 0, None, 0, []
        self.processes, self.first, self.machines = {}, {}, {}
        # The ranks that are stopped or cut off now, and how often each rank was struck.
        self.held, self.struck = {}, Counter()
        self.notes = []
        self.runs, self.log = folder / "runs", open(folder / "log", "w")
        self.token = hashlib.sha256(os.urandom(32)).hexdigest()

    def start(self, words):
        self.words, self.coordinator = words, 0
        first = ("127.0.0.1", free_port()) if self.network is None else (self.network.address(0), 29_500)
        for rank in range(self.ranks):
            self.start_rank(rank, first, rank)

    def start_rank(self, rank, first=None, machine=None):
        """Starts a rank, or starts it again as it was. `first` is what its launcher says of the first one."""
        host, port = self.first[rank] = first or self.first[rank]
        machine = self.machines[rank] = self.machines[rank] if machine is None else machine
        environment = dict(
            os.environ,
            RANK=str(rank), WORLD_SIZE=str(max(self.ranks, rank + 1)), LOCAL_RANK=str(rank),
            MASTER_ADDR=host, MASTER_PORT=str(port),
            SPARKTUNE_GRAD_ACCUM_STEPS="5", SPARKTUNE_CLUSTER_TOKEN=self.token,
        )  # fmt: skip
        self.say(f"rank {rank} is started")
        inside = [] if self.network is None else ["ip", "netns", "exec", self.network.names[machine]]
        command = [*inside, str(self.program), *self.words, "--runs-dir", str(self.runs)]
        self.processes[rank] = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def resume(self):
        """Starts all ranks again, as many as at first."""
        self.end()
        seen = len(self.seen())
        self.start(["resume", self.run().name, "--json", "--non-interactive"])
        said = lambda: [event["kind"] for event in self.seen()[seen:]]
        self.wait_or_end("a resumed step", lambda: "step" in said())

    def strike(self, rank, way):
        """Kills a rank, or stops it or cuts it off until it is relieved."""
        self.struck[rank] += 1
        self.say(f"rank {rank} is {way}")
        if way == "cut off":
            machine = self.machines[rank]
            self.network.set_cable(machine, "down")
            self.held[rank] = lambda: self.network.set_cable(machine, "up")
            return
        send = self.processes[rank].send_signal
        if rank == 0:
            # The process that trains as rank 0 is not the one that was started.
            trainer = json.loads((self.run() / "lease.lock").read_text())["pid"]
            send = lambda number: self.signal_own(trainer, number)
        send(signal.SIGKILL if way == "killed" else signal.SIGSTOP)
        if way == "stopped":
            self.held[rank] = lambda: send(signal.SIGCONT)

    def relieve(self, rank):
        """Continues a rank or mends its cable."""
        if rank in self.held:
            self.say(f"rank {rank} is continued or connected")
            self.held.pop(rank)()

    def signal_own(self, process, number):
        """Sends a signal to a process if it works for this run, also if it is no child of this script."""
        with suppress(FileNotFoundError, ProcessLookupError):
            if str(self.runs).encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, number)

    def say(self, line):
        """Writes into the log of the ranks what is done to them."""
        print(f"--- {time.strftime('%H:%M:%S')}, step {self.steps()}: {line}", file=self.log, flush=True)

    def is_over(self, rank):
        return self.processes[rank].poll() is not None

    def end(self):
        """Kills what is left of the ranks, stopped or not, and mends all cables."""
        for process in Path("/proc").glob("[0-9]*"):
            self.signal_own(int(process.name), signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        for rank in list(self.held):
            self.relieve(rank)

    def end_in_time(self):
        """Waits until the members have ended, and ends the others, which may wait for somebody for hours."""
        until = time.monotonic() + ENDING_S
        while (left := self.living(self.trained_last())) and time.monotonic() < until:
            time.sleep(0.2)
        if left:
            self.notes.append(f"{in_words(left)} had not ended {ENDING_S} s after the run")
        self.end()

    def living(self, ranks):
        """Those of these ranks that could go on."""
        return [rank for rank in ranks if not self.is_over(rank) and rank not in self.held]

    def has_moved(self):
        return self.taken_at is not None

    def run(self):
        if self.has_moved():
            # Its folder is renamed when it takes rank 0's place.
            has_taken = lambda run: any(event["time_us"] == self.taken_at for event in events(run))
            return next(filter(has_taken, folders(self.runs)), None)
        runs = sorted(path for path in folders(self.runs) if not path.name.startswith("."))
        return runs[0] if runs else None

    def of_coordinator(self):
        run = self.run()
        own = events(run) if run else []
        return self.before + [event for event in own if event["attempt"] >= self.attempt]

    def seen(self):
        """The events of whoever has the run, which is found here."""
        seen = self.of_coordinator()
        logs = [list(events(run)) for run in folders(self.runs)]
        taken = [(event, log) for log in logs for event in log if self.is_taking_over(event, log)]
        if not taken:
            return seen
        event, log = min(taken, key=lambda of: of[0]["time_us"])
        self.taken_at, self.attempt = event["time_us"], event["attempt"]
        self.coordinator = event["members"][0]
        # The one before may not have logged its last step. Since it trains, the new one has logged the same.
        since = next(event["time_us"] for event in log if event["attempt"] == self.attempt)
        self.before = [event for event in seen if event["time_us"] < since]
        return self.seen()

    def is_taking_over(self, event, log):
        """Whether the rank with this log says that it goes on without the one that has the run."""
        if event["kind"] != "members" or event["time_us"] <= (self.taken_at or 0):
            return False
        if self.coordinator not in [lost["rank"] for lost in event.get("lost", [])]:
            return False
        # All ranks log the change; the one that has the run now also warns of it.
        words = "this rank takes the place of the one that had the run"
        said = (other for other in log if other["kind"] == "warning")
        return any(words in other["message"] for other in said if other.get("step") == event["step"])

    def steps_after_takeover(self, before):
        """Whether another rank has taken over and trained since the takeover `before`."""
        seen = self.seen()
        return self.taken_at != before and any(
            event["kind"] == "step" and event["time_us"] > self.taken_at for event in seen
        )

    def steps(self):
        return max((event["step"] for event in self.seen() if event["kind"] == "step"), default=0)

    def members(self):
        """The ranks that train, and none while they meet."""
        said = [event for event in self.seen() if event["kind"] in ("members", "run_started")]
        return said[-1].get("members", []) if said else []

    def trained_last(self):
        said = [event["members"] for event in self.seen() if event.get("members")]
        return said[-1] if said else list(self.processes)

    def go_on_without(self, rank):
        members = self.members()
        return bool(members) and rank not in members

    def meetings(self):
        said = [event.get("detail") or "" for event in self.seen() if event["kind"] == "phase"]
        return sum("all ranks meet again" in detail for detail in said)

    def losses(self):
        """How often the others went on without each rank."""
        changes = [event for event in self.seen() if event["kind"] == "members"]
        return Counter(lost["rank"] for event in changes for lost in event.get("lost", []))

    def is_complete(self):
        last = (self.seen() or [{}])[-1]
        return last.get("kind") == "run_finished" and last["outcome"] in ("completed", "diverged")

    def has_ended(self):
        """Whether the run is complete, or none of the ranks that trained last is left to go on with it."""
        return self.is_complete() or not self.living(self.trained_last())

    def reason(self):
        """Why the run has ended early: what its last event says, and how its processes ended."""
        last = self.seen()[-1]
        said = last.get("reason") if last["kind"] == "run_finished" else f"last event: {last['kind']}"
        codes = {rank: process.poll() for rank, process in self.processes.items()}
        return f"({said}; exit codes {codes})"

    def door(self):
        """Where the coordinator lets ranks in that have never been there."""
        if self.coordinator == 0:
            return self.first[0]
        said = [event["message"] for event in events(self.run()) if event["kind"] == "warning"]
        found = [re.search(r"MASTER_ADDR=(\S+) and MASTER_PORT=(\d+)", message) for message in said]
        last = [match for match in found if match][-1]
        return last[1], int(last[2])

    def wait(self, what, holds):
        """Waits until it holds. On a busy machine that takes long, so only time without a step counts."""
        since, before = time.monotonic(), None
        while not holds():
            steps = self.steps()
            if steps != before:
                since, before = time.monotonic(), steps
            if time.monotonic() - since > PATIENCE_S:
                left = in_words(self.living(self.processes))
                raise GivenUp(f"waited {PATIENCE_S} s for {what} after step {steps}, left: {left}")
            time.sleep(0.1)

    def wait_or_end(self, what, holds):
        self.wait(what, lambda: holds() or self.has_ended())


def in_words(ranks):
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks)) or 'none'}"


def possible(swarm, choose, count):
    """What can happen to so many members: to whom, and what, as often as it should be chosen."""
    ways = WAYS if swarm.network else WAYS[:2]
    # Those that return leave more for the next fault.
    any_way = [way + then for way in ways for then in ("", COMES_BACK, COMES_BACK)]
    kinds = []
    if count > 1:
        kinds += [("rank", what) for what in [*any_way, "killed twice" + COMES_BACK]]
    if count > 2:
        kinds += [("coordinator", what) for what in any_way]
    if count > 3 and choose.random() < 0.5:
        kinds += [("coordinator", choose.choice(ways) + WHILE_ALL_MEET)]
    if count < 3 and not swarm.has_moved() and (count == 2 or choose.random() < 0.3):
        # Too few would not go on.
        kinds += [("coordinator", "killed" + ALL_RESUME)]
    return kinds


def happens(swarm, choose, members, whom, what):
    """Lets a fault happen, and waits for what has to follow. Returns what happened before the run ended."""
    coordinator, *others = members
    rank = coordinator if whom == "coordinator" else choose.choice(others)
    way = next(way for way in WAYS if what.startswith(way))
    if what.endswith(WHILE_ALL_MEET):
        return while_all_meet(swarm, choose, choose.choice(others), way)
    taken_at = swarm.taken_at
    swarm.strike(rank, way)
    if what.endswith(ALL_RESUME):
        swarm.wait("the end of all", swarm.has_ended)
        return whom, what
    if whom == "coordinator":
        swarm.wait_or_end("another coordinator", lambda: swarm.steps_after_takeover(taken_at))
        ends_late(swarm, choose, rank)
    else:
        swarm.wait_or_end("the others", lambda: swarm.go_on_without(rank))
    if swarm.has_ended() or not what.endswith(COMES_BACK):
        return whom, way
    if whom == "coordinator":
        is_back = machine_comes_back(swarm, rank)
    else:
        if "twice" in what:
            is_killed_again(swarm, choose, rank)
        is_back = comes_back(swarm, choose, rank, way)
    return whom, what if is_back else way


def ends_late(swarm, choose, rank):
    """Continues a coordinator that was lost, or connects it again, and waits for its end."""
    time.sleep(choose.random() * 2)
    swarm.relieve(rank)
    swarm.wait_or_end("the end of the old coordinator", lambda: swarm.is_over(rank))


def machine_comes_back(swarm, rank):
    """Starts another rank on the machine of an old coordinator. Returns whether it was let in."""
    number = max(swarm.processes) + 1
    swarm.start_rank(number, swarm.door(), swarm.machines[rank])
    swarm.wait_or_end("the return of the old coordinator", lambda: number in swarm.members())
    return number in swarm.members()


def while_all_meet(swarm, choose, newcomer, way):
    """Lets a rank come back, and strikes the coordinator when all begin to meet again."""
    swarm.strike(newcomer, "killed")
    swarm.wait_or_end("the others", lambda: swarm.go_on_without(newcomer))
    before = swarm.meetings()
    if not swarm.has_ended():
        swarm.start_rank(newcomer)
        swarm.wait_or_end("a meeting", lambda: swarm.meetings() > before)
    if swarm.has_ended():
        return "rank", "killed"
    coordinator, taken_at = swarm.coordinator, swarm.taken_at
    swarm.strike(coordinator, way)
    swarm.wait_or_end("another coordinator", lambda: swarm.steps_after_takeover(taken_at))
    ends_late(swarm, choose, coordinator)
    return "coordinator", way + WHILE_ALL_MEET


def is_killed_again(swarm, choose, rank):
    """Starts a rank, and kills it at any time: while it waits, meets the others, heals or trains."""
    swarm.processes[rank].wait()
    swarm.start_rank(rank)
    time.sleep(choose.random() * 4)
    begun = swarm.steps()
    swarm.strike(rank, "killed")
    swarm.wait_or_end("a step", lambda: swarm.steps() > begun and swarm.go_on_without(rank))


def comes_back(swarm, choose, rank, way):
    """Brings a rank back that the others go on without. Returns whether it was let in."""
    if way == "cut off":
        # It may have ended by then, or not.
        time.sleep(choose.random() * 4)
    swarm.relieve(rank)
    is_back = lambda: rank in swarm.members()
    swarm.wait_or_end("the return", lambda: is_back() or swarm.is_over(rank))
    if not is_back() and not swarm.has_ended():
        if way == "stopped":
            # It should have asked to be let in.
            swarm.notes.append(f"{in_words([rank])} ended when it was continued")
        swarm.start_rank(rank)
        swarm.wait_or_end("the return", is_back)
    return is_back()


def train(swarm, choose, words, faults, is_tiny):
    """Trains until the run is complete. Faults are appended to `faults` before they happen."""
    most, longest_pause = (40, 0.2) if is_tiny else (12, 0.8)
    resumes = 0
    swarm.start(words)
    while not swarm.is_complete():
        if swarm.has_ended() and not swarm.is_complete():
            resumes += 1
            if resumes > MOST_RESUMES:
                raise GivenUp(f"it ended early {resumes} times, at last {swarm.reason()}")
            if not (faults and faults[-1][1].endswith(ALL_RESUME)):
                swarm.notes.append(f"ended early after step {swarm.steps()} {swarm.reason()}")
            swarm.resume()
        begun = swarm.steps()
        swarm.wait_or_end("a step", lambda: swarm.steps() > begun)
        time.sleep(choose.random() * longest_pause)
        members = swarm.members()
        if not members or swarm.has_ended():
            continue
        kinds = possible(swarm, choose, len(members)) if len(faults) < most else []
        if kinds:
            faults.append(choose.choice(kinds))
            faults[-1] = happens(swarm, choose, members, *faults[-1])
        else:
            swarm.wait("the end", swarm.has_ended)


def replayed(seen):
    """The numbers and shares of ranks that one process has to be told."""
    counts = []
    for event in seen:
        if event["kind"] == "members":
            shares = "+".join(str(share) for share in event.get("shares", [])) or len(event["members"])
            counts = [(step, shared) for step, shared in counts if step < event["step"]]
            counts.append((event["step"], shares))
    return ",".join(str(count) if step == 1 else f"{count}@{step}" for step, count in counts)


def numbers(seen):
    steps = [event for event in seen if event["kind"] == "step"]
    return {event["step"]: (event["loss_nats"], event.get("grad_norm")) for event in steps}


def weights(run):
    files = sorted((run / "outputs").rglob("*.safetensors"))
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def differs(swarm, words, counts):
    """Says what differs between a complete run and one process that trains the same; None if nothing does."""
    alone = swarm.folder / "alone"
    command = [str(swarm.program), *words, f"--sum-as={counts}", "--runs-dir", str(alone)]
    environment = dict(os.environ, SPARKTUNE_GRAD_ACCUM_STEPS="5")
    subprocess.run(command, env=environment, check=True, stdout=swarm.log, stderr=swarm.log)
    (replay,) = folders(alone)
    here, there = numbers(swarm.seen()), numbers(list(events(replay)))
    steps = sorted(step for step in here.keys() | there.keys() if here.get(step) != there.get(step))
    if steps:
        return f"losses or norms differ at {len(steps)} steps, first at step {steps[0]}"
    if not weights(replay) or weights(swarm.run()) != weights(replay):
        return "weights differ"
    return None


def one_run(options, choose, counted, network):
    """Trains with faults. Returns how the run ended, in words, and whether it has the bits of its replay."""
    # What is left of a run is looked at if it fails or there is more to say of it.
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    model = TINY if options.tiny else DEMO / "model"
    words = ["train", "--model", str(model), "--data", str(DEMO / "train.jsonl"), "--rank", "4"]
    words += ["--max-rejected", "0.2", "--pack-length", "128"] * options.tiny
    words += ["--mtp", "none", "--epochs", "400", "--max-steps", str(STEPS), "--save-steps", "5"]
    words += ["--eval-steps", "5", "--swarm", "true", "--silence-s", str(options.silence_s)]
    words += ["--device", "cpu", "--non-interactive", "--json"]
    swarm, faults, is_same = Swarm(options.program, folder, options.ranks, network), [], False
    try:
        train(swarm, choose, words, faults, options.tiny)
        swarm.end_in_time()
        counts = replayed(swarm.seen())
        difference = differs(swarm, words, counts)
        is_same = difference is None
        verdict = f"--sum-as={counts} has " + ("the same bits" if is_same else f"OTHER BITS: {difference}")
        if without_fault := sum((swarm.losses() - swarm.struck).values()):
            swarm.notes.append(f"{without_fault} lost without a fault")
    except GivenUp as why:
        verdict = f"GIVEN UP: {why}"
    except Exception as error:
        traceback.print_exc()
        verdict = f"GIVEN UP because of the script: {error!r}"
    finally:
        swarm.end()
        swarm.log.close()
        counted.update(faults)
    if is_same and not swarm.notes:
        shutil.rmtree(folder)
    else:
        verdict += f"; look at {folder}"
    load = f"load {os.getloadavg()[0]:.0f}"
    return "; ".join([f"{len(faults)} faults", *swarm.notes, load, verdict]), is_same


def table(counted):
    whats = sorted({what for _, what in counted})
    rows = [f"| {what} | {counted['rank', what]} | {counted['coordinator', what]} |" for what in whats]
    return "\n".join(["| fault | of another rank | of the coordinator |", "|---|---|---|", *rows])


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("program", type=Path)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--partitions", action="store_true", help="cut links too; needs root")
    parser.add_argument("--tiny", action="store_true", help="the model of the tests, for a busy machine")
    parser.add_argument("--silence-s", type=int, default=2, help="more on a busy machine")
    parser.add_argument("--folder", default=None, help="where runs are made")
    options = parser.parse_args()
    options.program = options.program.resolve()
    # What was made is deleted and what was counted is said, also if somebody ends the script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    choose, counted, runs, same = random.Random(options.seed), Counter(), 0, 0
    network = Network(options.ranks) if options.partitions else None
    try:
        while counted.total() < options.faults:
            before = counted.total()
            said, is_same = one_run(options, choose, counted, network)
            runs, same = runs + 1, same + is_same
            print(f"run {runs}: {said}", flush=True)
            if counted.total() == before and not is_same:
                sys.exit(f"run {runs} ended before its first fault; look at its log in the folder that its line names")
    finally:
        if network:
            network.close()
        print(f"\n{table(counted)}\n")
        print(f"{counted.total()} faults in {runs} runs, of which {same} have the bits of their replays")
    sys.exit(same < runs)


if __name__ == "__main__":
    main()
