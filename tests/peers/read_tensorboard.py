"""Reads a run's TensorBoard files with the real TensorBoard and compares: not part of the test suite, which has no Python.

    pip install tensorboard
    python tests/peers/read_tensorboard.py RUN_FOLDER

Checks that every scalar and text of events/*.jsonl is there with its step and value (as the float it is stored in), NaN
included; that a resumed attempt purges what it did again. Scalars with the classic reader too, which never purges texts.
"""

import json
import math
import struct
import sys
from collections import defaultdict
from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator, event_file_loader, plugin_event_accumulator
from tensorboard.util import tensor_util

run = Path(sys.argv[1])
folder = run / "tensorboard"
STEP = {"loss/train": "loss_nats", **{tag: tag for tag in ["lr", "grad_norm", "tokens_per_s", "mem_used_bytes"]}}
GPU = {"sm_clock_mhz": "gpu/sm_clock_mhz", "temperature_celsius": "gpu/temperature_celsius", "power_watts": "gpu/power_watts"}
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def stored(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def value_of(event, name):
    special = event.get(name.replace("_nats", "") + "_nonfinite")
    return SPECIAL[special] if special else event.get(name)


def same(a, b):
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


expected, logged, purged = defaultdict(list), 0, 0
whole = True
for file in sorted((run / "events").iterdir()):
    step, place = 0, (None, 0)

    def add(tag, at, value):
        expected[tag].append((at, value))

    whole = False
    for event in map(json.loads, file.open()):
        kind = event["kind"]
        whole = kind == "run_finished"
        if kind == "run_started":
            step = event.get("resumed_from_step", 0)
            first = step + 1 if "resumed_from_step" in event else 0
            for tag, points in expected.items():
                kept = [point for point in points if point[0] < first]
                purged += len(points) - len(kept)
                expected[tag] = kept
        elif kind == "step":
            step = event["step"]
            for tag, name in STEP.items():
                if (value := value_of(event, name)) is not None:
                    add(tag, step, stored(value))
        elif kind == "eval":
            add("loss/eval", event["step"], stored(value_of(event, "loss_nats")))
        elif kind == "head_eval":
            add("loss/mtp_eval", event["step"], stored(value_of(event, "loss_nats")))
        elif kind == "device_sample" and event.get("gpus"):
            for name, tag in GPU.items():
                if name in event["gpus"][0]:
                    add(tag, step, stored(event["gpus"][0][name]))
        elif kind == "sample":
            place = (event["step"], place[1] + 1 if place[0] == event["step"] else 1)
            add(f"samples/{place[1]}", event["step"], event["text"])
        elif kind == "warning" and "TensorBoard" not in event["message"]:
            add("warnings", event.get("step", step), event["message"])

attempts = len(list((run / "events").iterdir()))
files = sorted(folder.iterdir())
assert len(files) == attempts, f"{len(files)} files for {attempts} attempts"
for file in files:
    assert file.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    logged += sum(1 for _ in event_file_loader.EventFileLoader(str(file)).Load())

everything = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
classic = event_accumulator.EventAccumulator(str(folder), size_guidance=everything)
classic.Reload()
page = plugin_event_accumulator.EventAccumulator(str(folder), tensor_size_guidance=defaultdict(int), size_guidance={"tensors": 0})
page.Reload()


def text_of(event):
    return tensor_util.make_ndarray(event.tensor_proto)[0].decode()


def compare(tag, got, points, equal):
    # A killed trainer leaves up to a second of events unwritten; a resume purges that stretch in any case.
    assert len(got) == len(points) or (not whole and len(got) < len(points)), f"{tag}: {len(got)} of {len(points)} points"
    for (step, value), (want_step, want) in zip(got, points):
        assert step == want_step and equal(value, want), f"{tag}: step {step} {value!r} instead of step {want_step} {want!r}"


def spelled(c):
    turns = c in "\u061c\u200e\u200f" or "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"
    control = ord(c) < 32 and c != "\t" or 0x7F <= ord(c) < 0xA0
    return f"\\u{{{ord(c):x}}}" if turns or control else c


def verbatim(text):
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"    {''.join(map(spelled, line.removesuffix(chr(13))))}\n" for line in lines) if text else ""


scalars, texts = 0, 0
for tag, points in expected.items():
    if not points:
        continue
    if isinstance(points[0][1], str):
        texts += len(points)
        got = [(event.step, text_of(event)) for event in page.Tensors(tag)]
        compare(tag, got, points, lambda value, want: value.endswith(verbatim(want)))
        assert page.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    else:
        scalars += len(points)
        compare(tag, [(event.step, event.value) for event in classic.Scalars(tag)], points, same)
        got = [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in page.Tensors(tag)]
        compare(tag, got, points, same)
        assert page.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"

there = set(classic.Tags()["scalars"]) | set(classic.Tags()["tensors"])
assert there == {tag for tag, points in expected.items() if points}, there
print(
    f"{attempts} attempt(s), {logged} records: {scalars} scalars and {texts} texts under {len(there)} tags as in the events; "
    f"{purged} points purged by a resume; last loss {expected['loss/train'][-1] if expected['loss/train'] else 'none'}"
)
