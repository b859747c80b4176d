"""Which examples an epoch leaves out at random, as ``sparktune train --crc-drop`` chooses them."""

from __future__ import annotations

import numpy as np

from .checksums import blake3_derived

_GAMMA = 0x9E3779B97F4A7C15


def kept(examples: int, share: float, seed: int, epoch: int) -> np.ndarray:
    """Returns the places of the examples that an epoch keeps when ``share`` of all are dropped: int64 ``[n]``.

    Each example is dropped independently of the others. Source: ``dropped`` in ``src/data/packing/order.rs``.
    """
    material = seed.to_bytes(8, "little") + epoch.to_bytes(8, "little") + b"drop"
    key = int.from_bytes(blake3_derived("sparktune packing v1", material)[:8], "little")
    bits = np.arange(1, examples + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(key)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return np.flatnonzero((bits >> np.uint64(11)).astype(np.float64) >= share * 2**53)
