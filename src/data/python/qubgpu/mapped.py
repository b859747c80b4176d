"""Maps a file into memory, once per process."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from .errors import NotATokenFile, QubGPUError, escape


class MappedFile:
    """A file as read-only bytes.

    A copy in another process maps the file again, and refuses one that was replaced in the meantime: its packets
    would be others than those that were counted and checked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, ...] | None = None
        self._open()

    def _open(self) -> None:
        try:
            # A pipe of this name would otherwise be waited for until somebody writes into it.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise NotATokenFile(f"{escape(str(self.path))}: it is not a file. Name a token file")
                if found.st_size == 0:
                    raise NotATokenFile(f"{escape(str(self.path))}: the file is empty")
                self.map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = escape(error.strerror or str(error))
            raise QubGPUError(f"{escape(str(self.path))}: {reason}") from error
        except ValueError as error:  # Something that has a length but cannot be mapped.
            raise QubGPUError(f"{escape(str(self.path))}: {escape(str(error))}") from error
        identity = (found.st_size, found.st_mtime_ns, found.st_ino)
        if self._identity not in (None, identity):
            raise QubGPUError(
                f"{escape(str(self.path))}: the file was replaced after it was opened. Open the data set again"
            )
        self._identity = identity
        #: The bytes of the file: uint8 ``[size]``, not writable.
        self.bytes = np.frombuffer(self.map, np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_identity": self._identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
