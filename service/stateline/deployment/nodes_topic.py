"""The topic ``<application.id>-nodes``: compacted, of one partition. Each node says there how others find it.

    key   := name of the node, UTF-8
    value := {"url", "peer", "directory", "version", "topology", "rack", "tasks", "wire": [versions that it speaks]}
             JSON; a tombstone when it has left in order

and records whose keys begin with 0x00 are no node's: they say where pipelines run (`deployment.pipelines.node`), what
workers tell each other (`deployment.workers.entries`), and what was started over (`deployment.stores.resets`).

In the log: never change. What else a value has is a newer build's. A URL that is not http or https, and an address that
is not ``host:port``, count as empty; a record whose key is no name of a node counts for nothing. The topic finds the
others and nothing more: whether a node lives, and what it has, it says itself (`server.nodes.link`).

Nobody reads the topic by a group, so the offsets of it that members commit mean nothing: that they are taken proves
that a member is one (`deployment.lease`).
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
"""Of the record that says where pipelines run."""
RESET_KEY = b"\0reset"
"""Of the record that says what was started over (`deployment.stores.resets`)."""

_SERVER_URL = re.compile(r"https?://[A-Za-z0-9._~:%\[\]-]{1,400}")
_ADDRESS = re.compile(r"[A-Za-z0-9._~:%\[\]-]{1,400}:[0-9]{1,5}")
_NODE_NAME = re.compile(NODE_NAME)
_MOST_CHARACTERS = 1000  # of a text
MOST_NODES = 256
"""So many other nodes a node knows, those that it links with before others, and of the rest the newest."""

_SETTINGS = {"cleanup.policy": "compact"}
_READ_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """What a node says of itself. `url` is where clients reach it and `peer` where nodes do (``host:port``), each empty
    where nobody does; `directory` is the id of its state directory, `topology` a digest of what it runs, `rack` empty
    where none is told. `tasks` and `wire` are as in the greeting of links."""

    url: str
    peer: str
    directory: str
    version: str
    topology: str
    rack: str = ""
    tasks: str = ""
    wire: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> NodeEntry | None:
        """What `encode` wrote; None for anything else, which may be a newer build's."""
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
    """Whether clients may be told to ask there: ``http://host:port`` or ``https://…``, without a path or a user."""
    return text is not None and _SERVER_URL.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    """Whether a node can be called so (`node.name`)."""
    return _NODE_NAME.fullmatch(text) is not None


def nodes_partition(application_id: str) -> TopicPartition:
    """The one partition that the topic of this application has."""
    return TopicPartition(f"{application_id}-nodes", 0)


def ensure_nodes_topic(application_id: str, admin: Admin) -> TopicPartition:
    """Create the topic unless it is there; its partition. Raises as `Admin.topics` and `Admin.create_topics`."""
    place = nodes_partition(application_id)
    ensure_of_one_partition(place.topic, _SETTINGS, admin)
    return place


def ensure_of_one_partition(topic: str, settings: Mapping[str, str], admin: Admin) -> None:
    """Create this topic, with one partition, unless it is there: who may read it need not be allowed to create any.
    Raises as `Admin.topics` and `Admin.create_topics`."""
    if topic not in admin.topics([topic]):
        admin.create_topics([NewTopic(topic, 1, settings)])


def nodes_topic_id(application_id: str, admin: Admin) -> str | None:
    """The id of the topic, which is another one when it was deleted and made anew; None when there is none. Raises as
    `Admin.topics`."""
    topic = nodes_partition(application_id).topic
    found = admin.topics([topic]).get(topic)
    return None if found is None else found.topic_id


def say_node(log: Log, application_id: str, node: str, entry: NodeEntry | None) -> None:
    """Write what others are to know of this node from now on; None: that it has left. Raises what the log raises."""
    place = nodes_partition(application_id)
    with closing(log.producer()) as producer:
        value = None if entry is None else entry.encode()
        producer.produce(place.topic, node.encode(), value, timestamp_ms=now_ms(), partition=place.partition)
        producer.flush()


def records_until_now(log: Log, place: TopicPartition) -> Iterator[Record]:
    """What the topic has now, from its start. Raises what the log raises, as `LogUnavailableError` when that takes too
    long."""
    with closing(log.admin()) as admin:
        end = admin.watermarks(place)[1]
    deadline = time.monotonic() + _READ_TIMEOUT_S
    with closing(log.consumer()) as consumer:
        consumer.assign({place: 0})
        while (consumer.next_offset(place) or 0) < end:
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"{place.topic} could not be read in {_READ_TIMEOUT_S:g} s: try again.")
            yield from consumer.poll(1000, 0.1)


def known_nodes(log: Log, application_id: str) -> dict[str, NodeEntry]:
    """Every node that has said where it is, and has not left. Raises as `records_until_now`, `DoesNotExistError` when
    there is no such topic."""
    found: dict[str, NodeEntry | None] = {}
    for record in records_until_now(log, nodes_partition(application_id)):
        if _is_node(record):
            found[_name(record)] = _entry(record)
    return {node: entry for node, entry in found.items() if entry is not None}


def follow_nodes(
    log: Log, application_id: str, told: Callable[[Sequence[tuple[str, NodeEntry | None]], bool], bool], wait_s: float
) -> None:
    """Read the topic from its start and on, until `told(heard, is_read)` returns False.

    `heard` has the name and the entry of each record of a batch, None for a node that has left; it is empty after
    `wait_s` without records. `is_read`: the batch ends behind all records that were there at the start. Raises what the
    log raises, as `DoesNotExistError` when the topic is deleted.
    """

    def on_records(records: Sequence[Record], is_read: bool) -> bool:
        return told([(_name(record), _entry(record)) for record in records if _is_node(record)], is_read)

    follow_records(log, nodes_partition(application_id), on_records, wait_s)


def follow_records(
    log: Log, place: TopicPartition, told: Callable[[Sequence[Record], bool], bool], wait_s: float
) -> None:
    """Read this partition from its start and on, until `told(records, is_read)` returns False: as `follow_nodes`."""
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
