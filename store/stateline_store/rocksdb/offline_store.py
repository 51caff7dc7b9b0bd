"""OfflineStore: reads a store's database on disk for an inspection. Nothing in its directory changes.

RocksDB's read-only mode takes no lock and writes no file. But rocksdict 0.3.29 writes its ``rocksdict-config.json``
into the directory that it opens, in every mode, and fails where it may not. So a scratch directory of links to the
database's files is opened instead.

This works also while a worker has the store open. The write-ahead log is read to its end, so every commit shows that
the worker has handed to the operating system. An opening during a flush of the worker is not used (`secondary.py` says
why).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from rocksdict import AccessType, Rdict

from stateline_store.engines.engine import Commit
from stateline_store.errors import CallerError, ConfigurationError, DamagedDataError, NotPresentError, RetryLaterError
from stateline_store.layout import Layout
from stateline_store.rocksdb.errors import damaged, translated
from stateline_store.rocksdb.expiry_index import EXPIRY_FAMILY
from stateline_store.rocksdb.options import secondary_options
from stateline_store.rocksdb.rows import OFFSETS_FAMILY, Format, estimated_rows, read_commit, read_format
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rocksdb.write_ahead_logs import Damage, refuse_holes
from stateline_store.scan import KeyRange, StoreIterator

_FAMILIES = ("default", OFFSETS_FAMILY)
_NOT_LINKED = frozenset({"LOCK", "LOG", "rocksdict-config.json"})  # written at an opening, or of no use to it


class OfflineStore:
    """One opening of a store's database. A context manager. Not thread-safe. Its rows do not change.

    `format_version` and `layout` are None if the database says no format: an owner was interrupted at its first
    opening, or Kafka Streams wrote it.
    """

    def __init__(self, directory: Path, known_damage: Damage | None = None) -> None:
        """Open the database of this directory. If it changes meanwhile, try once more. `known_damage`: open it although
        its logs have this damage. Its owner does so to learn which database it is, and ignores the rows.

        Raises `DamagedDataError` if it cannot be trusted, `CallerError` if a newer version wrote it, `NotPresentError`
        if there is none yet, `RetryLaterError` if it was being written all the time or may not be read.
        """
        self.directory = directory
        self._known_damage = known_damage
        self.format_version: int | None
        self.layout: Layout | None
        self.format: Format | None
        self.commit: Commit
        try:
            self._open_unchanged()
        except (RetryLaterError, DamagedDataError):  # files on their way out can look like damage
            self._open_unchanged()

    def scan(self, keys: KeyRange) -> StoreIterator:
        """Scan the stored rows of this range, in key order. Raises, now or later, as the constructor."""
        return scan_rows(self._db, keys, self.directory, reverse=False)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""
        return estimated_rows(self._db, self.directory)

    def close(self) -> None:
        """Close the database and delete the scratch directory. Open scans keep their rows."""
        self._opened.close()

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_unchanged(self) -> None:
        """Try once to open it. A flush of the owner meanwhile is refused."""
        before = _files(self.directory)
        self._opened = contextlib.ExitStack()
        failure: Exception | None = None
        links = Path(self._opened.enter_context(_temporary_directory()))
        try:
            self._open(links)
        except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
            failure = error
        try:
            if _files(self.directory) != before:
                raise RetryLaterError(f"{self.directory} is being written by its worker just now: inspect it again.")
            if failure is not None:
                raise self._explained(failure) from failure
        except BaseException:
            self.close()
            raise

    def _open(self, links: Path) -> None:
        if self._known_damage is None:
            refuse_holes(self.directory)
        shortened = {} if self._known_damage is None else self._known_damage.lengths
        for name in os.listdir(self.directory):
            if (path := self.directory / name) in shortened:
                shutil.copyfile(path, links / name)
                os.truncate(links / name, shortened[path])
            elif name not in _NOT_LINKED:
                (links / name).symlink_to(path.absolute())
        try:
            found = Rdict.list_cf(str(links))
            # A manifest that cannot be read has no families here, without an error: that comes from the opening.
            families = {name: secondary_options() for name in _FAMILIES if name in found or name == "default"}
            db = Rdict(str(links), secondary_options(), column_families=families, access_type=AccessType.read_only())
        except Exception as error:
            if type(error) is not Exception:
                raise
            raise Exception(str(error).replace(str(links), str(self.directory))) from error  # as RocksDB would say it
        self._opened.callback(db.close)
        self._check_families(found)
        offsets = db.get_column_family(OFFSETS_FAMILY)
        self._opened.callback(offsets.close)
        self._db = db
        self.format = stored = read_format(offsets, self.directory)
        self.format_version, self.layout = (stored.version, stored.layout) if stored is not None else (None, None)
        self.commit = read_commit(offsets, self.directory)

    def _check_families(self, found: list[str]) -> None:
        if extra := sorted(set(found) - {*_FAMILIES, EXPIRY_FAMILY}):
            raise CallerError(
                f"{self.directory} has column families that this version of Stateline does not know: "
                f"{', '.join(extra)}. A newer one wrote it, or another program: use that one."
            )
        if OFFSETS_FAMILY not in found:
            raise CallerError(
                f"{self.directory} has no column family {OFFSETS_FAMILY!r}: it is no store of Stateline's."
            )

    def _explained(self, error: Exception) -> Exception:
        if "Permission denied" in str(error):
            return _refused(self.directory, str(error))
        return translated(error, self.directory)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="stateline-inspect-")
    except OSError as error:
        raise ConfigurationError(
            f"A directory for links to a store's files cannot be made ({error.strerror or error}). Set the environment "
            "variable TMPDIR to a directory that this user can write to."
        ) from error


def _files(directory: Path) -> tuple[str, int, frozenset[str]]:
    """Return the files that an owner's flush changes: the manifest's name and size, and the logs."""
    try:
        names = os.listdir(directory)
        if "CURRENT" not in names:
            if any(name.endswith(".sst") for name in names):
                raise damaged(directory, "its file CURRENT is missing")
            raise NotPresentError(f"{directory} holds no database yet: a worker was interrupted while making it.")
        manifest = (directory / "CURRENT").read_text(errors="replace").strip()
        if manifest not in names:
            raise damaged(directory, f"CURRENT names {manifest!r:.100}, which is not there")
        size = os.stat(directory / manifest).st_size
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from error
    return manifest, size, frozenset(name for name in names if name.endswith(".log"))


def _refused(directory: Path, why: str) -> RetryLaterError:
    return RetryLaterError(f"{directory} cannot be read: {why}. Inspect it as its owner, or let this user read it.")
