"""A task's topology, the settings that it shares with its worker's other tasks, and its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stateline.model.fed_parts import FedPart, parts_of
from stateline.model.record_size import MAX_RECORD_BYTES, max_record_bytes
from stateline.model.reset_command import way_back
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.model.topology import Subtopology
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler
from stateline.worker.context import WorkerContext
from stateline_store import Position, StateDirectory, TopicPartition, TransactionalStore
from stateline_store.inspection.format_upgrade import UpgradeMode


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """`upgrade_mode` is None when `upgrade.from` is not set. `global_stores` are for operators' lookups, open while
    tasks run. `parts`: see `fed_parts.parts_of`. `moved` is called when a task has moved to another state.
    `partitions_of`: see `OperatorContext`. `way_back`: see `reset_command.way_back`."""

    application_id: str
    directory: StateDirectory
    failures: FailureHandler
    exactly_once: bool = False
    sync: bool = False
    upgrade_mode: UpgradeMode | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    max_timestamp_ahead_ms: int = -1
    expires_by_clock: bool = False
    epoch_numbers: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    global_stores: Mapping[str, TransactionalStore] = field(default_factory=dict)
    parts: Mapping[str, tuple[FedPart, ...]] = field(default_factory=dict)
    clock: Clock = MACHINE_CLOCK
    moved: Callable[[], object] = lambda: None
    partitions_of: Callable[[str], int | None] = lambda topic: None
    way_back: str = "Bring the topic back"

    @classmethod
    def of(
        cls, context: WorkerContext, global_stores: Mapping[str, TransactionalStore], moved: Callable[[], object]
    ) -> TaskSettings:
        config, topology, admin = context.config, context.topology, context.admin

        def partitions_of(topic: str) -> int | None:
            found = admin.topics([topic]).get(topic)
            return None if found is None else found.partitions

        return cls(
            topology.application_id,
            context.directory,
            context.failures,
            exactly_once=config.exactly_once,
            sync=config.statestore_sync,
            upgrade_mode=config.upgrade_mode if config.upgrade_from else None,
            max_record_bytes=max_record_bytes(config.producer),
            max_timestamp_ahead_ms=config.max_timestamp_ahead_ms,
            expires_by_clock=config.ttl_clock == "wall",
            epoch_numbers=topology.epoch_numbers(),
            global_stores=global_stores,
            parts=parts_of(topology),
            clock=context.clock,
            moved=moved,
            partitions_of=partitions_of,
            way_back=way_back(topology, config.backup_location),
        )


class TaskTopology:
    """One partition of a subtopology. Immutable. `tables` and `fed_by` have store names by topic: tables kept of it,
    and stores whose Position follows it. `parts`: by source, see `model.fed_parts`.

    `changelogs` has by store the partition that it can be rebuilt from: its changelog's, or its table's topic. `logged`
    stores have a changelog of their own. Nothing can rebuild `unlogged` ones.
    """

    def __init__(
        self, subtopology: Subtopology, partition: int, application_id: str, parts: Mapping[str, tuple[FedPart, ...]]
    ) -> None:
        self.id = subtopology.task_id(partition)
        self.subtopology = subtopology
        self.partition = partition
        self.topics: dict[str, Topic] = {topic.name: topic for topic in subtopology.sources}
        self.sources = [TopicPartition(topic, partition) for topic in self.topics]
        self.definitions: dict[str, StoreDefinition] = {each.name: each for each in subtopology.stores}
        self.tables = {topic: [each.name for each in subtopology.tables(topic)] for topic in self.topics}
        self.fed_by = {topic: subtopology.stores_fed_by(topic) for topic in self.topics}
        self.parts = {source: parts.get(source.topic, ()) for source in self.sources}
        topics = {name: each.changelog(application_id) for name, each in self.definitions.items()}
        self.changelogs = {
            name: TopicPartition(topic, partition) for name, topic in topics.items() if topic is not None
        }
        self.unlogged = [name for name in self.definitions if name not in self.changelogs]
        self.logged = [(log, name) for name, log in self.changelogs.items() if log not in self.sources]

    def log_topics(self) -> set[str]:
        return {*self.topics, *(changelog.topic for changelog, _ in self.logged)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStart:
    """Where a restored task begins. `ends`: where input and changelogs ended when the restore began. `positions`: what
    a store reflects at least, beyond its own. `partition_times`: event times of the input up to `next_offsets`. `fed`:
    `OffsetNote.fed` of this task's commits, `fed_before`: of the newest commits before."""

    next_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    partition_times: Mapping[TopicPartition, int] = field(default_factory=dict)
    fed: Mapping[TopicPartition, str | None] = field(default_factory=dict)
    fed_before: Mapping[TopicPartition, str | None] = field(default_factory=dict)
