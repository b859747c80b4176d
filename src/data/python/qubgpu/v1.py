"""Reads version 1 of the format: packets of the Neural Datagram Protocol, one after another.

``src/data/token_file/v1.rs`` describes the layout. It has no index, so opening a file walks over all packets, and
checks them on the way. It has no loss mask, no source lines and no hashes: every token but the first of a packet is
trained, and packets are known by their number.

The checksum comes from the standard library: ``binascii.crc_hqx`` is CRC-16 with the polynomial 0x1021, in C.
"""

from __future__ import annotations

from array import array
from binascii import crc_hqx
from mmap import mmap
from typing import Callable, Iterator, Optional, Union

import numpy as np

from .errors import DamagedFile, Defect, NotATokenFile, escape
from .mapped import MappedFile

SYNC = 0xAA
TOKEN_IDS = 0x01
_HEADER, _CRC = 6, 2
#: How much of a file is searched for the first packet.
_SEARCHED = 1 << 20

_Bytes = Union[bytes, memoryview]
_Checksum = Callable[[memoryview], int]

_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ccitt_false(data: _Bytes) -> int:
    return crc_hqx(data, 0xFFFF)


def _xmodem(data: _Bytes) -> int:
    return crc_hqx(data, 0)


def _kermit(data: _Bytes) -> int:
    # The same polynomial with the bits of every byte, and of the result, in the opposite order.
    crc = crc_hqx(bytes(data).translate(_MIRRORED), 0)
    return _MIRRORED[crc & 0xFF] << 8 | _MIRRORED[crc >> 8]


#: The checksums that a writer may have meant by "CRC-16/CCITT", each over one of three parts of a packet. A reader
#: uses the first under which two packets in a row, or the last one of a file, are right.
_KNOWN: list[_Checksum] = [
    lambda packet, of=of, covered=covered: of(packet[covered:])  # type: ignore[misc]
    for of in (_ccitt_false, _xmodem, _kermit)
    for covered in (0, 1, _HEADER)
]
_WRITTEN = _KNOWN[0]


class _Walk:
    """The packets and the damage of a file, in order."""

    def __init__(self, file: mmap, end: int, check: bool) -> None:
        self.file = file
        self.data = memoryview(file)[:end]
        self.check = check
        self.checksum: Optional[_Checksum] = None

    def items(self) -> Iterator[tuple[bool, int, int]]:
        """Yields whether it is a packet, its first byte, and its length in bytes."""
        at, skipped, end = 0, 0, len(self.data)
        while at < end:
            length = self._packet_at(at, skipped > 0)
            if length and skipped:
                yield False, at - skipped, skipped
                skipped = 0
            if length:
                yield True, at, length
                at += length
            else:
                found = self.file.find(b"\xaa", at + 1, end)
                after = end if found < 0 else found
                skipped += after - at
                at = after
        if skipped:
            yield False, end - skipped, skipped

    def _framed(self, at: int) -> int:
        """Returns the length of the packet that the bytes at ``at`` describe, or 0 if there is none."""
        data = self.data
        if at + _HEADER > len(data) or data[at] != SYNC:
            return 0
        length = _HEADER + (data[at + 4] << 8 | data[at + 5]) + _CRC
        return length if at + length <= len(data) else 0

    def _packet_at(self, at: int, searching: bool) -> int:
        length = self._framed(at)
        if not length or not self.check:
            return length
        # While searching, 0xAA may be any byte, so 16 bits of checksum are trusted for packets of tokens only.
        if searching and (self.data[at + 3] != TOKEN_IDS or (length - _HEADER - _CRC) % 4):
            return 0
        if self.checksum is not None:
            return length if self._is_right(self.checksum, at, length) else 0
        right = [checksum for checksum in _KNOWN if self._is_right(checksum, at, length)]
        after = at + length
        if after < len(self.data):
            following = self._framed(after)
            sure = [c for c in right if following and self._is_right(c, after, following)]
            right = sure or [c for c in right if c is _WRITTEN]
        if not right:
            return 0
        self.checksum = right[0]
        return length

    def _is_right(self, checksum: _Checksum, at: int, length: int) -> bool:
        end = at + length - _CRC
        return checksum(self.data[at:end]) == (self.data[end] << 8 | self.data[end + 1])


def looks_like(file: MappedFile) -> bool:
    """Returns whether the file starts with packets, or with damage and then packets."""
    return any(is_packet for is_packet, _, _ in _Walk(file.map, _SEARCHED, True).items())


class V1File:
    """The packets of token ids in a file of version 1."""

    version = 1

    def __init__(self, file: MappedFile, *, check: bool, drop: bool) -> None:
        """Walks over the file. ``check`` compares checksums; ``drop`` lists damage instead of raising it."""
        if not looks_like(file):
            raise NotATokenFile(
                f"{escape(str(file.path))}: no packet of either version was found. Give a file made by `sparktune pack`"
            )
        self._file = file
        #: What was found to be damaged, and is left out.
        self.damage: list[Defect] = []
        #: The number of packets that hold something other than token ids, and of those that hold nothing.
        self.other_packets = self.empty_packets = 0
        #: Version 1 does not say it.
        self.max_token_id: Optional[int] = None
        starts, lengths, numbers = array("q"), array("I"), array("q")
        packets = 0
        for is_packet, at, length in _Walk(file.map, len(file.map), check).items():
            what = None
            if not is_packet:
                what = f"{length} bytes contain no packet with a correct checksum"
            elif file.map[at + 3] != TOKEN_IDS:
                self.other_packets += 1
            elif length == _HEADER + _CRC:
                self.empty_packets += 1
            else:
                what = self._not_tokens(at, length)
                if what is None:
                    starts.append(at + _HEADER)
                    lengths.append((length - _HEADER - _CRC) // 4)
                    numbers.append(packets)
            if what is not None:
                self.damage.append(Defect("packet", at, what, packets))
                if not drop:
                    raise DamagedFile(file.path, self.damage[-1])
            packets += is_packet
        self._starts = np.array(starts, np.int64)
        self._numbers = np.array(numbers, np.int64)
        #: The number of tokens of each example: int64 ``[len]``.
        self.lengths = np.array(lengths, np.int64)

    def _not_tokens(self, at: int, length: int) -> Optional[str]:
        """Returns why an intact packet holds no token ids."""
        payload = length - _HEADER - _CRC
        if payload % 4:
            return f"{payload} bytes of payload are not a whole number of token ids"
        ids = np.frombuffer(self._file.map, ">i4", payload // 4, at + _HEADER)
        least = int(ids.min())
        return f"{least} is not a token id" if least < 0 else None

    def __len__(self) -> int:
        return len(self._starts)

    def tokens(self, i: int) -> np.ndarray:
        """Returns the tokens of example ``i`` in the file itself: big-endian int32 ``[n]``, not writable."""
        return np.frombuffer(self._file.map, ">i4", int(self.lengths[i]), int(self._starts[i]))

    def targets(self, i: int) -> np.ndarray:
        """Returns which tokens of example ``i`` are trained: bool ``[n]``, all but the first."""
        targets = np.ones(int(self.lengths[i]), bool)
        targets[:1] = False
        return targets

    def origin(self, i: int) -> str:
        """Returns what is known of the source of example ``i``: its packet, counted from 1."""
        return f"{escape(self._file.path.name)}:{self._numbers[i] + 1}"

    def check(self, i: int) -> None:
        """Does nothing: all packets were checked when the file was opened."""
