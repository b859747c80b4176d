"""A place to run the program in, what a command did, and the rows of the table."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
FIXTURE = TREE / "tests/fixtures/qwen35"
MODEL = FIXTURE / "checkpoint"
DEMO = TREE / "presets/demo"
GB = 1 << 30
NOBODY = 65_534
# Exit codes of a program that has read something bad and says so. Not in it: 70, a bug; and signals.
REFUSALS = (2, 3, 4)
# What a terminal, a browser or a reader of a log must never get from a file of a stranger.
ACTIVE = {*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF} - {0x0A}


@dataclass
class Done:
    """What a command did. The memory is that of its largest process, the processor time that of all."""

    code: int
    out: str
    err: str
    wall_s: float
    processor_s: float
    memory: int

    @property
    def said(self):
        return self.out + self.err

    def last(self):
        """The last line of the output, which is JSON."""
        return json.loads(self.out.splitlines()[-1])

    def short(self):
        return f"exit {self.code}: {ascii(self.said.strip()[-300:])}"


class Place:
    """A working directory and home of its own; every process in it ends with it."""

    def __init__(self, program, folder=None):
        self.outer = Path(tempfile.mkdtemp(prefix="sparktune-faults-", dir=folder))
        self.outer.chmod(0o755)
        self.path = self.outer / "place"
        self.path.mkdir()
        self.program = str(program)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in processes_in(self.path):
            send(pid, signal.SIGKILL)
        for _ in range(3):
            shutil.rmtree(self.outer, ignore_errors=True)

    def __truediv__(self, name):
        return self.path / name

    def write(self, name, content):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def chats(self, count=40, name="train.jsonl"):
        return self.write(name, "".join(json.dumps(chat(i)) + "\n" for i in range(count)))

    def model(self, source=MODEL, name="model", **files):
        """A copy of a model with other contents in some of its files; their names have `__` for a dot."""
        folder = self.path / name
        if not folder.exists():
            shutil.copytree(source, folder)
        for key, content in files.items():
            self.write(f"{name}/{key.replace('__', '.')}", content)
        return folder

    def environment(self, more):
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKTUNE_", "HF_", "XDG_")) and not k.lower().endswith("_proxy")}
        return {**plain, "HOME": str(self.path), "HF_HUB_OFFLINE": "1", **{k: str(v) for k, v in (more or {}).items()}}

    def start(self, *words, env=None, user=None, out=subprocess.DEVNULL, err=subprocess.DEVNULL, cwd=None):
        as_user = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        words = [self.program, *map(str, words)]
        process = subprocess.Popen(
            words, cwd=cwd or self.path, env=self.environment(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True, **as_user,
        )  # fmt: skip
        # The machine is not to suffer with the program; the limits of another user's process may not be set.
        if user is None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (8 * GB, 8 * GB))
        return process

    def run(self, *words, seconds=120, **how):
        """Runs a command to its end, for so many seconds at most: then it is killed, which its code says."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(*words, out=out, err=err, **how)
            return ended(process, out, err, seconds)

    def train(self, *more, model=MODEL, data="train.jsonl"):
        """The words of a short training; its steps take long enough to be met."""
        return [
            "train", "--non-interactive", "--json", "--device", "cpu", "--model", model, "--data", data,
            "--pack-length", "128", "--mtp", "none", *([] if "full" in more else ["--rank", "4"]), *more,
        ]  # fmt: skip


STEPS = {"SPARKTUNE_GRAD_ACCUM_STEPS": 20, "SPARKTUNE_SAMPLE_COUNT": 1, "SPARKTUNE_SAMPLE_MAX_TOKENS": 8}


def ended(process, out, err, seconds):
    begun = time.monotonic()
    timer = threading.Timer(seconds, lambda: send(process.pid, signal.SIGKILL))
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read(4 << 20).decode(errors="surrogateescape"))
    return Done(
        process.returncode, *texts, time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
    )


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def processes_in(folder):
    """The processes that work in a folder, which are ours."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(link).startswith(str(folder)):
                found.append(int(link.parent.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


def wait(what, seen, seconds=120):
    """Waits until `seen()` gives something, and returns it."""
    until = time.monotonic() + seconds
    while not (found := seen()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.002)
    return found


def chat(i):
    words = ["river", "stone", "cloud", "lamp", "bread", "glass", "north", "seven"]
    one, two, three = (words[(i * 5 + n * 3 + i // 8) % len(words)] for n in range(3))
    answer = f"{one} {two} {three}, number {i}." * (1 + i % 3)
    return {"messages": [{"role": "user", "content": f"Say {one} and {two} {i}."}, {"role": "assistant", "content": answer}]}


def the_run(place, runs="runs"):
    """The only run in the folder of runs, if there is one."""
    root = place / runs
    names = os.listdir(root) if root.is_dir() else []
    found = [root / name for name in names if not name.startswith(".") and (root / name / "events").is_dir()]
    return found[0] if found else None


def events(run):
    for path in sorted((run / "events").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                yield json.loads(line)
            except ValueError:
                pass


def steps_of(run):
    return [event["step"] for event in events(run) if event["kind"] == "step"]


def trainer_of(run):
    """The process that trains a run, if it is there."""
    try:
        pid = json.loads((run / "lease.lock").read_bytes())["pid"]
        return pid if run.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError):
        return None


def outputs(run):
    """The bytes of all files that a run has written in the end. One of them has the run's name."""
    found = {}
    for path in sorted((run / "outputs").rglob("*")):
        if path.is_file():
            found[str(path.relative_to(run))] = path.read_bytes().replace(run.name.encode(), b"RUN")
    return found


def difference(run, reference):
    """The first file in which two runs' outputs differ, or `None`. `reference` is what `outputs` said."""
    ours = outputs(run)
    names = [name for name in sorted({*ours, *reference}) if ours.get(name) != reference.get(name)]
    return names[0] if names else None


def active(text):
    """The first character of a text that does something, as a word, or `None`."""
    found = [char for char in text if ord(char) in ACTIVE or 0xD800 <= ord(char) < 0xE000]
    return f"U+{ord(found[0]):04X} in the output: {ascii(text[max(0, text.index(found[0]) - 60):][:120])}" if found else None


def bounds(done, seconds=10, memory=2 * GB):
    """What is wrong with the end of a command, its time or its memory."""
    wrong = []
    if done.code < 0 or done.code in (70, 101):
        wrong.append(done.short())
    if done.processor_s > seconds:
        wrong.append(f"took {done.processor_s:.1f} s of processor time")
    if done.memory > memory:
        wrong.append(f"took {done.memory / 1e9:.1f} GB")
    return wrong


def refusal(done, *names, codes=REFUSALS, **limits):
    """What is wrong with a command that read bad bytes: it has to go on, or to name one of these files in words."""
    wrong = bounds(done, **limits)
    if not wrong and done.code not in (0, *codes):
        wrong.append(done.short())
    if not wrong and done.code != 0 and not any(name in done.said for name in names):
        wrong.append(f"does not name {names[0]}: {done.short()}")
    return wrong + [word for word in [active(done.said)] if word]


class Row:
    """A row of the table: what was tried, and what failed, with the words that try it again."""

    def __init__(self, context, what):
        self.context, self.what = context, what
        self.tries, self.failures, self.counts, self.skipped = 0, [], Counter(), None
        self.most = {"s of processor time": 0.0, "MB": 0.0}
        context.rows.append(self)

    def wants(self, case):
        return self.context.only in case

    def random(self, case):
        return random.Random(f"{self.context.seed} {self.what} {case}")

    def skip(self, why):
        self.skipped = why
        print(f"{self.what}: skipped: {why}", flush=True)

    def tried(self, case, wrong, outcome=None, done=None, keep=()):
        """Notes a case. `wrong` is a list of sentences, empty if all is well; `keep` are files to look at then."""
        self.tries += 1
        if outcome:
            self.counts[outcome] += 1
        if done:
            self.most["s of processor time"] = max(self.most["s of processor time"], done.processor_s)
            self.most["MB"] = max(self.most["MB"], done.memory / 1e6)
        if wrong:
            again = f"`{self.context.part} --seed {self.context.seed} --only '{case}'`"
            self.failures.append(f"{self.what}: {case}: {'; '.join(wrong)}. Again: {again}")
            print("FAILED", self.failures[-1], flush=True)
            for path in keep:
                kept = self.context.kept / f"{len(self.failures)}-{case.replace('/', '-').replace(' ', '-')[:60]}-{path.name}"
                self.context.kept.mkdir(parents=True, exist_ok=True)
                if path.is_file():
                    shutil.copy(path, kept)
        elif self.tries % 50 == 0:
            print(f"{self.what}: {self.tries} tried, {len(self.failures)} failed", flush=True)

    def line(self):
        if self.skipped:
            return f"| {self.what} | – | skipped: {self.skipped} |"
        words = [f"{count} {outcome}" for outcome, count in self.counts.most_common()]
        if self.most["MB"]:
            words.append(f"at most {self.most['s of processor time']:.1f} s of processor time and {self.most['MB']:,.0f} MB")
        return f"| {self.what} | {self.tries:,} | {len(self.failures)}{' (' + '; '.join(words) + ')' if words else ''} |"


class Context:
    def __init__(self, program, seed, only, scale, kept):
        self.program, self.seed, self.only, self.scale, self.kept = program, seed, only, scale, kept
        self.rows, self.part = [], ""

    def place(self, folder=None):
        return Place(self.program, folder)

    def row(self, what):
        return Row(self, what)


def is_root():
    return os.geteuid() == 0


def small_disk(at, kibibytes):
    """Mounts a file system of this size; says whether that is permitted."""
    at.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k,mode=0755", "tmpfs", str(at)]
    return subprocess.run(words, capture_output=True).returncode == 0


def unmount(at):
    subprocess.run(["umount", "-l", str(at)], capture_output=True)
