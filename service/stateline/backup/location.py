"""`BackupLocation`: the backups of one application, in a directory or an object store (``backup.location``).

    <application.id>/backups/<id>/<node>.json     a manifest (`stateline_store.snapshots.backup`), written last
    <application.id>/files/<digest>               a piece of a file, named by its digest
    <application.id>/leases/<id>/<random>         somebody reads this backup, for a day from when the object was made
    <application.id>/leases/sweep/<random>        a sweep runs (`sweep_leases`)

Only files that a manifest names count. Every object is written whole or not at all, and never changed. Times are those
of the location's clock, so clocks of nodes may differ. The client is obstore (Rust's object_store), or `WebHdfs`.
obstore reads the usual variables of the environment, such as ``AWS_ACCESS_KEY_ID`` and ``AWS_ENDPOINT_URL``. On disk:
never change.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from stateline.backup.object_stores import SCHEMES, is_there, object_store
from stateline.backup.refusals import refusal
from stateline.config.extras import need_extra
from stateline.config.settings import Config
from stateline_store import ConfigurationError, DamagedDataError, DoesNotExistError, RetryLaterError
from stateline_store.snapshots.backup import Backup

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from stateline.backup.webhdfs import WebHdfs

_log = logging.getLogger(__name__)

# One request up to this size, in the memory of the process; more goes in several. RocksDB's tables are of 64 MiB.
_AT_ONCE_BYTES = 80 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024
_WEB_HDFS = ("webhdfs", "swebhdfs")
_OF_A_LEASE_S = 24 * 60 * 60
_SHOWN = 3  # ids
_MOST_ASKED = 100  # files one by one; a listing tells of 1,000 in one answer
_STAGED = re.compile(r"#\d+$")  # obstore writes a file of a directory under such a name, and renames it


class StoredFile(NamedTuple):
    """A file at the location. `written_at_s` is by the location's clock, in seconds since the epoch."""

    digest: str
    size: int
    written_at_s: float


def check_id(location: BackupLocation, backup_id: str, there: Iterable[str]) -> None:
    """Raise `DoesNotExistError` unless this id is among the ids of the location's backups."""
    ids = sorted(set(there))
    if backup_id not in ids:
        newest = ", ".join(ids[-_SHOWN:]) or "none"
        raise DoesNotExistError(
            f"{location.url} has no backup {backup_id}. The newest are {newest}, of {location.application_id}."
        )


class BackupLocation:
    """Thread-safe. Each call takes as long as the location does. All raise `RetryLaterError` when it refuses."""

    def __init__(self, url: str, application_id: str, *, create: bool = False) -> None:
        """Ask nothing yet. `create` makes a missing directory if its parent is there. Raises `ConfigurationError`
        without the extra `backup`, and for an unknown kind of URL."""
        need_extra("backup", "Backups")
        import obstore

        self._refusals = (obstore.exceptions.BaseError, OSError)
        self.url = url
        self.application_id = application_id
        self._below = quote(application_id, safe="")
        self._directory = None if urlsplit(url).scheme else Path(url)
        if self._directory is not None and create:
            try:
                self._directory.mkdir(exist_ok=True)
            except OSError as error:
                _log.error("%s cannot be created: %s", url, error)
        if self._directory is None or is_there(self._directory, "backup.location"):
            self._store  # noqa: B018 - a URL that cannot be used is told now

    @cached_property
    def _store(self) -> ObjectStore | WebHdfs:
        if urlsplit(self.url).scheme not in _WEB_HDFS:
            return object_store(self.url, "backup.location", (*SCHEMES, *_WEB_HDFS), create=False)
        try:
            from stateline.backup.webhdfs import WebHdfs  # it loads httpx

            return WebHdfs(self.url)
        except (*self._refusals, ValueError) as error:
            raise ConfigurationError(f"backup.location={self.url} cannot be used: {error}") from error

    @classmethod
    def of(cls, config: Config, *, create: bool = False) -> BackupLocation:
        """Return the application's location. Raises `ConfigurationError` if there is none, for a missing directory
        unless `create`, and as the constructor."""
        url = config.backup_location
        if url is None:
            raise ConfigurationError("There is no backup.location: set it, as to a directory or s3://bucket/stateline.")
        if not create and not urlsplit(url).scheme and not is_there(Path(url), "backup.location"):
            raise ConfigurationError(
                f"{url} does not exist, so it has no backups. Mount it, or set backup.location to the directory of the "
                "backups. The first stateline backup now makes it."
            )
        return cls(url, config.application_id, create=create)

    def applications(self) -> list[str]:
        """Return the ids of all applications with backups at the same URL."""
        with self._asked("list applications"):
            kept = (name for name in self.folders() if any(map(_has_manifest, self._store.list(f"{name}/backups"))))
            return [unquote(name) for name in kept]

    def folders(self) -> list[str]:
        """Return the names of all folders at the same URL."""
        with self._asked("list folders"):
            return sorted(self._store.list_with_delimiter()["common_prefixes"])

    def put_file(self, digest: str, path: Path, size: int, begin: int = 0) -> None:
        """Write so many bytes of a file from `begin` on under their digest, which the caller has computed."""
        place = f"{self._below}/files/{digest}"
        with self._asked(f"write {digest}"):
            if size <= _AT_ONCE_BYTES:
                with path.open("rb") as file:
                    file.seek(begin)
                    self._store.put(place, file.read(size), use_multipart=False)
            else:
                content = _pieces(path, begin, size)
                self._store.put(place, content, chunk_size=_PIECE_BYTES, max_concurrency=2)

    def checked_piece(self, digest: str, size: int, name: str) -> Iterator[bytes]:
        """Yield the bytes of a piece of the file `name`. Raises `DamagedDataError`, at the latest at their end, if they
        are not what was written, and `DoesNotExistError` if they are gone."""
        found, left = hashlib.blake2b(digest_size=32), size
        with self._asked(f"read {digest}, a piece of {name}"):
            for piece in self._store.get(f"{self._below}/files/{digest}").stream():
                found.update(piece)
                left -= len(piece)
                if left < 0:
                    break
                yield bytes(piece)
        if left or found.hexdigest() != digest:
            raise DamagedDataError(f"A piece of {name} is not what was written: {self.url}, {digest}.")

    def write(self, backup: Backup) -> None:
        """Write a manifest, which makes its files count. Writing it again replaces it."""
        with self._asked(f"write the backup {backup.id}"):
            self._store.put(self._manifest(backup.id, backup.node), backup.encode())

    def manifests(self) -> list[tuple[str, str]]:
        """Return (id, node) of all manifests, oldest first."""
        with self._asked("list backups"):
            places = [each for each, _, _ in self._listed("backups") if each.endswith(".json")]
            names = [_last_two(each.removesuffix(".json")) for each in places]
        return sorted((backup_id, unquote(node)) for backup_id, node in names)

    def refuse_empty(self) -> None:
        """Raise `DoesNotExistError` if there is no backup, for a node that has written some."""
        if not self.manifests():
            raise DoesNotExistError(
                f"{self.url} has no backup any more, and this node has written some there. If it is a mount, mount it. "
                "To write backups there all the same, run stateline backup now."
            )

    def read(self, backup_id: str, node: str) -> Backup:
        """Return this manifest. Raises `DoesNotExistError` if there is none, `DamagedDataError` if it is unreadable."""
        place = self._manifest(backup_id, node)
        with self._asked(f"read the backup {backup_id} of node {node!r}"):
            data = bytes(self._store.get(place).bytes())
        return Backup.decode(data, f"{self.url}/{place}")

    def files(self) -> Iterator[StoredFile]:
        """Yield all files, named by a manifest or not."""
        with self._asked("list files"):
            for place, size, at_s in self._listed("files"):
                yield StoredFile(place.rpartition("/")[2], size, at_s)

    def lacks(self, sizes: Mapping[str, int]) -> set[str]:
        """Return those of these files, by digest with their sizes, that are missing or have another size."""
        if len(sizes) > _MOST_ASKED:
            return sizes.keys() - {each.digest for each in self.files() if sizes.get(each.digest) == each.size}
        return {digest for digest, size in sizes.items() if self._size(digest) != size}

    def delete_manifest(self, backup_id: str, node: str) -> None:
        with self._asked(f"delete the backup {backup_id}"), contextlib.suppress(FileNotFoundError):
            self._store.delete(self._manifest(backup_id, node))

    def delete_files(self, digests: Sequence[str]) -> None:
        with self._asked("delete files"), contextlib.suppress(FileNotFoundError):
            self._store.delete([f"{self._below}/files/{digest}" for digest in digests])

    def tidy(self, now_s: float, left_alone_s: float) -> None:
        """Delete leases that have ended, and the rests of killed processes that are older than `left_alone_s`: half
        files, and empty folders of a directory. `now_s` is by the location's clock."""
        with self._asked("tidy up"):
            half = [place for place, _, at_s in self._listed("backups") if at_s < now_s - left_alone_s]
            ended = [place for place, _, at_s in self._listed("leases") if at_s + _OF_A_LEASE_S <= now_s]
            for place in (*(place for place in half if not place.endswith(".json")), *ended):
                with contextlib.suppress(FileNotFoundError):
                    self._store.delete(place)
            if self._directory is not None:
                _tidy(self._directory / self._below, now_s - left_alone_s)

    @contextlib.contextmanager
    def lease(self, backup_id: str) -> Iterator[float]:
        """Keep this backup from being deleted while the block runs, for a day at most. Yields the location's time, in
        seconds since the epoch."""
        name = f"{backup_id}/{secrets.token_hex(8)}"
        written_at_s = self.write_lease(name)
        try:
            yield written_at_s
        finally:
            self.end_lease(name)

    def write_lease(self, name: str) -> float:
        """Write or renew the lease of this name, ``<id>/<random>``. Returns the location's time, in seconds since the
        epoch."""
        place = f"{self._below}/leases/{name}"
        with self._asked("write a lease"):
            self._store.put(place, b"")
            return self._store.head(place)["last_modified"].timestamp()

    def end_lease(self, name: str) -> None:
        """Delete this lease. If the location refuses, the lease ends by itself."""
        with contextlib.suppress(RetryLaterError, DoesNotExistError), self._asked("end a lease"):
            self._store.delete(f"{self._below}/leases/{name}")

    def leases(self) -> list[tuple[str, str, float]]:
        """Return the id, the random part and the time of each lease, in seconds since the epoch."""
        with self._asked("list leases"):
            return [(*_last_two(place), at_s) for place, _, at_s in self._listed("leases")]

    def leased(self, now_s: float) -> set[str]:
        """Return the ids of backups with readers. `now_s` is by the location's clock."""
        return {backup_id for backup_id, _, at_s in self.leases() if at_s + _OF_A_LEASE_S > now_s}

    def _size(self, digest: str) -> int | None:
        """Return the bytes of this file, None if it is not there."""
        with contextlib.suppress(DoesNotExistError), self._asked(f"find {digest}"):
            return int(self._store.head(f"{self._below}/files/{digest}")["size"])
        return None

    def _listed(self, folder: str) -> Iterator[tuple[str, int, float]]:
        for page in self._store.list(f"{self._below}/{folder}"):
            for each in page:
                yield each["path"], each["size"], each["last_modified"].timestamp()

    def _manifest(self, backup_id: str, node: str) -> str:
        return f"{self._below}/backups/{quote(backup_id, safe='')}/{quote(node, safe='')}.json"

    @contextlib.contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        try:
            if self._directory is not None and not self._directory.is_dir():
                raise RetryLaterError(f"{self.url} cannot {what}: there is no such directory. Mount it, or create it.")
            yield
        except FileNotFoundError as error:
            raise DoesNotExistError(f"{self.url} cannot {what}: it is not there.") from error
        except self._refusals as error:
            raise RetryLaterError(f"{self.url} cannot {what}: {refusal(self.url, error)}") from error


def _has_manifest(page: Sequence[Mapping[str, Any]]) -> bool:
    return any(each["path"].count("/") == 3 and each["path"].endswith(".json") for each in page)


def _last_two(place: str) -> tuple[str, str]:
    *_, folder, name = place.split("/")
    return folder, name


def _pieces(path: Path, begin: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        while size and (piece := file.read(min(size, _PIECE_BYTES))):
            size -= len(piece)
            yield piece


def _tidy(folder: Path, before_s: float) -> None:
    """Delete half files and empty folders below this folder that nobody has touched since."""
    for place, folders, names in os.walk(folder, topdown=False):
        for each in (*(name for name in names if _STAGED.search(name)), *folders):
            path = Path(place, each)
            with contextlib.suppress(OSError):  # a folder that has files, or somebody else deletes it
                if path.stat().st_mtime < before_s:
                    path.rmdir() if path.is_dir() else path.unlink()
