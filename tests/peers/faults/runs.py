"""A run whose files, plan, base, disk or clock are changed, and processes that meet in it."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from harness import (
    MODEL, NOBODY, STEPS, active, bounds, difference, is_root, events, outputs, refusal, send, small_disk, steps_of, the_run, trainer_of,
    unmount, wait,
)  # fmt: skip

FLAGS = ["--max-steps", "10", "--save-steps", "2", "--keep", "3", "--epochs", "99"]


def reference_of(place, *more, model=MODEL, env=None):
    """Trains without any fault; returns the run, after checking that it is complete."""
    done = place.run(*place.train(*FLAGS, *more, model=model), env={**STEPS, **(env or {})})
    if done.code != 0:
        raise SystemExit(f"the run without a fault fails: {done.short()}")
    return Path(done.last()["run_dir"])


def killed(place, runs="killed", step=5, model=MODEL):
    """A run whose trainer and launcher were killed after a step."""
    launcher = place.start(*place.train(*FLAGS, "--runs-dir", runs, model=model), env=STEPS)
    run = wait("a step", lambda: (run := the_run(place, runs)) and step in steps_of(run) and run)
    for pid in [trainer_of(run), launcher.pid]:
        if pid:
            send(pid, signal.SIGKILL)
    launcher.wait()
    wait("the end of the trainer", lambda: not trainer_of(run))
    return run


def fresh(place, run, name="runs"):
    """A copy of a run, which is the only one in a folder of runs."""
    folder = place / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(run, folder / run.name, symlinks=True)
    return folder / run.name


def resumed(place, run, reference, *more, names=(), seconds=90, env=None):
    """Resumes a run. Returns what was wrong, and what came of it."""
    done = place.run("resume", run, "--json", *more, seconds=seconds, env={**STEPS, **(env or {})})
    wrong = refusal(done, *names, seconds=60)
    if wrong or done.code != 0:
        return wrong, "refused in words"
    other = difference(run, reference)
    return ([f"ends with 0, but {other} differs"] if other else []), "same bytes"


def damage(context):
    row = context.row("file damage on a killed run, then resume, watch, report and runs")
    with context.place() as place:
        place.chats()
        reference = outputs(reference_of(place))
        run = killed(place)
        names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        newest = max(name.split("/")[1] for name in names if name.startswith("checkpoints/"))
        # Of the checkpoints, the newest; the others have the same files.
        names = [name for name in names if "checkpoints/" not in name or newest in name]
        folders = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_dir())
        for name, (how, change) in [(n, w) for n in names for w in WAYS.items()] + [(f, ("folder missing", shutil.rmtree)) for f in folders]:
            case = f"{how}: {name}"
            if not row.wants(case):
                continue
            copy = fresh(place, run)
            before = (copy / names[(names.index(name) + 1) % len(names)]).read_bytes() if how == "swapped" else b""
            change(copy / name, before) if how != "folder missing" else change(copy / name)
            wrong, outcome = resumed(place, copy, reference, names=[Path(name).name, name.split("/")[0], newest])
            for words in (["watch", copy.name, "--plain"], ["report", copy.name], ["runs"]):
                done = place.run(*words, seconds=30)
                # A run that is no run any more has no name to be found by.
                wrong += [f"`{words[0]}` {word}" for word in refusal(done, copy.name, Path(name).name, codes=(2, 3, 4, 5))]
            row.tried(case, wrong, outcome)


def flip(path, _):
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def instead(make):
    def change(path, _):
        path.unlink()
        make(path)

    return change


WAYS = {
    "truncated": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path, _: os.truncate(path, 0),
    "zeroed": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
    "longer": lambda path, _: path.write_bytes(path.read_bytes() + b"\0\xff{"),
    "missing": lambda path, _: path.unlink(),
    "swapped": lambda path, other: path.write_bytes(other),
    "a folder": instead(Path.mkdir),
    "a FIFO": instead(os.mkfifo),
    "a link to /dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
}


def plan_values(context):
    """Every number, word and switch of the plan but its length, which may be changed by `resume`."""
    row = context.row("one value of plan.toml changed, then resume")
    with context.place() as place:
        place.chats()
        reference = outputs(reference_of(place))
        run = killed(place)
        plan = (run / "plan.toml").read_text()
        settings, section = plan.split("[advice]")[0], ""
        for at, line in enumerate(settings.splitlines()):
            section = line.strip("[]") if line.startswith("[") else section
            key, _, value = line.partition(" = ")
            if not value or not row.wants(f"{section}.{key}"):
                continue
            other = {"true": "false", "false": "true"}.get(value, '"other"' if value.startswith(('"', "[")) else None)
            other = other or (str(float(value) * 3 or 0.5) if "." in value else str(int(value) + 1))
            other = f"[{other}]" if value.startswith("[") else other
            copy = fresh(place, run)
            lines = plan.splitlines()
            lines[at] = f"{key} = {other}"
            (copy / "plan.toml").write_text("\n".join(lines) + "\n")
            wrong, outcome = resumed(place, copy, reference, names=["plan.toml", key, "other/config.json"])
            if not wrong and outcome == "same bytes":
                wrong = ["nobody notices"]
            row.tried(f"{section}.{key}", wrong, outcome)


def base_files(context):
    row = context.row("a file of the base model changed between attempts")
    with context.place() as place:
        place.chats()
        model = place.model()
        reference = outputs(reference_of(place, model=model))
        run = killed(place, model=model)
        for name in sorted(os.listdir(model)):
            for how, change in BASE_CHANGES.items():
                case = f"{how}: {name}"
                if not row.wants(case):
                    continue
                copy, path = fresh(place, run), model / name
                before, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
                change(path)
                if "time put back" in how:
                    os.utime(path, ns=times)
                wrong, outcome = resumed(place, copy, reference, names=[name])
                path.unlink(missing_ok=True)
                path.write_bytes(before)
                os.utime(path, ns=times)
                row.tried(case, wrong, outcome)


BASE_CHANGES = {
    "a bit in the middle": lambda path: flip(path, None),
    "a bit in the middle, time put back": lambda path: flip(path, None),
    "a byte more": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "the last byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "missing": Path.unlink,
}


def disk(context):
    start = context.row("disk too small at start (200 KiB to 10 MB)")
    middle = context.row("disk full at steps 1–8, start, export; resume on the full disk; resume with room")
    with context.place() as place:
        small = place / "small"
        if not is_root() or not small_disk(small, 1000):
            return [row.skip("mounting a file system is not permitted here") for row in (start, middle)]
        unmount(small)
        place.chats()
        reference = outputs(reference_of(place, "--method", "full"))
        for kibibytes in [200, 300, 400, 500, 700, 900, 1200, 1500, 2000, 2500, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000]:
            case = f"{kibibytes} KiB"
            if not start.wants(case):
                continue
            small_disk(small, kibibytes)
            done = place.run(*place.train(*FLAGS, "--method", "full", "--runs-dir", "small/runs"), env=STEPS)
            run = the_run(place, "small/runs")
            wrong = refusal(done, "small", "disk", "room", seconds=60)
            if done.code != 0 and run and steps_of(run):
                wrong.append(f"ended in the middle, after {len(steps_of(run))} steps: {done.short()}")
            if done.code == 0 and (other := difference(run, reference)):
                wrong.append(f"{other} differs")
            start.tried(case, wrong, "refused" if done.code else "same bytes")
            unmount(small)
        for when in [*range(1, 9), "start", "export"]:
            if not middle.wants(f"full at {when}"):
                continue
            small_disk(small, 64 << 10)
            middle.tried(f"full at {when}", *full_at(place, small, when, reference))
            unmount(small)


def full_at(place, small, when, reference):
    """Fills the disk at a step or phase, resumes on the full disk, and with room."""
    launcher = place.start(*place.train(*FLAGS, "--method", "full", "--runs-dir", "small/runs"), env=STEPS)

    def is_reached():
        run = the_run(place, "small/runs")
        if when == "start" or not run:
            return run
        phases = [event.get("phase") for event in events(run) if event["kind"] == "phase"]
        return run if (when in phases if when == "export" else when in steps_of(run)) else None

    run = wait(f"{when}", is_reached)
    fill(small)
    code = launcher.wait()
    wrong = [] if code in (0, 4, 5) else [f"exit {code} on the full disk"]
    again = place.run("resume", run, "--json", env=STEPS)
    wrong += [f"resume on the full disk: {word}" for word in refusal(again, "disk", "space", seconds=60, codes=(2, 4, 5))]
    (small / "filler").unlink(missing_ok=True)
    ended, outcome = resumed(place, run, reference)
    if outcome != "same bytes":
        ended.append("refused although there is room again")
    return wrong + ended, f"{'complete' if code == 0 else f'exit {code}'}, then same bytes"


def fill(folder):
    with open(folder / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass


def read_only(context):
    row = context.row("read-only folder of runs at start, at resume, and in the middle (for another user)")
    with context.place() as place:
        fixed = place / "fixed"
        if not is_root() or not small_disk(fixed, 64 << 10):
            return row.skip("mounting a file system is not permitted here")
        place.chats()
        reference = outputs(reference_of(place))
        run = killed(place, "fixed/runs")
        for case, words in {"start": place.train(*FLAGS, "--runs-dir", "fixed/runs"), "resume": ["resume", run], "export": ["export", run]}.items():
            subprocess.run(["mount", "-o", "remount,ro", str(fixed)], check=True)
            done = place.run(*words, env=STEPS)
            wrong = refusal(done, "fixed/runs")
            if done.code == 0 or "ead-only" not in done.said:
                wrong.append(done.short())
            row.tried(case, wrong, f"exit {done.code}")
        for words in (["watch", run, "--plain"], ["runs", "--runs-dir", "fixed/runs"], ["report", run, "--output", "report.html"]):
            done = place.run(*words)
            row.tried(words[0], refusal(done, run.name, codes=(2, 4, 5)), f"exit {done.code}")
        subprocess.run(["mount", "-o", "remount,rw", str(fixed)], check=True)
        row.tried("resume when it can be written", resumed(place, run, reference)[0])
        unmount(fixed)
        # The kernel refuses to make a disk read-only that is written to; rights can be taken from another user.
        os.chown(place.path, NOBODY, NOBODY)
        launcher = place.start(*place.train(*FLAGS, "--runs-dir", "theirs"), env=STEPS, user=NOBODY)
        run = wait("step 3", lambda: (run := the_run(place, "theirs")) and 3 in steps_of(run) and run)
        (run / "checkpoints").chmod(0o500)
        code = launcher.wait()
        (run / "checkpoints").chmod(0o700)
        done = place.run("resume", run, "--json", env=STEPS, user=NOBODY)
        other = difference(run, reference) if done.code == 0 else done.short()
        row.tried("no right to write checkpoints from step 3 on", [] if code in (4, 5) and not other else [f"exit {code}; then {other}"])


def several_trainers(context):
    row = context.row("a second trainer of a run; six resumes at once")
    with context.place() as place:
        place.chats()
        reference = outputs(reference_of(place))
        run = killed(place)
        for number, case in [(2, "two"), (6, "six"), (6, "six again")]:
            copy = fresh(place, run)
            logs = [open(place / f"log-{i}", "w+") for i in range(number)]
            started = [place.start("resume", copy, "--json", env=STEPS, out=log, err=log) for log in logs]
            codes = [process.wait() for process in started]
            refused = [log for log, code in zip(logs, codes) if code != 0]
            wrong = [] if codes.count(0) == 1 or set(codes) <= {0, 2} and 0 in codes else [f"they ended with {codes}"]
            for log in refused:
                log.seek(0)
                if "already being trained" not in (said := log.read()):
                    wrong.append(f"one says {said[-200:]!r}")
            if other := difference(copy, reference):
                wrong.append(f"{other} differs")
            # One that comes when all is done says so, and ends with 0 too.
            row.tried(case, wrong, f"{codes.count(0)} of {number} end with 0")


def frozen(context):
    row = context.row("SIGSTOP for 8 s, then SIGCONT")
    with context.place() as place:
        place.chats()
        reference = outputs(reference_of(place))
        launcher = place.start(*place.train(*FLAGS, "--runs-dir", "stopped"), env=STEPS)
        run = wait("step 3", lambda: (run := the_run(place, "stopped")) and 3 in steps_of(run) and run)
        pid = trainer_of(run)
        send(pid, signal.SIGSTOP)
        time.sleep(8)
        send(pid, signal.SIGCONT)
        code, other = launcher.wait(), difference(run, reference)
        row.tried("8 s", [] if code == 0 and not other else [f"exit {code}, {other} differs"])


CLOCK = Path(__file__).with_name("moved_clock.c")
DAY = 86_400
YEARS = {1901: -2_177_452_800, 1970: 0, 2106: 4_294_967_296, 9999: 253_370_764_800}


def clocks(context):
    back = context.row("clock moved in the middle of a run, then `stop`, then resume")
    odd = context.row("clock in 1901, 1970, 2106 and 9999")
    with context.place() as place:
        words = ["cc", "-shared", "-fPIC", "-o", place / "clock.so", CLOCK, "-ldl"]
        if not shutil.which("cc") or subprocess.run(words, capture_output=True).returncode:
            return [row.skip("there is no C compiler for the library that moves the clock") for row in (back, odd)]
        place.chats()
        reference = outputs(reference_of(place))
        moved = place / "moved"
        env = {**STEPS, "LD_PRELOAD": place / "clock.so", "MOVED_CLOCK": moved}
        for name, seconds in {"a day back": -DAY, "a year back": -366 * DAY, "an hour ahead": 3600, "a century ahead": 36525 * DAY}.items():
            if not back.wants(name):
                continue
            moved.write_text("0")
            folder = name.replace(" ", "-")
            launcher = place.start(*place.train(*FLAGS, "--runs-dir", folder), env=env)
            run = wait("step 3", lambda: (run := the_run(place, folder)) and 3 in steps_of(run) and run)
            moved.write_text(str(seconds))
            done = place.run("stop", run, env=env)
            code, last = launcher.wait(), max(steps_of(run))
            wrong = [] if done.code == 0 and code == 5 and last < 10 else [f"stop ends with {done.code}, the run with {code} after step {last}"]
            ended, _ = resumed(place, run, reference, env=env)
            # The library works: within an attempt no event is earlier than the one before, but the next one tells the other time.
            times = {event["attempt"]: event["time_us"] / 1e6 for event in reversed(list(events(run)))}
            if abs(times[2] - times[1] - seconds) > 60:
                wrong.append("the clock was not moved")
            back.tried(name, wrong + ended)
        for year, second in YEARS.items():
            if not odd.wants(str(year)):
                continue
            moved.write_text(str(second - int(time.time())))
            done = place.run(*place.train(*FLAGS, "--runs-dir", str(year)), env=env)
            run = the_run(place, str(year))
            wrong = bounds(done, seconds=60) + ([] if done.code == 0 else [done.short()])
            wrong += [f"{other} differs" for other in [run and difference(run, reference)] if other]
            for words in (["watch", run, "--plain"], ["report", run], ["runs", "--runs-dir", str(year)]):
                done = place.run(*words, env=env)
                wrong += bounds(done) + ([] if done.code == 0 else [f"`{words[0]}`: {done.short()}"])
                wrong += [word for word in [active(done.said)] if word]
            odd.tried(str(year), wrong)
