"""Watch the files that an application was loaded from. It polls, because system events differ between platforms."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

LOOK_INTERVAL_S = 0.3

_Stamp = tuple[int, int, int] | None  # modification time (ns), size, inode; None of a file that is not there


class SourceFiles:
    """Some files; `with_new` adds other modules in their folders and in packages there. One thread owns it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._paths: Collection[Path] = ()
        self._with_new = False
        self._known: Mapping[Path, _Stamp] = {}
        self._last: Mapping[Path, _Stamp] = {}
        self._look_at_s = 0.0

    def watch(self, paths: Collection[Path], *, with_new: bool = False) -> None:
        """Watch these from now on. Changes that `changed` has not returned yet are kept."""
        self._paths, self._with_new = frozenset(paths), with_new
        found = self._stamps()
        self._known = {path: self._known.get(path, stamp) for path, stamp in found.items()}
        self._last = found

    def changed(self) -> list[Path]:
        """Files written, made or deleted since the last answer. It answers only after two equal looks, so that an
        editor or a checkout can finish."""
        if self._now() < self._look_at_s:
            return []
        self._look_at_s = self._now() + LOOK_INTERVAL_S
        before, self._last = self._last, self._stamps()
        if self._last != before or self._last == self._known:
            return []
        found = {path for path in (*self._last, *self._known) if self._last.get(path) != self._known.get(path)}
        self._known = self._last
        return sorted(found)

    def _stamps(self) -> dict[Path, _Stamp]:
        paths = set(self._paths)
        if self._with_new:
            folders = {path.parent for path in paths if path.suffix == ".py"}
            paths.update(path for folder in folders for each in ("*.py", "*/*.py") for path in folder.glob(each))
        return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
