"""Texts, names and links that somebody has laid, and another user of the machine."""

import json
import os
import shutil
import signal
import subprocess
from html.parser import HTMLParser

from harness import MODEL, NOBODY, STEPS, active, bounds, is_root, refusal, send, steps_of, the_run, trainer_of, wait

SHELL = "$(touch owned)`touch owned`'; touch owned; '"
HTML = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><a href=javascript:alert(1)>"
NASTY = {
    "escapes": "\x1b[2J\x1b]0;owned\x07\x1b[31m",
    "C1": "\x9b2J\x90q\x9c",
    "bidi": "\u202eabc\u2066\u200b\u200f",
    "line ends": "a\r\nb\u2028c\x0bd",
    "a bell and NUL": "\x07\x00",
    "HTML": HTML,
    "shell": SHELL,
    "a path": "../../../../owned",
    "a long text": "a" * 5000,
    "formats": "%s%n{0}{{ 7*7 }}{% for %}",
}
# A file's name has no NUL, is not a path, and is not long.
NAMES = {name: text.replace("\0", "").replace("/", "∕")[:200] for name, text in NASTY.items()}
NAMES["flag"] = "--help"


class Markup(HTMLParser):
    """Notes what of a page could act: attributes with handlers, and scripts with our words."""

    def __init__(self):
        super().__init__()
        self.found, self.script = [], False

    def handle_starttag(self, tag, attributes):
        self.script = tag == "script"
        for key, value in attributes:
            if key.startswith("on") or "javascript:" in (value or "") or (key == "src" and value == "x"):
                self.found.append(f"<{tag} {key}={value!r}>")

    def handle_endtag(self, _):
        self.script = False

    def handle_data(self, data):
        # In a script, text of ours may stand only as a value of JSON, without its own tag's end.
        if self.script and "<script>alert" in data.replace("\\u003c", ""):
            self.found.append("a script with our tag")


def judged(place, done, *names):
    wrong = refusal(done, *names, codes=(2, 3, 4, 5), seconds=30) if names else bounds(done, seconds=30)
    wrong += [word for word in [active(done.said)] if word and word not in wrong]
    if any(path.name == "owned" for path in place.outer.rglob("*")):
        wrong.append("a text was run: there is a file `owned`")
    return wrong


def text(context):
    row = context.row("hostile text and names: data, models, runs, hub ids")
    for kind, word in NASTY.items():
        for case, attack in TEXTS.items():
            if row.wants(f"{case}: {kind}"):
                with context.place() as place:
                    place.chats(20)
                    row.tried(f"{case}: {kind}", attack(place, word, NAMES[kind]))


def in_data(place, word, _):
    lines = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word}]},
        {"messages": [{"role": word, "content": "a"}, {"role": "assistant", "content": "b"}]},
        {word: word}, {"text": word}, {"prompt": word, "completion": word, word: [word]}, {"messages": word}, word,
    ]  # fmt: skip
    place.write("in.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + f"not JSON {word}\n".replace("\0", ""))
    wrong = []
    for more in ([], ["--model", MODEL], ["--model", MODEL, "--show", "9"], ["--model", MODEL, "--find", word.replace("\0", "")], ["--json"]):
        wrong += judged(place, place.run("check", "in.jsonl", *more), "in.jsonl")
    return wrong


def in_a_file_name(place, _, name):
    path = place.write(f"{name}.jsonl", json.dumps({"text": "a"}) + "\n{\n")
    wrong = judged(place, place.run("check", "--", path.name))
    wrong += judged(place, place.run("check", f"./{path.name}", "--model", MODEL))
    return wrong + judged(place, place.run("check", f"./not-{path.name}"))


def in_a_model(place, word, name):
    """Its name, its config, its tokenizer and its template."""
    wrong = []
    model = place.model(name=f"m-{name}")
    wrong += judged(place, place.run("plan", "--model", model, "--data", "train.jsonl", "--explain"))
    config = json.loads((MODEL / "config.json").read_bytes())
    tokenizer = json.loads((MODEL / "tokenizer_config.json").read_bytes())
    for files in (
        {"config__json": json.dumps({**config, "model_type": word, "architectures": [word]})},
        {"config__json": json.dumps({**config, "quantization_config": {"quant_method": word}})},
        {"config__json": json.dumps(config), "tokenizer_config__json": json.dumps({**tokenizer, "eos_token": word})},
        {"tokenizer_config__json": json.dumps(tokenizer), "chat_template__jinja": "{{ raise_exception(" + json.dumps(word) + ") }}"},
    ):
        place.model(name=f"m-{name}", **files)
        wrong += judged(place, place.run("plan", "--model", model, "--data", "train.jsonl"))
        wrong += judged(place, place.run("check", "train.jsonl", "--model", model))
    return wrong


def in_a_run(place, word, _):
    """Its name, its data and its prompts, through the training, the lists and the report."""
    plain = word.replace("\0", "")
    line = {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word}]}
    place.write("train.jsonl", (place / "train.jsonl").read_text() + json.dumps(line) + "\n")
    words = place.train("--max-steps", "2", "--max-rejected", "0.5", "--sample-prompt=" + plain)
    wrong = judged(place, place.run(*words, "--name=" + plain, env=STEPS))
    if the_run(place) is None:
        # The name is refused, and what is left is not.
        wrong += judged(place, place.run(*words, env=STEPS))
    run = the_run(place)
    return wrong + (looked_at(place, run) if run else ["there is no run"])


def looked_at(place, run):
    wrong = []
    for words in (["runs"], ["runs", "--matching", "a"], ["watch", run, "--plain"], ["report", run], ["export", run]):
        wrong += judged(place, place.run(*words))
    if (run / "report.html").is_file():
        page = Markup()
        page.feed((run / "report.html").read_text())
        wrong += [f"the report has {found}" for found in page.found]
    return wrong


def in_the_files_of_a_run(place, word, name):
    """What somebody who can write into a run's folder can make others see."""
    place.run(*place.train("--max-steps", "2"), env=STEPS)
    run = the_run(place)
    path = run / "events/0001.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.update({key: word for key, value in line.items() if isinstance(value, str) and key not in ("kind", "outcome")})
    extra = {"v": 1, "attempt": 1, "seq": len(lines), "time_us": lines[-1]["time_us"], "kind": "warning", "message": word}
    lines.insert(-1, extra)
    lines[-1]["seq"] = len(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "provenance.json").write_text(json.dumps({key: word for key in json.loads((run / "provenance.json").read_text())}))
    (run / "control" / f"{name}.json").write_text(word)
    renamed = run.with_name(f"20990101T000000Z-{name}")
    run.rename(renamed)
    return looked_at(place, renamed)


def in_an_id(place, word, _):
    wrong, plain = [], word.replace("\0", "")
    for words in (
        ["plan", "--data", "train.jsonl", "--model=" + plain], ["plan", "--data", "train.jsonl", "--model=org/" + plain],
        ["plan", "--data", "train.jsonl", "--model=org/m@" + plain], ["check", "--", "hf:" + plain], ["check", "hf:org/d/" + plain],
        ["watch", "--", plain], ["report", "--", "runs/" + plain], ["runs", "delete", "--yes", "--", plain], ["export", "--", plain],
        ["plan", "--model", MODEL, "--data", "train.jsonl", "--preset=" + plain], ["check", "ndp://" + plain], ["generate", "--prompt", "a", "--", plain],
    ):  # fmt: skip
        done = place.run(*words)
        wrong += judged(place, done)
        if done.code == 0 and words[0] != "plan":
            wrong.append(f"{words[0]} accepts it")
    return wrong


TEXTS = {
    "data": in_data,
    "name of a file": in_a_file_name,
    "model": in_a_model,
    "run": in_a_run,
    "files of a run": in_the_files_of_a_run,
    "id": in_an_id,
}


# Enough steps for the run's speed to be kept beside it.
LONG, ONE = ["--max-steps", "6", "--epochs", "99"], {"SPARKTUNE_GRAD_ACCUM_STEPS": 1}


def links(context):
    row = context.row("links, FIFOs and folders laid in the folder of runs")
    with context.place() as place:
        place.chats()
        place.run(*place.train(*LONG), env=ONE)
        beside = sorted(name for name in os.listdir(place / "runs") if name != the_run(place).name)
        (place / "foreign").mkdir()
        print(f"    beside the runs: {', '.join(beside)}", flush=True)
        for name in sorted({*beside, "rates.toml", ".tiles", ".self-tests", ".new-x", "latest"}):
            for what, make in LAID.items():
                if not row.wants(f"{name} as {what}"):
                    continue
                shutil.rmtree(place / "runs")
                (place / "runs").mkdir()
                (place / "foreign/file").write_text("mine")
                make(place / "runs" / name, place / "foreign")
                done = place.run(*place.train(*LONG), env=ONE, seconds=60)
                listed, cleaned = place.run("runs", seconds=30), place.run("runs", "clean", "--yes", seconds=30)
                wrong = refusal(done, name, seconds=30) + bounds(listed) + bounds(cleaned)
                if sorted(os.listdir(place / "foreign")) != ["file"] or (place / "foreign/file").read_text() != "mine":
                    wrong.append(f"the foreign folder has {os.listdir(place / 'foreign')}")
                    shutil.rmtree(place / "foreign")
                    (place / "foreign").mkdir()
                row.tried(f"{name} as {what}", wrong, "trained" if done.code == 0 else "refused in words")


LAID = {
    "a link to a foreign folder": lambda path, foreign: path.symlink_to(foreign),
    "a link to a foreign file": lambda path, foreign: path.symlink_to(foreign / "file"),
    "a link to itself": lambda path, foreign: path.symlink_to(path),
    "a FIFO": lambda path, foreign: os.mkfifo(path),
}


def other_user(context):
    row = context.row("another user (nobody) on a run folder, and in a shared folder of runs")
    if not is_root():
        return row.skip("only root can be another user")
    with context.place() as place:
        shutil.copy(place.program, place / "sparktune")
        place.program = str(place / "sparktune")
        place.chats()
        place.model()
        theirs = place / "theirs"
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
        launcher = place.start(*place.train("--max-steps", "100000", "--epochs", "9999"), env=STEPS)
        run = wait("step 3", lambda: (run := the_run(place)) and 3 in steps_of(run) and run)
        (place / "runs").chmod(0o755)
        as_nobody = {"user": NOBODY, "cwd": theirs, "env": {"HOME": theirs}}
        for words in (
            ["watch", run, "--plain"], ["report", run, "--output", "report.html"], ["stop", run, "--no-wait"], ["resume", run], ["export", run],
            ["runs", "delete", "--yes", run], ["verify", run / "data/train.qubgpu"], ["trainer", run],
            ["train", "--from", run, "--data", place / "train.jsonl", "--non-interactive"],
        ):  # fmt: skip
            done = place.run(*words, **as_nobody)
            wrong = refusal(done, run.name, "train.qubgpu") + (["is allowed"] if done.code == 0 else [])
            row.tried(words[0], wrong, "refused in words")
        row.tried("runs", refusal(place.run("runs", "--runs-dir", place / "runs", **as_nobody), run.name))
        for path in [run / "plan.toml", run / "events/0001.jsonl", run / "control", place / "runs/.tokens"]:
            reads = subprocess.run(["cat" if path.is_file() else "ls", path], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
            row.tried(f"read {path.name}", [] if reads.returncode else ["can be read"])
        writes = subprocess.run(["touch", run / "control/stop-x.json"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
        row.tried("write a request", [] if writes.returncode else ["can be written"])
        lives = trainer_of(run) is not None
        row.tried("the trainer goes on", [] if lives else ["it has ended"])
        send(launcher.pid, signal.SIGTERM)
        row.tried("its owner stops it", [] if launcher.wait() == 5 else ["it did not stop"])
        shared(place, row, as_nobody)


def shared(place, row, as_nobody):
    """A folder that all may write to, where nobody has laid links and caches before root trains there."""
    folder = place / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    secret = place / "secret"
    secret.mkdir(mode=0o700)
    (secret / "file").write_text("secret")
    for name in ["rates.toml", ".tokens", ".tiles", ".self-tests", ".compiled-kernels", "20990101T000000Z-latest-lora-0001"]:
        target = secret / "file" if name == "rates.toml" else secret
        subprocess.run(["ln", "-s", target, folder / name], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
    done = place.run(*place.train(*LONG, "--runs-dir", "shared"), env=ONE)
    wrong = refusal(done, "shared", seconds=30)
    if os.listdir(secret) != ["file"] or (secret / "file").read_text() != "secret":
        wrong.append("a link of another user was followed")
    row.tried("links of another user in a shared folder", wrong, f"exit {done.code}")
    for name in os.listdir(folder):
        if name.startswith(".") or name.startswith("2099") or name == "rates.toml":
            (folder / name).unlink() if (folder / name).is_symlink() else None
    words = place.train("--max-steps", "2", "--runs-dir", ".", data=place / "train.jsonl")
    done = place.run(*words, **{**as_nobody, "cwd": folder, "env": {**STEPS, "HOME": place / "theirs"}})
    row.tried("another user trains in the shared folder", bounds(done, 30) + ([] if done.code == 0 else [done.short()]))
    done = place.run("runs", "--runs-dir", "shared")
    row.tried("the list of both", bounds(done) + ([] if done.code == 0 else [done.short()]))
    mine = next(path for path in folder.iterdir() if (path / "events").is_dir() and path.stat().st_uid == 0)
    done = place.run("runs", "delete", "--yes", mine, **as_nobody)
    row.tried("another user deletes a run", refusal(done, mine.name) + (["is allowed"] if done.code == 0 or not mine.is_dir() else []))
