"""The topic ``<application.id>-nodes``: compacted, with one partition. Each node writes how others reach it.

    key   := name of the node, UTF-8
    value := {"url", "peer", "directory", "version", "topology", "rack", "tasks", "wire": [versions that it speaks]}
             JSON; a tombstone when it has left in order

Records whose keys begin with 0x00 are no nodes. They say where pipelines run (`deployment.pipelines.node`), what
workers tell each other (`deployment.workers.entries`), and what was reset (`deployment.stores.resets`).

In the log: never change. Other members of a value come from newer builds. A URL that is not http or https, and an
address that is not ``host:port``, count as empty. A record is ignored if its key is no name of a node. The topic only
finds nodes. A node itself says whether it lives and what it has (`server.nodes.link`).

No group reads the topic. Offsets that members commit for it mean nothing, except that a successful commit proves
membership (`deployment.lease`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields

import orjson

from stateline.config.types import NODE_NAME
from stateline.log.interface import Admin, Log, NewTopic, Record
from stateline_store import LogUnavailableError, TopicPartition
from stateline_store.clock import now_ms

_OTHERS = b"\0"
PIPELINES_KEY = b"\0pipelines"
RESET_KEY = b"\0reset"

_SERVER_URL = re.compile(r"https?://[A-Za-z0-9._~:%\[\]-]{1,400}")
_ADDRESS = re.compile(r"[A-Za-z0-9._~:%\[\]-]{1,400}:[0-9]{1,5}")
_NODE_NAME = re.compile(NODE_NAME)
_MOST_CHARACTERS = 1000  # in a text
MOST_NODES = 256
"""Limit of other nodes that a node knows: first those it has links to, then the newest."""

_SETTINGS = {"cleanup.policy": "compact"}
_READ_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node's entry. `url` is its address for clients, `peer` for nodes (``host:port``). Either may be empty.
    `directory` is the id of its state directory, `topology` a digest. `tasks` and `wire` are those of the links'
    greeting."""

    url: str
    peer: str
    directory: str
    version: str
    topology: str
    rack: str = ""
    tasks: str = ""
    wire: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> NodeEntry | None:
        """None if this is no entry. A newer build may have written it."""
        try:
            members = orjson.loads(value)
            texts = {each.name: members[each.name] for each in fields(cls) if each.name != "wire"}
            wire = tuple(members["wire"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        if not all(isinstance(text, str) and len(text) <= _MOST_CHARACTERS for text in texts.values()):
            return None
        if len(wire) > _MOST_CHARACTERS or not all(isinstance(version, int) for version in wire):
            return None
        texts["url"] = texts["url"] if is_server_url(texts["url"]) else ""
        texts["peer"] = texts["peer"] if _ADDRESS.fullmatch(texts["peer"]) else ""
        return cls(**texts, wire=wire)


def is_server_url(text: str | None) -> bool:
    """Whether this is ``http://host:port`` or ``https://…``, without a path or a user."""
    return text is not None and _SERVER_URL.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    return _NODE_NAME.fullmatch(text) is not None


def nodes_partition(application_id: str) -> TopicPartition:
    return TopicPartition(f"{application_id}-nodes", 0)


def ensure_nodes_topic(application_id: str, admin: Admin) -> TopicPartition:
    """Create the topic if it is missing. Returns its partition. Raises like `Admin.topics` and
    `Admin.create_topics`."""
    place = nodes_partition(application_id)
    ensure_of_one_partition(place.topic, _SETTINGS, admin)
    return place


def ensure_of_one_partition(topic: str, settings: Mapping[str, str], admin: Admin) -> None:
    """Create this topic with one partition if it is missing. Reading it needs no right to create topics. Raises like
    `Admin.topics` and `Admin.create_topics`."""
    if topic not in admin.topics([topic]):
        admin.create_topics([NewTopic(topic, 1, settings)])


def nodes_topic_id(application_id: str, admin: Admin) -> str | None:
    """The topic's id, which changes if it was deleted and created again. None if it is missing. Raises like
    `Admin.topics`."""
    topic = nodes_partition(application_id).topic
    found = admin.topics([topic]).get(topic)
    return None if found is None else found.topic_id


def say_node(log: Log, application_id: str, node: str, entry: NodeEntry | None) -> None:
    """Write the node's entry; None: it has left. Raises what the log raises."""
    place = nodes_partition(application_id)
    with closing(log.producer()) as producer:
        value = None if entry is None else entry.encode()
        producer.produce(place.topic, node.encode(), value, timestamp_ms=now_ms(), partition=place.partition)
        producer.flush()


def records_until_now(log: Log, place: TopicPartition) -> Iterator[Record]:
    """The partition's present records. Raises what the log raises, `LogUnavailableError` after 15 s."""
    with closing(log.admin()) as admin:
        end = admin.watermarks(place)[1]
    deadline = time.monotonic() + _READ_TIMEOUT_S
    with closing(log.consumer()) as consumer:
        consumer.assign({place: 0})
        while (consumer.next_offset(place) or 0) < end:
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"{place.topic} could not be read in {_READ_TIMEOUT_S:g} s: try again.")
            yield from consumer.poll(1000, 0.1)


def newest_value(log: Log, place: TopicPartition, key: bytes) -> bytes | None:
    """The value of the newest record with this key. Raises like `records_until_now`."""
    newest = None
    for record in records_until_now(log, place):
        if record.key == key:
            newest = record.value
    return newest


def replace_value(
    log: Log,
    place: TopicPartition,
    transactional_id: str,
    key: bytes,
    value: bytes | None,
    is_unchanged: Callable[[], bool],
) -> bool:
    """Write this record if `is_unchanged` after earlier writers are fenced. Returns whether it was written. Raises
    `FencedError` if another process writes meanwhile, and what the log raises."""
    with closing(log.producer(transactional_id)) as producer:
        producer.init_transactions()
        if not is_unchanged():
            return False
        producer.begin_transaction()
        producer.produce(place.topic, key, value, timestamp_ms=now_ms(), partition=place.partition)
        producer.flush()  # notices a fence at once; a commit waits for its timeout
        producer.commit_transaction()
        return True


def known_nodes(log: Log, application_id: str) -> dict[str, NodeEntry]:
    """Every node that has not left. Raises like `records_until_now`, and `DoesNotExistError` if the topic is
    missing."""
    found: dict[str, NodeEntry | None] = {}
    for record in records_until_now(log, nodes_partition(application_id)):
        if _is_node(record):
            found[_name(record)] = _entry(record)
    return {node: entry for node, entry in found.items() if entry is not None}


def follow_nodes(
    log: Log, application_id: str, told: Callable[[Sequence[tuple[str, NodeEntry | None]], bool], bool], wait_s: float
) -> None:
    """Read the topic from its start until `told(heard, is_read)` returns False.

    `heard` has the name and entry of each record of a batch; the entry of a node that has left is None. It is empty
    after `wait_s` without records. `is_read`: the batch reaches the end that the topic had at the start. Raises what
    the log raises, `DoesNotExistError` if the topic is deleted.
    """

    def on_records(records: Sequence[Record], is_read: bool) -> bool:
        return told([(_name(record), _entry(record)) for record in records if _is_node(record)], is_read)

    follow_records(log, nodes_partition(application_id), on_records, wait_s)


def follow_records(
    log: Log, place: TopicPartition, told: Callable[[Sequence[Record], bool], bool], wait_s: float
) -> None:
    """Read this partition from its start until `told(records, is_read)` returns False, like `follow_nodes`."""
    with closing(log.admin()) as admin:
        end = admin.watermarks(place)[1]
    with closing(log.consumer()) as consumer:
        consumer.assign({place: 0})
        goes_on = True
        while goes_on:
            records = consumer.poll(1000, wait_s)
            goes_on = told(records, (consumer.next_offset(place) or 0) >= end)


def _is_node(record: Record) -> bool:
    return record.key is not None and not record.key.startswith(_OTHERS) and is_node_name(_name(record))


def _name(record: Record) -> str:
    return (record.key or b"").decode(errors="replace")


def _entry(record: Record) -> NodeEntry | None:
    return None if record.value is None else NodeEntry.decode(record.value)
