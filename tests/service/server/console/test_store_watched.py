"""A store's place in the console while the store moves, in a real Chromium over a server and worker of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.apps.console_app import HOUR_MS, START_MS
from support.console.console_browser import Flights, flights
from support.console.console_page import Console, console
from support.processes.ports import free_port
from support.processes.running_worker import produce
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Moving = tuple[Flights, str]


@pytest.fixture(scope="module")
def moving(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    with flights(tmp_path_factory.mktemp("m")) as made, made.server(free_port()) as url:
        yield made, url


@pytest.fixture(scope="module")
def page(browser: Browser, moving: Moving) -> Iterator[Console]:
    with console(browser, f"{moving[1]}/stores", "main h1") as opened:
        yield opened


def write(moving: Moving, key: str, seats: int, carrier: str = "UA") -> None:
    value = json.dumps({"seats": seats, "carrier": carrier}).encode()
    produce(moving[0].log, "flights", [(key.encode(), value, START_MS + HOUR_MS)])


def test_a_watched_question_marks_what_changed_and_says_what_is_new(page: Console, moving: Moving) -> None:
    write(moving, "W1", 1)
    page.visit("stores/aircraft?prefix=W&every=1")
    page.page.locator("#moved", has_text="Nothing changed").wait_for()
    write(moving, "W1", 2)
    page.wait_for_passing(".tabulator-cell.changed", "2")
    write(moving, "W2", 1)
    page.wait_for_passing("#moved", "0 changed, 1 new, 0 gone")


@long_only("another test has a member that changes")
def test_a_member_that_is_gone_is_a_change(page: Console, moving: Moving) -> None:
    write(moving, "G1", 1)
    page.visit("stores/aircraft?prefix=G&every=1")
    page.page.locator("#moved", has_text="Nothing changed").wait_for()
    produce(moving[0].log, "flights", [(b"G1", b'{"seats": 1}', START_MS + HOUR_MS)])
    page.wait_for_passing("#moved", "1 changed, 0 new, 0 gone")


def test_numbers_are_shown_and_copied_as_they_are_written_however_many_digits_they_have(
    page: Console, moving: Moving
) -> None:
    numbers = ["123456789012345678901234567890.123456", "0.10000000000000000555", "1.5e-400", "0.30000000000000004"]
    a, b, c, d = numbers
    value = f'{{"a": {a}, "b": {b}, "c": {c}, "d": {d}, "e": 1.50, "f": [{a}], "g": 0.0, "h": -0.0}}'
    produce(moving[0].log, "flights", [(b"DEC1", value.encode(), START_MS), (b"DEC2", b'{"a": 7}', START_MS)])
    page.visit("stores/aircraft?prefix=DEC&sort=a&open=DEC1&every=1")
    row = page.page.locator(".tabulator-row[data-id=DEC1]")
    row.wait_for()
    assert row.locator(".tabulator-cell").all_inner_texts()[1:9] == [*numbers, "1.5", f"[{numbers[0]}]", "0", "-0.0"]
    assert page.page.locator(".tabulator-row").last.get_attribute("data-id") == "DEC1", "sorted as a number"
    tree = page.page.locator(".row .tree").first.inner_text()
    assert all(number in tree for number in numbers)
    page.page.locator("#moved", has_text="Nothing changed").wait_for()
    produce(moving[0].log, "flights", [(b"DEC1", value.replace("123456,", "123457,").encode(), START_MS)])
    page.wait_for_passing(".tabulator-cell.changed", "123457")


@long_only("a question about rows is watched by the same code")
def test_a_watched_count_or_position_says_what_moved(page: Console, moving: Moving) -> None:
    page.visit("stores/aircraft?ask=position&every=1")
    page.page.locator("#moved", has_text="Nothing changed").wait_for()
    write(moving, "C1", 1)
    page.wait_for_passing("#moved", "the positions moved")
    counts = iter([5, *[7] * 1000])
    answer = {"isolation_level": "read_committed"}
    page.page.route(
        "**/aircraft/count?exact=true*", lambda route: route.fulfill(json=answer | {"exact_entries": next(counts)})
    )
    page.visit("stores/aircraft?ask=count&every=1")
    page.wait_for_passing("#moved", "from 5 to 7")
    page.page.locator("#moved", has_text="Nothing changed").wait_for()


@long_only("it is said of two answers, as another test has it")
def test_nothing_is_said_of_what_moved_before_there_are_two_answers(page: Console, moving: Moving) -> None:
    write(moving, "O1", 1)
    page.visit("stores/aircraft?prefix=O&every=30")
    page.page.locator(".tabulator-row").wait_for()
    assert page.page.locator("#moved").count() == 0


@long_only("the store marks it by the same code")
def test_questions_that_are_watched_at_their_own_place_mark_what_changed_too(page: Console, moving: Moving) -> None:
    write(moving, "Q1", 1)
    page.visit("queries?store=aircraft&ask=range&prefix=Q&every=1")
    page.page.locator("#moved", has_text="Nothing changed").wait_for()
    write(moving, "Q1", 2)
    page.wait_for_passing(".tabulator-cell.changed", "2")


def test_a_feed_that_breaks_off_goes_on_where_it_was(page: Console, moving: Moving) -> None:
    asked: list[str | None] = []
    page.page.on("request", lambda r: asked.append(r.headers.get("last-event-id")) if "/changes" in r.url else None)
    page.visit("stores/aircraft?tab=changes")
    page.page.locator("#feed", has_text="Connected.").wait_for()
    write(moving, "B1", 1)
    page.page.locator(".tabulator-row", has_text="B1").wait_for()
    page.page.context.set_offline(True)
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    with_break = page.page.locator("#feed", has_text="Not connected.")
    page.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.page.evaluate("delete document.hidden")
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    with_break.wait_for()
    write(moving, "B2", 2)
    page.page.context.set_offline(False)
    page.page.locator(".tabulator-row", has_text="B2").wait_for()
    assert page.page.locator(".tabulator-row", has_text="B1").count() == 1
    assert asked[0] is None
    assert asked[-1] is not None


def test_watching_that_fails_says_so_keeps_what_was_and_goes_on(page: Console, moving: Moving) -> None:
    write(moving, "X1", 1)
    page.visit("stores/aircraft?prefix=X&every=1")
    page.page.locator(".tabulator-row").wait_for()
    page.page.route("**/v1/stores/aircraft/range*", lambda route: route.abort())
    page.page.locator("#summary", has_text="The last answer is still shown. Trying again.").wait_for()
    page.page.locator(".problem", has_text="The server does not answer.").wait_for()
    assert page.page.locator(".tabulator-row").count() == 1
    page.page.unroute("**/v1/stores/aircraft/range*")
    write(moving, "X1", 5)
    page.page.locator(".tabulator-cell", has_text="5").wait_for()
    page.page.locator(".problem").wait_for(state="detached")


@long_only("those that are paused come as they are committed, too")
def test_changes_come_as_they_are_committed_newest_first(page: Console, moving: Moving) -> None:
    page.visit("stores/aircraft?tab=changes")
    page.page.locator("#feed", has_text="Connected.").wait_for()
    write(moving, "Y1", 1)
    page.page.locator(".tabulator-row", has_text="Y1").wait_for()
    write(moving, "Y2", 1)
    page.page.locator(".tabulator-row", has_text="Y2").wait_for()
    assert [row[:2] for row in page.page.locator(".tabulator-row").all_inner_texts()] == ["Y2", "Y1"]
    page.page.get_by_label("Find in these rows").fill("y1")
    page.page.get_by_text("1 of 2 rows").wait_for()


def test_paused_changes_stand_still_and_go_on_without_a_gap(page: Console, moving: Moving) -> None:
    page.visit("stores/aircraft?tab=changes")
    page.page.locator("#feed", has_text="Connected.").wait_for()
    write(moving, "Z1", 1)
    page.page.locator(".tabulator-row", has_text="Z1").wait_for()
    page.page.get_by_role("button", name="Pause").click()
    page.page.locator("#feed", has_text="Paused.").wait_for()
    write(moving, "Z2", 2)
    write(moving, "Z3", 3)
    page.page.get_by_role("button", name="Go on").click()
    page.page.locator(".tabulator-row", has_text="Z3").wait_for()
    page.page.locator(".tabulator-row", has_text="Z2").wait_for()
    assert page.page.locator(".tabulator-row", has_text="Z1").count() == 1


def test_changes_from_the_beginning_keep_the_newest_500(page: Console, moving: Moving) -> None:
    value = b'{"seats": 1}'
    produce(moving[0].log, "flights", [(f"M{n}".encode(), value, START_MS) for n in range(600)])
    page.visit("stores/aircraft?tab=changes&from=earliest")
    page.page.get_by_text("the newest 500 are kept").wait_for()
    page.page.get_by_text("500 rows", exact=True).wait_for()


@long_only("test_key.py has a deletion as a change")
def test_a_deletion_is_a_change_without_a_value(page: Console, moving: Moving) -> None:
    page.visit("stores/aircraft?tab=changes&columns=key,value")
    page.page.locator("#feed", has_text="Connected.").wait_for()
    write(moving, "D1", 1)
    produce(moving[0].log, "flights", [(b"D1", None, START_MS)])
    page.page.locator(".tabulator-row", has_text="null").wait_for()


def test_a_page_that_nobody_sees_asks_nothing_even_while_it_watches(page: Console) -> None:
    page.visit("stores/aircraft?prefix=W&every=1")
    page.page.locator(".tabulator-row").first.wait_for()
    page.page.clock.install()
    page.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.clock.run_for(20_000)
    assert asked == []
    page.page.evaluate("delete document.hidden")
    with page.page.expect_request("**/v1/stores/aircraft/range*"):
        page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
