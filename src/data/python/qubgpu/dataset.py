"""Token files as a data set of padded rows, for PyTorch's ``DataLoader`` or for numpy alone."""

from __future__ import annotations

import ctypes
import multiprocessing
import operator
import os
import warnings
from collections.abc import Sequence as SequenceABC
from multiprocessing import context
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np

from . import v1, v2
from .drop import kept
from .errors import Defect
from .mapped import MappedFile

try:
    import torch
except ImportError:  # The rows are numpy arrays then.
    torch = None

#: What a label is where nothing is to be learned: ``torch.nn.functional.cross_entropy`` ignores it.
IGNORED = -100

Row = Dict[str, Any]


class QubGPUDataset:
    """The examples of a ``.qubgpu`` file, each as one row of ``max_seq_length`` tokens.

    A row is a dictionary of three int64 tensors ``[max_seq_length]`` (numpy arrays if torch is not installed or
    ``tensors`` is false)::

        input_ids       the tokens, then pad_token_id
        labels          the same tokens where they are trained; -100 elsewhere and on padding
        attention_mask  1 on tokens, 0 on padding

    Labels are not shifted, as models of transformers expect it. ``dataset[i]`` is a row; ``dataset[[3, 0, 8]]`` and
    ``dataset[:8]`` are batches, the same with ``[n, max_seq_length]``. Version 1 has no loss mask: all its tokens but
    the first of each example are trained.

    Examples longer than ``max_seq_length`` are cut; :attr:`truncated` counts them.

    **Damage.** ``checksums="read"`` checks each packet when it is first read (version 1: all when the file is opened),
    ``"open"`` all packets and the hash of the file at once, ``"skip"`` none. ``on_damage="stop"`` raises
    :class:`~qubgpu.DamagedFile` at the first damaged packet; ``"drop"`` checks all packets when the file is opened,
    leaves the damaged ones out, warns, and lists them in :attr:`damage`.

    **Augmentation.** ``crc_drop_rate`` leaves out this share of the sound examples at random. This has nothing to do
    with checksums: it is subsampling, an epoch trains on fewer examples. ``seed`` and epoch decide which ones, as in
    ``sparktune train --crc-drop``. Call :meth:`set_epoch` before each epoch; otherwise every epoch leaves out the same.

    Workers of a ``DataLoader``, forked or spawned, map the file themselves. Reading never changes what others read.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        max_seq_length: int = 512,
        pad_token_id: int = 0,
        crc_drop_rate: float = 0.0,
        *,
        seed: int = 42,
        checksums: str = "read",
        on_damage: str = "stop",
        tensors: Optional[bool] = None,
    ) -> None:
        if operator.index(max_seq_length) < 1:
            raise ValueError(f"max_seq_length is {max_seq_length}; give a number of tokens, at least 1")
        if not 0 <= crc_drop_rate < 1:
            raise ValueError(f"crc_drop_rate is {crc_drop_rate}; give a share from 0 to below 1")
        if checksums not in ("read", "open", "skip"):
            raise ValueError(f"checksums is {checksums!r}; give \"read\", \"open\" or \"skip\"")
        if on_damage not in ("stop", "drop"):
            raise ValueError(f"on_damage is {on_damage!r}; give \"stop\" or \"drop\"")
        if on_damage == "drop" and checksums == "skip":
            raise ValueError("on_damage=\"drop\" needs checksums, because they say what is damaged")
        if tensors and torch is None:
            raise ValueError("tensors were asked for, but torch is not installed")
        if not 0 <= operator.index(seed) < 1 << 64:
            raise ValueError(f"seed is {seed}; give a number from 0 to 2**64 - 1")
        self.max_seq_length = operator.index(max_seq_length)
        self.pad_token_id = operator.index(pad_token_id)
        self.crc_drop_rate = float(crc_drop_rate)
        self._seed = operator.index(seed)
        self._tensors = torch is not None if tensors is None else tensors
        mapped = MappedFile(Path(path))
        self._file: Union[v1.V1File, v2.V2File]
        if v2.is_v2(mapped):
            self._file = v2.V2File(mapped, checksums=checksums, drop=on_damage == "drop")
        else:
            self._file = v1.V1File(mapped, check=checksums != "skip", drop=on_damage == "drop")
        if self.damage:
            warnings.warn(
                f"{mapped.path}: {len(self.damage)} damaged packets are left out. The first: {self.damage[0]}",
                stacklevel=2,
            )
        # Workers that live longer than an epoch see through this that another one begins.
        self._epoch: Any = multiprocessing.RawValue(ctypes.c_uint64, 0)
        self._chosen_for: Optional[int] = None
        self._chosen: Optional[np.ndarray] = None

    # What the file holds

    @property
    def version(self) -> int:
        """The version of the file's format, 1 or 2."""
        return self._file.version

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sound example, before any is cut or dropped: ``[examples]``."""
        return self._file.lengths

    @property
    def damage(self) -> List[Defect]:
        """The damaged packets that are left out."""
        return self._file.damage

    @property
    def truncated(self) -> int:
        """The number of sound examples that are longer than a row, and are cut."""
        return int((self._file.lengths > self.max_seq_length).sum())

    @property
    def other_packets(self) -> int:
        """The number of packets of version 1 that hold no token ids, and are left out."""
        return self._file.other_packets

    @property
    def empty_packets(self) -> int:
        """The number of packets of version 1 without any token, which are left out."""
        return self._file.empty_packets

    @property
    def max_token_id(self) -> Optional[int]:
        """The largest token id, or ``None`` for version 1. A model must have more embeddings than this."""
        return self._file.max_token_id

    def origin(self, index: int) -> str:
        """Returns the source of an example, such as ``train.jsonl:812``; for version 1 the number of its packet."""
        return self._file.origin(self._place(index))

    def tokens(self, index: int) -> np.ndarray:
        """Returns all tokens of an example without copying them: ``[n]``, not writable; version 1 is big-endian."""
        place = self._place(index)
        self._file.check(place)
        return self._file.tokens(place)

    def targets(self, index: int) -> np.ndarray:
        """Returns which tokens of an example are trained: bool ``[n]``."""
        place = self._place(index)
        self._file.check(place)
        return self._file.targets(place)

    # The rows of an epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the examples that ``crc_drop_rate`` leaves out in this epoch, in running workers too."""
        if not 0 <= operator.index(epoch) < 1 << 64:
            raise ValueError(f"epoch is {epoch}; give a number from 0")
        self._epoch.value = operator.index(epoch)

    def _rows(self) -> Optional[np.ndarray]:
        """Returns the places of this epoch's examples, or ``None`` for all."""
        if not self.crc_drop_rate:
            return None
        epoch = self._epoch.value
        if self._chosen_for != epoch:
            self._chosen = kept(len(self._file), self.crc_drop_rate, self._seed, epoch)
            self._chosen_for = epoch
        return self._chosen

    def _place(self, index: int) -> int:
        index, count = operator.index(index), len(self)
        if not -count <= index < count:
            raise IndexError(f"example {index} of {count}")
        index %= count
        rows = self._rows()
        return index if rows is None else int(rows[index])

    def __len__(self) -> int:
        rows = self._rows()
        return len(self._file) if rows is None else len(rows)

    def __getitem__(self, index: Union[int, slice, Sequence[int], np.ndarray]) -> Row:
        """Returns a row, or for a slice or several numbers a batch.

        :raises DamagedFile: if a packet does not match its checksum
        """
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        if isinstance(index, (SequenceABC, np.ndarray)):
            return self._wrapped(self._batch([self._place(i) for i in index]))
        return self._wrapped({name: values[0] for name, values in self._batch([self._place(index)]).items()})

    def __getitems__(self, indices: Sequence[int]) -> List[Row]:
        """Returns the rows of a batch, which ``DataLoader`` asks for at once."""
        batch = self._wrapped(self._batch([self._place(i) for i in indices]))
        return [{name: values[i] for name, values in batch.items()} for i in range(len(indices))]

    def _batch(self, places: Sequence[int]) -> Dict[str, np.ndarray]:
        shape = len(places), self.max_seq_length
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        attention_mask = np.zeros(shape, np.int64)
        for row, place in enumerate(places):
            self._file.check(place)
            tokens = self._file.tokens(place)[: self.max_seq_length]
            n = len(tokens)
            input_ids[row, :n] = tokens
            np.copyto(labels[row, :n], tokens, where=self._file.targets(place)[:n])
            attention_mask[row, :n] = 1
        return {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask}

    def _wrapped(self, row: Dict[str, np.ndarray]) -> Row:
        if not self._tensors:
            return dict(row)
        return {name: torch.from_numpy(values) for name, values in row.items()}

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        # Memory that processes share can only be handed to one that is being started.
        if context.get_spawning_popen() is None:
            state["_epoch"] = self._epoch.value
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._epoch, int):
            self._epoch = multiprocessing.RawValue(ctypes.c_uint64, self._epoch)

    def __repr__(self) -> str:
        counts = {
            "truncated": self.truncated,
            "damaged and left out": len(self.damage),
            "dropped in this epoch": len(self._file) - len(self),
            "without token ids": self.other_packets,
            "empty": self.empty_packets,
        }
        rest = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"<QubGPUDataset v{self.version}, {len(self)} examples{rest}>"
