"""The checksums of token files, computed with numpy over many packets at once.

CRC-32C and BLAKE3 are not in Python's standard library, so they are here. CRC-16 is, in C: see :mod:`qubgpu.v1`.
Everything in a v2 file that has a checksum is a multiple of 64 bytes long, so CRC-32C knows nothing else.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

BLOCK = 64
#: CRC-32C of any bytes that end with their own CRC-32C, little-endian.
SEALED = 0x48674BC7
_ALL_ONES = 0xFFFFFFFF
#: How many blocks are computed at once: what they need fits into a second-level cache.
_AT_ONCE = 4096


@lru_cache(maxsize=None)
def _byte_tables() -> np.ndarray:
    """Returns what a byte at each place of a block adds to its CRC: uint32 ``[64, 256]``."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):  # 0x82F63B78 is the polynomial 0x1EDC6F41 with its bits reversed.
        last = np.where(last & 1, (last >> 1) ^ np.uint32(0x82F63B78), last >> 1)
    tables = np.empty((BLOCK, 256), np.uint32)
    tables[BLOCK - 1] = last
    for place in range(BLOCK - 2, -1, -1):
        after = tables[place + 1]
        tables[place] = (after >> 8) ^ last[after & 0xFF]
    return tables


@lru_cache(maxsize=None)
def _shift_tables(doublings: int) -> np.ndarray:
    """Returns tables that move a CRC over ``2**doublings`` blocks of zeros: uint32 ``[4, 256]``, by its bytes."""
    if doublings == 0:
        return _byte_tables()[:4]
    half = _shift_tables(doublings - 1)
    return _shift(_shift(np.stack([np.arange(256, dtype=np.uint32) << (8 * byte) for byte in range(4)]), half), half)


def _shift(crcs: np.ndarray, tables: np.ndarray) -> np.ndarray:
    return (
        tables[0][crcs & 0xFF] ^ tables[1][(crcs >> 8) & 0xFF] ^ tables[2][(crcs >> 16) & 0xFF] ^ tables[3][crcs >> 24]
    )


def _of_messages(blocks: np.ndarray, starts: np.ndarray, state: int) -> np.ndarray:
    """Returns the CRC registers after messages that begin with ``state``.

    ``blocks`` is uint8 ``[n, 64]``; message ``i`` is ``blocks[starts[i]:starts[i + 1]]`` and never empty.
    """
    tables = _byte_tables()
    crcs = np.zeros(len(blocks), np.uint32)
    for first in range(0, len(blocks), _AT_ONCE):
        columns = np.ascontiguousarray(blocks[first : first + _AT_ONCE].T)
        part = crcs[first : first + _AT_ONCE]
        for place in range(BLOCK):
            part ^= tables[place].take(columns[place])
    crcs[starts] ^= _shift(np.array([state], np.uint32), tables[:4])
    # Each block's CRC moves over the blocks that follow it in its message; then all of a message are added.
    ends = np.append(starts[1:], len(blocks))
    behind = np.repeat(ends, ends - starts) - 1 - np.arange(len(blocks))
    for doublings in range(int(behind.max()).bit_length()):
        chosen = np.flatnonzero(behind >> doublings & 1)
        crcs[chosen] = _shift(crcs[chosen], _shift_tables(doublings))
    return np.bitwise_xor.reduceat(crcs, starts)


def crc32c_each(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the CRC-32C of each message in ``data``: uint32 ``[len(starts)]``.

    ``data`` is uint8 ``[64 n]``; ``starts`` are the numbers of the blocks where messages begin, ascending from 0.
    """
    return _of_messages(data.reshape(-1, BLOCK), np.asarray(starts, np.int64), _ALL_ONES) ^ np.uint32(_ALL_ONES)


def crc32c(data: np.ndarray) -> int:
    """Returns the CRC-32C of one message of any size, uint8 ``[64 n]``, in constant memory."""
    state = _ALL_ONES
    start = np.zeros(1, np.int64)
    for first in range(0, len(data), BLOCK * _AT_ONCE):
        piece = data[first : first + BLOCK * _AT_ONCE].reshape(-1, BLOCK)
        state = int(_of_messages(piece, start, state)[0])
    return state ^ _ALL_ONES


# BLAKE3, after its specification (O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020).
_IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
_ORDER = np.array([2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8])
_CHUNK = 1024
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT, _DERIVE_CONTEXT, _DERIVE_MATERIAL = 1, 2, 4, 8, 32, 64


def _turn(words: np.ndarray, by: int) -> np.ndarray:
    return (words >> by) | (words << (32 - by))


def _compress(
    chaining: np.ndarray, message: np.ndarray, counters: np.ndarray, length: int, flags: int
) -> np.ndarray:
    """Compresses one block of each of ``n`` inputs. All words are uint32.

    ``chaining`` is ``[8, n]``, ``message`` ``[16, n]``, ``counters`` uint64 ``[n]``. Returns ``[8, n]``.
    """
    n = message.shape[1]
    a, b = chaining[:4].copy(), chaining[4:].copy()
    c = np.repeat(_IV[:4, None], n, axis=1)
    d = np.empty((4, n), np.uint32)
    d[0], d[1], d[2], d[3] = counters & 0xFFFFFFFF, counters >> 32, length, flags
    order = np.arange(16)
    for _ in range(7):
        for words, turned in ((order[:8], True), (order[8:], False)):
            for first, by_d, by_b in ((0, 16, 12), (1, 8, 7)):
                a += b
                a += message[words[first::2]]
                d = _turn(d ^ a, by_d)
                c += d
                b = _turn(b ^ c, by_b)
            # The second half of a round mixes the diagonals: they become columns and then go back.
            step = 1 if turned else -1
            b, c, d = np.roll(b, -step, 0), np.roll(c, -2 * step, 0), np.roll(d, -3 * step, 0)
        order = order[_ORDER]
    return np.concatenate([a ^ c, b ^ d])


def _chunks(data: np.ndarray, key: np.ndarray, first: int, flags: int) -> np.ndarray:
    """Returns the chaining values of whole chunks, none of which is the root: ``[n, 8]``."""
    words = data.view("<u4").reshape(-1, 16, 16)
    chaining = np.repeat(key[:, None], len(words), axis=1)
    counters = np.arange(first, first + len(words), dtype=np.uint64)
    for block in range(16):
        edge = (_CHUNK_START if block == 0 else 0) | (_CHUNK_END if block == 15 else 0)
        message = np.ascontiguousarray(words[:, block].T)
        chaining = _compress(chaining, message, counters, BLOCK, flags | edge)
    return chaining.T


def _last_chunk(data: np.ndarray, key: np.ndarray, number: int, flags: int) -> np.ndarray:
    """Returns the chaining value of the last chunk, of up to 1,024 bytes: ``[1, 8]``."""
    chaining = key[:, None]
    count = max(1, -(-len(data) // BLOCK))
    for block in range(count):
        piece = data[BLOCK * block : BLOCK * (block + 1)]
        padded = np.zeros(BLOCK, np.uint8)
        padded[: len(piece)] = piece
        edge = _CHUNK_START if block == 0 else 0
        if block == count - 1:
            edge |= _CHUNK_END | (_ROOT if number == 0 else 0)
        counters = np.array([number], np.uint64)
        chaining = _compress(chaining, padded.view("<u4")[:, None], counters, len(piece), flags | edge)
    return chaining.T


def _blake3(data: np.ndarray, key: np.ndarray, flags: int) -> bytes:
    whole = max(0, (len(data) - 1) // _CHUNK)
    values = [
        _chunks(data[_CHUNK * first : _CHUNK * min(whole, first + _CHUNK)], key, first, flags)
        for first in range(0, whole, _CHUNK)
    ]
    level = np.concatenate([*values, _last_chunk(data[_CHUNK * whole :], key, whole, flags)])
    while len(level) > 1:
        pairs = len(level) // 2
        chaining = np.repeat(key[:, None], pairs, axis=1)
        message = np.ascontiguousarray(level[: 2 * pairs].reshape(pairs, 16).T)
        root = _ROOT if len(level) == 2 else 0
        parents = _compress(chaining, message, np.zeros(pairs, np.uint64), BLOCK, flags | _PARENT | root)
        level = np.concatenate([parents.T, level[2 * pairs :]])
    return level[0].astype("<u4").tobytes()


def blake3(data: np.ndarray) -> bytes:
    """Returns the BLAKE3 hash of uint8 ``[n]``: 32 bytes."""
    return _blake3(data, _IV, 0)


def blake3_derived(context: str, data: bytes) -> bytes:
    """Returns BLAKE3's ``derive_key`` of this context and key material: 32 bytes."""
    key = _blake3(np.frombuffer(context.encode(), np.uint8), _IV, _DERIVE_CONTEXT)
    return _blake3(np.frombuffer(data, np.uint8), np.frombuffer(key, "<u4"), _DERIVE_MATERIAL)
