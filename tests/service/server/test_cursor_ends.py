"""How cursors end: by time, by number, with their worker or server; and those that no server has given."""

from __future__ import annotations

import base64
import string
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateline.server.state.cursor_text import CursorToken, signing_key
from stateline.server.state.cursors import Cursors
from stateline_store import DoesNotExistError
from support.http.paging import LEVELS, STORES, Rows, entries, first, follow, good, pages, pins, refused
from support.processes.query_server import OwningWorker, from_another_address, wait_until
from support.processes.served_here import Here, http_server, served_here

EXPIRED, INVALID, NO_SUCH = (410, "CURSOR_EXPIRED"), (422, "INVALID_ARGUMENT"), (404, "DOES_NOT_EXIST")
LEVEL = "default.state.isolation.level=read_committed"
ALPHABET = string.ascii_letters + string.digits + "-_"
TOKENS = st.builds(
    CursorToken, st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8), st.integers(0, 2**32 - 1)
)


@pytest.fixture(scope="module")
def here(state_dir: Path, worker: OwningWorker) -> Iterator[Here]:
    with served_here(state_dir, "server.cursors.max=3") as here:
        yield here


@pytest.fixture(scope="module")
def cursor(here: Here, worker: OwningWorker) -> str:
    """One that is good."""
    text = first(here.client, Rows(worker, "good-"), limit=5)["cursor"]
    assert isinstance(text, str)
    return text


@pytest.fixture(scope="module")
def signing() -> Cursors:
    return Cursors(bytes(32), ttl_s=60, most=9, most_bytes=2**30)


@given(token=TOKENS, at=st.integers(0, 10**6), other=st.sampled_from(ALPHABET))
def test_a_cursor_with_any_character_changed_is_refused(
    signing: Cursors, token: CursorToken, at: int, other: str
) -> None:
    text = signing.text(token)
    assert signing.token(text) == token
    at %= len(text)
    changed = text[:at] + other + text[at + 1 :]
    if changed != text:
        with pytest.raises(DoesNotExistError):
            signing.token(changed)


@given(token=TOKENS, text=st.text(), at=st.integers(0, 60))
def test_a_cursor_with_anything_added_or_cut_is_refused(
    signing: Cursors, token: CursorToken, text: str, at: int
) -> None:
    whole = signing.text(token)
    for changed in (text, whole + text, text + whole, whole[:at] + text + whole[at:], whole[:at], whole[at:]):
        if changed != whole:
            with pytest.raises(DoesNotExistError):
                signing.token(changed)


@given(token=TOKENS)
def test_a_cursor_of_another_application_is_refused(signing: Cursors, token: CursorToken) -> None:
    other = Cursors(bytes(31) + b"x", ttl_s=60, most=9, most_bytes=2**30)
    with pytest.raises(DoesNotExistError):
        signing.token(other.text(token))


def test_an_application_has_one_key_that_its_user_alone_reads(tmp_path: Path) -> None:
    key = signing_key(tmp_path / "app")
    assert signing_key(tmp_path / "app") == key
    assert signing_key(tmp_path / "other") != key
    assert len(key) == 32
    assert [(file.name, file.stat().st_mode & 0o777) for file in (tmp_path / "app").iterdir()] == [
        ("cursor.key", 0o600)
    ]


fuzzed = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@fuzzed
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
    | st.binary(max_size=60).map(base64.urlsafe_b64encode)
)
def test_no_cursor_that_was_made_up_is_answered(here: Here, text: str | bytes) -> None:
    written = text.decode() if isinstance(text, bytes) else text
    store = "/v1/stores/aircraft"
    assert refused(here.client.get(f"{store}/range", params={"cursor": written})) == NO_SUCH
    assert refused(here.client.post(f"{store}/query", json={"type": "range", "cursor": written})) == NO_SUCH


@fuzzed
@given(at=st.integers(0, 10**6), other=st.sampled_from(ALPHABET))
def test_a_good_cursor_that_was_altered_is_refused_over_http(here: Here, cursor: str, at: int, other: str) -> None:
    at %= len(cursor)
    if other != cursor[at]:
        assert refused(follow(here.client, cursor[:at] + other + cursor[at + 1 :])) == NO_SUCH


@pytest.mark.parametrize("cursor", [5, 1.5, True, [], {}, ["x"]])
def test_a_cursor_in_a_body_is_a_text(here: Here, cursor: object) -> None:
    assert refused(here.client.post("/v1/stores/aircraft/query", json={"type": "range", "cursor": cursor})) == INVALID


@pytest.mark.parametrize("level", LEVELS)
def test_the_cursor_that_was_used_longest_ago_makes_room(here: Here, worker: OwningWorker, level: str) -> None:
    rows = Rows(worker, f"room-{level}-")
    begun = [first(here.client, rows, level=level, limit=5)["cursor"] for _ in range(3)]
    used = good(follow(here.client, begun[0]))["cursor"]
    newest = first(here.client, rows, level=level, limit=5)["cursor"]
    assert len(here.serving.cursors) == 3
    assert refused(follow(here.client, begun[1])) == EXPIRED
    for cursor in (used, begun[2], newest):
        pages(here.client, good(follow(here.client, cursor)))
    assert pins(here) == 0
    wait_until(lambda: len(worker.socket.scans) == 0)


@pytest.mark.parametrize("level", LEVELS)
def test_who_opens_many_cursors_ends_their_own(here: Here, worker: OwningWorker, level: str) -> None:
    rows = Rows(worker, f"many-{level}-")
    here.serving.cursors.close()
    one = first(here.client, rows, level=level, limit=5)
    with from_another_address(here.client) as another:
        many = [first(another, rows, level=level, limit=5)["cursor"] for _ in range(9)]
        assert len(here.serving.cursors) == 3
        assert [refused(follow(another, cursor)) for cursor in many[:-2]] == [EXPIRED] * 7
        for page in (one, good(follow(another, many[-2])), good(follow(another, many[-1]))):
            pages(another, page)
    assert pins(here) == 0


def test_head_opens_nothing_and_answers_as_get(here: Here, worker: OwningWorker) -> None:
    rows = Rows(worker, "head-")
    here.serving.cursors.close()
    page = first(here.client, rows, limit=5)
    before = set(here.serving.cursors.open)
    asked = ["prefix=head-&limit=5", "prefix=head-&isolation_level=read_uncommitted", f"cursor={page['cursor']}"]
    refusals = ["limit=0", "cursor=none", 'position_bound={"flights":{"0":99999}}', "partition=7", "as_of=1"]
    for accept in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
        for path in (f"range?{text}" for text in asked + refusals):
            url, headers = f"/v1/stores/aircraft/{path}", {"Accept": accept}
            heads = [here.client.head(url, headers=headers) for _ in range(3)]
            assert set(here.serving.cursors.open) == before
            assert pins(here) > 0
            said = here.client.get(url, headers=headers)
            for name in set(here.serving.cursors.open) - before:
                here.serving.cursors.end(name)
            names = {"content-type", "stateline-position", "stateline-isolation-level", "allow"}
            for head in heads:
                assert (head.status_code, head.content) == (said.status_code, b""), (url, said.text)
                assert {n: head.headers.get(n) for n in names} == {n: said.headers.get(n) for n in names}, url
    windows = "/v1/stores/aircraft/windows"
    assert here.client.head(windows).status_code == here.client.get(windows).status_code == 400
    wait_until(lambda: len(worker.socket.scans) == 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("store", STORES)
def test_a_cursor_is_gone_when_its_lease_is_over(state_dir: Path, worker: OwningWorker, store: str, level: str) -> None:
    rows = Rows(worker, f"lease-{store}-{level}-")
    with served_here(state_dir, "server.cursor.ttl.ms=1") as here:
        cursor = first(here.client, rows, store, level, limit=5)["cursor"]
        wait_until(lambda: len(here.serving.cursors) == 0)
        assert refused(follow(here.client, cursor, store)) == EXPIRED
        wait_until(lambda: len(worker.socket.scans) == 0)


def test_each_page_renews_the_lease(state_dir: Path, worker: OwningWorker) -> None:
    rows = Rows(worker, "renewed-")
    with served_here(state_dir, "server.cursor.ttl.ms=60000") as here:
        page = first(here.client, rows, limit=5)
        (cursor,) = here.serving.cursors.open.values()
        cursor.used_at_s -= 59
        page = good(follow(here.client, page["cursor"]))
        here.serving.cursors.expire()
        assert len(here.serving.cursors) == 1
        cursor.used_at_s -= 61
        wait_until(lambda: len(here.serving.cursors) == 0)
        assert refused(follow(here.client, page["cursor"])) == EXPIRED


@pytest.mark.parametrize("killed", [False, True])
def test_uncommitted_state_is_gone_with_its_worker_and_committed_state_is_not(tmp_path: Path, killed: bool) -> None:
    worker = OwningWorker(tmp_path)
    rows = Rows(worker, "w-")
    with served_here(tmp_path) as here:
        whole = first(here.client, rows)
        begun = {(s, level): first(here.client, rows, s, level, limit=5) for s in STORES for level in LEVELS}
        worker.close(killed=killed)
        for (store, level), page in begun.items():
            if (store, level) == ("aircraft", "read_committed"):
                assert entries(pages(here.client, page)) == whole["entries"]
            else:
                assert refused(follow(here.client, page["cursor"], store)) == EXPIRED, (store, level)
        assert pins(here) == 0


def test_a_cursor_is_gone_after_a_restart_of_the_server(state_dir: Path, worker: OwningWorker) -> None:
    rows = Rows(worker, "restart-")

    def ready(client: httpx.Client) -> bool:
        return client.get("/readyz").status_code == 200

    with http_server(state_dir, LEVEL) as client:
        wait_until(lambda: ready(client))
        cursors = [first(client, rows, level=level, limit=5)["cursor"] for level in LEVELS]
    with http_server(state_dir, LEVEL) as client:
        wait_until(lambda: ready(client))
        assert [refused(follow(client, cursor)) for cursor in cursors] == [EXPIRED, EXPIRED]
    wait_until(lambda: len(worker.socket.scans) == 0)
