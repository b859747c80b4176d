"""The checksums against published values and plain loops."""

from __future__ import annotations

import unittest

import numpy as np

from files import plain_crc32c
from qubgpu.checksums import blake3, blake3_derived, crc32c, crc32c_each
from qubgpu.drop import kept
from qubgpu.v1 import _KNOWN


def pattern(length: int) -> np.ndarray:
    """The input of BLAKE3's published test vectors: uint8 ``[length]``."""
    return (np.arange(length) % 251).astype(np.uint8)


class Checksums(unittest.TestCase):
    def test_the_plain_loop_gives_the_published_check_value(self) -> None:
        self.assertEqual(plain_crc32c(b"123456789"), 0xE3069283)

    def test_messages_of_any_length_are_computed_together(self) -> None:
        data = np.random.default_rng(1).integers(0, 256, 64 * 90, dtype=np.uint8)
        starts = [0, 1, 2, 9, 10, 55]
        expected = [plain_crc32c(data[64 * a : 64 * b].tobytes()) for a, b in zip(starts, [*starts[1:], 90])]
        self.assertEqual(crc32c_each(data, np.array(starts)).tolist(), expected)

    def test_a_message_is_computed_in_pieces(self) -> None:
        data = np.random.default_rng(2).integers(0, 256, 64 * 4100, dtype=np.uint8)
        self.assertEqual(crc32c(data), plain_crc32c(data.tobytes()))

    def test_blake3_gives_the_published_values(self) -> None:
        # From test_vectors.json of the BLAKE3 repository; the lengths are edges of blocks, chunks and trees.
        for length, expected in [
            (0, "af1349b9f5f9a1a6a0404dea36dcc949"),
            (1, "2d3adedff11b61f14c886e35afa03673"),
            (1023, "10108970eeda3eb932baac1428c7a216"),
            (1024, "42214739f095a406f3fc83deb889744a"),
            (1025, "d00278ae47eb27b34faecf67b4fe263f"),
            (2048, "e776b6028c7cd22a4d0ba182a8bf6220"),
            (3073, "7124b49501012f81cc7f11ca069ec922"),
            (102400, "bc3e3d41a1146b069abffad3c0d44860"),
        ]:
            self.assertEqual(blake3(pattern(length)).hex()[:32], expected, length)
        context = "BLAKE3 2019-12-27 16:29:52 test vectors context"
        self.assertEqual(blake3_derived(context, pattern(1025).tobytes()).hex()[:32], "effaa245f065fbf82ac186839a249707")

    def test_the_three_crc16_of_that_name_give_their_published_check_values(self) -> None:
        self.assertEqual([_KNOWN[i](memoryview(b"123456789")) for i in (0, 3, 6)], [0x29B1, 0x31C3, 0x2189])

    def test_an_epoch_drops_the_examples_that_sparktune_drops(self) -> None:
        # The golden value of src/data/packing/order.rs.
        dropped = [2, 4, 7, 9, 14, 17, 26, 27, 28, 33, 34, 37]
        self.assertEqual(sorted(set(range(40)) - set(kept(40, 0.25, 42, 0).tolist())), dropped)


if __name__ == "__main__":
    unittest.main()
