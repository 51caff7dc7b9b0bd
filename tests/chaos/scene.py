"""The workers of a chaos run over its brokers and its disk: who is meant to run, and whether they get on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from chaos.cluster import KafkaCluster
from stateline.deployment.workers.instance_file import instances_directory, read_instances
from support.apps import crash_app
from support.oracles.crash_watch import PARTITIONS, WatchedRun
from support.processes.forked import Forked
from support.processes.running_worker import eventually
from support.run.patience import HANGING_S

FIRST, SECOND = "worker-0", "worker-1"
PATIENCE_S = HANGING_S
_PRINTED_CHARACTERS = 20_000


class Scene:
    """A watched run on a cluster, and the workers that are meant to run, by their names."""

    def __init__(
        self,
        cluster: KafkaCluster,
        run: WatchedRun,
        guarantee: str,
        disk: Path,
        chance: random.Random,
        *,
        disk_is_small: bool,
    ) -> None:
        """The state directory is `state` on `disk`, which can be filled when it is small."""
        self.disk_is_small = disk_is_small
        self.cluster, self.run, self.guarantee, self.disk, self.chance = cluster, run, guarantee, disk, chance
        self.starts = 0
        self.ended: list[str] = []
        """Of workers that have ended by themselves: name and exit code."""
        self.workers: dict[str, Forked] = {}
        self._processes: list[Forked] = []
        self._outputs = {FIRST: run.output, SECOND: run.output.with_name("second.log")}
        app = crash_app.build(run.name)
        self._application = disk / "state" / app.application_id
        self.tasks = {str(s.task_id(number)) for s in app.topology().subtopologies for number in range(PARTITIONS)}

    def start(self, name: str = FIRST, **environment: str) -> Forked:
        """The next worker of this name, on the same disk; from now on it is meant to run."""
        self.starts += 1
        if name == FIRST:
            worker = self.run.start_worker(**environment)
        else:
            worker = self.run.start_another(name, self._outputs[name])
        self._processes.append(worker)
        self.workers[name] = worker
        return worker

    def let_go(self, name: str = FIRST) -> Forked:
        """The worker of this name, which is not meant to run any more."""
        return self.workers.pop(name)

    def kill(self, name: str = FIRST) -> None:
        worker = self.let_go(name)
        worker.kill()
        worker.wait()

    def keep_running(self) -> None:
        """A worker that has ended by itself, as it should when the log stays away or the disk is full, is started
        again, as its supervisor would. One that a signal has ended has crashed."""
        for name, worker in list(self.workers.items()):
            if (code := worker.poll()) is not None:
                self.ended.append(f"{name}: {code}")
                assert code > 0, f"{name} has ended with {code}."
                self.start(name)

    def running_tasks(self, name: str) -> set[str]:
        """The ids of the tasks that the worker of this name says it runs."""
        said = read_instances(self._application).get(name)
        if said is None or said.pid != self.workers[name].pid:
            return set()  # left by a worker that was killed
        return {task for task, state in said.tasks.items() if state == "running"}

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Seconds until it held, with every worker that is meant to run kept running. Raises what the watcher found."""
        began_s = time.monotonic()

        def met() -> bool:
            if self.run.watcher.error is not None:
                raise self.run.watcher.error
            self.keep_running()
            return condition()

        eventually(met, what, PATIENCE_S)
        return time.monotonic() - began_s

    def until_progress(self) -> float:
        """Seconds until two more commits were seen, of whatever task, and found right."""
        moves = self.run.watcher.moves
        return self.until(lambda: self.run.watcher.moves > moves + 2, "a worker commits again")

    def until_all_move(self) -> float:
        """Seconds until every partition of every store was seen to have moved on, and found right."""
        before = self.run.watcher.offsets()

        def moved() -> bool:
            now = self.run.watcher.offsets()
            return bool(before) and all(now[each] > offset for each, offset in before.items())

        return self.until(moved, "every partition is committed again")

    def until_whole(self) -> float:
        """Seconds until the first worker has every task, and has committed each of them again."""
        has_all_s = self.until(lambda: self.running_tasks(FIRST) == self.tasks, "the first worker has all tasks")
        return has_all_s + self.until_all_move()

    def printed(self) -> str:
        """How far all has come, who says to have which tasks, and the last of what the workers have printed."""
        ends = [len(records) for records in self.run.inputs]
        lines = [f"Seen up to {self.run.watcher.offsets()} in {self.run.watcher.looks:,} looks; input ends at {ends}."]
        lines += [path.read_text() for path in sorted(instances_directory(self._application).glob("*.json"))]
        for name, path in self._outputs.items():
            if path.exists():
                lines += [f"---- {name}", path.read_text()[-_PRINTED_CHARACTERS:]]
        return "\n".join(lines)

    def close(self) -> None:
        """Kill every worker there is, also those that hang."""
        self.workers.clear()
        for process in self._processes:
            process.kill()
            process.wait()
