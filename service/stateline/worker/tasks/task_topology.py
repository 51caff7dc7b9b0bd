"""What a task is made of: the partitions that it reads, its stores, and what each store can be rebuilt from."""

from __future__ import annotations

from collections.abc import Mapping

from stateline.model.fed_parts import FedPart
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.model.topology import Subtopology
from stateline_store import TopicPartition


class TaskTopology:
    """One partition of a subtopology. Pure, and nothing of it changes.

    By name: `definitions` of its stores, `topics` that it reads, `tables` kept of a topic, `fed_by` a topic the stores
    whose Position follows it. `parts` has by source what its input goes into (`model.fed_parts`).

    `changelogs` has by store the partition that it can be rebuilt from: of its changelog, or of a table's topic;
    `logged` are those with a changelog of their own, `unlogged` those that nothing can rebuild.
    """

    def __init__(
        self, subtopology: Subtopology, partition: int, application_id: str, parts: Mapping[str, tuple[FedPart, ...]]
    ) -> None:
        """`parts` are by source topic, as of `fed_parts.parts_of`."""
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
        """Every topic that it reads or restores from."""
        return {*self.topics, *(changelog.topic for changelog, _ in self.logged)}
