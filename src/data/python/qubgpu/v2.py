"""Reads version 2 of the format in place. ``src/data/token_file/v2.rs`` describes the layout.

Header, footer and index are checked when a file is opened, and that packets are at the positions in the index. Packets
are checked when they are first read, with their neighbours, because numpy is fast only for many at once.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, Optional

import numpy as np

from .checksums import BLOCK, SEALED, blake3, crc32c, crc32c_each
from .errors import DamagedFile, Defect, NotATokenFile, QubGPUError, escape
from .mapped import MappedFile

FILE_MAGIC, PACKET_MAGIC, FOOTER_MAGIC = b"QUBGPU2\n", b"QPKT", b"QUBEND2\n"
_VERSION = 2
_HEADER_FIXED, _PACKET_HEADER, _FOOTER = 24, 64, 128
_LARGEST_HEADER = 16 << 20
#: Packets that begin within the same so many bytes are checked together.
_GROUP = 1 << 20

#: What is known of a packet, and what is wrong with it.
_UNCHECKED, _SOUND, _BAD_HEADER, _BAD_ENTRY, _BAD_PAYLOAD = range(5)
_WRONG = {
    _BAD_HEADER: "packet header does not match its checksum",
    _BAD_ENTRY: "packet and index disagree",
    _BAD_PAYLOAD: "tokens, mask or padding do not match their checksum",
}


def is_v2(file: MappedFile) -> bool:
    """Returns whether the file begins or ends like one of version 2, even if it is damaged."""
    size = len(file.bytes)
    if bytes(file.map[: len(FILE_MAGIC)]) == FILE_MAGIC[:size]:
        return True
    if size < _FOOTER:
        return False
    footer = file.bytes[-_FOOTER:]
    stated = int(footer[8:16].view("<u8")[0]) if footer.size == _FOOTER else 0
    return footer[:8].tobytes() == FOOTER_MAGIC or stated == size


def _aligned(size: np.ndarray | int) -> Any:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _packet_sizes(lengths: np.ndarray) -> np.ndarray:
    """Returns the bytes of packets with so many tokens: int64 ``[n]``."""
    return _PACKET_HEADER + _aligned(4 * lengths + (lengths + 7) // 8)


class V2File:
    """A token file of version 2."""

    version = 2
    other_packets = empty_packets = 0

    def __init__(self, file: MappedFile, *, checksums: str, drop: bool) -> None:
        """Opens a file. ``checksums`` is ``read``, ``open`` or ``skip``, as of :class:`~qubgpu.QubGPUDataset`.

        ``drop`` checks all packets, and lists the damaged ones instead of raising the first. Damage elsewhere is
        always raised, because no position can be relied on then.
        """
        self._file = file
        self._check = checksums != "skip"
        self._sources: list[str] = []
        #: Packets that were found to be damaged, and are left out.
        self.damage: list[Defect] = []
        packets = self._read_header()
        self._read_footer()
        self._read_columns()
        self._check_index(packets)
        self._state = np.full(self._examples, _UNCHECKED if self._check else _SOUND, np.uint8)
        # The places of the examples that are left in, int64 [len]; None for all.
        self._places: Optional[np.ndarray] = None
        if drop or checksums == "open":
            self._check_packets(drop)
        if checksums == "open" and not self.damage and blake3(file.bytes[:-_FOOTER]) != self._hash:
            self._fail("file hash", len(file.bytes) - _FOOTER, "the content has a different hash")

    def __getstate__(self) -> dict[str, Any]:
        columns = ("_offsets", "_lines", "_lengths", "_targets", "_files")
        return {name: value for name, value in self.__dict__.items() if name not in columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._read_columns()

    # Opening

    def _fail(self, part: str, offset: int, what: str, example: Optional[int] = None) -> NoReturn:
        raise DamagedFile(self._file.path, Defect(part, offset, what, example))

    def _read_header(self) -> int:
        """Reads the names of the sources. Returns where the packets begin."""
        data = self._file.bytes
        if len(data) < _HEADER_FIXED:
            self._fail("header", 0, "the file ends inside it")
        if data[:8].tobytes() != FILE_MAGIC:
            self._fail("header", 0, "the magic number is wrong")
        version, size, text = (int(number) for number in data[8:20].view("<u4"))
        if size < BLOCK or size % BLOCK or size > min(_LARGEST_HEADER, len(data)):
            self._fail("header", 0, "its length is invalid")
        if self._check and crc32c(data[:size]) != SEALED:
            self._fail("header", 0, "checksum does not match")
        if version != _VERSION:
            raise QubGPUError(
                f"{escape(str(self._file.path))}: token file format version {version}; this package reads versions 1 "
                "and 2. Create the file again from its source"
            )
        if _HEADER_FIXED + text > size:
            self._fail("header", 0, "its text extends beyond its end")
        try:
            header = json.loads(data[_HEADER_FIXED : _HEADER_FIXED + text].tobytes())
            self._sources = [escape(str(source["name"])) for source in header["sources"]]
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            self._fail("header", 0, f"its text is not readable: {escape(str(error))}")
        return size

    def _read_footer(self) -> None:
        data = self._file.bytes
        at = len(data) - _FOOTER
        if at < 0 or len(data) % BLOCK:
            self._fail("footer", len(data), "missing: the file was truncated or never finished")
        footer = data[at:]
        numbers = footer[8:48].view("<u8")
        magic = footer[:8].tobytes() == FOOTER_MAGIC
        if not magic and int(numbers[0]) != len(data):
            self._fail("footer", len(data), "missing: the file was truncated or never finished")
        if self._check and crc32c(footer) != SEALED:
            self._fail("footer", at, "checksum does not match")
        if not magic:
            self._fail("footer", at, "the magic number is wrong")
        if footer[56:64].any() or footer[96:124].any():
            self._fail("footer", at, "bytes that should be zero are not")
        size, self._index, self._examples, self._total_tokens, self._total_targets = (int(n) for n in numbers)
        if size != len(data):
            self._fail("footer", at, f"it states {size} bytes, but the file has {len(data)}")
        if max(self._index, self._examples) > at or self._index % BLOCK or self._index_end() != at:
            self._fail("footer", at, "index and footer do not meet")
        #: The largest token id of the file: a model must have more embeddings than this.
        self.max_token_id = int(footer[48:52].view("<u4")[0])
        self._index_crc = int(footer[52:56].view("<u4")[0])
        self._hash = footer[64:96].tobytes()

    def _index_end(self) -> int:
        return self._index + 2 * int(_aligned(8 * self._examples)) + 3 * int(_aligned(4 * self._examples))

    def _read_columns(self) -> None:
        """Views the columns of the index in the file."""
        wide, narrow = (int(_aligned(width * self._examples)) for width in (8, 4))
        at = self._index

        def column(start: int, kind: str) -> np.ndarray:
            return np.frombuffer(self._file.map, kind, self._examples, start)

        self._offsets, self._lines = column(at, "<u8"), column(at + wide, "<u8")
        at += 2 * wide
        self._lengths, self._targets, self._files = (column(at + narrow * i, "<u4") for i in range(3))

    def _check_index(self, start: int) -> None:
        """Checks that the packets follow each other from the header to the index, with the stated lengths."""
        at, end = self._index, self._index_end()
        if self._check and crc32c(self._file.bytes[at:end]) != self._index_crc:
            self._fail("index", at, "checksum does not match")
        lengths = self._lengths.astype(np.int64)
        ends = start + np.cumsum(_packet_sizes(lengths))
        starts = np.concatenate([[start], ends[:-1]]) if self._examples else ends
        wrong = np.flatnonzero((self._offsets != starts.astype(np.uint64)) | (lengths == 0) | (ends > at))
        if len(wrong):
            self._fail("index", at, "offset and length do not follow the previous packet", int(wrong[0]))
        if (int(ends[-1]) if self._examples else start) != at:
            self._fail("index", at, "it does not cover all packets")
        counts = int(lengths.sum()), int(self._targets.sum(dtype=np.int64))
        if counts != (self._total_tokens, self._total_targets):
            self._fail("index", at, "its token counts differ from the footer's")

    # Checking packets

    def _check_packets(self, drop: bool) -> None:
        first = 0
        while first < self._examples:
            first = self._check_group(first)
        for place in np.flatnonzero(self._state != _SOUND):
            self.damage.append(self._defect(int(place)))
            if not drop:
                raise DamagedFile(self._file.path, self.damage[-1])
        if self.damage:
            self._places = np.flatnonzero(self._state == _SOUND)

    def _check_group(self, place: int) -> int:
        """Checks the packet at this place and its neighbours. Returns the place after them."""
        group = int(self._offsets[place]) // _GROUP
        first = int(np.searchsorted(self._offsets, np.uint64(group * _GROUP)))
        after = int(np.searchsorted(self._offsets, np.uint64((group + 1) * _GROUP)))
        data = self._file.bytes
        starts = self._offsets[first:after].astype(np.int64)
        ends = starts + _packet_sizes(self._lengths[first:after].astype(np.int64))
        headers = data[starts[:, None] + np.arange(_PACKET_HEADER)]
        lengths, targets, files, payload_crcs = (
            headers[:, at : at + 4].copy().view("<u4")[:, 0] for at in (4, 28, 24, 32)
        )
        examples, lines = (headers[:, at : at + 8].copy().view("<u8")[:, 0] for at in (8, 16))

        # Header and payload of each packet are two messages. One that is longer than a group is the last one.
        if int(ends[-1] - starts[-1]) > _GROUP:
            whole, rest = data[starts[0] : starts[-1] + _PACKET_HEADER], data[starts[-1] + _PACKET_HEADER : ends[-1]]
        else:
            whole, rest = data[starts[0] : ends[-1]], None
        messages = np.stack([starts, starts + _PACKET_HEADER], 1).ravel() - starts[0]
        if rest is not None:
            messages = messages[:-1]
        crcs = crc32c_each(whole, messages // BLOCK).astype(np.int64)
        if rest is not None:
            crcs = np.append(crcs, crc32c(rest))

        magic = (headers[:, :4] == np.frombuffer(PACKET_MAGIC, np.uint8)).all(1)
        sealed = magic & (crcs[::2] == SEALED) & (lengths > 0)
        span = slice(first, after)
        agrees = (
            (examples == np.arange(first, after, dtype=np.uint64))
            & (lengths == self._lengths[span])
            & (targets == self._targets[span])
            & (files == self._files[span])
            & (lines == self._lines[span])
        )
        state = np.full(after - first, _SOUND, np.uint8)
        state[crcs[1::2] != payload_crcs] = _BAD_PAYLOAD
        state[~agrees] = _BAD_ENTRY
        state[~sealed] = _BAD_HEADER
        self._state[span] = state
        return after

    def _defect(self, place: int) -> Defect:
        what = _WRONG[int(self._state[place])]
        return Defect("packet", int(self._offsets[place]), what, place, self._origin_at(place))

    def check(self, i: int) -> None:
        """Raises :class:`DamagedFile` if the packet of example ``i`` is damaged. It is computed at the first call."""
        place = self._place(i)
        if self._state[place] == _UNCHECKED:
            self._check_group(place)
        if self._state[place] != _SOUND:
            raise DamagedFile(self._file.path, self._defect(place))

    # Reading

    def __len__(self) -> int:
        return self._examples if self._places is None else len(self._places)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example: uint32 ``[len]``."""
        return self._lengths if self._places is None else self._lengths[self._places]

    def _place(self, i: int) -> int:
        return i if self._places is None else int(self._places[i])

    def tokens(self, i: int) -> np.ndarray:
        """Returns the tokens of example ``i`` in the file itself: uint32 ``[n]``, not writable."""
        place = self._place(i)
        return np.frombuffer(self._file.map, "<u4", int(self._lengths[place]), self._payload(place))

    def targets(self, i: int) -> np.ndarray:
        """Returns which tokens of example ``i`` are trained: bool ``[n]``."""
        place = self._place(i)
        n = int(self._lengths[place])
        bits = np.frombuffer(self._file.map, np.uint8, (n + 7) // 8, self._payload(place) + 4 * n)
        return np.unpackbits(bits, count=n, bitorder="little").view(bool)

    def _payload(self, place: int) -> int:
        return int(self._offsets[place]) + _PACKET_HEADER

    def origin(self, i: int) -> str:
        """Returns the source of example ``i``: its file and line, such as ``train.jsonl:812``."""
        return self._origin_at(self._place(i))

    def _origin_at(self, place: int) -> str:
        file = int(self._files[place])
        name = self._sources[file] if file < len(self._sources) else f"source {file}"
        return f"{name}:{self._lines[place]}"
