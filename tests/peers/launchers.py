"""Trainings whose ranks real launchers start: torchrun, Open MPI's mpirun and Slurm's srun, as far as they are here.

    python tests/peers/launchers.py SPARKTUNE [--ranks 2 3]

Each launcher starts so many ranks on this machine, which train the model of the tests: once to the end, once until a
rank is killed, and once until the launcher is told to stop (Ctrl-C; Slurm by `scancel`). Both stops are in the middle
of the run, whose only checkpoint is that of the stop; then the same launcher resumes it. torchrun also starts the ranks
again by itself after one was killed. Losses, norms and weights have to be those of one process with `--sum-as`, to the
last bit. Prints a table. Needs Linux and Python alone; of Slurm, a node with as many CPUs as ranks.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from swarm import DEMO, TINY, events, numbers, weights

STEPS = 200
PATIENCE_S = 120
TRAIN = ["train", "--model", str(TINY), "--data", str(DEMO / "train.jsonl"), "--rank", "4", "--device", "cpu"]
TRAIN += ["--max-rejected", "0.2", "--pack-length", "128", "--mtp", "none", "--epochs", "400"]
# Checkpoints are those of a stop.
TRAIN += ["--max-steps", str(STEPS), "--save-steps", "1000", "--eval-steps", "1000", "--non-interactive", "--json"]
RESUME = ["resume", "latest", "--non-interactive", "--json"]
JOB = f"sparktune-launchers-{os.getpid()}"
# The words that start so many ranks, and the variable that says which one a process is.
LAUNCHERS = {
    "torchrun": (["torchrun", "--nnodes", "1", "--no-python", "--nproc-per-node"], "RANK"),
    "mpirun": (["mpirun", "--bind-to", "none", "-np"], "OMPI_COMM_WORLD_RANK"),
    "srun": (["srun", "--job-name", JOB, "--nodes", "1", "--ntasks"], "SLURM_PROCID"),
}
# mpirun starts nothing as root, and no more ranks than cores, unless it is told to.
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ALLOWED |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def missing(launcher):
    """Why a launcher cannot be tried here, or None."""
    if not shutil.which(launcher):
        return f"no {launcher} is installed"
    if launcher == "srun" and subprocess.run(["sinfo"], capture_output=True).returncode:
        return "Slurm does not answer"
    return None


class Launched:
    """The ranks of one training, in a folder of their own."""

    def __init__(self, program, launcher, ranks):
        self.program, self.launcher, self.ranks = program, launcher, ranks
        self.folder = Path(tempfile.mkdtemp())
        self.log = open(self.folder / "log", "w")

    def start(self, words, *flags):
        """Starts these words as every rank. The launcher gets the flags too."""
        words_of_launcher = LAUNCHERS[self.launcher][0]
        return self.spawn([words_of_launcher[0], *flags, *words_of_launcher[1:], str(self.ranks), *words])

    def spawn(self, command):
        environment = os.environ | ALLOWED | {"SPARKTUNE_GRAD_ACCUM_STEPS": "5"}
        log = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": self.log}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **log)

    def processes(self):
        """The processes of the program in this folder, with their environments."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (path / "cwd").readlink() == self.folder and (path / "exe").readlink() == self.program:
                    found[int(path.name)] = (path / "environ").read_text().split("\0")
            except OSError:
                pass  # it has ended
        return found

    def run_dir(self):
        return next((path for path in (self.folder / "runs").glob("[!.]*") if (path / "events").is_dir()), None)

    def seen(self):
        run = self.run_dir()
        return list(events(run)) if run else []

    def step(self):
        return max((event["step"] for event in self.seen() if event["kind"] == "step"), default=0)

    def result(self):
        """What was trained: losses and norms, and the weights."""
        return numbers(self.seen()), weights(self.run_dir())

    def wait(self, what, holds):
        """Waits until it holds. On a busy machine that takes long, so only time without a step counts."""
        since, before = time.monotonic(), None
        while not holds():
            if (step := self.step()) != before:
                since, before = time.monotonic(), step
            if time.monotonic() - since > PATIENCE_S:
                for pid in self.processes():
                    os.kill(pid, signal.SIGKILL)
                sys.exit(f"waited {PATIENCE_S} s for {what}; look at {self.folder}")
            time.sleep(0.05)

    def end(self, process):
        """Waits for the launcher and all that it has started, and returns the launcher's exit code."""
        self.wait("the launcher", lambda: process.poll() is not None)
        self.wait("the ranks", lambda: not self.processes())
        return process.returncode


def kill_a_rank(launched, process):
    """Kills the rank with the highest number, as a lack of memory does."""
    variable = f"{LAUNCHERS[launched.launcher][1]}={launched.ranks - 1}"
    for pid, environment in launched.processes().items():
        if variable in environment:
            os.kill(pid, signal.SIGKILL)


def stop(launched, process):
    """Presses Ctrl-C in the launcher's terminal. srun needs two, which kill all ranks at once, so its job is cancelled."""
    if launched.launcher == "srun":
        subprocess.run(["scancel", "--name", JOB], check=True)
    else:
        os.killpg(process.pid, signal.SIGINT)


def judged(launched, code, alone):
    """Says whether a training that has ended with this code is right."""
    if code or launched.result() != alone:
        return f"FAILED with exit code {code} or other bits; look at {launched.folder}"
    shutil.rmtree(launched.folder)
    return "the same bits"


def judged_after_a_resume(launched, code, alone):
    starts = [event for event in launched.seen() if event["kind"] == "run_started"]
    step = starts[-1].get("resumed_from_step") if starts else None
    if not code and not step:
        return f"FAILED, because no step was saved; look at {launched.folder}"
    return f"resumed from step {step}, {judged(launched, code, alone)}"


def started(launched, words, *flags):
    """Starts these words as every rank, and returns the launcher once they have taken some steps."""
    process = launched.start(words, *flags)
    launched.wait("some steps", lambda: launched.step() >= STEPS // 10 or process.poll() is not None)
    if process.poll() is not None:
        sys.exit(f"{launched.launcher} has ended with exit code {process.returncode}; look at {launched.folder}")
    return process


def to_the_end(launched, alone):
    code = launched.end(launched.start([str(launched.program), *TRAIN]))
    return judged(launched, code, alone)


def after(fault):
    def resumed(launched, alone):
        process = started(launched, [str(launched.program), *TRAIN])
        fault(launched, process)
        first = launched.end(process)
        code = launched.end(launched.start([str(launched.program), *RESUME]))
        return f"exit code {first}, {judged_after_a_resume(launched, code, alone)}"

    return resumed


def restarted(launched, alone):
    """Lets torchrun start all ranks again after one was killed."""
    if launched.launcher != "torchrun":
        return "–"
    words = 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exec "$0" %s; else exec "$0" %s; fi'
    words %= (shlex.join(TRAIN), shlex.join(RESUME))
    process = started(launched, ["sh", "-c", words, str(launched.program)], "--max-restarts", "1")
    kill_a_rank(launched, process)
    return judged_after_a_resume(launched, launched.end(process), alone)


CASES = {
    "to the end": to_the_end,
    "a rank killed": after(kill_a_rank),
    "stopped": after(stop),
    "a rank killed, `--max-restarts 1`": restarted,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    options = parser.parse_args()
    program, is_wrong = options.program.resolve(), False
    print("| launcher, ranks | " + " | ".join(CASES) + " |")
    print("|---" * (len(CASES) + 1) + "|")
    for ranks in options.ranks:
        one = Launched(program, None, 1)
        one.end(one.spawn([str(program), *TRAIN, "--sum-as", str(ranks)]))
        alone = one.result()
        for launcher in LAUNCHERS:
            why = missing(launcher)
            cells = [f"skipped: {why}"] if why else []
            for case in [] if why else CASES.values():
                cells.append(case(Launched(program, launcher, ranks), alone))
            is_wrong |= any("FAILED" in cell for cell in cells)
            print(f"| {launcher}, {ranks} | " + " | ".join(cells) + " |", flush=True)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
