"""Edits of 1, 10, 100 and 1,000 facts of the small world in tests/fixtures/facts, by all methods, judged by what the model writes.

    python tests/peers/facts.py SPARKTUNE                           the whole table
    python tests/peers/facts.py SPARKTUNE --train                   trains the model anew first, and says how long that took
    python tests/peers/facts.py SPARKTUNE --methods memit --facts 100 --minutes 10

Needs Python 3.11 alone, and for --train tokenizers and numpy (see tests/fixtures/generate/facts.py). `SPARKTUNE` is the program.

Each row is one of `sparktune edit --measure N`: the first N facts at once, and one patch after the other. The controls, LoRA and the fact in the
prompt, are measured with the first method. The general suite asks for the facts of 100 people that no edit names. The table is added to tests/fixtures/facts/RESULTS.md, and the rows as the program printed them
are written to src/paper/measured/edits.json, of which the white paper makes a chapter; both after each row, so that an end after --minutes
leaves what is known by then.
"""

import argparse
import json
import os
import platform
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
PAPER = ROOT / "src/paper/measured/edits.json"
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


def percent(value):
    return f"{100 * value:.1f}"


def share(found):
    if not found:
        return "–"
    return f"{percent(found['value'])} % ({percent(found['low'])}–{percent(found['high'])})"


def drift(loss):
    if not loss:
        return "–"
    low, high = loss["interval"] or (loss["drift"], loss["drift"])
    return f"{100 * loss['drift']:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})"


def timed(command, stdout=subprocess.PIPE, timeout=None):
    """Runs a command and returns its end and its wall time."""
    start = time.time()
    done = subprocess.run([str(part) for part in command], stdout=stdout, text=True, timeout=timeout)
    return done, time.time() - start


def machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{os.cpu_count()} cores of an {platform.machine()} processor, {memory:.1f} GB of memory, no GPU"


class Bench:
    def __init__(self, program, model, folder, minutes, quiet):
        self.program, self.model, self.folder = program, model, Path(folder)
        self.end = time.time() + 60 * minutes
        self.quiet = quiet
        self.results = {}

    def measure(self, lines, method, count, has_controls):
        """Rows of one number of facts, or None when there was no time."""
        left = self.end - time.time()
        if left <= 0:
            return None
        facts = self.folder / "facts.jsonl"
        facts.write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")
        command = [self.program, "edit", self.model, "--facts", facts, "--method", method, "--text", WORLD / "text.jsonl"]
        command += ["--suite", WORLD / "suite.jsonl", "--measure", count, "--json", "--runs-dir", self.folder / "runs"]
        command += [] if has_controls else ["--without", "lora,prompt"]
        try:
            done, _ = timed(command, timeout=left)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            sys.exit(f"{method}, {count} facts: exit code {done.returncode}")
        measured = json.loads(done.stdout)
        rows = measured["rows"]
        for row in rows:
            row["took"] = row["seconds"]
            row["error"] = row["error"] and row["error"].replace(f"{ROOT}/", "")
        if not self.quiet:
            for row in rows:
                row["seconds"] = None
        entry = self.results.setdefault(method, measured | {"rows": []})
        if entry["layers"] != measured["layers"]:
            sys.exit(f"{method}: {count} facts were written in layers {measured['layers']}, and fewer in {entry['layers']}")
        entry["rows"] += rows
        entry |= {name: measured[name] for name in ["facts", "why_layers", "suite_name", "suite_before"]}
        entry |= {
            "created_us": int(time.time() * 1e6),
            "machine": machine(),
            "program": self.version(),
            "command": "python tests/peers/facts.py SPARKTUNE",
            "model": "proof",
            "about": "A Qwen3.5 of 3.8 M parameters that knows 1,100 facts of people who do not exist (tests/fixtures/facts). "
            "Neighbours and held-out text are about 100 of them, whose facts are never edited and whom nothing that an edit reads names.",
        }
        return rows

    def write(self, methods, paper):
        """Writes all rows for the white paper."""
        results = [self.results[name] for name in methods if name in self.results]
        for row in (row for entry in results for row in entry["rows"]):
            row.pop("took", None)
        paper.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    def version(self):
        return subprocess.run([self.program, "--version"], capture_output=True, text=True).stdout.strip()


def line_of(method, row):
    name = method if row["how"] in ("batched", "sequential") else "–"
    start = f"| {name} | {row['how']} | {row['count']:,} | "
    if not row["scores"]:
        return start + row["error"] + " |" * 7
    scores = [share(row["scores"][aspect]) for aspect in ASPECTS]
    return start + " | ".join([*scores, drift(row["scores"]["loss"]), share(row["suite"]), f"{row['took']:.1f}"]) + " |"


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
        done, wall = timed(command, stdout=sys.stderr)
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
    parser.add_argument("--minutes", type=float, default=600, help="leave out what has not begun or ended by then")
    parser.add_argument("--controls-up-to", type=int, default=1000, metavar="FACTS", help="leave the controls out of larger rows; 0: of all")
    parser.add_argument("--quiet", action="store_true", help="nothing else runs here, so the paper may name the seconds")
    parser.add_argument("--output", type=Path, default=WORLD / "RESULTS.md")
    parser.add_argument("--paper", type=Path, default=PAPER)
    arguments = parser.parse_args()
    lines = (WORLD / "facts.jsonl").read_text(encoding="utf-8").splitlines()
    methods, counts = arguments.methods.split(","), [int(count) for count in arguments.facts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.train:
            train(arguments.program, Path(folder))
        bench = Bench(arguments.program, arguments.model, folder, arguments.minutes, arguments.quiet)
        before = arguments.output.read_text(encoding="utf-8") if arguments.output.exists() else ""
        head = f"\n## {date.today()}, {bench.version()}, {machine()}: the table\n\n"
        head += "| method | how | facts | " + " | ".join(ASPECTS) + " | loss | suite | s |\n|" + "---|" * 10 + "\n"
        table, left_out = [], []
        # Few facts of all methods come before many of one.
        for count in counts:
            for method in methods:
                rows = bench.measure(lines, method, count, method == methods[0] and count <= arguments.controls_up_to)
                if rows is None:
                    left_out.append(f"{method} of {count:,}")
                    if method in bench.results:
                        row = {"count": count, "how": "batched", "scores": None, "error": "not measured, because there was no time"}
                        bench.results[method]["rows"].append(row)
                    continue
                table += [(methods.index(method), line_of(method, row)) for row in rows]
                for row in rows:
                    print(line_of(method, row), flush=True)
                layers = "; ".join(f"{name} in layer {', '.join(map(str, one['layers']))}" for name, one in bench.results.items())
                text = head + "".join(f"{line}\n" for _, line in sorted(table, key=lambda pair: pair[0])) + f"\n{layers}.\n"
                arguments.output.write_text(before + text, encoding="utf-8")
                bench.write(methods, arguments.paper)
        bench.write(methods, arguments.paper)
        if left_out:
            note = f"\nLeft out, because there was no time: {', '.join(left_out)}.\n"
            print(note)
            with arguments.output.open("a", encoding="utf-8") as file:
                file.write(note)


if __name__ == "__main__":
    main()
