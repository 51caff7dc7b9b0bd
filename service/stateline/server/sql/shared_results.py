"""`SharedResults`: equal requests join one run, and for a while they get its result.

A result of rows that have not changed since is as good as a new one (`renews`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

_KEPT_S = 60.0
_MOST_BYTES = 64 * 1024 * 1024
_BESIDE_BYTES = 2_000  # what a result takes beside its own bytes

T = TypeVar("T")


class Run(Generic[T]):
    """One run for requests that accept rows of this age. Its maker calls `note_read`."""

    task: asyncio.Task[T]

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self._read_s: float | None = None
        self.begun_s = time.monotonic()
        self.waiting = 0
        """Requests that wait for the result."""
        self.forgotten: asyncio.TimerHandle | None = None

    def note_read(self, age_ms: int) -> None:
        """Say how old the rows are now. A result without rows is not kept."""
        self._read_s = time.monotonic() - age_ms / 1000

    @property
    def is_kept(self) -> bool:
        """Whether it has ended with rows."""
        failed = not self.task.done() or self.task.cancelled() or self.task.exception() is not None
        return not failed and self._read_s is not None

    def serves(self, max_age_ms: int, asked_s: float) -> bool:
        """Whether a request of this moment (`time.monotonic`) for rows of this age may have its result, or wait for
        it. Rows that nobody has read yet will be young enough if the run accepts no older ones."""
        if self._read_s is None:
            return not self.task.done() and self._max_age_ms <= max_age_ms
        return asked_s - self._read_s < max_age_ms / 1000

    def is_too_old(self, max_age_ms: int, asked_s: float) -> bool:
        """Whether it has begun before this moment, and then has read rows that are older than this."""
        return self.begun_s < asked_s and self._read_s is not None and not self.serves(max_age_ms, asked_s)


class SharedResults(Generic[T]):
    """Results by key, for the event loop's thread: for a minute, and 64 MiB of them. `size_of` gives bytes. Call
    `count_anew` when a result has grown. `renews` makes a result one of now if its rows have not changed."""

    def __init__(self, size_of: Callable[[T], int], renews: Callable[[T], bool] = lambda _: False) -> None:
        self._size_of, self._renews = size_of, renews
        self._runs: dict[bytes, Run[T]] = {}
        self._sizes: dict[bytes, int] = {}  # of results, the oldest first
        self._bytes = 0

    async def get(self, key: bytes, max_age_ms: int, make: Callable[[Run[T]], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a run that may be shared, or of `make`. Its rows are at most this old at the call. A run
        ends when nobody waits for it any more.

        Raises what `make` raises, to all that wait.
        """
        asked_s = time.monotonic()
        while True:
            run = self._runs.get(key)
            if run is not None and max_age_ms and run.is_kept and not run.serves(max_age_ms, asked_s):
                self._renew(run)
            if run is None or not run.serves(max_age_ms, asked_s):
                if run is not None:
                    self._drop(key, run)
                run = self._runs[key] = self._begun(key, Run(max_age_ms), make)
            result = await self._awaited(key, run)
            if not run.is_too_old(max_age_ms, asked_s):  # a run may say late what it has read
                return result

    def _renew(self, run: Run[T]) -> None:
        if self._renews(run.task.result()):
            run.note_read(0)

    def _begun(self, key: bytes, run: Run[T], make: Callable[[Run[T]], Coroutine[Any, Any, T]]) -> Run[T]:
        run.task = asyncio.create_task(make(run))
        run.task.add_done_callback(lambda _: self._ended(key, run))
        return run

    async def _awaited(self, key: bytes, run: Run[T]) -> T:
        run.waiting += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if not run.waiting and not run.task.done():
                self._drop(key, run)
                run.task.cancel()

    def _ended(self, key: bytes, run: Run[T]) -> None:
        if self._runs.get(key) is not run:
            return
        if not run.is_kept:
            self._drop(key, run)
            return
        run.forgotten = asyncio.get_running_loop().call_later(_KEPT_S, self._drop, key, run)
        self._sizes[key] = 0
        self.count_anew(key)

    def count_anew(self, key: bytes) -> None:
        """Note the size of this result, and drop the oldest ones while all of them are too large."""
        if key not in self._sizes:
            return
        size = self._size_of(self._runs[key].task.result()) + _BESIDE_BYTES
        if size > _MOST_BYTES:  # or it would push out all others
            self._drop(key, self._runs[key])
            return
        self._bytes += size - self._sizes[key]
        self._sizes[key] = size
        while self._bytes > _MOST_BYTES:
            oldest = next(iter(self._sizes))
            self._drop(oldest, self._runs[oldest])

    def _drop(self, key: bytes, run: Run[T]) -> None:
        if run.forgotten is not None:
            run.forgotten.cancel()  # it would keep the result in memory
        if self._runs.get(key) is run:
            del self._runs[key]
            self._bytes -= self._sizes.pop(key, 0)
