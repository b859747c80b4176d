"""Token files for the tests, written here with the formulas of the formats, and plain CRCs to compare with."""

from __future__ import annotations

import json
import struct
from binascii import crc_hqx
from typing import Iterable, List, Sequence, Tuple

import numpy as np

from qubgpu.checksums import blake3

#: Tokens and loss mask.
Example = Tuple[List[int], List[int]]


def plain_crc32c(data: bytes) -> int:
    """Returns the CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def examples(count: int, longest: int = 90, seed: int = 0) -> List[Example]:
    """Returns random examples, the first of one token."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        n = 1 if i == 0 else int(random.integers(2, longest + 1))
        tokens, mask = random.integers(0, 1 << 18, n), random.integers(0, 2, n)
        mask[0] = 0
        made.append((tokens.tolist(), mask.tolist()))
    return made


def packet_v1(tokens: Sequence[int], kind: int = 1) -> bytes:
    """Returns a packet of version 1."""
    payload = struct.pack(f">{len(tokens)}i", *tokens)
    packet = bytes([0xAA, 1, 1, kind]) + struct.pack(">H", len(payload)) + payload
    return packet + struct.pack(">H", crc_hqx(packet, 0xFFFF))


def file_v1(made: Iterable[Example]) -> bytes:
    """Returns a file of version 1, which has no masks."""
    return b"".join(packet_v1(tokens) for tokens, _ in made)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def _sealed(block: bytes) -> bytes:
    return block[:-4] + struct.pack("<I", plain_crc32c(block[:-4]))


def file_v2(made: Sequence[Example], source: str = "train.jsonl") -> bytes:
    """Returns a file of version 2. The example ``i`` comes from the line ``3 i + 1`` of ``source``."""
    text = json.dumps({"tokenizer": None, "template": None, "policy": "", "sources": [{"name": source}]}).encode()
    size = len(_padded(bytes(24) + text + bytes(4)))
    head = b"QUBGPU2\n" + struct.pack("<IIII", 2, size, len(text), 0) + text
    data = _sealed(head + bytes(size - len(head)))
    columns: List[List[int]] = [[], [], [], [], []]
    for i, (tokens, mask) in enumerate(made):
        line, targets = 3 * i + 1, sum(mask)
        payload = _padded(struct.pack(f"<{len(tokens)}I", *tokens) + np.packbits(mask, bitorder="little").tobytes())
        header = b"QPKT" + struct.pack("<IQQIIIQ", len(tokens), i, line, 0, targets, plain_crc32c(payload), 0)
        for column, value in zip(columns, (len(data), line, len(tokens), targets, 0)):
            column.append(value)
        data += _sealed(header + bytes(64 - len(header))) + payload
    index = b"".join(
        _padded(struct.pack(f"<{len(column)}{kind}", *column)) for column, kind in zip(columns, "QQIII")
    )
    position, data = len(data), data + index
    largest = max((token for tokens, _ in made for token in tokens), default=0)
    footer = b"QUBEND2\n" + struct.pack(
        "<QQQQQIIQ", len(data) + 128, position, len(made), sum(columns[2]), sum(columns[3]), largest,
        plain_crc32c(index), 0,
    )
    footer += blake3(np.frombuffer(data, np.uint8))
    return data + _sealed(footer + bytes(128 - len(footer)))
