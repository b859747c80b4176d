"""Runs the sections one after the other, each for its share of the time, and tells what came out.

A part is one program: it writes rows (`rows.py`) and ends with 0, or with 77 where it cannot be done here. Time that a part leaves over
goes to those behind it. What a part wrote before it was cut off is kept.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import judge
import machine
import rows
import table

HERE = pathlib.Path(__file__).resolve().parent
# All sections together.
SECONDS = 8 * 60 - 10


@dataclasses.dataclass(frozen=True)
class Part:
    section: str
    # Its share of the time, seconds when all sections run.
    weight: int
    # Arguments; `BINARY`, `OURS` (rows of the part before), `FOLDER` (an empty one) and `LIMIT` (seconds) are put in. `--json FILE` is added, for
    # sparktune `--output FILE`.
    command: tuple
    # Where a section has two: which of them this is.
    by: str = ""

    def quick(self):
        """What makes it so small that it can be tried on the emulated device, or on the processor."""
        if self.command[0] == BINARY:
            return () if "model" in self.command else ("--quick",)
        if self.section == "nccl":
            return ("--quick",)
        return ("--tiny",) if self.section in ("ceilings", "peers", "gemm", "whole") else ()

    def __str__(self):
        return f"{self.section} ({self.by})" if self.by else self.section


PYTHON, BINARY, OURS, FOLDER, LIMIT = sys.executable, "BINARY", "OURS", "FOLDER", "LIMIT"
# The headline first: speeds of whole steps, and the peers' of the same. The first programs of a machine that has just started read
# Python, PyTorch and the driver from its disk, so facts and ceilings may take three times as long as they need later; all shares of
# the tables refer to the ceilings.
PARTS = (
    Part("facts", 15, (PYTHON, "machine.py")),
    Part("ceilings", 40, (PYTHON, "ceilings.py")),
    Part("steps", 150, (BINARY, "bench", "--gpu", "steps", "--seconds", LIMIT)),
    Part("peers", 85, (PYTHON, "peers.py", "--seconds", LIMIT)),
    Part("kernels", 80, (BINARY, "bench", "--gpu", "kernels", "--seconds", LIMIT)),
    Part("gemm", 40, (BINARY, "bench", "--gpu", "gemm", "--seconds", LIMIT), by="sparktune"),
    Part("gemm", 22, (PYTHON, "gemm_vendor.py", "--like", OURS, "--seconds", LIMIT), by="vendor"),
    Part("model", 2, (BINARY, "bench", "--gpu", "model")),
    Part("sanitizer", 36, (PYTHON, "sanitizer.py", "--binary", BINARY, "--seconds", LIMIT)),
)
# What is only measured when it is named: each takes minutes.
ON_DEMAND = (
    Part("whole", 60, (BINARY, "bench", "--gpu", "whole", "--model", FOLDER, "--seconds", LIMIT), by="sparktune"),
    Part("whole", 60, (PYTHON, "whole.py", "--folder", FOLDER, "--like", OURS), by="transformers"),
    Part("ladder", 150, (BINARY, "bench", "--gpu", "ladder", "--seconds", LIMIT)),
    Part("head", 60, (BINARY, "bench", "--gpu", "head", "--seconds", LIMIT)),
    Part("nccl", 120, (PYTHON, "nccl.py", "--binary", BINARY, "--seconds", LIMIT)),
    Part("sizes", 300, (BINARY, "bench", "--gpu", "sizes", "--seconds", LIMIT)),
)
SECTIONS = tuple(dict.fromkeys(part.section for part in PARTS + ON_DEMAND))


def environment(here):
    """What the parts run with. What is compiled is kept in one folder, so that only the first part compiles a kernel."""
    variables = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    variables.setdefault("CUDA_CACHE_PATH", str(here / ".compiled-kernels"))
    variables.setdefault("SPARKTUNE_KERNEL_IMAGES", str(here / ".compiled-kernels" / "images"))
    variables.setdefault("CUDA_CACHE_MAXSIZE", str(1 << 30))
    # The peers' kernels, whose first compilation takes about as long as their steps.
    variables.setdefault("TRITON_CACHE_DIR", str(pathlib.Path(variables["CUDA_CACHE_PATH"]) / "triton"))
    return variables


def limit_of(parts, place, left):
    """Seconds for a part, of those that are left: its share among itself and those behind it."""
    return max(1.0, left * parts[place].weight / sum(later.weight for later in parts[place:]))


def say(words):
    print(words, file=sys.stderr, flush=True)


def run(command, seconds, variables):
    """Exit code, or None when it was cut off, and its last line. What it prints is passed on as it comes."""
    last = [""]
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=variables,
    )

    def pass_on():
        for line in program.stdout:
            if line.strip():
                last[0] = line.strip()
                say(f"  | {line.rstrip()}")

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    try:
        code = program.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        # Its children too: a sanitizer's kernels, a compiler. None is left when all ended by themselves.
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()
    reader.join(5)
    if not reader.is_alive():
        program.stdout.close()
    return code, last[0]


def result(part, status, reason="", seconds=0.0, limit=0.0, found=()):
    return {
        "section": part.section,
        "by": part.by,
        "status": status,
        "reason": reason,
        "seconds": round(seconds, 1),
        "limit_s": round(limit),
        "rows": list(found),
    }


def judged(part, code, last, seconds, limit, found):
    """What came of a part, from its exit code, its last line and its rows."""
    if code == rows.SKIPPED:
        return result(part, "skipped", last, seconds, limit, found)
    wrong = judge.problems(part.section, found, part.by)
    if code is None:
        reason = f"after {seconds:.0f} s; {len(found)} rows until then" + (f"; {wrong[0]}" if wrong else "")
        return result(part, "CUT OFF", reason, seconds, limit, found)
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        return result(part, "FAILED", f"{how}: {last}", seconds, limit, found)
    if not found:
        return result(part, "FAILED", "it ended well but reported nothing", seconds, limit)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return result(part, "FAILED", wrong[0] + more, seconds, limit, found)
    return result(part, "done", "", seconds, limit, found)


def perform(parts, folder, here, no_device, seconds, is_quick=False):
    """Runs the parts and yields what came of each; `no_device` is the reason why none can be run."""
    ends = time.monotonic() + seconds
    binary, variables = here / "sparktune", environment(here)
    try:
        pathlib.Path(variables["SPARKTUNE_KERNEL_IMAGES"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        say(f"compiled kernels are not kept: {problem}")
    for place, part in enumerate(parts):
        limit = limit_of(parts, place, ends - time.monotonic())
        missing = None if binary.exists() else "there is no sparktune beside run.sh: build.sh makes the folder to run from"
        reason = no_device or (missing if BINARY in part.command else None)
        if reason:
            say(f"{part}: skipped: {reason}")
            yield result(part, "skipped", reason)
            continue
        say(f"{part}: up to {limit:.0f} s ...")
        file = folder / f"{place}.jsonl"
        known = {
            BINARY: str(binary),
            OURS: str(folder / f"{place - 1}.jsonl"),
            FOLDER: str(folder / part.section),
            LIMIT: f"{limit:.0f}",
        }
        command = [known.get(word, str(here / word) if word.endswith(".py") else word) for word in part.command]
        began = time.monotonic()
        command += part.quick() if is_quick else ()
        output = "--output" if BINARY in part.command[:1] else "--json"
        code, last = run([*command, output, str(file)], limit, variables)
        took = time.monotonic() - began
        came_of_it = judged(part, code, last, took, limit, rows.read(file))
        say(f"{part}: {came_of_it['status']} in {took:.0f} s")
        yield came_of_it


def exit_code(parts):
    statuses = {part["status"] for part in parts}
    if statuses & {"FAILED", "CUT OFF"}:
        return 1
    return 0 if "done" in statuses else rows.SKIPPED


def commit(here):
    """The commit that the folder was built from, or the checkout's."""
    if (here / "COMMIT").exists():
        return (here / "COMMIT").read_text(encoding="utf-8").strip()
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def interrupt(number, _):
    raise KeyboardInterrupt(signal.Signals(number).name)


def main():
    # Whoever ends this process ends the part that runs too: it is in a session of its own.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    now = datetime.datetime.now(datetime.timezone.utc)
    arguments = argparse.ArgumentParser(prog="run.sh", description="see run.sh --help")
    arguments.add_argument("--json", type=pathlib.Path, default=pathlib.Path(f"sparktune-gpu-{now:%Y%m%dT%H%M%SZ}.json"))
    arguments.add_argument("--seconds", type=int, default=SECONDS)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("section", nargs="*", help=", ".join(SECTIONS))
    asked = arguments.parse_args()
    for name in asked.section:
        if name not in SECTIONS:
            arguments.error(f"there is no section {name}; there are {', '.join(SECTIONS)}")
    parts = [part for part in PARTS + ON_DEMAND if part.section in asked.section] if asked.section else PARTS

    name, no_device = None, None
    try:
        name = machine.device()["name"]
    except machine.NoDevice as reason:
        no_device = str(reason)
    results = {"format": 1, "device": name, "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "commit": commit(HERE), "parts": []}

    def record(what):
        asked.json.write_text(json.dumps(what, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    try:
        record(results)
    except OSError as problem:
        arguments.error(f"{asked.json} cannot be written: {problem.strerror}")
    say(f"{len(parts)} parts, {asked.seconds // 60} min {asked.seconds % 60} s at most, on {name or 'no GPU'}")
    try:
        with tempfile.TemporaryDirectory(prefix="sparktune-gpu-") as folder:
            for part in perform(parts, pathlib.Path(folder), HERE, no_device, asked.seconds, asked.quick):
                results["parts"].append(part)
                # After each part, so that a run that is interrupted has told what it measured.
                record(results)
    except KeyboardInterrupt:
        say(f"interrupted; what was measured until then is in {asked.json}")
        return 1
    print(table.rendered(results), end="")
    print(f"\n{name or 'no GPU'}, {results['date']}, commit {results['commit']}; everything is in {asked.json}")
    return exit_code(results["parts"])


if __name__ == "__main__":
    sys.exit(main())
