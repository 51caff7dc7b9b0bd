"""What a Kafka Streams application has left on disk, to be adopted, and the rows of an application that adopts it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.java_state import MORE_RETENTION_MS, PARTITIONS, declarations, feed
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.kafka import KafkaLog
from stateline.model.store_definition import StoreDefinition
from stateline_store import StateDirectory, TopicPartition
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.segments import EVERY_SEGMENT, PREFIX, Segments
from stateline_store.scan import EVERY_KEY
from support.kafka.java_streams import JavaStreams
from support.processes.running_worker import Stores, configured, eventually, read_all, running

RECORDS = 400  # of each topic
GLOBAL = "everywhere"  # a global table and its topic
SETTINGS = {
    "commit.interval.ms": 100,
    "processing.guarantee": "exactly_once_v2",
    "windowstore.changelog.additional.retention.ms": MORE_RETENTION_MS,
}


@dataclass
class Left:
    """`stopped` is the state directory of a Java application after its end, `killed` a copy of when it ran. `refusal`
    is what `adopt` said while it ran."""

    log: KafkaLog
    java: JavaStreams
    inputs: dict[str, str]
    stopped: Path
    killed: Path
    refusal: str
    headers: bool

    def declarations(self) -> list[StoreDefinition]:
        *others, joined = declarations(headers=self.headers)  # a join's store has headers in Java, too
        return [*others, replace(joined, kind="timestamped_window", headers=True) if self.headers else joined]

    def app(self, name: str, definitions: list[StoreDefinition] | None = None, of: str | None = None) -> App:
        app = App(name)
        for definition in self.declarations() if definitions is None else definitions:
            app.external_store(definition, of=of or self.java.application_id)
        return app

    def config(self, app: App, state_dir: Path) -> Config:
        return configured(app, state_dir, bootstrap__servers=self.log.bootstrap_servers)

    def feed(self, first: int, count: int = RECORDS) -> None:
        """Write input, and wait until Java has committed it."""
        feed(self.log, self.inputs, first, count)
        read = [topic for name, topic in self.inputs.items() if name != GLOBAL]
        partitions = [TopicPartition(topic, p) for topic in read for p in range(PARTITIONS)]
        with closing(self.log.admin()) as admin:
            ends = {p: admin.log_end(p) for p in partitions}
            eventually(lambda: admin.committed(self.java.application_id, partitions) == ends, "Java has committed")


def rows(app: App, config: Config, name: str, partition: int) -> list[tuple[bytes, bytes]]:
    """The rows of a store on disk that have not expired, without the numbers that each side gives to duplicates."""
    definition = app.topology().stores[name]
    task = str(app.topology().subtopology_of(name).task_id(partition))
    path = StateDirectory(config.state_dir, config.application_id).store(task, name, timestamped=definition.timestamped)
    with OfflineStore(path) as store, store.scan(EVERY_KEY) as scan:
        found, layout, stream_time_ms = dict(scan), store.format.layout, store.commit.stream_time_ms  # type: ignore[union-attr]
    if layout.segment_interval_ms is None:
        return sorted(found.items())
    live = PREFIX.pack(Segments(definition.retention_ms, layout.segment_interval_ms).oldest_live(stream_time_ms))
    end = EVERY_SEGMENT.end
    assert end is not None
    end_of_key = -4 if definition.retain_duplicates else None
    start = 8 if definition.kind == "timestamped_session" else 0  # Java has no timestamps of sessions
    return sorted((key[:end_of_key], value[start:]) for key, value in found.items() if key >= min(live, end))


def restored(left: Left, app: App, config: Config, scratch: Path) -> None:
    """Run a worker until its stores have every visible record of their changelogs."""
    ends = {}
    for definition in left.declarations():
        for record in read_all(left.log, left.java.changelog(definition.name), PARTITIONS):
            ends[definition.name, record.topic, record.partition] = record.offset
    with closing(Stores(app, config, scratch)) as kept, running(app, config, left.log):
        eventually(lambda: all(kept.offset(*place) >= end for place, end in ends.items()), "the stores have caught up")
