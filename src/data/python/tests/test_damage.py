"""Damaged files, by property: any change is found, and nothing but the package's own errors is raised."""

from __future__ import annotations

import os
import random
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Optional

from files import examples, file_v1, file_v2
from qubgpu import NotATokenFile, QubGPUDataset, QubGPUError

ROUNDS = 250


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Returns the file with a bit flipped, bytes overwritten, inserted, removed, or its end cut off."""
    changed, at = bytearray(data), chance.randrange(len(data))
    kind = chance.randrange(5)
    if kind == 0:
        changed[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        changed[at : at + chance.randrange(1, 90)] = chance.randbytes(chance.randrange(1, 90))
    elif kind == 2:
        changed[at:at] = chance.randbytes(chance.choice((1, 4, 64)))
    elif kind == 3:
        del changed[at : at + chance.choice((1, 4, 64, 128))]
    else:
        del changed[at:]
    return bytes(changed)


class Damage(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "t.qubgpu"
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def read(self, **how: str) -> Optional[QubGPUDataset]:
        """Reads all rows. Returns ``None`` if the package refuses them."""
        try:
            read = QubGPUDataset(self.path, 64, tensors=False, **how)  # type: ignore[arg-type]
            for row in read:
                self.assertEqual(row["labels"].shape, (64,))
            return read
        except QubGPUError as error:
            self.assertIn(str(self.path), str(error))
            return None

    def test_no_change_of_version_2_is_silent_and_none_crashes(self) -> None:
        data, chance = file_v2(examples(30)), random.Random(1)
        kept = 0
        for _ in range(ROUNDS):
            changed = damaged(data, chance)
            if changed == data:
                continue
            self.path.write_bytes(changed)
            self.assertIsNone(self.read())
            self.assertIsNone(self.read(checksums="open"))
            self.read(checksums="skip")
            rest = self.read(on_damage="drop")
            if rest is not None:
                kept += 1
                self.assertEqual(len(rest) + len(rest.damage), 30)
                self.assertTrue(rest.damage)
        self.assertGreater(kept, ROUNDS / 20)

    def test_no_change_of_version_1_is_silent_and_none_crashes(self) -> None:
        made, chance = examples(30), random.Random(2)
        data = file_v1(made)
        ends = {0, *(len(file_v1(made[:i])) for i in range(31))}
        sound = [tokens for tokens, _ in made]
        for _ in range(ROUNDS):
            changed = damaged(data, chance)
            # A file that ends between two packets looks complete: version 1 does not say how long it is.
            if changed == data or (data.startswith(changed) and len(changed) in ends):
                continue
            self.path.write_bytes(changed)
            self.assertIsNone(self.read())
            self.read(checksums="skip")
            rest = self.read(on_damage="drop")
            if rest is not None:
                self.assertTrue(rest.damage)
                for i in range(len(rest)):
                    self.assertIn(rest.tokens(i).tolist(), sound)

    def test_bytes_without_meaning_never_crash(self) -> None:
        chance = random.Random(3)
        for _ in range(ROUNDS):
            start = chance.choice((b"", b"QUBGPU2\n", b"\xaa\x01\x01\x01\x00\x04", b"QUBGPU2\n\x02\0\0\0\x40\0\0\0"))
            self.path.write_bytes(start + chance.randbytes(chance.randrange(1, 600)))
            self.assertIsNone(self.read(checksums=chance.choice(("read", "open"))))
            self.read(checksums="skip")

    def test_a_pipe_or_a_folder_of_that_name_is_refused_without_waiting(self) -> None:
        for make in (os.mkfifo, os.mkdir):
            make(self.path)
            with self.assertRaises(NotATokenFile) as refused:
                QubGPUDataset(self.path, 64, tensors=False)
            self.assertIn("it is not a file", str(refused.exception))
            (os.remove if make is os.mkfifo else os.rmdir)(self.path)


if __name__ == "__main__":
    unittest.main()
