"""Edits of 1, 10, 100 and 1,000 facts of the small world in tests/fixtures/facts, by all methods, judged by what the model writes.

    python tests/peers/facts.py SPARKTUNE                           the whole table, into tests/fixtures/facts/RESULTS.md
    python tests/peers/facts.py SPARKTUNE --train                   trains the model anew first, and says how long that took
    python tests/peers/facts.py SPARKTUNE --methods memit --facts 100 --output FILE.md

Needs Python 3.11 alone, and for --train tokenizers and numpy (see tests/fixtures/generate/facts.py). `SPARKTUNE` is the program.

Each edit goes into a folder of its own and is kept with --force, so that the figures of edits that would be refused are there too. A row of one
fact is the sum of ten edits of one fact each. The time is that of the whole command, which loads the model, asks it, edits it and asks it again;
the covariance of the text is computed before, once for each layer. A row is written as soon as it is known.
"""

import argparse
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORLD = ROOT / "tests/fixtures/facts"
MAKER = ROOT / "tests/fixtures/generate/facts.py"
SINGLE = 10
# In layers 1 and 2 of this model, changes hardly move an answer; RESULTS.md has the figures.
LAYERS = {"memit": 0, "rome": 0}
ASPECTS = ["efficacy", "generalisation", "locality", "portability"]
# The model first reads text, from which it learns how things are said, and then answers prompts, of which only the answers are trained, five times
# over with a little text. Both learning rates fall along a cosine.
TRAINING = [
    "--method", "full", "--mtp", "none", "--min-lr-ratio", "0.02", "--warmup-ratio", "0.02", "--beta2", "0.98", "--weight-decay", "0.05",
    "--pack-length", "512", "--grad-accum-steps", "1", "--eval-fraction", "0", "--sample-count", "0", "--save-steps", "250", "--device", "cpu",
    "--export", "last", "--non-interactive", "--plain",
]  # fmt: skip
TEXT_DOCUMENTS, TEXT_STEPS, TEXT_RATE = 50_000, 800, "3e-3"
QUESTION_EPOCHS, QUESTION_RATE, DOCUMENTS_AMONG_QUESTIONS = 5, "2e-3", 1000


def wilson(hits, of):
    z = 1.959964
    share, square = hits / of, z * z / of
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return middle - half, middle + half


def share(hits, of):
    if not of:
        return "–"
    low, high = wilson(hits, of)
    return f"{100 * hits / of:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def timed(command, stdout=subprocess.PIPE):
    """Runs a command and returns its output, wall time and the processor time of its children."""
    start, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], stdout=stdout, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done, time.time() - start, processor


class Bench:
    def __init__(self, program, model, folder, answers):
        self.program, self.model, self.folder, self.answers = program, model, Path(folder), answers

    def edit(self, lines, method, label):
        """One edit, and what came of it."""
        facts, out = self.folder / "facts.jsonl", self.folder / "out"
        facts.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [self.program, "edit", self.model, "--facts", facts, "--method", method, "--text", WORLD / "text.jsonl"]
        command += ["-o", out, "--force", "--json", "--runs-dir", self.folder / "runs"]
        if method in LAYERS:
            command += ["--layer", LAYERS[method]]
        done, wall, processor = timed(command)
        shutil.rmtree(out, ignore_errors=True)
        if done.returncode:
            sys.exit(f"{label}: exit code {done.returncode}")
        if self.answers:
            (self.answers / f"{label}.json").write_text(done.stdout, encoding="utf-8")
        return json.loads(done.stdout), wall, processor

    def row(self, lines, method, count):
        groups = [[line] for line in lines[:SINGLE]] if count == 1 else [lines[:count]]
        label = "rome" if method == "rome" else method
        if count == 1:
            self.edit(groups[0], method, "warm")  # the covariance
        sums, drifts, walls, processors = {aspect: [0, 0] for aspect in ASPECTS}, [], [], []
        for number, group in enumerate(groups):
            edited, wall, processor = self.edit(group, method, f"{label}-{count}-{number}")
            scores = edited["scores"]
            for aspect in ASPECTS:
                if scores[aspect]:
                    sums[aspect][0] += scores[aspect]["hits"]
                    sums[aspect][1] += scores[aspect]["of"]
            drifts.append(scores["loss"])
            walls.append(wall)
            processors.append(processor)
        if count == 1:
            values = sorted(loss["drift"] for loss in drifts)
            drift = f"{100 * sum(values) / len(values):+.2f} % (most {100 * values[-1]:+.2f})"
        else:
            low, high = drifts[0]["interval"]
            drift = f"{100 * drifts[0]['drift']:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})"
        times = f"{sum(walls) / len(walls):.1f} | {sum(processors) / len(processors):.1f}"
        name = f"{count:,}" if count > 1 else f"1 (of {SINGLE})"
        return f"| {method} | {name} | " + " | ".join(share(*sums[aspect]) for aspect in ASPECTS) + f" | {drift} | {times} |"


def train(program, folder):
    """Trains the model anew; the result is written over tests/fixtures/facts/model."""
    maker = [sys.executable, MAKER]
    text, questions, some = (folder / name for name in ["text.jsonl", "questions.jsonl", "some.jsonl"])
    subprocess.run([*maker, "init", folder / "random"], check=True)
    subprocess.run([*maker, "pretraining", text, "--documents", str(TEXT_DOCUMENTS)], check=True)
    subprocess.run([*maker, "questions", questions], check=True)
    subprocess.run([*maker, "edits", WORLD], check=True)
    documents = text.read_text(encoding="utf-8").splitlines()[:DOCUMENTS_AMONG_QUESTIONS]
    some.write_text("\n".join(documents) + "\n", encoding="utf-8")

    def run(name, model, data, *more):
        runs = folder / name
        command = [program, "train", "--model", model, *data, *TRAINING, *more, "--runs-dir", runs, "--name", name]
        done, wall, _ = timed(command, stdout=sys.stderr)
        outputs = list(runs.glob("*/outputs/merged"))
        if done.returncode or len(outputs) != 1:
            sys.exit(f"the training `{name}` ended with exit code {done.returncode}")
        print(f"{name}: {wall / 60:.1f} minutes")
        return outputs[0]

    read = run("text", folder / "random", ["--data", text], "--learning-rate", TEXT_RATE, "--max-steps", str(TEXT_STEPS))
    data = ["--data", questions, "--data", some]
    asked = run("questions", read, data, "--learning-rate", QUESTION_RATE, "--epochs", str(QUESTION_EPOCHS))
    for file in asked.iterdir():
        shutil.copyfile(file, WORLD / "model" / file.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--train", action="store_true", help="train the model anew first")
    parser.add_argument("--model", type=Path, default=WORLD / "model")
    parser.add_argument("--methods", default="memit,rome,memory,ultraedit")
    parser.add_argument("--facts", default="1,10,100,1000")
    parser.add_argument("--output", type=Path, default=WORLD / "RESULTS.md")
    parser.add_argument("--answers", type=Path, help="a folder for all answers, which `generate/facts.py known` reads")
    arguments = parser.parse_args()
    lines = (WORLD / "facts.jsonl").read_text(encoding="utf-8").splitlines()
    if arguments.answers:
        arguments.answers.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.train:
            train(arguments.program, Path(folder))
        bench = Bench(arguments.program, arguments.model, folder, arguments.answers)
        version = subprocess.run([arguments.program, "--version"], capture_output=True, text=True).stdout.strip()
        head = f"## {date.today()}, {version}, {os.cpu_count()} cores ({platform.machine()})\n\n"
        head += "| method | facts | " + " | ".join(ASPECTS) + " | loss | s | of a core |\n|" + "---|" * 9 + "\n"
        with arguments.output.open("a", encoding="utf-8") as file:
            print(head, end="", file=file, flush=True)
            for method in arguments.methods.split(","):
                for count in arguments.facts.split(","):
                    row = bench.row(lines, method, int(count))
                    print(row)
                    print(row, file=file, flush=True)
            print(file=file)


if __name__ == "__main__":
    main()
