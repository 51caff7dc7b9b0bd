"""Pages of one state: together they are the one answer, whatever is committed meanwhile, and nothing stays pinned."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from support.http.paging import LEVELS, STORES, Rows, entries, first, follow, good, pages, pins, refused
from support.processes.open_files import kept_tables
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.rocksdb import database_of
from support.run.patience import HANGING_S


@pytest.fixture(scope="module")
def here(state_dir: Path, worker: OwningWorker) -> Iterator[Here]:
    with served_here(state_dir) as here:
        yield here


def test_nothing_is_pinned_before(here: Here, worker: OwningWorker) -> None:
    assert (len(here.serving.cursors), len(worker.socket.scans), pins(here)) == (0, 0, 0)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("limit", [1, 7])
def test_all_pages_are_the_one_answer_while_others_are_committed(
    here: Here, worker: OwningWorker, store: str, level: str, order: str, limit: int
) -> None:
    rows = Rows(worker, f"all-{store}-{level}-{order}-{limit}-", 20 if limit == 1 else 60)
    whole = first(here.client, rows, store, level, order=order)
    assert "cursor" not in whole
    found = pages(here.client, first(here.client, rows, store, level, order=order, limit=limit), store, rows.change)
    assert entries(found) == whole["entries"]
    assert {len(page["entries"]) for page in found[:-1]} == {limit}
    assert len(found) == -(-len(whole["entries"]) // limit)
    for page in found:
        assert {name: page[name] for name in page if name not in ("entries", "cursor")} == {
            name: whole[name] for name in whole if name != "entries"
        }
    assert entries([first(here.client, rows, store, level, order=order)]) != whole["entries"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_page_can_be_asked_for_again_while_it_is_the_last_that_was_given(
    here: Here, worker: OwningWorker, level: str
) -> None:
    rows = Rows(worker, f"again-{level}-")
    page = first(here.client, rows, level=level, limit=25)
    second = good(follow(here.client, page["cursor"]))
    rows.change()
    assert good(follow(here.client, page["cursor"])) == second, "its answer was lost"
    last = good(follow(here.client, second["cursor"], limit=100))
    assert "cursor" not in last
    assert good(follow(here.client, second["cursor"])) == last, "the last one too"
    assert refused(follow(here.client, page["cursor"])) == (410, "CURSOR_EXPIRED")


def test_the_limit_may_change_on_the_way(here: Here, worker: OwningWorker) -> None:
    rows = Rows(worker, "limits-")
    whole, page = first(here.client, rows), first(here.client, rows, limit=1)
    found = [page]
    for limit in (5, 1, 30, None):
        found.append(good(follow(here.client, found[-1]["cursor"], limit=limit)))
    assert [len(answer["entries"]) for answer in found] == [1, 5, 1, 30, 60 - 37]
    assert entries(found) == whole["entries"]


def test_a_cursor_is_followed_by_url_or_body_on_every_route_of_scans(here: Here, worker: OwningWorker) -> None:
    rows = Rows(worker, "routes-")
    whole, page = first(here.client, rows), first(here.client, rows, limit=5)
    store = "/v1/stores/aircraft"
    found = [page]
    for path in ("range", "windows", "keys/any/sessions", "keys/any/versions"):
        found.append(good(here.client.get(f"{store}/{path}", params={"cursor": found[-1]["cursor"]})))
    for kind in ("range", "windows", "sessions"):
        body = {"type": kind, "cursor": found[-1]["cursor"], "limit": 4}
        found.append(good(here.client.post(f"{store}/query", json=body)))
    assert entries(found) == whole["entries"][: 5 * 5 + 3 * 4]


def test_a_cursor_of_another_store_or_beside_a_query_is_refused(here: Here, worker: OwningWorker) -> None:
    rows = Rows(worker, "other-")
    cursor = first(here.client, rows, limit=5)["cursor"]
    invalid = (422, "INVALID_ARGUMENT")
    assert refused(follow(here.client, cursor, "cache")) == invalid
    for params in ({"prefix": "o"}, {"order": "asc"}, {"isolation_level": "read_committed"}, {"partition": 0}):
        assert refused(follow(here.client, cursor, **params)) == invalid
    for limit in (0, -1, 10**9, "x"):
        assert refused(follow(here.client, cursor, limit=limit)) == invalid
    assert good(follow(here.client, cursor)), "and none of that has hurt it"


@pytest.mark.parametrize("at", [0, 3, 8, 12, 17, 20, -2, -12])
def test_a_cursor_in_which_one_letter_was_changed_is_none_that_was_given(
    here: Here, worker: OwningWorker, at: int
) -> None:
    cursor = first(here.client, Rows(worker, f"forged{at}-"), limit=5)["cursor"]
    other = "A" if cursor[at] != "A" else "B"
    forged = cursor[:at] + other + cursor[at:][1:]
    assert refused(follow(here.client, forged)) == (404, "DOES_NOT_EXIST")
    assert good(follow(here.client, cursor))


@pytest.mark.parametrize("level", LEVELS)
def test_two_requests_at_once_get_the_same_page(here: Here, worker: OwningWorker, level: str) -> None:
    rows = Rows(worker, f"twice-{level}-")
    whole, found = first(here.client, rows, level=level), [first(here.client, rows, level=level, limit=4)]
    with ThreadPoolExecutor(4) as threads, ExitStack() as closing:
        clients = [
            closing.enter_context(httpx.Client(base_url=here.client.base_url, timeout=HANGING_S)) for _ in range(4)
        ]
        while "cursor" in found[-1]:
            cursor = found[-1]["cursor"]
            same = list(threads.map(lambda client, cursor=cursor: good(follow(client, cursor)), clients))
            assert same == [same[0]] * 4
            found.append(same[0])
    assert entries(found) == whole["entries"]


def test_only_some_partitions_are_paged_when_asked(here: Here, worker: OwningWorker) -> None:
    rows = Rows(worker, "some-")
    whole = first(here.client, rows, partition="0,2")
    found = pages(here.client, first(here.client, rows, partition="0,2", limit=3), between=rows.change)
    assert entries(found) == whole["entries"]
    assert all(list(page["partitions"]) == ["0", "2"] for page in found)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("store", STORES)
def test_nothing_is_pinned_behind_the_last_page(here: Here, worker: OwningWorker, store: str, level: str) -> None:
    rows = Rows(worker, f"pinned-{store}-{level}-")
    before = pins(here)
    page = first(here.client, rows, store, level, limit=10)
    assert pins(here) > before
    pages(here.client, page, store, rows.change)
    assert pins(here) == before


def test_files_that_are_deleted_are_let_go_of_behind_the_last_page(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)

    def rewrite(value: str) -> None:
        worker.put_all({f"file{n:03}": value * 2000 for n in range(300)})
        worker.commit()

    def flush(*, compact: bool) -> None:
        for store in worker.stores.values():
            if store.persistent:
                worker.run(database_of(store).flush)
                if compact:
                    worker.run(partial(database_of(store).compact_range, None, None))

    with served_here(tmp_path) as here:
        rewrite("a")
        flush(compact=False)
        page = good(here.client.get("/v1/stores/aircraft/range", params={"limit": 10}))
        for value in "bcdefgh":
            rewrite(value)
        flush(compact=True)
        good(here.client.get("/v1/stores/aircraft/count"))
        wait_until(lambda: bool(kept_tables(worker.application)))
        found = pages(here.client, page, limit=100)
        assert {entry["value"][0] for entry in entries(found)} == {"a"}
        rewrite("i")  # a reader lets go of what its owner's last commit had when it is asked after a newer one

        def are_let_go() -> bool:
            good(here.client.get("/v1/stores/aircraft/count"))
            return not kept_tables(worker.application)

        wait_until(are_let_go)
    worker.close()
