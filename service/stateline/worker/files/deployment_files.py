"""A worker's files for other processes of its machine: its tasks, and the application's topology."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping

from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.stores.cluster_change import refuse_other_cluster
from stateline.deployment.stores.topology_file import (
    PublishedTopology,
    publish_as_refused,
    publish_refusal,
    publish_topology,
    publish_unrefused,
    read_cluster,
    read_counted,
    read_made_of,
)
from stateline.deployment.topics import subtopology_partitions, wanted_partitions
from stateline.deployment.workers.failed_starts import FailedStarts
from stateline.deployment.workers.instance_file import drain_path
from stateline.log.interface import Admin, Consumer, TopicInfo
from stateline.model.internal_topics import created_topics
from stateline.model.topology import Topology
from stateline.model.unnamed_stores import taken_over
from stateline.worker.files.registration import Registration, socket_path
from stateline_store import IsolationLevel, StateDirectory

_log = logging.getLogger(__name__)
_DRAIN_INTERVAL_S = 0.25
_PROCESS_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class DeploymentFiles:
    """One worker's, on its thread: the files of its `registration`, and ``topology.json``. `socket` is the path of its
    query socket, `global_tables` the state to publish, `level` the default of queries, `starts` counts failed starts.
    `drained` is set after it has handed over its tasks. Raises `LockedError` if a live worker of this name exists."""

    def __init__(self, directory: StateDirectory, instance: str, topology: Topology, level: IsolationLevel) -> None:
        self.registration = Registration(directory.application, instance)
        self.socket = socket_path(directory.application, instance)
        self.starts = FailedStarts(directory.application, instance)
        self._process_id = directory.process_id()
        self._topology = topology
        self._level = level
        self.directory = directory.application
        self._state_directory = directory
        self._cluster = ""
        self._drain = drain_path(directory.application, instance)
        self._drain.unlink(missing_ok=True)  # it was meant for the process before this one
        self._drain_looks_s = 0.0
        self.global_tables: str | None = None
        self.drained = False
        self._runs = False

    def client_id(self, prefix: str | None) -> str:
        """Return this worker's client id, which names its directory. `prefix` is by default the application's id."""
        return f"{prefix or self._topology.application_id}-{self._process_id}-{self.registration.instance}"

    def refuse_other_cluster(self, bootstrap_servers: str, admin: Admin) -> None:
        """Remember the log's cluster. Raises `ConfigurationError` for another one than before."""
        before, counted, target = read_cluster(self.directory), read_counted(self.directory), self._topology.target
        self._cluster = refuse_other_cluster(self._state_directory, target, bootstrap_servers, before, counted, admin)

    def say_taken_over(self, created: Collection[str]) -> None:
        for warning in taken_over(self._topology, read_made_of(self.directory), created):
            _log.warning("%s", warning)

    def is_of_another_directory(self, client_id: str) -> bool:
        found = _PROCESS_ID.search(client_id)
        return found is not None and found[0] != str(self._process_id)

    def say_tasks(self, states: Mapping[str, str], consumer: Consumer | None) -> None:
        known = (None, -1) if consumer is None else (consumer.member_id, consumer.generation)
        self.registration.update(self.socket, states, self._process_id, *known, self.global_tables, self.drained)

    def is_to_drain(self) -> bool:
        """Return whether `stateline node drain` asks this worker to hand over its tasks. Looks now and then."""
        now_s = time.monotonic()
        if now_s < self._drain_looks_s:
            return False
        self._drain_looks_s = now_s + _DRAIN_INTERVAL_S
        return self._drain.exists()

    def say_topology(self, found: Mapping[str, TopicInfo], counted: Mapping[str, TopicInfo]) -> None:
        """Publish the topology with the partitions that topics have now. Refusals of the last worker stay until `runs`.
        Raises `TopologyError` when topics that are processed together have different numbers."""
        counts = {name: info.partitions for name, info in found.items()}
        if any(topic.name not in counts for s in self._topology.subtopologies for topic in s.sources):
            return  # deleted in this moment
        subtopology_partitions(self._topology, counts)
        publish = publish_topology if self._runs else publish_as_refused
        publish(self.directory, self._published(found, counted))

    def runs(self) -> None:
        if not self._runs:
            self._runs = True
            publish_unrefused(self.directory)

    def refuse(
        self, error: StoresRefusedError, found: Mapping[str, TopicInfo], counted: Mapping[str, TopicInfo]
    ) -> None:
        publish_refusal(self.directory, error, lambda: self._published(found, counted))

    def _published(self, found: Mapping[str, TopicInfo], counted: Mapping[str, TopicInfo]) -> PublishedTopology:
        counts = {name: info.partitions for name, info in found.items()}
        counts = {**wanted_partitions(created_topics(self._topology), counts), **counts}  # some may not be made yet
        partitions = {s.ordinal: max(counts[topic.name] for topic in s.sources) for s in self._topology.subtopologies}
        return PublishedTopology.of(self._topology, partitions, self._level, counted, self._cluster)

    def remove(self) -> None:
        self._drain.unlink(missing_ok=True)
        self.registration.remove()
