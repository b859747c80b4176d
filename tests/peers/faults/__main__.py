"""Faults, bad input and hostile files, tried on the real program; prints a table of what was tried and what failed.

    python tests/peers/faults SPARKTUNE [PART ...] [--seed 1] [--only WORDS] [--scale 1.0]

Needs Python 3.11 alone. A part is a function here; without a name all are run, one after the other, in about two
hours on two cores. `--only` tries the cases whose names contain these words, as the sentence of a failure says;
`--scale 0.1` changes fewer inputs. What broke something is kept in the folder `sparktune-faults` of the temporary folder.
Some rows need root (a small disk, another user) or programs (`cc` for clocks, `strace`, `zstd`), and say "skipped"
without them. Kills at a thousand instants and power cuts are tests in Rust (tests/README.md).
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

import bombs
import changes
import hub
import models
import people
import runs
import size
from harness import Context

PARTS = {
    "damage": runs.damage,
    "plan": runs.plan_values,
    "base": runs.base_files,
    "disk": runs.disk,
    "readonly": runs.read_only,
    "several": runs.several_trainers,
    "frozen": runs.frozen,
    "clocks": runs.clocks,
    "changes": changes.all_kinds,
    "templates": models.templates,
    "tokenizers": models.tokenizers,
    "weights": models.weights,
    "bombs": bombs.bombs,
    "hub": hub.behaviours,
    "text": people.text,
    "links": people.links,
    "user": people.other_user,
    "slope": size.slope,
    "long": size.long_log,
    "many": size.many_runs,
}
PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("program", metavar="SPARKTUNE")
PARSER.add_argument("parts", metavar="PART", nargs="*", help=", ".join(PARTS))
PARSER.add_argument("--seed", type=int, default=1)
PARSER.add_argument("--only", default="", metavar="WORDS")
PARSER.add_argument("--scale", type=float, default=1.0)


def main():
    arguments = PARSER.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        PARSER.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    kept = Path(tempfile.gettempdir()) / "sparktune-faults"
    context = Context(os.path.abspath(arguments.program), arguments.seed, arguments.only, arguments.scale, kept)
    for part in arguments.parts or PARTS:
        context.part = part
        begun = time.monotonic()
        print(f"== {part}", flush=True)
        PARTS[part](context)
        print(f"== {part}: {time.monotonic() - begun:.0f} s", flush=True)
    print("\n| what | tries | failures |\n|---|---|---|")
    rows = [row for row in context.rows if row.tries or row.skipped]
    print("\n".join(row.line() for row in rows))
    failures = [sentence for row in rows for sentence in row.failures]
    print("\n" + "\n".join(f"- {sentence}" for sentence in failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
