"""The snapshots of one application, and their leases: directories that every process of the machine shares.

    <application>/snapshots/              0o750
        .lock                             flock while a snapshot begins, is renewed or goes
        <id>/                             24 hexadecimal digits
            .making                       flock of the process that makes it, until it is whole
            <task>/<store>/               links to the database's files (`checkpoints.py`)
            snapshot.json                 written last, by rename: without it the directory is rubbish
        .deleted-<id>                     being deleted
        .gone-<id>                        empty: there was one, its lease has ended; kept for a day
        .pin-<digest>                     the id of the snapshot that was made under this pin; deleted when neither that
                                          nor its .gone-<id> is there

    snapshot.json := {"format": 1, "id", "created_at_ms", "expires_at_ms", "parts": [part …], "owner": text,
                      "caller": text, "elsewhere": [{"node", "parts": [part …]} …]}

A snapshot over several nodes has a directory of the same id at each of them. One of them has `elsewhere`, the parts of
the others.

`owner` is a name that the maker of snapshots knows, and absent without one. So is `caller`, whose snapshots are counted
together. `.making` holds it until the manifest is written, or `BACKUP`: a backup is never finished. A **pin** is a text
that the caller chooses, so that asking twice makes one snapshot. `digest` is the SHA-256 of pin, owner and stores.

On disk: never change. The lease is in the manifest, so it survives its maker. A crash leaves a directory without a
manifest and without a maker (its flock is gone), or a half deleted one. `sweep` removes both, and snapshots whose lease
has ended. A reader with an open checkpoint continues. Its space is freed when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from stateline_store.errors import (
    CursorExpiredError,
    DoesNotExistError,
    StatelineError,
    TooManyRequestsError,
)
from stateline_store.files.directory import make_directory
from stateline_store.files.durable_files import FILE_MODE, refused, replace_file
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.snapshot import PIN, CallerShare, PartsElsewhere, Pin, Snapshot
from stateline_store.snapshots.snapshot_files import (
    BACKUP,
    MAKING,
    MANIFEST,
    UnfinishedSnapshot,
    caller_of,
    is_over,
    read_manifest,
    unshared_bytes,
)
from stateline_store.steps import reached

SNAPSHOTS = "snapshots"  # on disk: never change
_LOCK, _DELETED, _GONE = ".lock", ".deleted-", ".gone-"  # on disk: never change
_ID = re.compile(r"[0-9a-f]{24}")
_GONE_MS = 24 * 60 * 60 * 1000


def is_snapshot_id(text: str) -> bool:
    """Whether a snapshot can have this id."""
    return _ID.fullmatch(text) is not None


class SnapshotDirectory:
    """The snapshots of one application, for any thread and any number of processes. Each call holds the lock while it
    looks or moves files, so it may wait. Every method may raise `RetryLaterError` when the file system refuses."""

    def __init__(self, application: Path) -> None:
        """Do nothing on disk: the first snapshot makes the directory."""
        self.path = application / SNAPSHOTS

    def begin(
        self,
        now_ms: int,
        most: int = -1,
        most_bytes: int = -1,
        share: CallerShare | None = None,
        snapshot_id: str | None = None,
    ) -> UnfinishedSnapshot:
        """Begin a snapshot, with a new id unless one is given. Raises `TooManyRequestsError` if there are `most`
        already, or the share of this caller, without backups and those that a sweep would delete. It also does so if
        all of them together keep `most_bytes` or more. -1 is no limit."""
        make_directory(self.path)
        with self._locked():
            callers = [caller_of(each) for each in self._present() if not is_over(each, now_ms)]
            count = len(callers) - callers.count(BACKUP)
            if 0 <= most <= count:
                raise TooManyRequestsError(
                    f"{count} snapshots are kept, and server.snapshots.max allows {most}: release one, or wait until a "
                    "lease ends."
                )
            if share is not None and (own := callers.count(share.caller)) >= share.most:
                raise TooManyRequestsError(
                    f"{own} snapshots are yours, as many of {most} as server.caller.share.percent allows: release one, "
                    "or wait until a lease ends."
                )
            self._refuse_beyond(most_bytes)
            return self._begin(snapshot_id or secrets.token_hex(12), None if share is None else share.caller)

    def begin_for_backup(self) -> UnfinishedSnapshot:
        """Begin the links of a backup, which no limit counts."""
        make_directory(self.path)
        with self._locked():
            return self._begin(secrets.token_hex(12), BACKUP)

    def finish(
        self,
        unfinished: UnfinishedSnapshot,
        parts: Sequence[CheckpointPart],
        now_ms: int,
        expires_at_ms: int,
        owner: str | None = None,
        pin: Pin | None = None,
        elsewhere: Sequence[PartsElsewhere] = (),
    ) -> Snapshot:
        """Make a snapshot of the linked parts, which survives this process. If another snapshot was made under this pin
        meanwhile, return that one, and leave `unfinished` as rubbish. Raises as `pinned`."""
        snapshot = Snapshot(
            unfinished.id, now_ms, expires_at_ms, tuple(parts), owner, unfinished.caller, tuple(elsewhere)
        )
        reached("snapshot:parts-made")
        if pin is None:
            return self._publish(unfinished, snapshot)
        with self._locked():
            if (others := self.pinned(pin, now_ms)) is not None:
                return others
            # Before the manifest: a crash leaves a pin without a snapshot, and not a snapshot that nobody finds.
            replace_file(self.path / pin.file_name, unfinished.id.encode(), only_writer=True)
            reached("snapshot:pin-written")
            return self._publish(unfinished, snapshot)

    def pinned(self, pin: Pin, now_ms: int) -> Snapshot | None:
        """Return the snapshot that was made under this pin, None if there is none yet. Raises `CursorExpiredError` if
        it has ended or was released, because a pin must not lead to another state."""
        snapshot_id = self._pinned_id(pin)
        try:
            return None if snapshot_id is None else self.find(snapshot_id, now_ms)
        except DoesNotExistError:
            return None
        except CursorExpiredError as error:
            raise CursorExpiredError(
                f"The lease of the snapshot {snapshot_id} of this pin has ended: use another pin."
            ) from error

    def find(self, snapshot_id: str, now_ms: int) -> Snapshot:
        """Return the snapshot of this id. Raises `DoesNotExistError` if there was none within a day,
        `CursorExpiredError` if its lease has ended or it was released."""
        if not is_snapshot_id(snapshot_id):
            raise _unknown(snapshot_id)
        try:
            snapshot = read_manifest(self.path / snapshot_id)
        except FileNotFoundError as error:
            if (self.path / f"{_GONE}{snapshot_id}").exists():
                raise lease_has_ended(snapshot_id) from error
            raise _unknown(snapshot_id) from error
        except OSError as error:
            raise refused(self.path / snapshot_id, "read", error) from error
        if snapshot.expires_at_ms <= now_ms:
            raise lease_has_ended(snapshot_id)
        return snapshot

    def all(self, now_ms: int) -> list[Snapshot]:
        """Return the snapshots whose lease has not ended, oldest first."""
        found = []
        for path in self._present():
            with contextlib.suppress(StatelineError):
                found.append(self.find(path.name, now_ms))
        return sorted(found, key=lambda snapshot: (snapshot.created_at_ms, snapshot.id))

    def renew(self, snapshot_id: str, now_ms: int, expires_at_ms: int, most_bytes: int = -1) -> Snapshot:
        """Set the end of its lease, to later or earlier. Raises as `find`. Raises `TooManyRequestsError` for a later
        end while snapshots keep `most_bytes` or more. The lease then ends as before."""
        with self._locked_for(snapshot_id):
            found = self.find(snapshot_id, now_ms)
            if expires_at_ms > found.expires_at_ms:
                self._refuse_beyond(most_bytes)
            renewed = replace(found, expires_at_ms=expires_at_ms)
            replace_file(self.path / snapshot_id / MANIFEST, renewed.encode())
            return renewed

    def release(self, snapshot_id: str, now_ms: int) -> None:
        """Delete a snapshot. Readers with an open checkpoint continue. Raises as `find`."""
        with self._locked_for(snapshot_id):
            self.find(snapshot_id, now_ms)
            self._remove(self.path / snapshot_id, gone=True)

    def give_up(self, snapshot_id: str, pin: Pin | None = None) -> None:
        """Delete a snapshot without a trace, because the whole that it was a part of was not made. A snapshot that is
        being made is not finished then. Without a snapshot, nothing happens."""
        if not is_snapshot_id(snapshot_id) or not self.path.is_dir():
            return
        with self._locked():
            if pin is not None and self._pinned_id(pin) == snapshot_id:
                (self.path / pin.file_name).unlink(missing_ok=True)
            if (self.path / snapshot_id).exists():
                self._remove(self.path / snapshot_id, gone=False)

    def sweep(self, now_ms: int) -> list[str]:
        """Delete snapshots whose lease has ended and the rests of crashes. Returns the deleted names. While another
        process holds the lock, nothing is done: that process sweeps, or the next call does."""
        if not self.path.is_dir():
            return []
        swept = []
        with self._locked(wait=False) as is_ours:
            for path in self._present() if is_ours else ():
                if is_over(path, now_ms):
                    self._remove(path, gone=(path / MANIFEST).exists())
                    swept.append(path.name)
            if is_ours:
                self._tidy(now_ms)
        return swept

    def kept_bytes(self) -> int:
        """Return the bytes on disk that only snapshots keep: files without a link anywhere else."""
        return unshared_bytes(self._present())

    def _publish(self, unfinished: UnfinishedSnapshot, snapshot: Snapshot) -> Snapshot:
        replace_file(unfinished.path / MANIFEST, snapshot.encode())
        reached("snapshot:manifest-written")
        (unfinished.path / MAKING).unlink(missing_ok=True)
        unfinished.close()
        return snapshot

    def _refuse_beyond(self, most_bytes: int) -> None:
        if most_bytes >= 0 and (kept := self.kept_bytes()) >= most_bytes:
            raise TooManyRequestsError(
                f"Snapshots keep {kept} bytes, and server.snapshots.max.bytes allows {most_bytes}: release one, or "
                "wait until a lease ends."
            )

    def _present(self) -> list[Path]:
        """Return the directories of all snapshots, also of unfinished ones and rubbish."""
        try:
            return [self.path / name for name in sorted(os.listdir(self.path)) if _ID.fullmatch(name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self.path, "read", error) from error

    def _pinned_id(self, pin: Pin) -> str | None:
        try:
            return (self.path / pin.file_name).read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(self.path / pin.file_name, "read", error) from error

    def _begin(self, snapshot_id: str, caller: str | None) -> UnfinishedSnapshot:
        path = self.path / snapshot_id
        try:
            path.mkdir(mode=0o750)
            return UnfinishedSnapshot(path, caller)
        except OSError as error:
            raise refused(path, "created", error) from error

    def _remove(self, path: Path, *, gone: bool) -> None:
        """Rename it first, so that nobody finds half of it, then delete it."""
        try:
            if gone:
                (self.path / f"{_GONE}{path.name}").touch(mode=FILE_MODE)
            trash = self.path / f"{_DELETED}{path.name}"
            os.rename(path, trash)
            reached("snapshot:withdrawn")
            shutil.rmtree(trash)
        except OSError as error:
            raise refused(path, "deleted", error) from error

    def _tidy(self, now_ms: int) -> None:
        """Delete the rests of interrupted deletions, and old marks of ended snapshots."""
        try:
            for entry in os.scandir(self.path):
                if entry.name.startswith(_DELETED):
                    shutil.rmtree(entry.path)
                elif self._is_spent(entry, now_ms):
                    os.unlink(entry.path)
        except OSError as error:
            raise refused(self.path, "tidied up", error) from error

    def _is_spent(self, entry: os.DirEntry[str], now_ms: int) -> bool:
        """Return whether this mark or pin serves no snapshot any more."""
        if entry.name.startswith(_GONE):
            return entry.stat().st_mtime_ns // 1_000_000 < now_ms - _GONE_MS
        if not entry.name.startswith(PIN):
            return False
        snapshot_id = Path(entry.path).read_text()
        known = (self.path / f"{_GONE}{snapshot_id}", self.path / snapshot_id)
        return not _ID.fullmatch(snapshot_id) or not any(path.exists() for path in known)

    @contextlib.contextmanager
    def _locked_for(self, snapshot_id: str) -> Iterator[None]:
        if not self.path.is_dir():
            raise _unknown(snapshot_id)
        with self._locked():
            yield

    @contextlib.contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[bool]:
        try:
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise refused(self.path / _LOCK, "opened", error) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)


def lease_has_ended(snapshot_id: str) -> CursorExpiredError:
    """Return the error for a snapshot that existed and has ended."""
    return CursorExpiredError(
        f"The lease of the snapshot {snapshot_id} has ended: make another one. If it had a pin, use another pin."
    )


def _unknown(snapshot_id: str) -> DoesNotExistError:
    return DoesNotExistError(f"There is no snapshot {snapshot_id[:60]!r}: make one.")
