"""Reads token files with PyTorch's real DataLoader: not part of the test suite, which has no torch.

    pip install torch numpy
    python tests/peers/qubgpu_dataset.py SPARKTUNE [LINES.jsonl]

SPARKTUNE is the program. LINES are token ids for `sparktune pack`; without them 4,000 examples are made. Each batch of
both versions is compared with what `sparktune unpack` writes: in this process, in forked and spawned workers, shuffled,
in workers that live for several epochs, and with crc_drop_rate. Then it prints how fast the loader is.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/data/python"))
from qubgpu import QubGPUDataset  # noqa: E402

LENGTH = 512
NAMES = ("input_ids", "labels", "attention_mask")


def expected(lines):
    """Returns the rows as a plain loop makes them: int64 [examples, 3, LENGTH]."""
    rows = torch.zeros(len(lines), 3, LENGTH, dtype=torch.int64)
    rows[:, 1] = -100
    for row, line in zip(rows, lines):
        tokens = torch.tensor(line["input_ids"][:LENGTH])
        n, mask = len(tokens), torch.tensor(line["loss_mask"][:LENGTH], dtype=torch.bool)
        row[0, :n], row[2, :n] = tokens, 1
        row[1, :n][mask] = tokens[mask]
    return rows


def loaded(loader):
    """Returns all rows of an epoch, and their order is the loader's."""
    return torch.cat([torch.stack([batch[name] for name in NAMES], 1) for batch in loader])


def sorted_rows(rows):
    return sorted(row.numpy().tobytes() for row in rows)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        lines = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else made()
        Path("ids.jsonl").write_text(lines)

        def sparktune(*args):
            subprocess.run([program, *args], check=True, stdout=subprocess.DEVNULL)

        sparktune("pack", "ids.jsonl", "v2.qubgpu")
        sparktune("unpack", "v2.qubgpu", "v1.qubgpu", "--to", "v1")
        sparktune("unpack", "v2.qubgpu", "v2.jsonl")
        sparktune("pack", "v1.qubgpu", "from-v1.qubgpu")
        sparktune("unpack", "from-v1.qubgpu", "v1.jsonl")
        for version in ("v2", "v1"):
            compare(version, [json.loads(line) for line in open(f"{version}.jsonl")])
        for version in ("v2", "v1"):
            measure(version)


def made():
    chance = random.Random(1)
    text = []
    for i in range(4_000):
        n = chance.randrange(1, 700)
        ids = [chance.randrange(150_000) for _ in range(n)]
        mask = [0] + [int(chance.random() < 0.7) for _ in range(n - 1)]
        text.append(json.dumps({"input_ids": ids, "loss_mask": mask, "source_line": i + 1}))
    return "\n".join(text)


def compare(version, lines):
    # As QubGPU's users call it.
    dataset = QubGPUDataset(f"{version}.qubgpu", max_seq_length=LENGTH, pad_token_id=0)
    rows, pin = expected(lines), torch.cuda.is_available()
    assert all(isinstance(dataset[0][name], torch.Tensor) for name in NAMES)
    with warnings.catch_warnings():
        # Without an accelerator, torch says that it pins nothing.
        warnings.simplefilter("ignore", UserWarning)
        loader = DataLoader(dataset, batch_size=2, pin_memory=True)
        assert torch.equal(loaded(loader), rows)
        assert all(next(iter(loader))[name].is_pinned() == pin for name in NAMES)
    for method in ("fork", "spawn"):
        loader = DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context=method, pin_memory=pin)
        assert torch.equal(loaded(loader), rows), method
    shuffled = loaded(DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2))
    assert not torch.equal(shuffled, rows) and sorted_rows(shuffled) == sorted_rows(rows)
    whole = DataLoader(dataset, sampler=BatchSampler(SequentialSampler(dataset), 32, False), batch_size=None)
    assert torch.equal(loaded(whole), rows)

    dropping = QubGPUDataset(f"{version}.qubgpu", max_seq_length=LENGTH, pad_token_id=0, crc_drop_rate=0.05)
    for method in ("fork", "spawn"):
        loader = DataLoader(
            dropping, batch_size=16, num_workers=2, multiprocessing_context=method, persistent_workers=True
        )
        for epoch in range(3):
            dropping.set_epoch(epoch)
            assert torch.equal(loaded(loader), rows[torch.from_numpy(dropping._rows())]), (method, epoch)
    print(f"{version}: {len(rows)} rows are the same; an epoch with crc_drop_rate=0.05 has {len(dropping)}")


def measure(version):
    for checksums in ("read", "skip"):
        began = time.perf_counter()
        dataset = QubGPUDataset(f"{version}.qubgpu", LENGTH, checksums=checksums)
        print(f"{version}, checksums={checksums!r}: opened in {time.perf_counter() - began:.3f} s")
        by_rows = DataLoader(dataset, batch_size=16)
        by_batches = DataLoader(dataset, sampler=BatchSampler(SequentialSampler(dataset), 16, False), batch_size=None)
        for name, loader in (("first epoch", by_rows), ("batch_size=16", by_rows), ("BatchSampler", by_batches)):
            began = time.perf_counter()
            count = sum(len(batch["labels"]) for batch in loader)
            seconds = time.perf_counter() - began
            print(f"  {name}: {count / seconds:,.0f} rows/s, {count * LENGTH / seconds / 1e6:.1f} M padded tokens/s")


if __name__ == "__main__":
    main()
