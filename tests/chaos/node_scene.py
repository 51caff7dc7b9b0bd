"""Nodes of one application on hosts of their own, one broker, input that keeps coming, and clients that ask all the
time; an oracle holds every answer against the input.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx
from confluent_kafka import murmur2

from stateline.deployment.nodes_topic import nodes_partition
from stateline.deployment.workers.entries import FAULT_KEY
from stateline.log import Log
from stateline.log.kafka import KafkaLog
from support.kafka.kafka_broker import KafkaBroker
from support.kafka.topic_configs import set_topic_configs
from support.oracles.asked_by_clients import AsyncClientAsker, ClientAsker
from support.oracles.asked_changes import ChangeReader
from support.oracles.asked_once import ONCE, ask_range_at
from support.oracles.asked_scans import SCANS
from support.oracles.asked_snapshots import SnapshotReader
from support.oracles.asked_sql import SQL
from support.oracles.cluster_askers import HANGING_S, LIMITS, Asker, Askers
from support.oracles.cluster_oracle import ClusterOracle
from support.oracles.cluster_values import Expected
from support.oracles.crash_watch import Feeder, Oracle
from support.oracles.history import History
from support.processes.host_nodes import EndedByItselfError, Node, make_nodes
from support.processes.hosts import network
from support.processes.running_worker import create
from support.processes.small_disk import small_disk

APP = "support.apps.nodes_app:app"
PARTITIONS = 3
GUEST = "guest"
"""A host beside the nodes, on which nothing runs as a rule."""
SHARED_WITHIN_S = 90.0
_KEYS = 20  # of each partition
_DISK_MIB = 256
_CLIENTS, _CALM_CLIENTS = 4, 2
_FEED_S = 0.4  # 40 records each time
_CALM_FEED_S = 2.0
_CALM_IDLE_S = 0.7  # of each client, after a question
# Not `delete.retention.ms`: who is away for longer than that misses tombstones, whatever it does (Kafka's promise).
_COMPACTED_ALL_THE_TIME = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}
# A restore is committed on the way, a few records at a time: an answer from the middle of it would be seen.
_SMALL_RESTORES = {"CRASH_RESTORE_SLICE": "25", "CRASH_RESTORE_BATCH_BYTES": "1"}


class NodeScene:
    """`nodes` are all there are, by name; `chance` is the run's."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        guest: Node,
        log: Log,
        run: str,
        session_s: float,
        chance: random.Random,
        *,
        calm: bool,
    ) -> None:
        self.nodes, self.guest, self.log, self.chance, self.session_s = nodes, guest, log, chance, session_s
        self.gave_up: list[str] = []
        """Which workers have given up, and what was said last."""
        self.application, self.topic = f"crashes-{run}", f"numbers-{run}"
        keys = _keys(PARTITIONS)
        homes = {key.decode(): home for home, some in enumerate(keys) for key in some}
        self._input = Oracle(PARTITIONS)
        since_ms = time.time_ns() // 1_000_000_000 * 1_000
        self.oracle = ClusterOracle(Expected(History(self._input.inputs), homes, since_ms), self.topic)
        self._feeder = Feeder(log, self.topic, self._input, _CALM_FEED_S if calm else _FEED_S, keys, since_ms)
        given = [*nodes.values()], self.oracle, self.topic
        self._change_readers = [ChangeReader(store, *given) for store in ("newest", "counts")]
        self.askers = Askers(
            [
                *(
                    Asker(number, *given, {**ONCE, **SCANS, **SQL})
                    for number in range(_CALM_CLIENTS if calm else _CLIENTS)
                ),
                *self._change_readers,
                SnapshotReader("snapshots", *given),
                ClientAsker("client", *given),
                AsyncClientAsker("async client", *given),
            ],
            _CALM_IDLE_S if calm else 0.0,
        )
        self._asker = Asker(_CLIENTS, *given, ONCE)  # of whoever makes the faults
        self._client = httpx.Client(trust_env=False, timeout=HANGING_S, limits=LIMITS)

    def begin(self) -> None:
        """Start all nodes; from when they are settled they are asked."""
        self._feeder.start()
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.until_it_answers()
        self.settle()
        self._note_generations()
        self.oracle.gap_begins(time.monotonic())
        self.askers.start()

    def end(self) -> None:
        """No more questions; raises what was wrong."""
        try:
            self.askers.stop()
            self._note_generations()
            self.oracle.check_moves()
        finally:
            self._feeder.done.set()
            self._feeder.join()
            self._client.close()
        if self._feeder.error is not None:
            raise self._feeder.error

    def read_changes_to_their_end(self) -> None:
        """No more input; wait until readers of changes have the last value of each key."""
        self._feeder.done.set()
        self._feeder.join()
        ends = self._ends()
        for reader in self._change_readers:
            self.until(lambda reader=reader: reader.has_all(ends))  # type: ignore[misc]

    def settle(self) -> float:
        """Seconds until every node is ready, and answers all of what is written now from owners."""
        began_s = time.monotonic()
        terms = {"require_active": "true", "wait_ms": "500", "position_bound": self._bound()}
        for node in self.nodes.values():
            self.until(lambda node=node: self.status(node, "/v1/stores/counts/range", **terms) == 200)  # type: ignore[misc]
            self.until(lambda node=node: self.status(node, "/readyz") == 200)  # type: ignore[misc]
        return time.monotonic() - began_s

    def _note_generations(self) -> None:
        """In which the tasks are before the first question and behind the last one: those in between are seen now and
        then."""
        for node in self.nodes.values():
            with contextlib.suppress(httpx.TransportError):  # it is down, and the others say it
                told = self._client.get(f"{node.url}/v1/nodes")
                if told.status_code == 200:
                    self.oracle.claimed(node.name, told.json()["nodes"][node.name]["tasks"])

    def until_shared(self) -> float:
        """Seconds until every node has a task; no more than `SHARED_WITHIN_S`, which decides nothing."""
        began_s = time.monotonic()

        def met() -> bool:
            return time.monotonic() > began_s + SHARED_WITHIN_S or all(map(self.owned, self.nodes.values()))

        self.until(met)
        return time.monotonic() - began_s

    def until_asked(self, more: int = 10) -> None:
        """Wait until so many more questions were answered, whatever to."""
        goal = self.oracle.told.total() + more
        self.until(lambda: self.oracle.told.total() >= goal)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds, or an answer was wrong. A worker that gives up is started again, as by a
        supervisor."""

        def met() -> bool:
            for node in (*self.nodes.values(), self.guest):
                try:
                    self.gave_up += node.keep_running()
                except EndedByItselfError as error:
                    self.oracle.fail("ended by itself", error)
            return condition()

        self.askers.until(met)

    def until_ahead(self, nodes: Collection[Node]) -> None:
        """Wait until owners have answered all that is written from now on until something is, asked at one of these
        nodes: a copy that nobody has written since is older than that."""
        before = self._ends()
        self.until(lambda: all(end > before.get(p, -1) for p, end in self._ends().items()))
        terms = {"require_active": "true", "wait_ms": "500", "position_bound": self._bound()}
        self.until(lambda: any(ask_range_at(self._asker, node, terms) == 200 for node in nodes))

    def ask_at(self, node: Node, times: int = 5) -> None:
        """What this node answers now, or refuses, is right."""
        for terms in times * ({}, {"require_active": "true"}, {"allow_partial": "true"}):
            ask_range_at(self._asker, node, terms)

    def _ends(self) -> dict[int, int]:
        return {p: len(records) - 1 for p, records in enumerate(self._input.inputs) if records}

    def _bound(self) -> str:
        """All that is written now."""
        return json.dumps({self.topic: {str(p): end for p, end in self._ends().items()}})

    def get(self, node: Node, path: str, **terms: str) -> httpx.Response:
        return self._client.get(node.url + path, params=terms)

    def status(self, node: Node, path: str, **terms: str) -> int:
        return self.get(node, path, **terms).status_code

    def owners(self, node: Node) -> dict[str, str | None]:
        """Partition → URL of its owner, as this node says."""
        found: dict[str, str | None] = self.get(node, "/v1/nodes").json()["stores"]["counts"]
        return found

    def owned(self, node: Node, by: Node | None = None) -> set[str]:
        """The partitions that this node has, as it says itself, or as `by` does."""
        return {p for p, url in self.owners(by or node).items() if url == node.url}

    def with_faults(self) -> set[str]:
        """The workers that have said that they cannot work, and not that they work again."""
        place, found = nodes_partition(self.application), set[str]()
        with closing(self.log.admin()) as admin, closing(self.log.consumer()) as consumer:
            end = admin.log_end(place)
            consumer.assign({place: 0})
            while (consumer.next_offset(place) or 0) < end:
                for record in consumer.poll(1000, 0.1):
                    if (key := record.key or b"").startswith(FAULT_KEY):
                        (found.add if record.value is not None else found.discard)(key.decode())
        return found

    def told(self) -> str:
        """How much was asked until now, in one line."""
        return f"{self.askers.asked.total():,} asked, {self.oracle.told.total():,} answers and refusals of partitions"

    def printed(self) -> str:
        """What was told, and what the nodes have said last."""
        figures = (
            f"{dict(self.oracle.told)}, asked: {dict(self.askers.asked)}, gaps: {dict(self.oracle.longest_gap_s)}, "
        )
        figures += f"slowest: {self.askers.slowest}"
        return "\n".join([figures, *(node.printed() for node in (*self.nodes.values(), self.guest))])


@contextmanager
def node_scene(
    broker: KafkaBroker,
    chance: random.Random,
    session_s: float,
    names: list[str],
    *,
    calm: bool = False,
    standbys: int = 0,
) -> Iterator[NodeScene]:
    """Settled and asked when the block begins; what was wrong is raised at its end. When it is
    `calm`, clients ask, and input comes, less often. Each task has so many `standbys`, whose changelogs are compacted
    all the while."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="sl-")))
        net = stack.enter_context(network(root))
        log = stack.enter_context(closing(KafkaLog(broker.bootstrap_servers)))
        run, session_ms = uuid4().hex[:8], int(session_s * 1000)
        create(log, {f"numbers-{run}": PARTITIONS, f"tenths-{run}": PARTITIONS})
        settings = [
            "processing.guarantee=exactly_once_v2",
            "default.state.isolation.level=read_committed",
            "commit.interval.ms=200",
            f"session.timeout.ms={session_ms}",
            f"max.poll.interval.ms={session_ms}",
            f"transaction.timeout.ms={session_ms}",
            "server.cursor.ttl.ms=10000",
            "server.changes.heartbeat.ms=500",
            f"num.standby.replicas={standbys}",
        ]
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        for name in names if standbys else ():
            (root / name).mkdir()
            stack.enter_context(small_disk(root / name, _DISK_MIB))
        made = make_nodes(net, [*names, GUEST], root, port, settings, APP, CRASH_RUN=run, **_SMALL_RESTORES)
        for node in made.values():
            stack.callback(node.close)
        nodes = {name: made[name] for name in names}
        scene = NodeScene(nodes, made[GUEST], log, run, session_s, chance, calm=calm)
        try:
            try:
                scene.begin()
                if standbys:
                    with closing(log.admin()) as admin:
                        mine = [t for t in admin.topics() if t.startswith(f"{scene.application}-")]
                    changelogs = [topic for topic in mine if topic.endswith("-changelog")]
                    set_topic_configs(broker.bootstrap_servers, changelogs, _COMPACTED_ALL_THE_TIME)
                yield scene
                scene.read_changes_to_their_end()
            finally:
                scene.end()
        except BaseException as error:
            error.add_note(scene.printed())
            raise


def _keys(partitions: int) -> list[list[bytes]]:
    """Keys of each partition, where Kafka's own partitioner puts them."""
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    number = 0
    while any(len(keys) < _KEYS for keys in found):
        key = b"k%d" % number
        home = found[murmur2(key, partitions)]
        if len(home) < _KEYS:
            home.append(key)
        number += 1
    return found
