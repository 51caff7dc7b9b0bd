"""The port for other nodes: who is a node is linked with, and nobody else learns anything or does any harm there."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.cli.nodes.certificates import make_authority, make_certificate
from stateline.config.settings import Config
from stateline.processes import seldom
from stateline.query.wire import frame
from stateline.server.nodes import greeting, peer_port
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.nodes.nodes import HEARTBEAT_S
from stateline.server.nodes.ownerless import why_ownerless
from stateline_store import ConfigurationError
from support.processes.linked_nodes import (
    LinkedNode,
    heard_until_hung_up,
    node_config,
    run,
    running_node,
    until,
    with_secret,
)
from support.run.patience import HANGING_S

NOW = datetime.now(UTC)
YEAR = timedelta(days=365)
TLS_ALERT = 21  # the type of its record: RFC 8446, B.1


def with_certificate(
    folder: Path, name: str, *, ca: Path | None = None, now: datetime = NOW, lasts: timedelta = YEAR
) -> Config:
    """What a node has that shows a certificate made out to this name, and takes those of `ca`."""
    make_authority(folder, NOW)
    made = make_certificate(folder, name, (), now, lasts)
    return node_config(
        f"node.peer.tls.certificate.file={made.certificate}",
        f"node.peer.tls.key.file={made.key}",
        f"node.peer.tls.ca.file={(ca or folder) / 'ca.pem'}",
    )


@pytest.fixture(params=["certificates", "secret"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Config]:
    """What nodes one and two have."""
    if request.param == "secret":
        return dict.fromkeys(("one", "two"), with_secret(tmp_path))
    return {name: with_certificate(tmp_path, name) for name in ("one", "two")}


def test_nodes_of_one_authority_or_one_secret_are_linked_both_ways(keys: dict[str, Config]) -> None:
    async def scene() -> None:
        one, two = (LinkedNode(name, config) for name, config in keys.items())
        one.map = NodeMap(1, {"0_0": HeldTask("active", 3)})
        one.hear_of("two", two.entry)
        two.hear_of("one", one.entry)
        await until(lambda: one.is_linked_with("two") and two.is_linked_with("one"))
        await until(lambda: two.nodes.owner("0_0") is not None)
        assert one.nodes.unreached == two.nodes.unreached == ""
        await one.close()
        await two.close()

    run(scene())


def test_where_clients_reach_a_node_is_what_it_says_itself_whatever_the_registry_has(keys: dict[str, Config]) -> None:
    async def scene() -> None:
        one, two = (LinkedNode(name, config) for name, config in keys.items())
        one.hear_of("two", replace(two.entry, url="http://elsewhere"))
        told = one.nodes.others["two"]
        assert told.url == "http://elsewhere"
        await until(lambda: one.is_linked_with("two"))
        assert told.url == "http://two"
        await two.close()
        await until(lambda: told.link is None)
        assert told.url == "http://two"
        await one.close()

    run(scene())


def refused(
    caplog: pytest.LogCaptureFixture,
    one: Config,
    two: Config,
    fault: str,
    log: str,
    name: str = "one",
    *,
    for_certificates: bool = False,
) -> None:
    """Node `name`, which has `one`, dials what it knows as "other": what its `fault` says, and the other's log.
    `for_certificates`: then it says that nobody reaches it."""

    async def scene() -> None:
        asks, answers = LinkedNode(name, one), LinkedNode("two", two)
        asks.hear_of("other" if name == "two" else "two", answers.entry)
        ((known, _),) = asks.nodes.others.items()
        await until(lambda: asks.fault(known) != "")
        await until(lambda: log in caplog.text)
        assert not asks.is_linked_with(known)
        assert fault in asks.fault(known)
        unreached = f"No other node links with this one: {fault if fault.startswith('this') else f'node {known!r}'}"
        assert asks.nodes.unreached.startswith(unreached if for_certificates else "")
        assert bool(asks.nodes.unreached) == for_certificates
        assert f"No link with node {known!r}: {asks.fault(known)}" in caplog.text
        await asks.close()
        await answers.close()

    with caplog.at_level(logging.WARNING):
        run(scene())


def test_an_expired_certificate_is_refused_and_both_ends_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = with_certificate(tmp_path, "one", now=NOW - 2 * YEAR, lasts=timedelta(days=1))
    two = with_certificate(tmp_path, "two")
    log = "127.0.0.1 is refused as a node: its certificate is not taken: it has expired"
    fault = "this node's certificate (node.peer.tls.certificate.file) is taken by no other"
    refused(caplog, one, two, fault, log, for_certificates=True)


def test_so_is_one_of_another_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two = with_certificate(tmp_path, "two")
    one = with_certificate(tmp_path / "foreign", "one", ca=tmp_path)
    log = "127.0.0.1 is refused as a node: its certificate is not taken: another authority than"
    fault = "this node's certificate (node.peer.tls.certificate.file) is taken by no other"
    refused(caplog, one, two, fault, log, for_certificates=True)


@pytest.mark.parametrize("other", ["three", "one.more"])
def test_so_is_one_that_is_made_out_to_another_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    why = f"it calls itself 'one', and its certificate is made out to {other}"
    one, two = with_certificate(tmp_path, other), with_certificate(tmp_path, "two")
    refused(caplog, one, two, f"it refuses this node: {why}", f"127.0.0.1 is refused as a node: {why}")


def test_who_is_dialed_shows_a_certificate_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = with_certificate(tmp_path, "one")
    two = with_certificate(tmp_path / "foreign", "two", ca=tmp_path)
    refused(caplog, one, two, "its certificate is not taken: another authority than that", "", for_certificates=True)


def test_so_is_another_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = with_secret(tmp_path), with_secret(tmp_path, "another secret than theirs")
    fault = "it does not take this node's proof: give both the same secret (node.peer.secret.file)"
    refused(caplog, one, two, fault, "is refused as a node: it has another secret (node.peer.secret.file)")


def test_two_of_one_name_are_told_to_have_names_of_their_own(
    keys: dict[str, Config], caplog: pytest.LogCaptureFixture
) -> None:
    why = "it calls itself 'two', as this one does: give each a node.name of its own"
    refused(caplog, keys["two"], keys["two"], why, f"127.0.0.1 is refused as a node: {why}", name="two")


def test_without_certificates_a_node_that_others_may_reach_is_alone_and_says_why(tmp_path: Path) -> None:
    secret = with_secret(tmp_path).node_peer_secret_file
    reached = node_config(f"node.peer.secret.file={secret}", "node.peer.listen=0.0.0.0:0")

    async def scene() -> None:
        nothing, secret_only, there = (
            LinkedNode("one", node_config()),
            LinkedNode("two", reached),
            with_secret(tmp_path),
        )
        third = LinkedNode("three", there)
        assert nothing.peer == secret_only.peer == ""
        for each, why in ((nothing, "neither is set"), (secret_only, "node.peer.listen = 0.0.0.0:0 is no loopback")):
            each.hear_of("three", third.entry)
            assert why in each.fault("three")
        third.hear_of("one", nothing.entry)
        assert "it says no address" in third.fault("one")
        elsewhere = nothing.entry.__class__("", "10.0.0.9:7000", "d", "1.0", "t")
        third.hear_of("far", elsewhere)
        assert "it is at 10.0.0.9:7000, and a secret links nodes of one machine alone" in third.fault("far")
        for each in (nothing, secret_only, third):
            await each.close()

    run(scene())


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    config = with_secret(tmp_path)
    assert config.node_peer_secret_file is not None
    config.node_peer_secret_file.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"node\.peer\.secret\.file = .* is open to others \(mode 0644\)"):
        asyncio.run(_made(config))


async def _made(config: Config) -> None:
    await LinkedNode("one", config).close()


# ---- Strangers


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedNode]:
    with running_node("somewhere", with_secret(tmp_path_factory.mktemp("keys"))) as node:
        yield node


NONCE = frame({"nonce": "0" * 64})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["nonce", "proof", "wire"]), inner),
    max_leaves=5,
)
FRAMES = st.dictionaries(st.sampled_from(["nonce", "proof", "type", "refused", "node"]), JSON, max_size=3).map(frame)
WORDS = FRAMES | st.binary(max_size=60) | st.just(NONCE) | st.integers(0, 2**32 - 1).map(lambda n: struct.pack(">I", n))


@pytest.fixture(scope="module")
def tls_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedNode]:
    with running_node("somewhere", with_certificate(tmp_path_factory.mktemp("tls"), "somewhere")) as node:
        yield node


HELLO = frame({"wire": [1, 2], "application": "app", "directory": "d", "version": "1", "topology": "t", "url": ""})


@settings(max_examples=60)
@given(words=st.lists(WORDS | st.just(HELLO), max_size=4))
def test_over_tls_a_stranger_without_a_certificate_hears_nothing_whatever_it_says(
    tls_node: LinkedNode, words: list[bytes]
) -> None:
    host, _, port = tls_node.peer.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    heard = b""
    with (
        suppress(ConnectionError, ssl.SSLError),
        socket.create_connection((host, int(port)), HANGING_S) as plain,
        context.wrap_socket(plain) as stranger,  # it believes that it is through
    ):
        stranger.sendall(b"".join(words))
        while more := stranger.recv(65536):
            heard += more
    assert heard == b""


@settings(max_examples=60)
@given(words=st.lists(WORDS, max_size=4))
def test_nor_does_one_that_speaks_no_tls(tls_node: LinkedNode, words: list[bytes]) -> None:
    heard = heard_until_hung_up(tls_node.peer, b"".join(words))
    assert heard == b"" or (heard[0], len(heard)) == (TLS_ALERT, 7)


@settings(max_examples=150)
@given(words=st.lists(WORDS, max_size=4))
def test_whatever_a_stranger_says_it_hears_a_random_number_at_most(node: LinkedNode, words: list[bytes]) -> None:
    heard = heard_until_hung_up(node.peer, b"".join(words))
    if heard:
        (size,) = struct.unpack(">I", heard[:4])
        message = json.loads(heard[4:])
        assert size == len(heard) - 4
        assert list(message) == ["nonce"]
        assert len(message["nonce"]) == 64


def test_a_greeting_that_was_recorded_is_worth_nothing(node: LinkedNode, tmp_path: Path) -> None:
    said: list[bytes] = []

    async def scene() -> None:
        """A real node greets the listener, and what it says is kept."""

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = node.peer.rpartition(":")
            their_reader, their_writer = await asyncio.open_connection(host, int(port))
            for who, whom in ((reader, their_writer), (their_reader, writer), (reader, their_writer)):
                message = await greeting_frame(who)
                said.extend([message] if who is reader else [])
                whom.write(message)
            heard.append(await their_reader.read())
            writer.close()
            their_writer.close()

        heard: list[bytes] = []
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        own = LinkedNode("one", with_secret(tmp_path))
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        own.hear_of("somewhere", node.entry.__class__("", place, "d", "1.0", "t"))
        await until(lambda: bool(heard))
        assert heard == [b""], "who stands between two nodes has no link"
        await until(lambda: own.fault("somewhere") != "")
        assert "give both the same secret" in own.fault("somewhere")
        await own.close()
        server.close()

    run(scene())
    heard = heard_until_hung_up(node.peer, b"".join(said[:2]))
    assert list(json.loads(heard[4:])) == ["nonce"]


async def greeting_frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(4)
    return header + await reader.readexactly(struct.unpack(">I", header)[0])


def test_a_listener_that_repeats_what_it_hears_has_proven_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        heard: list[bytes] = []

        async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                heard.append(await greeting_frame(reader))
                writer.write(heard[-1])
            heard.append(await reader.read())
            writer.close()

        server = await asyncio.start_server(repeat, "127.0.0.1", 0)
        own = LinkedNode("one", with_secret(tmp_path))
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        own.hear_of("two", own.entry.__class__("", place, "d", "1.0", "t"))
        await until(lambda: len(heard) >= 3)
        assert heard[2] == b"", "it is told nothing of the node"
        await until(lambda: "it has another secret" in own.fault("two"))
        await own.close()
        server.close()

    run(scene())


@pytest.mark.parametrize("said", [b"", NONCE[:9], struct.pack(">I", 4096), NONCE])
def test_who_says_nothing_more_is_hung_up_on_in_time(
    node: LinkedNode, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "GREETING_TIMEOUT_S", 0.1)
    host, _, port = node.peer.rpartition(":")
    with socket.create_connection((host, int(port)), HANGING_S) as stranger:
        stranger.sendall(said)
        while stranger.recv(4096):
            pass


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is hung up on is not because time is over."""
    for module in (greeting, peer_port):
        monkeypatch.setattr(module, "GREETING_TIMEOUT_S", 2 * HANGING_S)


@pytest.mark.usefixtures("patient")
def test_a_length_that_is_too_large_ends_it_before_anything_is_read(node: LinkedNode) -> None:
    host, _, port = node.peer.rpartition(":")
    with socket.create_connection((host, int(port)), HANGING_S) as stranger:
        stranger.sendall(struct.pack(">I", greeting.MAX_GREETING_BYTES + 1))
        assert stranger.recv(4096) == b""


@pytest.mark.usefixtures("patient")
def test_a_flood_of_strangers_neither_takes_all_places_nor_keeps_nodes_out(
    keys: dict[str, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_port, "MOST_STRANGERS", 8)

    async def scene() -> None:
        one, two = (LinkedNode(name, config) for name, config in keys.items())
        host, _, port = two.peer.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(24)]
        gone = [asyncio.create_task(reader.read()) for reader, _ in silent]
        await until(lambda: sum(task.done() for task in gone) >= 16)
        one.hear_of("two", two.entry)
        await until(lambda: one.is_linked_with("two"))
        assert [task.done() for task in gone[:16]] == [True] * 16  # who came first went first
        for (_, writer), task in zip(silent, gone, strict=True):
            task.cancel()
            writer.close()
        await one.close()
        await two.close()

    run(scene())


def test_the_log_has_a_line_of_them_and_does_not_repeat_it_each_second(
    node: LinkedNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seldom, "LINE_INTERVAL_S", 0.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            heard_until_hung_up(node.peer, b"GET / HTTP/1.1\r\n\r\n")
    assert caplog.text.count("is refused as a node") == 1


def test_maps_do_not_pile_up_for_a_node_that_takes_none(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = LinkedNode("one", with_secret(tmp_path)), LinkedNode("two", with_secret(tmp_path))
        one.hear_of("two", two.entry)
        await until(lambda: one.is_linked_with("two"))
        (asking,) = two.nodes._asking
        link = dict(one.nodes.links())["two"]
        link._exchange._writer.transport.pause_reading()  # type: ignore[attr-defined]
        large = NodeMap(1, {f"0_{n}": HeldTask("standby") for n in range(5_000)})
        for _ in range(50):
            asking.say(large)
        assert asking._exchange.unsent_bytes < 4 * 1024 * 1024
        await one.close()
        await two.close()

    run(scene())


def test_a_link_to_a_silent_node_is_closed_and_dialed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        one, two = LinkedNode("one", with_secret(tmp_path)), LinkedNode("two", with_secret(tmp_path))
        one.hear_of("two", two.entry)
        await until(lambda: one.is_linked_with("two"))
        link = one.nodes.others["two"].link
        assert link is not None
        monkeypatch.setattr(two.nodes, "say", lambda: None)

        def is_replaced() -> bool:
            link._exchange.heard_at_s = 0.0  # also if a map was on its way
            return one.nodes.others["two"].link not in (None, link)

        await until(is_replaced)
        await one.close()
        await two.close()

    run(scene())


def test_after_a_stall_of_this_process_a_link_whose_node_has_spoken_meanwhile_stays(tmp_path: Path) -> None:
    async def scene(peer: LinkedNode) -> None:
        one = LinkedNode("one", with_secret(tmp_path))
        one.hear_of("two", peer.entry)
        await until(lambda: one.is_linked_with("two"))
        link = one.nodes.others["two"].link
        assert link is not None
        loop, stalled, (reader, writer) = asyncio.get_running_loop(), asyncio.Event(), socket.socketpair()

        def stall() -> None:
            """Until a check of links is due, and a heartbeat has arrived."""
            loop.remove_reader(reader)
            time.sleep(HEARTBEAT_S)
            select.select([link._exchange._writer.get_extra_info("socket").fileno()], [], [], HANGING_S)
            link._exchange.heard_at_s = 0.0
            stalled.set()

        with reader, writer:
            loop.add_reader(reader, stall)
            writer.send(b"x")
            await stalled.wait()
        await until(lambda: link._exchange.heard_at_s > 0 or not link._exchange.alive)
        assert link._exchange.alive
        await one.close()

    with running_node("two", with_secret(tmp_path)) as two:
        run(scene(two))


def test_what_a_node_was_called_before_is_no_other_node() -> None:
    """Its directory says who it is: a host may have another name after each start."""

    async def scene() -> None:
        node = LinkedNode("new-name", node_config())
        node.hear_of("old-name", node.entry)
        node.hear_of("new-name", node.entry)
        assert not node.nodes.others
        assert node.nodes.shown is None
        assert not node.nodes.rivals
        await node.close()

    run(scene())


def test_a_directory_that_another_node_has_as_well_is_a_fault_until_that_one_leaves() -> None:
    async def scene() -> None:
        node = LinkedNode("one", node_config())
        node.hear_of("one", node.entry)
        node.hear_of("two", node.entry)
        assert node.nodes.fault == (
            "Node 'two', at http://one, has the state directory of node 'one', or a copy of it. Stop one of the two, "
            "and give it a state.dir of its own, without the copy."
        )
        node.nodes.told("two", None)
        assert not node.nodes.fault
        node.hear_of("two", node.entry)
        node.hear_of("one", node.entry)  # said again, so the other one came later
        assert not node.nodes.fault
        await node.close()

    run(scene())


def test_a_node_with_the_directory_of_another_one_is_refused_by_that_one(tmp_path: Path) -> None:
    async def scene() -> None:
        config = with_secret(tmp_path)
        node, copy = LinkedNode("one", config), LinkedNode("two", config)
        copy.nodes.own = replace(copy.nodes.own, directory=node.nodes.own.directory)
        copy.hear_of("one", replace(node.entry, directory="another one"))
        await until(lambda: "has the state directory of node 'one', or a copy of it" in copy.fault("one"))
        await node.close()
        await copy.close()

    run(scene())


def test_who_had_a_task_last_is_told_until_somebody_else_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        one, two = LinkedNode("one", with_secret(tmp_path)), LinkedNode("two", with_secret(tmp_path))
        assert why_ownerless(one.nodes, 45_000, "0_0") == ""
        two.map = NodeMap(1, {"0_0": HeldTask("active", 3)})
        one.hear_of("former", two.entry)
        one.nodes.told("former", None)  # before this one came
        assert not one.nodes.is_settled, "its own word is the last that it hears"
        one.hear_of("one", one.entry)
        assert one.nodes.is_settled
        one.hear_of("two", two.entry)
        assert not one.nodes.is_settled, "it is dialed"
        await until(lambda: one.nodes.last_owner("0_0") == "two")
        two.map = NodeMap(2, {})
        await until(lambda: one.nodes.owner("0_0") is None)
        assert "the group is giving it to one" in why_ownerless(one.nodes, 45_000, "0_0")
        for tasks in ({}, {"0_0": HeldTask("restoring", 4)}):
            two.map = NodeMap(3, tasks, faults={"worker-0": "The disk is full."})
            await until(lambda: "does not run" in why_ownerless(one.nodes, 45_000, "0_0"))
            why = "Node 'two' does not run its tasks: The disk is full."
            assert why_ownerless(one.nodes, 45_000, "0_0").startswith(why)
        two.map = NodeMap(4, {})
        await until(lambda: "does not run" not in why_ownerless(one.nodes, 45_000, "0_0"))
        assert one.nodes.last_owner_url("0_0") is None, "two says itself that it has it no more"
        await two.close()
        await until(lambda: one.nodes.last_owner_url("0_0") == "http://two")
        why = "Node 'two', which had it last, is not reached: "
        assert why_ownerless(one.nodes, 45_000, "0_0").startswith(why)
        assert "Not reached: 'two' (" in why_ownerless(one.nodes, 45_000, "0_1")
        one.nodes.told("two", None)
        assert "has left: another one gets its tasks at most 45 s" in why_ownerless(one.nodes, 45_000, "0_0")
        one.map = NodeMap(1, {"0_0": HeldTask("active", 4)})
        one.nodes.own_map()
        assert one.nodes.last_owner("0_0") is None
        await one.close()

    with caplog.at_level(logging.INFO):
        run(scene())
    assert "Node 'two' has left: others get its tasks" in caplog.text
    assert "'former'" not in caplog.text


def test_what_the_topic_says_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        node = LinkedNode("one", node_config())
        for n in range(5):
            node.hear_of("two", node.entry.__class__("http://two", "10.0.0.9:7000", f"d{n}", "1.0", "t"))
            node.nodes.told("two", None)
        await node.close()

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert caplog.text.count("No link with node 'two'") == 1


def test_two_nodes_with_one_url_are_told_to_have_urls_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        node = LinkedNode("one", node_config())
        node.hear_of("two", node.entry.__class__("http://one", "10.0.0.9:7000", "d", "1.0", "t"))
        await node.close()

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert "Node 'two' has the node.url of this one, http://one: give each its own" in caplog.text
