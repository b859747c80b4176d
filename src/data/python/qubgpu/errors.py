"""What can be wrong with a token file. Every message says what, where, and what to do next."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


class QubGPUError(Exception):
    """Any failure of this package that is due to a file."""


class NotATokenFile(QubGPUError):
    """The file holds neither version of the format."""


class DamagedFile(QubGPUError):
    """The file is not what its writer wrote. :attr:`defect` says where."""

    def __init__(self, path: Path, defect: "Defect") -> None:
        super().__init__(path, defect)
        self.path = path
        self.defect = defect

    def __str__(self) -> str:
        return (
            f"{escape(str(self.path))}: damaged: {self.defect}. `sparktune verify FILE` lists every defect. Create the"
            " file again from its source, or read the intact packets only with on_damage=\"drop\""
        )


@dataclass(frozen=True)
class Defect:
    """A place where a file differs from what its writer wrote."""

    #: ``header``, ``packet``, ``index``, ``footer`` or ``file hash``.
    part: str
    #: The first byte of the damaged part.
    offset: int
    #: The problem.
    what: str
    #: The affected example, counted from 0 among the packets of the file, if there is one.
    example: Optional[int] = None
    #: The source line of that example, such as ``train.jsonl:812``, if the file says it.
    origin: Optional[str] = None

    def __str__(self) -> str:
        example = "" if self.example is None else f", example {self.example}"
        origin = "" if self.origin is None else f" ({self.origin})"
        return f"{self.part} at byte {self.offset}{example}{origin}: {self.what}"


def escape(text: str) -> str:
    """Returns untrusted text, such as the name of a file, without characters that a terminal would obey."""
    return "".join(
        f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") else char
        for char in text
    )
