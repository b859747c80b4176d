"""What a section's program hands to the harness: a file with one JSON object a line, written as soon as it is known.

So a program that is cut off has told what it measured until then. Exit code 77 means that it could not be done here; the last line
it printed says why.

Fields that mean the same in every section: `error` with `tolerance`, a comparison; `errors`, a count that has to be 0;
`skipped`, the reason why this row was not measured; `note`, a word for the reader.
"""

import json
import math
import sys
import time

SKIPPED = 77


class Rows:
    def __init__(self, path):
        self.path = path

    def add(self, **row):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({key: finite(value) for key, value in row.items()}) + "\n")


def finite(value):
    """JSON has no NaN: a value that is none is null, which no comparison passes."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path):
    """The rows of a file; its last line may be torn off. One JSON array will do too."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    if text.lstrip().startswith("["):
        return json.loads(text)
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class Clock:
    """Time that a program may take, so that it leaves out what it would not finish rather than be cut off."""

    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds
        self.longest = 0.0

    def has_room(self):
        """Whether there is time for one more of what took longest so far."""
        self.began = time.monotonic()
        return self.began + self.longest < self.ends

    def done(self):
        self.longest = max(self.longest, time.monotonic() - self.began)


def skip(reason):
    """Ends a section's program: it cannot be done here."""
    print(reason)
    sys.exit(SKIPPED)


def torch_or_skip(tiny):
    """PyTorch, and the device to use; `tiny` is the self-test, on the processor."""
    try:
        import torch
    except ImportError:
        skip(f"torch is not importable by {sys.executable}")
    if tiny:
        return torch, torch.device("cpu")
    if not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} sees no CUDA device")
    return torch, torch.device("cuda")
