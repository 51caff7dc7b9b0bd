"""``<application>/topology.json``: the application as its workers run it, for servers and for the next worker.

    {"application_id", "default_isolation_level",
     "subtopologies": [{"ordinal", "partitions", "sources", "stores", "processors"}],
     "stores": {name: {"subtopology", "changelog": topic or null, "refused": why no worker runs it; else absent,
                       "made_of": of a store without a name of its own by which operators; else absent}},
     "topics": {topic: {"partitions", "topic_id"}} that stores are made of,
     "cluster": the log's `cluster_id`,
     "stopped": why no worker runs the application; empty while workers may}

On disk: never change. Indented by two, replaced by rename. Every worker writes the same file, and reads the counts of
the last worker at its start.

A worker that may not run some stores ends and says why (`stopped`). Servers then answer the last committed state,
except of stores whose rows differ from their Position (`refused`). Both stay until a worker runs all its tasks, or a
reset has deleted rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from stateline.deployment.json_files import decoded, publish
from stateline.deployment.partition_counts import TopicCount, counts_of, topics_of
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.log.interface import TopicInfo
from stateline.model.topology import Topology
from stateline.model.unnamed_stores import made_of
from stateline_store import DamagedDataError, IsolationLevel, NotReadyError, RetryLaterError
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)


GLOBAL_TABLES = "global"
"""In place of a task's id: global tables, of which each worker has all partitions."""
GLOBAL = -1
"""In place of a subtopology: global tables, as in Kafka Streams' task ids."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The task family and the partitions of a store. `refused` says why its rows must not be answered, `stopped` why no
    worker runs it."""

    subtopology: int
    partitions: int
    changelog: str | None
    refused: str | None = None
    stopped: str | None = None

    def task_id(self, partition: int) -> str:
        """The text of the partition's `TaskId`, as in `Instance.tasks`; `GLOBAL_TABLES` for global tables."""
        return GLOBAL_TABLES if self.subtopology == GLOBAL else str(TaskId(self.subtopology, partition))


@dataclass(frozen=True, slots=True)
class PublishedSubtopology:
    ordinal: int
    partitions: int
    sources: Sequence[str]
    stores: Sequence[str]
    processors: Sequence[str]


@dataclass(frozen=True, slots=True)
class PublishedStore:
    """`refused` says why no worker runs it. `made_of` is that of `stateline.model.unnamed_stores`, None for named
    stores."""

    subtopology: int
    changelog: str | None
    refused: str | None = None
    made_of: str | None = None

    def members(self) -> dict[str, Any]:
        """The file's members: without `refused` and `made_of` if they are None."""
        found: dict[str, Any] = {"subtopology": self.subtopology, "changelog": self.changelog}
        more = {"refused": self.refused, "made_of": self.made_of}
        return found | {name: text for name, text in more.items() if text is not None}


@dataclass(frozen=True, slots=True)
class PublishedTopology:
    """The content of ``topology.json``, with its members."""

    application_id: str
    default_isolation_level: str
    subtopologies: Sequence[PublishedSubtopology]
    stores: Mapping[str, PublishedStore]
    topics: Mapping[str, TopicCount]
    cluster: str
    stopped: str

    @classmethod
    def of(
        cls,
        topology: Topology,
        partitions: Mapping[int, int],
        default_isolation_level: IsolationLevel,
        counted: Mapping[str, TopicInfo] = MappingProxyType({}),
        cluster: str = "",
    ) -> PublishedTopology:
        """`partitions` is by the ordinal of subtopologies."""
        subtopologies = [
            PublishedSubtopology(
                s.ordinal,
                partitions[s.ordinal],
                [topic.name for topic in s.sources],
                [store.name for store in s.stores],
                [processor.name for processor in s.processors],
            )
            for s in topology.subtopologies
        ]
        application_id, unnamed = topology.application_id, made_of(topology)
        stores = {
            name: PublishedStore(
                topology.subtopology_of(name).ordinal, definition.changelog(application_id), made_of=unnamed.get(name)
            )
            for name, definition in topology.stores.items()
        }
        level, topics = str(default_isolation_level), counts_of(counted)
        return cls(application_id, level, subtopologies, stores, topics, cluster, stopped="")

    @classmethod
    def decode(cls, content: bytes) -> PublishedTopology:
        """Raises `DamagedDataError`."""
        found = decoded(cls, content)
        ordinals = {s.ordinal for s in found.subtopologies}
        for name, store in found.stores.items():
            if store.subtopology not in ordinals:
                raise DamagedDataError(f"store {name!r} is of subtopology {store.subtopology}, which is not there")
        return found

    def encode(self) -> bytes:
        return orjson.dumps(self, _members, orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS)

    def placements(self) -> dict[str, Placement]:
        partitions = {s.ordinal: s.partitions for s in self.subtopologies}
        return {
            name: Placement(
                store.subtopology, partitions[store.subtopology], store.changelog, store.refused, self.stopped or None
            )
            for name, store in self.stores.items()
        }

    def task_ids(self) -> frozenset[str]:
        return frozenset(
            str(TaskId(s.ordinal, partition)) for s in self.subtopologies for partition in range(s.partitions)
        )

    def refusing(self, error: StoresRefusedError) -> PublishedTopology:
        """Add why no worker runs it."""
        reasons = {} if error.keeps_rows else error.reasons
        stores = {name: replace(store, refused=reasons.get(name, store.refused)) for name, store in self.stores.items()}
        return replace(self, stores=stores, stopped=str(error))

    def refused_as(self, before: PublishedTopology) -> PublishedTopology:
        """Take over the refusals of `before`."""
        reasons = {name: store.refused for name, store in before.stores.items()}
        stores = {name: replace(store, refused=reasons.get(name)) for name, store in self.stores.items()}
        return replace(self, stores=stores, stopped=before.stopped)

    def without_refusals(self) -> PublishedTopology:
        stores = {name: replace(store, refused=None) for name, store in self.stores.items()}
        return replace(self, stores=stores, stopped="")


@dataclass(frozen=True, slots=True)
class _CountedTopics:
    """The part of the file that a starting worker needs."""

    topics: Mapping[str, TopicCount]


def topology_path(application: Path) -> Path:
    return application / "topology.json"


def publish_topology(application: Path, topology: PublishedTopology) -> None:
    """Replace the file, and sync it. Raises `RetryLaterError` if it cannot be written."""
    publish(topology_path(application), topology.encode(), sync=True)


def read_topology(application: Path) -> PublishedTopology:
    """Raises `NotReadyError` if no worker has written the file yet, or it is unreadable."""
    path = topology_path(application)
    try:
        return PublishedTopology.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise NotReadyError(
            f"No worker has started yet in {application}: start one (stateline worker), then ask again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except DamagedDataError as error:
        raise NotReadyError(f"{path} cannot be read ({error}). Restart a worker: it writes the file again.") from error


def read_counted(application: Path) -> dict[str, TopicInfo]:
    """Return the input topics of the stores, as the last worker counted them. Returns none if there is no such file,
    and none with a warning if the file is not JSON. The other members do not matter.

    Raises `DamagedDataError` if the counts are invalid, and `RetryLaterError` if the operating system refuses to read
    them: the topics may have grown since.
    """
    path = topology_path(application)
    try:
        content = path.read_bytes()
        orjson.loads(content)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RetryLaterError(
            f"{path} cannot be read ({error.strerror or error}), and no worker starts without what it says of the "
            "partitions that topics had: give the worker's user access to the state directory (state.dir), or repair "
            "it, then start again."
        ) from error
    except orjson.JSONDecodeError as error:
        _log.warning(
            "%s cannot be read and is written again (%s). Were partitions added to a table's topic since the last "
            "start? Then stop the workers, and start under a new application.id.",
            path, error,
        )  # fmt: skip
        return {}
    try:
        return topics_of(decoded(_CountedTopics, content).topics)
    except DamagedDataError as error:
        raise DamagedDataError(
            f"{path} does not say how many partitions topics had ({error}): delete it if none were added since the "
            "last start of a worker. Otherwise start under a new application.id."
        ) from error


def read_cluster(application: Path) -> str:
    """The cluster of the last worker's log, empty if unknown."""
    found = _last(application)
    return "" if found is None else found.cluster


def read_made_of(application: Path) -> dict[str, str]:
    """Unnamed store → its operators when the last worker started; empty if unknown."""
    found = _last(application)
    stores = {} if found is None else found.stores
    return {name: store.made_of for name, store in stores.items() if store.made_of is not None}


def publish_refusal(application: Path, error: StoresRefusedError, now: Callable[[], PublishedTopology]) -> None:
    """Add why no worker runs the application. If there is no file yet, `now` makes its content."""
    publish_topology(application, (_last(application, warns=True) or now()).refusing(error))


def publish_as_refused(application: Path, topology: PublishedTopology) -> None:
    """Publish the topology with the refusals of the last worker: whether they still hold is not known yet."""
    before = _last(application, warns=True)
    publish_topology(application, topology if before is None else topology.refused_as(before))


def publish_unrefused(application: Path) -> None:
    """Remove refusals: workers run the application now, or the refused stores were deleted."""
    if (found := _last(application)) is not None and found != (unrefused := found.without_refusals()):
        publish_topology(application, unrefused)


def unreadable(path: Path, error: OSError) -> NotReadyError:
    """The error if the operating system refuses `path`, or the path in the error."""
    return NotReadyError(
        f"{error.filename or path} cannot be read ({error.strerror or error}): give the server's user access to the "
        "state directory (state.dir), or repair it."
    )


def _last(application: Path, *, warns: bool = False) -> PublishedTopology | None:
    path = topology_path(application)
    try:
        return PublishedTopology.decode(path.read_bytes())
    except (OSError, DamagedDataError) as error:
        if warns and not isinstance(error, FileNotFoundError):
            _log.warning("%s cannot be read and is written again: %s", path, error)
        return None


def _members(value: object) -> Any:
    if isinstance(value, PublishedStore):
        return value.members()
    return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
