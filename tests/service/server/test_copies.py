"""Files of stores between two nodes: real sockets, greetings, checkpoints and stores; neither Kafka nor a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from stateline import serdes
from stateline.config.settings import Config
from stateline.deployment.workers.instance_file import read_instances
from stateline.dsl.app import App
from stateline.model.topology import Topology
from stateline.query.values import HostedPartition
from stateline.server.copies import receiving, sending
from stateline.server.copies.receiving import CopyReceiver
from stateline.server.copies.sending import CopySender, Throttle
from stateline.server.nodes.greeting import COPY
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.nodes.nodes import Nodes
from stateline.server.state.worker_connection import LinkedForCopy
from stateline.server.state.workers import Workers
from stateline.worker.files import topic_ids
from stateline.worker.files.registration import Registration
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import (
    IsolationLevel,
    NotActiveError,
    Position,
    StateDirectory,
    StoreContext,
    StoreState,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.snapshots.copied_files import LeavingFile
from stateline_store.snapshots.store_copies import CopyDirectory
from support.processes.linked_nodes import LinkedNode, run, until, with_secret
from support.run.length import long_only

SOURCE = TopicPartition("in", 0)
ROWS = {b"%d" % n: b"value of %d" % n * 20 for n in range(2000)}
IDS = {"in": "id of in"}


def application() -> App:
    app = App("app")
    app.table(app.topic("in", key=serdes.string, value=serdes.string), store="table")
    return app


def opened(root: Path) -> TransactionalStore:
    definition = application().topology().stores["table"]
    store = definition.build()
    assert isinstance(store, TransactionalStore)
    directory = StateDirectory(root, "app").task("0_0")
    store.init(StoreContext("0_0", directory, SOURCE, types=definition.types))
    return store


class Waits:
    """A worker that waits for its stores, as far as the receiver sees it."""

    def __init__(self) -> None:
        self.signs = 0
        self.ended: list[str] = []

    def say_copying(self, task_id: str, *, ended: bool = False, why: str = "") -> None:
        self.signs += 1
        if ended:
            self.ended.append(why)


class Pair:
    """An owner that has a store, and a node that wants its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = opened(root / "owner")
        for key, value in ROWS.items():
            self.store.restore([(key, value, 7)])
        self.store.advance(Position.of({SOURCE: len(ROWS) - 1}))
        self.store.commit({SOURCE: len(ROWS) - 1})
        self.state = StoreState.ACTIVE
        directory, topology = StateDirectory(root / "owner", "app"), application().topology()
        topic_ids.remember(directory.task("0_0"), IDS)
        self.maker = SnapshotMaker(directory, topology, lambda *_: HostedPartition(self.store, self.state))
        self.waits, self.wants = Waits(), True
        self.next_in_turn: Waits | None = None
        self.config = with_secret(root)

    async def link_for_copy(self, task_id: str, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedForCopy:
        """What its worker answers."""
        copied = self.maker.make_for_copy(snapshot, places)
        return LinkedForCopy(*copied)

    def parts(self, name: str, node: LinkedNode, **settings: Any) -> tuple[Config, Topology, Workers, Nodes]:
        config: Config = self.config.model_copy(update={"state_dir": self.root / name, **settings})
        wanted = {"0_0": (self.waits, ["table"])}
        wanted |= {} if self.next_in_turn is None else {"0_1": (self.next_in_turn, ["table"])}
        workers = SimpleNamespace(link_for_copy=self.link_for_copy, wanted_copies=lambda: wanted if self.wants else {})
        return config, application().topology(), cast(Workers, workers), node.nodes

    async def fetch(self, sends: dict[str, Any] | None = None, receives: dict[str, Any] | None = None) -> str:
        """Why the files did not come; empty when they did."""
        digest = application().topology().digest()
        one, two = (LinkedNode(name, self.config, topology=digest) for name in ("one", "two"))
        one.map = NodeMap(1, {"0_0": HeldTask("active", 1)})
        one.nodes.purposes = {COPY: CopySender(*self.parts("owner", one, **(sends or {}))).send}
        two.hear_of("one", one.entry)
        await until(lambda: two.nodes.owner("0_0") is not None)
        keeping = asyncio.create_task(CopyReceiver(*self.parts("here", two, **(receives or {}))).keep())
        try:
            await until(lambda: bool(self.waits.ended))
            self.sent = one.nodes.traffic.copied_bytes["two", "sent"]
            assert self.waits.signs > 1
            return self.waits.ended[0]
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await two.close()
            await one.close()

    @property
    def arriving(self) -> CopyDirectory:
        return CopyDirectory(self.root / "here" / "app", "0_0")

    def check_placed(self) -> None:
        """They take their place, and are what the owner has."""
        here = StateDirectory(self.root / "here", "app").task("0_0")
        assert self.arriving.place(here, IDS)
        store = opened(self.root / "here")
        for level in IsolationLevel:
            with self.store.reader(level).range(None, None) as theirs, store.reader(level).range(None, None) as ours:
                assert dict(ours) == dict(theirs)
        assert store.committed_offset(SOURCE) == len(ROWS) - 1
        assert store.position(IsolationLevel.READ_COMMITTED) == Position.of({SOURCE: len(ROWS) - 1})
        store.close()
        assert not [*(self.root / "owner/app/snapshots").glob("[0-9a-f]*")], "the sender keeps nothing"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    for module in (receiving, sending):
        monkeypatch.setattr(module, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(receiving, "_AGAIN_S", 0.01)
    monkeypatch.setattr(receiving, "_SIGN_S", 0.01)
    made = Pair(tmp_path)
    yield made
    made.store.close()


def fails(times: Callable[[int], bool]) -> Callable[[str], None]:
    """A step at which the connection breaks, at these of the pieces."""
    pieces = iter(range(1_000_000))

    def reached(step: str) -> None:
        if step == "copy:piece-sent" and times(next(pieces)):
            raise ConnectionResetError("cut")

    return reached


def test_the_files_come_and_are_the_owners_store(pair: Pair) -> None:
    async def scene() -> None:
        assert await pair.fetch() == ""

    run(scene())
    pair.check_placed()


@long_only("the next test is served under a limit, and waits")
def test_a_limit_that_lets_little_through_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in (pair.root / "owner").rglob("*") if path.suffix in (".log", ".sst"))
    for module in (receiving, sending):
        monkeypatch.setattr(module, "SILENT_S", 1.0)
        monkeypatch.setattr(module, "PIECE_BYTES", size // 2)

    async def scene() -> None:
        assert await pair.fetch({"node_copy_max_bytes_per_second": size // 4}) == ""

    run(scene())
    assert pair.sent < 1.2 * size, "nothing of it comes twice"
    pair.check_placed()


def test_who_waits_for_its_turn_hears_that_it_comes_as_often_as_who_is_served(pair: Pair) -> None:
    pair.next_in_turn = Waits()

    async def scene() -> None:
        assert await pair.fetch({"node_copy_max_bytes_per_second": 100_000}) == ""

    run(scene())
    assert pair.waits.signs > 3
    assert pair.next_in_turn.signs >= pair.waits.signs - 1  # all but that of the end
    assert pair.next_in_turn.ended == []


def test_a_connection_that_breaks_after_every_piece_brings_each_byte_about_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "reached", fails(lambda piece: True))

    async def scene() -> None:
        assert await pair.fetch() == ""

    run(scene())
    size = sum(path.stat().st_size for path in pair.arriving.path.rglob("*") if path.is_file())
    assert pair.sent < size + 3 * 10_000
    pair.check_placed()


def test_a_piece_that_is_damaged_on_its_way_comes_again_and_always_damaged_ones_are_given_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = 0

    class Damaging(LeavingFile):
        def read(self, most: int) -> bytes:
            nonlocal damaged
            piece = super().read(most)
            if piece and (damaged == 0 or always):
                damaged += 1
                return bytes([piece[0] ^ 1]) + piece[1:]
            return piece

    monkeypatch.setattr(sending, "LeavingFile", Damaging)
    always = True

    async def scene() -> None:
        nonlocal always, damaged
        assert "did not arrive as it was sent" in await pair.fetch()
        assert not pair.arriving.path.exists()
        always, damaged = False, 0
        pair.waits = Waits()
        assert await pair.fetch() == ""

    run(scene())
    pair.check_placed()


def test_who_sends_nothing_says_why_and_the_changelogs_are_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    none = {"node_copy_max_bytes_per_second": 0}

    async def scene() -> None:
        assert "node 'one': node.copy.max.bytes.per.second = 0 there" in await pair.fetch(none)
        pair.waits = Waits()
        assert await pair.fetch(None, none) == "node.copy.max.bytes.per.second = 0"
        pair.waits, pair.state = Waits(), StoreState.RESTORING
        monkeypatch.setattr(receiving, "_PATIENCE_S", 0.1)
        assert "is being restored" in await pair.fetch()
        pair.waits, pair.state = Waits(), StoreState.STANDBY
        assert await pair.fetch() == "", "what another standby has is as good"

    run(scene())
    pair.check_placed()


def test_a_restoring_store_is_linked_for_nobody_and_one_without_an_offset_is_left_out(pair: Pair) -> None:
    folder = pair.root / "owner/app/snapshots/made"
    folder.mkdir(parents=True)
    pair.state = StoreState.RESTORING
    with pytest.raises(NotActiveError):
        pair.maker.make_for_copy("made", [("table", 0)])
    pair.state = StoreState.STANDBY
    with pytest.raises(NotActiveError):
        pair.maker.make("made", [("table", 0)])
    parts, topics, *_ = pair.maker.make_for_copy("made", [("table", 0)])
    assert ([part.store for part in parts], topics) == (["table"], IDS)
    pair.store.close()
    pair.store.wipe()
    pair.store = opened(pair.root / "owner")
    assert pair.maker.make_for_copy("made", [("table", 0)])[0] == []


def test_a_throttle_lets_no_more_through_than_it_should() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        throttle, began_s = Throttle(100_000), loop.time()
        await asyncio.gather(*(throttle.take(5_000) for _ in range(5)))
        assert loop.time() - began_s >= 0.19  # the first is free, the other four are paid for
        unlimited, began_s = Throttle(-1), loop.time()
        for _ in range(1000):
            await unlimited.take(10**12)

    run(scene())


def test_files_that_a_worker_here_fetches_from_a_backup_stay_while_it_lives_and_has_the_task(pair: Pair) -> None:
    application = StateDirectory(pair.root / "here", "app").application
    live, killed = (Registration(application, name) for name in ("worker-0", "worker-1"))
    for each in (live, killed):
        each.update(application / "no.sock", {"0_0": "created"}, uuid4())
    killed.lock.close()
    names = {"0_0.worker-0", "0_1.worker-0", "0_0.worker-1", "0_0.worker-2"}
    for name in names:
        (application / "copies" / name).mkdir(parents=True)
        os.utime(application / "copies" / name, (100, 100))

    async def scene() -> None:
        node = LinkedNode("two", pair.config)
        config, topology, _, nodes = pair.parts("here", node)
        workers = SimpleNamespace(wanted_copies=dict, instances=read_instances(application))
        keeping = asyncio.create_task(CopyReceiver(config, topology, cast(Workers, workers), nodes).keep())
        try:
            await until(lambda: os.listdir(application / "copies") == ["0_0.worker-0"])
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await node.close()

    with contextlib.closing(live.lock):
        run(scene())
