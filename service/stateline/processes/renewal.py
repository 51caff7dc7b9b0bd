"""Replace running processes by ones with new code or settings, without refusing requests.

1. A separate process loads the new code. If it fails, that is logged with file and line, and nothing changes.
2. Workers stop and start, one after the other. Servers keep answering from disk.
3. Pipelines restart, for which nobody waits.
4. Servers are replaced last. A new one starts at the same listening socket. When it is ready and stays so, the old one
   accepts nothing more, completes its requests, and ends. Both answer meanwhile.

If a new process ends before it is ready, or soon after, the renewal ends, and the remaining processes keep their code.
A worker is ready when its work with the new code has lasted (`CommitSchedule.has_worked_since`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stateline.processes.child import Child, Supervised
from stateline.processes.logging import last_words
from stateline.processes.run_plan import RunPlan
from stateline.processes.supervisor import Supervisor
from stateline_store.errors import ConfigurationError

_LOADED_WITHIN_S = 120.0
# A process that is not ready by then may restore a lot. The next one starts, because all have to.
_READY_WITHIN_S = 60.0
# New code may fail at its first record. It has to run this long before the next process is replaced.
_SETTLES_WITHIN_S = 2.0

Steps = Generator[None, None, str]  # returns why it failed; empty for success

LOOK_INTERVAL_S = 0.3

_Stamp = tuple[int, int, int] | None  # modification time (ns), size, inode; None: no such file


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


class Renewal:
    """Renews one supervisor's children. `load` is a command that loads the code and writes to the file in its last
    argument. `read` makes a `RunPlan` of the file, or raises `ConfigurationError` for changes that need a restart. With
    `sources`, a change of a file starts a renewal. For the supervisor's thread."""

    def __init__(
        self,
        supervisor: Supervisor,
        load: Sequence[str],
        read: Callable[[Path], RunPlan],
        sources: SourceFiles | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._load, self._read = load, read
        self._sources = sources
        self._files: Sequence[Path] = ()
        self._steps: Steps | None = None
        self._is_wanted = False
        if sources is not None:  # a child may restart while files are half saved
            supervisor.outlive_mistakes()

    def watch(self, files: Sequence[Path]) -> None:
        """Watch the files that the running code was loaded from."""
        self._files = files
        if self._sources is not None:
            self._sources.watch(files)

    def begin(self, why: str) -> None:
        """Start a renewal, or start the next one after the current one."""
        self._is_wanted = True
        self._supervisor.outlive_mistakes()
        self._supervisor.say(f"{why}: loading the code again.")

    def advance(self) -> None:
        """Continue without waiting."""
        if self._sources is not None and (changed := self._sources.changed()):
            self.begin(f"{_listed(changed)} changed")
        if self._steps is None and self._is_wanted:
            self._is_wanted, self._steps = False, self._renew()
        if self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration as ended:
            self._steps = None
            self._supervisor.say(ended.value or "Everything runs the new code.")

    def close(self) -> None:
        """Abandon the renewal. The supervisor keeps the started processes."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _renew(self) -> Steps:
        found: list[RunPlan] = []
        why = yield from self._loaded(found)
        if why:
            if self._sources is not None:
                self._sources.watch(self._files, with_new=True)
            return f"Nothing was replaced: {why}"
        (new,) = found
        self.watch(new.files)
        names = {child.name for child in new.children}
        for gone in [name for name in self._supervisor.names if name not in names]:
            yield from _gone(self._supervisor, self._supervisor.of(gone))
        # In development, changes show at once, and nobody else depends on the processes.
        settles_s = _SETTLES_WITHIN_S if self._sources is None else 0.0
        order = sorted(new.children, key=lambda each: (-each.stop_order, each.takes_over))
        started: list[_Started] = []
        for child in order:
            why = yield from self._replaced(child, settles_s, started)
            if why:
                return f"{why} Everything that was not replaced yet keeps the old code. Mend it, and do this again."
        if ended := [each.one for each in started if each.has_ended]:
            return f"{_has_ended(ended[0])} Mend it, and do this again."
        if late := [each.one.child.name for each in started if not each.one.is_ready]:
            return f"The new code is started everywhere, and not ready in {', '.join(late)}: their log lines say why."
        return ""

    def _is_superseded(self, child: Child) -> bool:
        """Whether newer code was saved meanwhile. Nobody waits for this child then, unless it takes over."""
        return self._is_wanted and self._sources is not None and not child.takes_over

    def _replaced(self, child: Child, settles_s: float, started: list[_Started]) -> Steps:
        supervisor = self._supervisor
        old = supervisor.of(child.name)
        if not child.takes_over:
            yield from _gone(supervisor, old)
        one = supervisor.add(child)
        new, until_s = _Started(one, one.process), time.monotonic() + _READY_WITHIN_S
        started.append(new)
        while not (new.has_ended or one.is_ready or self._is_superseded(child)) and time.monotonic() < until_s:
            yield
        if not (new.has_ended or one.is_ready or self._is_superseded(child)):
            supervisor.say(f"{child.name} is not ready after {_READY_WITHIN_S:g} s, and goes on getting so.")
        until_s = time.monotonic() + (settles_s if child.says_ready else 0.0)
        while not new.has_ended and time.monotonic() < until_s:
            yield
        if new.has_ended:
            if child.takes_over and old is not None:  # the old process answers, so the new one is not retried
                supervisor.let_go(one)
            return _has_ended(one)
        if child.takes_over:
            yield from _gone(supervisor, old)
        return ""

    def _loaded(self, found: list[RunPlan]) -> Steps:
        with TemporaryDirectory(prefix="stateline-new-code-") as folder:
            told, said = Path(folder, "told"), Path(folder, "said")
            with said.open("wb") as errors:
                command = [*self._load, str(told)]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            until_s = time.monotonic() + _LOADED_WITHIN_S
            try:
                with self._supervisor.guarded(process):
                    while process.poll() is None and time.monotonic() < until_s:
                        yield
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            if time.monotonic() >= until_s:
                return f"the new code was not loaded within {_LOADED_WITHIN_S:g} s."
            if process.returncode:
                lines = said.read_text(errors="replace").splitlines()
                return last_words(lines[-1]) if lines else f"loading it ended with {process.returncode}."
            try:
                found.append(self._read(told))
            except ConfigurationError as error:
                return str(error)
        return ""


@dataclass(frozen=True, slots=True)
class _Started:
    """A child with the new code, and its first process."""

    one: Supervised
    process: subprocess.Popen[bytes] | None

    @property
    def has_ended(self) -> bool:
        return self.one.process is not self.process


def _has_ended(one: Supervised) -> str:
    return f"{one.child.name} has ended with the new code: {one.ended_with.removesuffix('.')}."


def _gone(supervisor: Supervisor, one: Supervised | None) -> Generator[None, None, None]:
    if one is not None:
        supervisor.let_go(one)
        while supervisor.has(one):
            yield


def _listed(paths: Sequence[Path]) -> str:
    names = [os.path.relpath(path) for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
