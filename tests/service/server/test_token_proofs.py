"""A client's token stays at the node that it was shown to: other nodes get a proof, which counts on one link alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.query.values import Failure, Terms
from stateline.server.contract.request_id import AskedBy
from stateline.server.guard import passing_on
from stateline.server.guard.passing_on import check_passed_on, note_shown
from stateline.server.guard.proofs import Proof, ProvenConnection, Shown
from stateline.server.guard.tokens import Tokens, hash_of, new_token
from stateline.server.nodes.credentials import proof_in, with_proof
from stateline.server.nodes.greeting import Hello, proven_link
from stateline.server.nodes.link import Link
from stateline.server.wire.exchange import Exchange
from stateline_store import (
    ForbiddenError,
    IsolationLevel,
    KeyQuery,
    NotPresentError,
    StatelineError,
    UnauthenticatedError,
)
from support.processes.linked_nodes import HasNothing, LinkedNode, run, until, with_secret

TERMS = Terms("orders", IsolationLevel.READ_COMMITTED)
TOKEN = new_token()
SHOWN = Shown(hash_of(TOKEN), TOKEN)
POINT: dict[str, Any] = {"id": 7, "type": "point", "path": "/v1/stores/orders/keys/a", "query": ""}
HTTP: dict[str, Any] = {
    "id": 8, "type": "http", "method": "POST", "path": "/v1/snapshots/1/part", "headers": {"accept": "*/*"},
    "body": "e30=",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tokens file with one token, which may read one store."""
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [{"name": "one", "sha256": SHOWN.digest.hex(), "stores": ["orders"]}]}))
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def nothing_shown() -> Iterator[None]:
    before = passing_on.shown_token.set(None)
    yield
    passing_on.shown_token.reset(before)


class Guarded(HasNothing):
    """Answers of a node without copies that has tokens; it keeps what it was shown."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens
        self.shown: list[Proof | None] = []

    def check(self, shown: Proof | None, store: str) -> None:
        self.shown.append(shown)
        check_passed_on(self._tokens, shown, store)

    async def answer(self, request: Any, shown: Proof | None) -> Any:
        self.check(shown, request.terms.store)
        return await super().answer(request, shown)

    def point(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        self.check(shown, "orders")
        return b"{}"


def sent(message: dict[str, Any], connection: ProvenConnection) -> dict[str, Any]:
    """The message as it arrives."""
    found: dict[str, Any] = json.loads(json.dumps(with_proof(dict(message), SHOWN, connection)))
    return found


def holder(tokens: Tokens, message: dict[str, Any], connection: ProvenConnection) -> str:
    shown = proof_in(message, connection)
    assert shown is not None
    return tokens.holder(shown).name


@pytest.mark.parametrize("message", [POINT, HTTP])
def test_a_proof_is_known_by_the_hash_that_the_tokens_file_has_and_tells_neither(
    file: Path, message: dict[str, Any]
) -> None:
    one, other = ProvenConnection(b"a link"), ProvenConnection(b"a link")
    arrived = sent(message, one)
    assert holder(Tokens(file), arrived, other) == "one"
    for secret in (TOKEN, SHOWN.digest.hex()):
        assert secret not in json.dumps(arrived)


@pytest.mark.parametrize("message", [POINT, HTTP])
def test_a_proof_is_of_one_request_on_one_connection(file: Path, message: dict[str, Any]) -> None:
    tokens, connection = Tokens(file), ProvenConnection(b"a link")
    arrived = sent(message, connection)
    for name, value in message.items():
        other = {**arrived, name: value + 1 if isinstance(value, int) else f"{value}x"}
        with pytest.raises(UnauthenticatedError):
            holder(tokens, other, connection)
    with pytest.raises(UnauthenticatedError):
        holder(tokens, arrived, ProvenConnection(b"another link"))
    if message is HTTP:  # of a key no other member means anything
        with pytest.raises(UnauthenticatedError):
            holder(tokens, {**arrived, "more": 1}, connection)


def test_a_link_is_another_one_with_each_challenge_node_directory_and_place() -> None:
    listener = Hello("app", "two", "directory", "1.0", "t", "")
    links = [
        proven_link(listener, "challenge", "two:8001"),
        proven_link(listener, "another", "two:8001"),
        proven_link(listener, "challenge", "elsewhere:8001"),
        proven_link(Hello("app", "three", "directory", "1.0", "t", ""), "challenge", "two:8001"),
        proven_link(Hello("app", "two", "another", "1.0", "t", ""), "challenge", "two:8001"),
        proven_link(Hello("other", "two", "directory", "1.0", "t", ""), "challenge", "two:8001"),
    ]
    assert len({link.prove(SHOWN.digest, b"asked") for link in links}) == len(links)


@given(st.text(max_size=80))
def test_what_is_no_proof_is_refused(text: str) -> None:
    connection = ProvenConnection(b"a link")
    try:
        proof = connection.read(text, b"asked")
    except UnauthenticatedError:
        return
    assert not proof.holds(SHOWN.digest)


def test_a_token_that_expires_or_is_taken_back_is_proven_no_more(file: Path) -> None:
    now_s, connection = 0.0, ProvenConnection(b"a link")
    file.write_text(
        json.dumps({"tokens": [{"name": "one", "sha256": SHOWN.digest.hex(), "expires_at": "1970-01-01T00:01:00Z"}]})
    )
    tokens = Tokens(file, lambda: now_s)
    arrived = sent(POINT, connection)
    assert holder(tokens, arrived, connection) == "one"
    now_s = 61.0
    with pytest.raises(UnauthenticatedError, match="expired"):
        holder(tokens, arrived, connection)
    file.write_text(json.dumps({"tokens": []}))
    with pytest.raises(UnauthenticatedError, match="not known"):
        holder(tokens, arrived, connection)


async def asked(link: Link) -> list[object]:
    """What is answered to a key at once, and to a query, by who has shown the token."""
    at_once: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    link.point("/v1/stores/orders/keys/a", "", SHOWN, "id", at_once.set_result)
    outcome = await link.query(TERMS, 0, KeyQuery(b"a"), 0, SHOWN)
    return [await at_once, type(outcome.error) if isinstance(outcome, Failure) else outcome]


def test_another_node_is_sent_no_token_and_knows_whose_it_is(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, take = bytearray(), Exchange.data_received

    def data_received(exchange: Exchange, data: bytes) -> None:
        received.extend(data)
        take(exchange, data)

    monkeypatch.setattr(Exchange, "data_received", data_received)

    async def scene() -> None:
        one, two = LinkedNode("one", with_secret(tmp_path)), LinkedNode("two", with_secret(tmp_path))
        guarded = Guarded(Tokens(file))
        two.answer_by(guarded)
        one.hear_of("two", two.entry)
        await until(lambda: one.is_linked_with("two"))
        link = dict(one.nodes.links())["two"]
        assert await asked(link) == [b"{}", NotPresentError]
        note_shown(SHOWN)
        with pytest.raises(StatelineError):  # it has no application here
            await link.http("GET", "/v1/stores/orders", {})
        note_shown(Shown(hash_of("unknown"), None))
        outcome = await link.query(TERMS, 0, KeyQuery(b"a"), 0, passing_on.token_to_pass_on())
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, UnauthenticatedError)
        outcome = await link.query(Terms("others", IsolationLevel.READ_COMMITTED), 0, KeyQuery(b"a"), 0, SHOWN)
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, ForbiddenError)
        assert len(guarded.shown) == 4
        await one.close()
        await two.close()

    run(scene())
    assert TOKEN.encode() not in received
    assert SHOWN.digest.hex().encode() not in received
    assert b'"proof"' in received


def test_a_node_that_hands_a_proof_on_is_not_known_by_it(file: Path, tmp_path: Path) -> None:
    """What a client asks of one and one of two, two would ask of three."""

    async def scene() -> None:
        nodes = {name: LinkedNode(name, with_secret(tmp_path)) for name in ("one", "two", "three")}
        shown: dict[str, Guarded] = {}
        for name in ("two", "three"):
            shown[name] = Guarded(Tokens(file))
            nodes[name].answer_by(shown[name])
        nodes["one"].hear_of("two", nodes["two"].entry)
        nodes["two"].hear_of("three", nodes["three"].entry)
        await until(lambda: nodes["one"].is_linked_with("two") and nodes["two"].is_linked_with("three"))
        to_two, to_three = (
            dict(nodes[asker].nodes.links())[name] for asker, name in (("one", "two"), ("two", "three"))
        )
        assert (await asked(to_two))[0] == b"{}"
        proof = shown["two"].shown[0]
        assert proof is not None
        text = f"{proof.key_id}:{proof.mac.hex()}"
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = {**POINT, "id": 1, "path": "/v1/stores/orders/keys/a", "proof": text}
        to_three._exchange.ask(message, reply.set_result)
        assert (await reply)["body"] is None
        for node in nodes.values():
            await node.close()

    run(scene())
