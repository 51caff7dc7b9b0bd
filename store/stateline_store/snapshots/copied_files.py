"""One file of a copy, at the end that sends it and at the end that receives it (`store_copies`).

Both make the digest of the whole file, also of what had arrived before: BLAKE2b of 32 bytes. All calls take as long as
the disk does. Each object is for one thread at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stateline_store.errors import DamagedDataError, InvalidArgumentError
from stateline_store.files.durable_files import FILE_MODE, refused
from stateline_store.steps import reached

_READ_BYTES = 1024 * 1024


class _CopiedFile:
    """The file, and the digest of its bytes up to the present offset."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.size = path, size
        self._file = file
        self._digest = hashlib.blake2b(digest_size=32)

    @property
    def digest(self) -> str:
        """The digest of the bytes up to the present offset, as hexadecimal digits."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _digest_to(self, end: int) -> None:
        left = end
        while left and (piece := self._file.read(min(left, _READ_BYTES))):
            self._digest.update(piece)
            left -= len(piece)
        if left:
            raise DamagedDataError(f"{self.path} is shorter than it was.")


class LeavingFile(_CopiedFile):
    """A file that is sent: its first `size` bytes, from `offset` on."""

    def __init__(self, path: Path, size: int, offset: int) -> None:
        """Open it. Raises `InvalidArgumentError` for an offset behind the end, `DamagedDataError` if the file is
        shorter, `RetryLaterError` if it cannot be read."""
        if not 0 <= offset <= size:
            raise InvalidArgumentError(f"{path.name} has no byte {offset}: it has {size}.")
        try:
            super().__init__(path, path.open("rb"), size)
            self._digest_to(offset)
        except OSError as error:
            raise refused(path, "read", error) from error
        self._at = offset

    def read(self, most: int) -> bytes:
        """Return the next bytes, none at the end. Raises as the constructor."""
        try:
            piece = self._file.read(min(most, self.size - self._at))
        except OSError as error:
            raise refused(self.path, "read", error) from error
        if not piece and self._at < self.size:
            raise DamagedDataError(f"{self.path} is shorter than it was.")
        self._digest.update(piece)
        self._at += len(piece)
        return piece


class ArrivingFile(_CopiedFile):
    """A file that is received. `offset` bytes of it are there."""

    def __init__(self, path: Path, size: int) -> None:
        """Continue with the bytes that are there. Raises `RetryLaterError` when the file system refuses."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            super().__init__(path, os.fdopen(handle, "r+b", buffering=0), size)
            self.offset = min(os.fstat(handle).st_size, size)
            self._digest_to(self.offset)
        except OSError as error:
            raise refused(path, "written", error) from error

    def add(self, piece: bytes) -> None:
        """Append these bytes. Raises `RetryLaterError` when the file system refuses."""
        try:
            with memoryview(piece) as left:
                written = 0
                while written < len(left):
                    written += self._file.write(left[written:])
        except OSError as error:
            raise refused(self.path, "written", error) from error
        self._digest.update(piece)
        self.offset += len(piece)
        reached("copy:piece-written")

    def finish(self, digest: str) -> None:
        """Compare the sender's digest with this end's. If they differ, delete the file, so that it is received again,
        and raise `DamagedDataError`."""
        if self.offset != self.size or digest != self.digest:
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise DamagedDataError(f"{self.path.name} did not arrive as it was sent.")
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise refused(self.path, "written", error) from error
        reached("copy:file-arrived")
