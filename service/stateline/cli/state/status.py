"""`stateline status`: show the lag of an application, from its committed offsets.

The lag of a topic counts the offsets beyond the group's committed ones. The end of a transaction takes an offset
without a record, and nobody commits beyond it. So a small lag is read once, to see whether it has records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.pipelines.status import pipelines_directory, read_status
from stateline.deployment.workers.figures import StepFigures, WorkerFigures
from stateline.dsl.app import App
from stateline.log.interface import Admin, Log
from stateline.model.internal_topics import created_topics
from stateline.model.topology import Topology
from stateline.server.telemetry.workers_metrics import FiguresReader
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition

_MARKERS = 64  # offsets: a larger lag has records, or is smaller at the next look
_READ_TIMEOUT_S = 15.0
_LOOK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Status:
    """`ends` are the ends of the input and `committed` the processed offsets. `members` counts workers in the group,
    `wanted` says whether there is work for them. `missing` are topics that workers create at their start. `pipelines`
    have their lags, None if unknown on this machine. `steps` are those of this machine's workers since their start."""

    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]
    members: int
    wanted: bool
    missing: Sequence[str]
    pipelines: Mapping[str, int | None]
    steps: Mapping[str, StepFigures] = field(default_factory=dict)

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """List the parts that have not reached these ends, for people. Empty if everything has, and runs."""
        unmade = [f"topic {name}, which no worker has made yet" for name in self.missing]
        if self.wanted and not self.members:
            return ["no worker is in the group", *unmade]
        late = {each.topic for each, end in ends.items() if self.committed.get(each, 0) < end}
        found = unmade + [f"{topic} by {self.lag(topic)}" for topic in sorted(late)]
        unknown = [name for name, lag in self.pipelines.items() if lag is None]
        found += [f"pipeline {name} by {lag}" for name, lag in self.pipelines.items() if lag]
        return found + [f"pipeline {name}, of which nothing is known here" for name in unknown]

    def lag(self, topic: str) -> int:
        return sum(max(0, end - self.committed.get(e, 0)) for e, end in self.ends.items() if e.topic == topic)

    def rows(self) -> list[Row]:
        """A row per topic and pipeline. A missing topic has the lag None."""
        topics = dict.fromkeys(each.topic for each in self.ends)
        found: list[Row] = [{"what": "topic", "name": topic, "lag": self.lag(topic)} for topic in topics]
        found += [{"what": "topic", "name": name, "lag": None} for name in self.missing]
        return found + [{"what": "pipeline", "name": name, "lag": lag} for name, lag in self.pipelines.items()]

    def dropped_rows(self) -> list[Row]:
        """A row per step and reason with its dropped records."""
        return [
            {"what": "step", "name": name, "reason": reason, "dropped": count, "records": step.taken}
            for name, step in sorted(self.steps.items())
            for reason, count in sorted(step.dropped.items())
        ]


def status(app: App, config: Config) -> Status:
    """The lag now. Raises `DoesNotExistError` if there is no log or a topic of the user's is missing, and what the log
    raises."""
    _refuse_without_log(config)
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        return _look(app.topology(), config, log, admin)


def wait_until_caught_up(app: App, config: Config, timeout_s: float, say: Callable[[str], object]) -> bool:
    """Wait until all present input is processed. Returns False at the timeout. Says with `say` what is behind. Raises
    like `status`, but waits while the log is away.

    A processed record may produce one for another topic that the application reads. So the ends are taken again after
    each round, once per step that a record can go through.
    """
    _refuse_without_log(config)
    until_s, told_s = time.monotonic() + timeout_s, 0.0
    topology = app.topology()
    steps = len(topology.subtopologies) + len(topology.pipelines)
    rounds = steps + 1  # the end of a topic is visible shortly after the commit
    ends: Mapping[TopicPartition, int] | None = None
    behind = ["the log does not answer"]
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        while True:
            now_s = time.monotonic()
            try:
                found = _look(topology, config, log, admin)
                behind = found.behind(found.ends if ends is None else ends)
                if found.missing:  # the ends of missing topics are unknown
                    ends = None
                elif ends is None or not behind:
                    ends = found.ends
            except LogUnavailableError as error:
                behind = [str(error)]
            if not behind:
                rounds -= 1
                if not rounds:
                    return True
            elif now_s > until_s:
                say(f"Not caught up within {timeout_s:g} s: {', '.join(behind)}.")
                return False
            elif now_s - told_s > 10.0:
                say(f"Behind: {', '.join(behind)}")
                told_s = now_s
            time.sleep(_LOOK_INTERVAL_S)


def _refuse_without_log(config: Config) -> None:
    if not log_exists(config):
        raise DoesNotExistError(f"There is no log at {config.bootstrap_servers}: nothing has run here.")


def _look(topology: Topology, config: Config, log: Log, admin: Admin) -> Status:
    names = list(dict.fromkeys(topic.name for s in topology.subtopologies for topic in s.sources))
    there = admin.topics(names)
    own = {topic.name for topic in created_topics(topology)}
    if missing := [name for name in names if name not in there and name not in own]:
        raise DoesNotExistError(f"Topics are missing: {', '.join(missing)} (stateline topics MODULE:APP).")
    places = [place for name in names if name in there for place in there[name].places]
    committed = admin.committed(topology.application_id, places)
    ends, bounds = admin.committed_ends(places), admin.bounds(places)
    done = {each: committed.get(each, bounds[each][0]) for each in places}
    for each, end in ends.items():
        if done[each] < end <= done[each] + _MARKERS and not _has_records(log, each, done[each], end):
            done[each] = end
    members = len(admin.members(topology.application_id))
    folder = pipelines_directory(config.state_dir, config.application_id)
    found = {name: read_status(folder / name) for name in topology.pipelines}
    pipelines = {
        name: status.lag if status is not None and status.state in ("running", "waiting") else None
        for name, status in found.items()
    }
    missing = [name for name in names if name not in there]
    told = FiguresReader(config.state_dir / config.application_id).read()
    return Status(ends, done, members, bool(topology.subtopologies), missing, pipelines, _steps(told.values()))


def _steps(workers: Iterable[WorkerFigures]) -> Mapping[str, StepFigures]:
    taken, dropped = Counter[str](), dict[str, Counter[str]]()
    for name, step in (each for worker in workers for each in worker.steps.items()):
        taken[name] += step.taken
        dropped.setdefault(name, Counter()).update(step.dropped)
    return {name: StepFigures(taken[name], dropped[name]) for name in taken}


def _has_records(log: Log, place: TopicPartition, first: int, end: int) -> bool:
    deadline_s = time.monotonic() + _READ_TIMEOUT_S
    with closing(log.consumer()) as consumer:
        consumer.assign({place: first})
        while (consumer.next_offset(place) or 0) < end:
            if consumer.poll(1, 0.1):
                return True
            if time.monotonic() > deadline_s:
                raise LogUnavailableError(f"{place} could not be read in {_READ_TIMEOUT_S:g} s: try again.")
    return False
