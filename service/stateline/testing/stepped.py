"""A worker that goes on only as far as a test asks: the rounds of `Worker.run`, on the test's own thread."""

from __future__ import annotations

from stateline.dsl.app import App
from stateline.processing.clock import Clock
from stateline.testing.place import INSTANCE, DriverFolder
from stateline.worker.loop.worker import Worker


class SteppedWorker:
    """One worker from its start to its end. One thread uses it."""

    def __init__(self, app: App, place: DriverFolder, clock: Clock) -> None:
        """Open the state that is there; no record is processed. Raises what `Worker.run` raises."""
        self.worker = Worker(app, place.config, place.log, instance=INSTANCE, clock=clock)
        try:
            self.worker.begin()
            self.worker.open_tasks()
        except BaseException:
            self.kill()
            raise

    def work(self, *, commits: bool) -> None:
        """Process what there is, what comes of it in other topics of the application included, until nothing is left;
        with `commits` until all of it is committed, too.

        When something raises, what was not committed is dropped and will be read again; then it is raised.
        """
        try:
            self._work(commits=commits)
        except BaseException:
            self.start_over()
            raise

    def _work(self, *, commits: bool) -> None:
        while True:
            self.worker.step()  # functions that are due by the clock are called at its end
            while self.worker.step():
                pass
            if not commits or not self.worker.commit():
                return

    def start_over(self) -> None:
        """Drop what is not committed, and open the state as of the last commit."""
        self.worker.start_over()
        self.worker.open_tasks()

    def stop(self) -> None:
        """Commit, and leave, as a worker that is told to stop."""
        try:
            self.worker.commit()
        finally:
            self.kill()

    def kill(self) -> None:
        """Let go of everything; what is not committed is dropped."""
        try:
            self.worker.drop()
        finally:
            self.worker.leave()
