#!/usr/bin/env python3
"""Compares rows of Parquet files as sparktune reads them with those that pyarrow wrote: random nested columns, in every encoding, compression,
page version and size of row groups that pyarrow writes, with checksums.

    pip install pyarrow==26.0.1
    python3 tests/peers/parquet.py path/to/sparktune [FILES] [SEED]

No format of examples has such columns, so `check` lists every row in its list of rejected lines, with its text.
"""

import json
import math
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PROGRAM = sys.argv[1]
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 200
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1

OF_NUMBERS = ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
OF_FLOATS = ["PLAIN", "BYTE_STREAM_SPLIT"]
OF_TEXTS = ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
OF_BOOLEANS = ["PLAIN", "RLE"]
LEAVES = [
    (pa.string(), OF_TEXTS),
    (pa.int64(), OF_NUMBERS),
    (pa.int32(), OF_NUMBERS),
    (pa.float32(), OF_FLOATS),
    (pa.float64(), OF_FLOATS),
    (pa.bool_(), OF_BOOLEANS),
]


def a_type(rng, depth):
    kind = rng.random()
    if depth > 0 and kind < 0.3:
        return pa.list_(a_type(rng, depth - 1))
    if depth > 0 and kind < 0.55:
        return pa.struct([(f"f{i}", a_type(rng, depth - 1)) for i in range(rng.randint(1, 3))])
    return rng.choice(LEAVES)[0]


def a_value(rng, kind):
    if rng.random() < 0.15:
        return None
    if pa.types.is_list(kind):
        return [a_value(rng, kind.value_type) for _ in range(rng.choice([0, 1, 2, 5]))]
    if pa.types.is_struct(kind):
        return {field.name: a_value(rng, field.type) for field in kind}
    if pa.types.is_string(kind):
        stem = rng.choice(["", "river", "rivers", "Brücke", "北京", 'a "quoted"\nline', "x" * 300])
        return stem + rng.choice(["", str(rng.randint(0, 9)), "y" * rng.randint(0, 40)])
    if pa.types.is_int64(kind):
        return rng.choice([rng.randint(-5, 5), rng.randint(-(2**63), 2**63 - 1), 2**63 - 1, -(2**63)])
    if pa.types.is_int32(kind):
        return rng.choice([rng.randint(-5, 5), rng.randint(-(2**31), 2**31 - 1), 2**31 - 1, -(2**31)])
    if pa.types.is_float32(kind):
        return struct.unpack("f", struct.pack("f", rng.uniform(-1e6, 1e6)))[0]
    if pa.types.is_float64(kind):
        return rng.choice([0.0, -0.5, rng.uniform(-1e12, 1e12), math.inf])
    return rng.random() < 0.5


def leaf_encodings(rng, name, kind):
    """Returns an encoding for each leaf by its path in the file."""
    if pa.types.is_list(kind):
        return leaf_encodings(rng, f"{name}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        found = {}
        for field in kind:
            found |= leaf_encodings(rng, f"{name}.{field.name}", field.type)
        return found
    return {name: rng.choice(next(encodings for leaf, encodings in LEAVES if leaf == kind))}


def plain(value):
    """Returns a value as JSON can have it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value


def main():
    rng = random.Random(SEED)
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        path, listed = Path(folder, "a.parquet"), Path(folder, "rejected.jsonl")
        for number in range(FILES):
            schema = pa.schema([(f"c{i}", a_type(rng, 3)) for i in range(rng.randint(1, 4))])
            count = rng.choice([1, 3, 40, 700])
            rows = [{field.name: a_value(rng, field.type) for field in schema} for _ in range(count)]
            options = {"compression": rng.choice(["none", "snappy", "gzip", "zstd", "lz4"])}
            if rng.random() < 0.3:
                options["use_dictionary"] = True
            else:
                encodings = {}
                for field in schema:
                    encodings |= leaf_encodings(rng, field.name, field.type)
                options |= {"use_dictionary": False, "column_encoding": encodings}
            options |= {
                "data_page_version": rng.choice(["1.0", "2.0"]),
                "data_page_size": rng.choice([64, 4096, 1 << 20]),
                "row_group_size": rng.choice([1, 7, 1000]),
                "write_page_checksum": rng.random() < 0.5,
            }
            table = pa.Table.from_pylist(rows, schema)
            pq.write_table(table, path, **options)
            for group in range(pq.ParquetFile(path).metadata.num_row_groups):
                metadata = pq.ParquetFile(path).metadata.row_group(group)
                for column in range(metadata.num_columns):
                    for word in (*metadata.column(column).encodings, metadata.column(column).compression):
                        seen[word] = seen.get(word, 0) + 1
                break
            listed.unlink(missing_ok=True)
            done = subprocess.run([PROGRAM, "check", path, "--rejected", listed], capture_output=True, text=True)
            lines = listed.read_text().splitlines() if listed.exists() else []
            ours = [json.loads(json.loads(line)["text"]) for line in lines]
            # What was written, because pyarrow does not read back all that it writes.
            theirs = [plain(row) for row in table.to_pylist()]
            if ours != theirs:
                kept = Path(f"differs-{SEED}-{number}.parquet").absolute()
                kept.write_bytes(path.read_bytes())
                print(f"file {number} differs: {options}, kept as {kept}\n{done.stderr[-2000:]}")
                for i, (a, b) in enumerate(zip(ours, theirs)):
                    if a != b:
                        sys.exit(f"row {i}:\n{a}\n{b}")
                sys.exit(f"{len(ours)} rows of {len(theirs)}")
    print(f"{FILES} files: every row is the same; columns of the first row groups by encoding and compression: {seen}")


main()
