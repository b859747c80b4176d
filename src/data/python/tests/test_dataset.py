"""The data set: its rows, its copies in other processes, and what it leaves out."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any, List

import numpy as np

from files import Example, examples, file_v1, file_v2, packet_v1
from qubgpu import DamagedFile, NotATokenFile, QubGPUDataset, QubGPUError


def rows(made: List[Example], length: int, pad: int = 0) -> List[dict]:
    """Returns the rows as a plain loop makes them."""
    made_rows = []
    for tokens, mask in made:
        tokens, padding = tokens[:length], [0] * max(0, length - len(tokens))
        made_rows.append(
            {
                "input_ids": tokens + [pad for _ in padding],
                "labels": [t if m else -100 for t, m in zip(tokens, mask)] + [-100 for _ in padding],
                "attention_mask": [1] * len(tokens) + padding,
            }
        )
    return made_rows


def without_masks(made: List[Example]) -> List[Example]:
    return [(tokens, [0] + [1] * (len(tokens) - 1)) for tokens, _ in made]


def plain(row: Any) -> dict:
    return {name: values.tolist() for name, values in row.items()}


def in_another_process(data: QubGPUDataset, index: int, answers: Any) -> None:
    answers.put((len(data), plain(data[index])))


class DataSet(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.made = examples(40)

    def write(self, data: bytes, name: str = "t.qubgpu") -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def test_rows_and_batches_of_both_versions_are_those_of_a_plain_loop(self) -> None:
        for data, made in (file_v2(self.made), self.made), (file_v1(self.made), without_masks(self.made)):
            path = self.write(data)
            for checksums in "read", "open", "skip":
                read = QubGPUDataset(path, 32, pad_token_id=7, checksums=checksums, tensors=False)
                expected = rows(made, 32, 7)
                self.assertEqual([plain(row) for row in read], expected)
                self.assertEqual([plain(row) for row in read.__getitems__([5, 0])], [expected[5], expected[0]])
                self.assertEqual(plain(read[-1]), expected[-1])
                batch = read[[3, 1]]
                self.assertEqual({values.shape for values in batch.values()}, {(2, 32)})
                self.assertEqual({values.dtype for values in batch.values()}, {np.dtype(np.int64)})
                self.assertEqual(batch["labels"].tolist(), [expected[3]["labels"], expected[1]["labels"]])
                self.assertEqual(read[1:6:2]["input_ids"].tolist(), [expected[i]["input_ids"] for i in (1, 3, 5)])
                self.assertEqual(read.truncated, sum(len(tokens) > 32 for tokens, _ in made))
                self.assertRaises(IndexError, read.__getitem__, 40)

    def test_tokens_are_views_of_the_file_and_cannot_be_changed(self) -> None:
        for data in file_v2(self.made), file_v1(self.made):
            tokens = QubGPUDataset(self.write(data)).tokens(3)
            self.assertEqual(tokens.tolist(), self.made[3][0])
            self.assertFalse(tokens.flags.owndata or tokens.flags.writeable)

    def test_the_source_of_an_example_is_its_line_and_cannot_obey_a_terminal(self) -> None:
        read = QubGPUDataset(self.write(file_v2(self.made, "a\x1b[2J\u202e.jsonl")))
        self.assertEqual(read.origin(5), "a\\u{1b}[2J\\u{202e}.jsonl:16")
        self.assertEqual(read.max_token_id, max(max(tokens) for tokens, _ in self.made))
        self.assertEqual(QubGPUDataset(self.write(file_v1(self.made))).origin(5), "t.qubgpu:6")

    def test_an_epoch_drops_a_share_and_later_epochs_drop_others(self) -> None:
        made = examples(300, 4)
        read = QubGPUDataset(self.write(file_v2(made)), 8, crc_drop_rate=0.2, tensors=False)
        left, expected = [], rows(made, 8)
        for epoch in range(2):
            read.set_epoch(epoch)
            self.assertTrue(210 < len(read) < 270, len(read))
            left.append([plain(row) for row in read])
            self.assertEqual([row for row in expected if row in left[-1]], left[-1])
        self.assertNotEqual(*left)
        read.set_epoch(0)
        self.assertEqual([plain(row) for row in read], left[0])

    def test_copies_in_forked_and_spawned_processes_read_the_same_and_see_later_epochs(self) -> None:
        for data in file_v2(self.made), file_v1(self.made):
            read = QubGPUDataset(self.write(data), 16, crc_drop_rate=0.3, tensors=False)
            read.set_epoch(4)
            expected = len(read), plain(read[3])
            copy = pickle.loads(pickle.dumps(read))
            self.assertEqual((len(copy), plain(copy[3])), expected)
            for method in "fork", "spawn":
                processes = multiprocessing.get_context(method)
                answers = processes.Queue()
                process = processes.Process(target=in_another_process, args=(read, 3, answers))
                process.start()
                self.assertEqual(answers.get(timeout=600), expected, method)
                process.join()

    def test_a_copy_refuses_a_file_that_was_replaced(self) -> None:
        path = self.write(file_v2(self.made))
        copied = pickle.dumps(QubGPUDataset(path))
        self.write(file_v2(examples(40, seed=9)), "new").replace(path)
        with self.assertRaisesRegex(QubGPUError, "was replaced after it was opened"):
            pickle.loads(copied)

    def test_a_damaged_packet_is_an_error_that_names_its_line_when_it_is_read(self) -> None:
        data = bytearray(file_v2(self.made))
        at = data.index(b"QPKT", data.index(b"QPKT") + 1) + 70
        data[at] ^= 4
        path = self.write(bytes(data))
        read = QubGPUDataset(path)
        read[0], read[2]
        with self.assertRaisesRegex(DamagedFile, r"example 1 \(train.jsonl:4\): tokens, mask or padding") as seen:
            read[1]
        self.assertEqual((seen.exception.defect.part, seen.exception.defect.offset), ("packet", at - 70))
        self.assertEqual(str(pickle.loads(pickle.dumps(seen.exception))), str(seen.exception))
        self.assertRaises(DamagedFile, QubGPUDataset, path, checksums="open")
        with self.assertWarnsRegex(UserWarning, r"1 damaged packets are left out.*train.jsonl:4"):
            rest = QubGPUDataset(path, 32, on_damage="drop", tensors=False)
        self.assertEqual([d.example for d in rest.damage], [1])
        self.assertEqual([plain(row) for row in rest], rows(self.made[:1] + self.made[2:], 32))
        self.assertEqual((rest.origin(1), len(rest.lengths)), ("train.jsonl:7", 39))

    def test_a_wrong_hash_of_the_file_is_found_if_all_is_checked(self) -> None:
        data, other = file_v2(self.made), file_v2(self.made, "other.jsonl")
        self.assertEqual(len(data), len(other))
        mixed = other[: data.index(b"QPKT")] + data[data.index(b"QPKT") :]
        path = self.write(mixed)
        QubGPUDataset(path)[0]
        with self.assertRaisesRegex(DamagedFile, "file hash"):
            QubGPUDataset(path, checksums="open")

    def test_packets_of_version_1_without_tokens_are_counted_and_wrong_ones_reported(self) -> None:
        data = packet_v1([1, 2]) + packet_v1([7], kind=3) + packet_v1([]) + packet_v1([-5]) + packet_v1([3, 4])
        path = self.write(data + b"rest")
        with self.assertRaisesRegex(DamagedFile, "example 3: -5 is not a token id"):
            QubGPUDataset(path)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            read = QubGPUDataset(path, 4, on_damage="drop", tensors=False)
        self.assertEqual(len(seen), 1)
        self.assertEqual((read.other_packets, read.empty_packets, len(read)), (1, 1, 2))
        self.assertEqual([d.what for d in read.damage][1], "4 bytes contain no packet with a correct checksum")
        self.assertIn("2 damaged and left out, 1 without token ids, 1 empty", repr(read))

    def test_every_meaning_of_the_checksum_of_version_1_is_recognised(self) -> None:
        from qubgpu.v1 import _KNOWN

        for checksum in _KNOWN:
            data = b""
            for tokens, _ in self.made:
                packet = packet_v1(tokens)[:-2]
                data += packet + checksum(memoryview(packet)).to_bytes(2, "big")
            read = QubGPUDataset(self.write(data), 32, tensors=False)
            self.assertEqual([plain(row) for row in read], rows(without_masks(self.made), 32))

    def test_what_is_no_token_file_and_what_cannot_be_asked_is_refused_in_words(self) -> None:
        self.assertRaisesRegex(NotATokenFile, "the file is empty", QubGPUDataset, self.write(b""))
        self.assertRaisesRegex(NotATokenFile, "no packet of either version", QubGPUDataset, self.write(b"x" * 999))
        self.assertRaisesRegex(QubGPUError, "No such file", QubGPUDataset, self.folder / "none")
        self.assertRaises(QubGPUError, QubGPUDataset, self.folder)
        path = self.write(file_v2([]))
        self.assertEqual(len(QubGPUDataset(path, checksums="open")), 0)
        for wrong in (
            {"max_seq_length": 0},
            {"crc_drop_rate": 1.0},
            {"checksums": "no"},
            {"on_damage": "ignore"},
            {"on_damage": "drop", "checksums": "skip"},
            {"seed": -1},
        ):
            self.assertRaises(ValueError, QubGPUDataset, path, **wrong)


if __name__ == "__main__":
    unittest.main()
