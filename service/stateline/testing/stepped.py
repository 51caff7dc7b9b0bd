"""A worker that works only when a test asks: rounds of `Worker.run` on the test's thread, and a clock of its own."""

from __future__ import annotations

from datetime import timedelta

from stateline.dsl.app import App
from stateline.processing.clock import Clock
from stateline.serde.plain import shown
from stateline.testing.place import INSTANCE, DriverFolder
from stateline.worker.loop.worker import Worker
from stateline_store import InvalidArgumentError


class SteppedWorker:
    """One worker from its start to its end. It opens the state that is there, and processes no record. Raises what
    `Worker.run` raises. One thread uses it."""

    def __init__(self, app: App, place: DriverFolder, clock: Clock) -> None:
        self.worker = Worker(app, place.config, place.log, instance=INSTANCE, clock=clock)
        try:
            self.worker.begin()
            self.worker.open_tasks()
        except BaseException:
            self.kill()
            raise

    def work(self, *, commits: bool) -> None:
        """Process records, and those that follow from them in other topics of the application, until none is left; with
        `commits` until all are committed. After an error everything uncommitted is dropped and will be read again."""
        try:
            while True:
                self.worker.step()  # functions that are due by the clock are called at its end
                while self.worker.step():
                    pass
                if not commits or not self.worker.commit():
                    return
        except BaseException:
            self.start_over()
            raise

    def start_over(self) -> None:
        """Drop everything uncommitted, and open the state as of the last commit."""
        self.worker.start_over()
        self.worker.open_tasks()

    def stop(self) -> None:
        try:
            self.worker.commit()
        finally:
            self.kill()

    def kill(self) -> None:
        """Release everything, and drop everything uncommitted."""
        try:
            self.worker.drop()
        finally:
            self.worker.leave()


class MovedClock:
    """A wall clock that moves only when a test moves it. One thread uses it."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms

    def monotonic_ms(self) -> int:
        return self._at_ms

    def advance(self, by: int | timedelta) -> None:
        """Move it by milliseconds or a `timedelta`. Raises `InvalidArgumentError` for a negative or wrong time."""
        if not isinstance(by, int | timedelta):
            raise InvalidArgumentError(
                f"{shown(by)} is no time to move the wall clock by: give whole milliseconds, or a timedelta."
            )
        by_ms = by // timedelta(milliseconds=1) if isinstance(by, timedelta) else by
        if by_ms < 0:
            raise InvalidArgumentError(f"The wall clock goes forward alone, not by {by}: give a time from 0 on.")
        self._at_ms += by_ms
