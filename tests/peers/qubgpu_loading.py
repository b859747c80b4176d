"""Loads a `.qubgpu` file of version 1 as QubGPU's README describes it, for `sparktune bench loading --peers PYTHON`.

The file is mapped; each packet's header is unpacked, its CRC-16 compared, its ids unpacked and padded to a row, with
labels and attention mask. Written anew from that description: mmap, struct, and torch where it is installed. The CRC
is the fastest that Python has, the standard library's.

    python qubgpu_loading.py FILE ROW_LENGTH BYTES

It ends after so many bytes, and prints {"cpu_seconds": ..., "bytes": ..., "rows": ..., "torch": ...}.
"""

import binascii
import json
import mmap
import struct
import sys
import time

try:
    import torch
except ImportError:
    torch = None


def rows(data, length):
    """Yields (input_ids, labels, attention_mask, end) of each packet of token ids."""
    at = 0
    while at + 8 <= len(data):
        sync, _, _, kind, size = struct.unpack_from(">BBBBH", data, at)
        end = at + 6 + size
        if sync != 0xAA or binascii.crc_hqx(data[at:end], 0xFFFF) != struct.unpack_from(">H", data, end)[0]:
            raise SystemExit(f"no intact packet at byte {at}")
        if kind == 1:
            ids = list(struct.unpack_from(f">{size // 4}i", data, at + 6))[:length]
            padding = length - len(ids)
            row = ids + [0] * padding, ids + [-100] * padding, [1] * len(ids) + [0] * padding
            if torch is not None:
                row = tuple(torch.tensor(values, dtype=torch.long) for values in row)
            yield (*row, end + 2)
        at = end + 2


def main():
    path, length, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began = time.process_time()
    count = end = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for *_, end in rows(data, length):
            count += 1
            if end >= most:
                break
    spent = time.process_time() - began
    print(json.dumps({"cpu_seconds": spent, "bytes": end, "rows": count, "torch": torch is not None}))


main()
