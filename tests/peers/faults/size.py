"""What grows: the memory of a long run with watchers, a log of a million steps, a folder of ten thousand runs."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from harness import DEMO, STEPS, bounds, steps_of, the_run, trainer_of, wait

STEPS_OF_SLOPE, WATCHERS = 1_200, 5


def slope(context):
    """A straight line through the memory at each step after the first quarter."""
    row = context.row(f"memory over {STEPS_OF_SLOPE:,} steps of the demo's model, with {WATCHERS} watchers")
    with context.place() as place:
        words = ["train", "--non-interactive", "--json", "--device", "cpu", "--model", DEMO / "model", "--data", DEMO / "train.jsonl"]
        words += ["--rank", "8", "--pack-length", "256", "--mtp", "none", "--epochs", "999", "--max-steps", str(STEPS_OF_SLOPE)]
        launcher = place.start(*words, env={"SPARKTUNE_GRAD_ACCUM_STEPS": 1, "SPARKTUNE_EVAL_EVERY_STEPS": 400, "SPARKTUNE_SAMPLE_COUNT": 1})
        run = wait("a step", lambda: (run := the_run(place)) and steps_of(run) and run)
        logs = [open(place / f"watch-{number}", "w") for number in range(WATCHERS)]
        watching = [place.start("watch", run, "--json", out=log) for log in logs]
        log, size, step, samples, counts = run / "events/0001.jsonl", 0, 0, [], set()
        while launcher.poll() is None and (pid := trainer_of(run)):
            # Only what is new is read, so that a look costs the same at every step.
            with open(log, "rb") as file:
                file.seek(size)
                new = file.read()
            size += new.rfind(b"\n") + 1
            found = re.findall(rb'"kind":"step","step":(\d+)', new)
            step = int(found[-1]) if found else step
            try:
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                counts.add((len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))))
            except OSError:
                break
            samples.append((step, resident))
            time.sleep(0.1)
        code = launcher.wait()
        codes = [process.wait() for process in watching]
        late = [sample for sample in samples if STEPS_OF_SLOPE / 4 <= sample[0] < STEPS_OF_SLOPE]
        mean_step, mean = (sum(column) / len(late) for column in zip(*late))
        bytes_per_step = sum((s - mean_step) * (r - mean) for s, r in late) / sum((s - mean_step) ** 2 for s, _ in late)
        lengths = {path.stat().st_size for path in place.path.glob("watch-*")}
        fds, threads = zip(*counts)
        (first, begin), (last, end) = late[0], late[-1]
        outcome = f"{bytes_per_step / 1024:.1f} KiB a step from step {first:,} to {last:,}, {begin / 1e6:.0f} → {end / 1e6:.0f} MB, "
        outcome += f"{len(late)} samples, {min(fds)}–{max(fds)} files, {min(threads)}–{max(threads)} threads"
        # The memory rises and falls. What leaks is never again as low as it was once.
        quarter = len(late) // 4
        leaks = bytes_per_step > 1024 and min(r for _, r in late[-quarter:]) > max(r for _, r in late[:quarter])
        wrong = [f"exit {code}, {outcome}"] if code != 0 or leaks or max(fds) >= 40 else []
        row.tried("slope", wrong, outcome)
        are_equal = codes == [0] * WATCHERS and len(lengths) == 1
        row.tried("watchers", [] if are_equal else [f"they ended with {codes} and {lengths} bytes"], f"output of {lengths} bytes")


def finished_run(place):
    place.chats()
    place.run(*place.train("--max-steps", "6", "--save-steps", "6"), env=STEPS)
    return the_run(place)


def opened(row, place, case, words, memory, seconds):
    """Runs a command and notes its time and memory, and the bytes that a list read, where there is `strace`."""
    done = place.run(*words, seconds=600)
    read = ""
    if words == ["runs"] and shutil.which("strace"):
        log = place / "strace"
        command = ["strace", "-f", "-qq", "-e", "trace=read,pread64,readv,preadv", "-o", str(log), place.program, *map(str, words)]
        subprocess.run(command, cwd=place.path, env=place.environment(None), stdin=subprocess.DEVNULL, capture_output=True)
        counts = re.findall(r" = (\d+)$", log.read_text(errors="replace"), flags=re.M)
        read = f", {sum(map(int, counts)) / 1e6:.1f} MB read"
    wrong = bounds(done, seconds, memory) + ([] if done.code == 0 else [done.short()])
    row.tried(case, wrong, f"{case}: {done.wall_s:.2f} s ({done.processor_s:.2f} s of processor time), {done.memory / 1e6:.0f} MB{read}")


def long_log(context):
    row = context.row("a log of 1,000,000 steps")
    with context.place() as place:
        run = finished_run(place)
        log = run / "events/0001.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        first = next(number for number, line in enumerate(lines) if line["kind"] == "step")
        last = max(number for number, line in enumerate(lines) if line["kind"] == "step")
        step, seq, count = lines[last], first, int(1_000_000 * context.scale)
        compact = lambda event: json.dumps(event, separators=(",", ":")) + "\n"
        with open(log, "w") as file:
            head = [{**line, "total_steps": count} if "total_steps" in line else line for line in lines[:first]]
            file.write("".join(map(compact, head)))
            for number in range(1, count + 1):
                seq += 1
                step.update(seq=seq, step=number, time_us=lines[first]["time_us"] + number * 1000, loss_nats=1 + 1 / number + number % 7 / 99)
                file.write(compact(step))
            for line in lines[last + 1 :]:
                seq += 1
                # What comes after the steps comes after the last of them.
                file.write(compact({**line, "seq": seq, "time_us": lines[first]["time_us"] + count * 1000, **({"step": count} if "step" in line else {})}))
        print(f"    {log.stat().st_size / 2**20:.0f} MiB", flush=True)
        opened(row, place, "runs", ["runs"], 128 << 20, 5)
        opened(row, place, "report", ["report", run], 256 << 20, 30)
        opened(row, place, "watch --plain", ["watch", run, "--plain"], 128 << 20, 60)


def many_runs(context):
    row = context.row("10,000 runs")
    with context.place() as place:
        run = finished_run(place)
        plan, log = (run / "plan.toml").read_bytes(), (run / "events/0001.jsonl").read_bytes()
        for number in range(int(10_000 * context.scale)):
            folder = place / f"runs/202601{number % 28 + 1:02}T{number // 3600:02}{number // 60 % 60:02}{number % 60:02}Z-many-lora-{number:04x}"
            for part in ("events", "control", "data", "checkpoints", "logs", "outputs"):
                (folder / part).mkdir(parents=True)
            (folder / "plan.toml").write_bytes(plan)
            (folder / "events/0001.jsonl").write_bytes(log)
        opened(row, place, "runs", ["runs"], 128 << 20, 1)
        opened(row, place, "runs, again", ["runs"], 128 << 20, 1)
        opened(row, place, "runs --json", ["runs", "--json"], 256 << 20, 30)
        opened(row, place, "runs --all", ["runs", "--all"], 256 << 20, 30)
        opened(row, place, "watch latest --plain", ["watch", "latest", "--plain"], 128 << 20, 1)
