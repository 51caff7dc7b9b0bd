"""The processes of `pipeline_app`, each of which is killed by a plan of its own and started again by the test."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from stateline.deployment.pipelines.status import read_status
from stateline.deployment.workers.instance_file import read_instances
from support import TESTS
from support.apps import pipeline_app
from support.processes.forked import Forked
from support.run.patience import HANGING_S

KILLED, SPARK_HAS_ENDED = -signal.SIGKILL, 1
JVM, ANY_MOMENT = "its JVM", "any moment"


@dataclass(frozen=True, slots=True)
class Kill:
    """One life of a process: it dies at this step (`stateline_store.steps`), at `ANY_MOMENT`, or loses `JVM`."""

    at: str
    after_s: float = 0.0
    """Not at a step: so long after it began to work, or, `while_starting`, after its start."""
    while_starting: bool = False
    arguments: tuple[str, ...] = ()
    """Of this life alone."""

    @property
    def is_at_a_step(self) -> bool:
        """Whether the process does it itself."""
        return self.at not in (JVM, ANY_MOMENT)


class Killed:
    """A process that is started, killed by plan, started again, and left alone when the plan is through."""

    def __init__(
        self, name: str, command: Sequence[str], output: Path, has_begun: Callable[[int], bool], kills: Counter[str]
    ) -> None:
        self.name, self._command, self._output, self._has_begun, self._kills = name, command, output, has_begun, kills
        self._plan: deque[Kill] = deque()
        self._kill: Kill | None = None  # of this life
        self._process: Forked | None = None
        self._started_s = 0.0
        self._begun_s: float | None = None
        self._is_hit = False
        self._seen_kills, self._moved_s = 0, 0.0

    def plan(self, kills: Iterable[Kill]) -> None:
        """Die in these ways, one after the other. The first one is for the life that there is, if any: no step."""
        self._plan.extend(kills)
        if self._process is not None and self._plan:
            assert not self._plan[0].is_at_a_step, f"{self.name} was not told of a step when it started"
            self._kill = self._plan.popleft()
            self._started_s = self._begun_s = time.monotonic()

    def turn(self) -> None:
        """See how it is; act when it is time."""
        if self._process is None:
            self._start()
        elif (code := self._process.poll()) is not None:
            self._ended(code)
            self._start()
        else:
            self._look(self._process)

    @property
    def is_left_alone(self) -> bool:
        """Whether its plan is through, and it works."""
        return self._kill is None and not self._plan and self._begun_s is not None

    def stop(self) -> None:
        """End it in order."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(HANGING_S) == 0, self._said()

    def clear(self) -> None:
        """Leave nothing of it; its JVM ends with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._kill = self._plan.popleft() if self._plan else None
        environment = {name: value for name, value in os.environ.items() if name != "STATELINE_CRASH_AT"}
        if self._kill is not None and self._kill.is_at_a_step:
            environment["STATELINE_CRASH_AT"] = self._kill.at
        with self._output.open("ab") as file:
            file.write(f"---- {self.name}, {self._kill}\n".encode())
            file.flush()
            arguments = [*self._command, *(self._kill.arguments if self._kill else ())]
            self._process = Forked(arguments, cwd=TESTS, env=environment, output=file.fileno())
        self._started_s, self._begun_s, self._is_hit = time.monotonic(), None, False

    def _look(self, process: Forked) -> None:
        now_s = time.monotonic()
        if self._begun_s is None and self._has_begun(process.pid):
            self._begun_s = now_s
        if self._kills.total() != self._seen_kills:  # somebody has died as planned since: things move
            self._seen_kills, self._moved_s = self._kills.total(), now_s
        moved_s = max(self._started_s, self._moved_s)
        assert now_s < moved_s + HANGING_S or self.is_left_alone, f"{self._kill} does not come: {self._said()}"
        if self._kill is None or self._is_hit or self._kill.is_at_a_step:
            return
        since_s = self._started_s if self._kill.while_starting else self._begun_s
        if since_s is not None and now_s >= since_s + self._kill.after_s:
            self._is_hit = True
            os.kill(jvm_of(process.pid) if self._kill.at == JVM else process.pid, signal.SIGKILL)

    def _ended(self, code: int) -> None:
        assert self._kill is not None, f"{self.name} ended by itself with {code}: {self._said()}"
        wanted = SPARK_HAS_ENDED if self._kill.at == JVM else KILLED
        assert code == wanted, f"{self.name} ended with {code}, not by {self._kill}: {self._said()}"
        self._kills[f"{self.name} {self._kill.at.partition('#')[0]}"] += 1

    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-4_000:]


def jvm_of(pid: int) -> int:
    """The process id of a driver's JVM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [int(child) for child in children if b"pyspark-shell" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return found


class Processes:
    """Driver, worker and server of one state directory. `kills` counts what has died of what."""

    def __init__(self, root: Path, url: str, settings: Sequence[str]) -> None:
        self.kills: Counter[str] = Counter()
        self._application = root / "state" / pipeline_app.NAME
        self._client = httpx.Client(base_url=url, timeout=HANGING_S)
        flags = [part for setting in settings for part in ("--set", setting)]

        def of(name: str, command: str, has_begun: Callable[[int], bool]) -> Killed:
            words = [command, "support.apps.pipeline_app:app", *flags]
            return Killed(name, words, root / f"{name}.log", has_begun, self.kills)

        self.driver = of("driver", "pipeline", self._pipelines_run)
        self.worker = of("worker", "worker", self._tasks_run)
        self.server = of("server", "serve", self._is_ready)
        self.every = (self.driver, self.worker, self.server)

    def until(
        self, condition: Callable[[], bool], what: Callable[[], str], timeout_s: float, pause_s: float = 0.02
    ) -> None:
        """Keep them going, by their plans, until the condition holds; look at it and at them in these steps."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"Waited {timeout_s} s in vain: {what()}"
            for process in self.every:
                process.turn()
            time.sleep(pause_s)

    def until_left_alone(self, timeout_s: float) -> None:
        """All have died as planned, and work again."""
        self.until(lambda: all(process.is_left_alone for process in self.every), lambda: str(self.kills), timeout_s)

    def stop(self) -> None:
        """End all in order."""
        for process in self.every:
            process.stop()

    def close(self) -> None:
        """Leave nothing behind."""
        for process in self.every:
            process.clear()
        self._client.close()

    def _pipelines_run(self, pid: int) -> bool:
        told = [read_status(path) for path in self._application.glob("pipelines/*")]
        return any(each is not None and each.pid == pid and each.state in ("running", "waiting") for each in told)

    def _tasks_run(self, pid: int) -> bool:
        said = read_instances(self._application).get("worker-0")
        return said is not None and said.pid == pid and set(said.tasks.values()) == {"running"}

    def _is_ready(self, pid: int) -> bool:
        del pid  # no other has this port
        try:
            return self._client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False


def moments(chance: random.Random, count: int, busy_s: float, start_s: float, at: str = ANY_MOMENT) -> list[Kill]:
    """Kills at random: a third of them while it starts, the others in the middle of its work."""
    kills = []
    for _ in range(count):
        starting = at == ANY_MOMENT and chance.random() < 1 / 3
        kills.append(Kill(at, chance.uniform(0, start_s if starting else busy_s), starting))
    return kills
