"""Compares what this package reads with what sparktune reads. Run by tests/end_to_end/python_reader.rs.

    python compare_with_sparktune.py FILE.qubgpu LINES.jsonl [REPORT.json]

LINES is what ``sparktune unpack`` writes for the file, or for its sound part. REPORT is what ``sparktune verify --json``
prints; with it, damaged packets are left out and must be those of the report.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict

import numpy as np

from qubgpu import QubGPUDataset

LENGTH = 64

path, lines, *report = sys.argv[1:]
made = [json.loads(line) for line in open(lines, encoding="utf-8")]
warnings.simplefilter("ignore")
read = QubGPUDataset(
    path, LENGTH, tensors=False, checksums="open", on_damage="drop" if report else "stop"
)

expected = np.zeros((3, len(made), LENGTH), np.int64)
expected[1] = -100
for row, example in enumerate(made):
    for place, (token, trained) in enumerate(zip(example["input_ids"][:LENGTH], example["loss_mask"])):
        expected[:, row, place] = token, token if trained else -100, 1
batch = read[:]
for name, values in zip(("input_ids", "labels", "attention_mask"), expected):
    assert batch[name].tobytes() == values.tobytes(), name
assert [read.tokens(i).tolist() for i in range(len(read))] == [example["input_ids"] for example in made]
assert read.lengths.tolist() == [len(example["input_ids"]) for example in made]
if read.version == 2:
    origins = [f"{example['source_file']}:{example['source_line']}" for example in made]
    assert [read.origin(i) for i in range(len(read))] == origins
if report:
    stated = json.load(open(report[0], encoding="utf-8"))
    assert [asdict(defect) for defect in read.damage] == stated["defects"], (read.damage, stated["defects"])
    assert read.damage
print(len(made), "examples are the same")
