"""What could not be processed, in the console in a real Chromium."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stateline import App, serdes
from stateline.log.embedded import EmbeddedLog
from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.console.told import say
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Route

Served = tuple[Flights, str]
FAILURES = "/v1/console/failures"


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/failures", first="table") as opened:
        yield opened


def letter(offset: int, **members: Any) -> dict[str, Any]:
    known = {"at_ms": 1_795_734_411_534, "error": "builtins.ValueError", "reason": f"no number in {offset}"}
    record = {"topic": "departures", "partition": 1, "offset": offset, "key": "JFK", "value": {"delay": "late"}}
    return known | record | {"headers": [], "left_out": []} | members


def show(page: Console, *records: dict[str, Any]) -> Locator:
    """Have the topic of dead letters these, the newest first; what is shown of them."""
    say(page.page, FAILURES, {"topic": "failed", "records": records})
    page.page.reload()
    found = page.page.locator(".letters .card")
    page.page.get_by_text("of the newest").wait_for()
    return found


def test_an_application_without_dead_letters_is_told_how_to_keep_them(page: Console) -> None:
    told = page.page.locator(".nothing")
    told.wait_for()
    for setting in ("errors.dead.letter.queue.topic.name=failed", "deserialization.exception.handler=dead-letter"):
        assert setting in told.inner_text()


def test_what_was_left_out_is_counted_whether_it_is_kept_or_not(page: Console) -> None:
    table = page.page.get_by_role("table", name="Left out since the start")
    row = table.locator("tr", has_text="worker-0")
    table.get_by_role("row", name="worker-0 0 0 0", exact=True).wait_for()

    def metrics(route: Route) -> None:
        route.fulfill(
            content_type="text/plain; version=0.0.4",
            body='stateline_skipped_records_total{worker="worker-0"} 1234.0\n'
            'stateline_dead_lettered_records_total{worker="worker-0"} 7.0\n'
            'stateline_pipeline_skipped_total{pipeline="the \\"slow\\" one"} 2.0\n'
            'stateline_step_dropped_records_total{reason="no_key",step="count a",worker="worker-0"} 3456.0\n',
        )

    page.page.route("**/metrics", metrics)
    page.page.reload()
    row.get_by_text("1,234").wait_for()
    told = table.locator("tbody tr").evaluate_all("all => all.map((r) => [...r.children].map((c) => c.textContent))")
    assert told == [["worker-0", "1,234", "7", ""], ['pipeline the "slow" one', "2", "", ""]]
    steps = page.page.get_by_role("table", name="Dropped by step")
    steps.get_by_role("row", name="worker-0 count a no key 3,456", exact=True).wait_for()


def test_a_dead_letter_is_shown_with_the_record_that_caused_it(page: Console) -> None:
    card = show(page, letter(2**53 + 1, value={"delay": "late", "number": 2**60 + 1}, headers=[["trace", "a1"]])).first
    told = card.inner_text()
    assert "no number in 9007199254740993" in told
    assert "builtins.ValueError" in told
    assert "departures-1 @ 9007199254740993" in told
    assert "number: 1152921504606846977" in told
    assert "trace" in told
    assert "2026-11-26T23:06:51.534Z" in told


def test_where_it_failed_is_there_line_by_line(page: Console) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "flights.py", line 12, in late',
        "ValueError: no number in 1",
    ]
    cards = show(page, letter(1, trace="\n".join(lines)), letter(2))
    cards.first.get_by_text("Traceback", exact=True).click()
    assert (
        cards.first.get_by_role("region", name="Traceback of departures-1 @ 1", exact=True).inner_text().splitlines()
        == lines
    )
    assert cards.nth(1).locator("pre").count() == 0


def test_what_is_no_value_of_its_type_is_text_where_it_can_be_read(page: Console) -> None:
    broken = {"value_base64": base64.b64encode(b'{"delay": "<b>late').decode(), "value": None}
    bytes_ = {"key_base64": base64.b64encode(b"\x00\x01\x02").decode()}
    large = letter(3, value=None, left_out=["value"])
    cards = show(page, letter(1, **broken), letter(2, **bytes_), large)
    assert '{"delay": "<b>late 18 bytes, not of its topic\'s type, as text' in cards.nth(0).inner_text()
    assert "AAEC 3 bytes, not of its topic's type, in base64" in cards.nth(1).inner_text()
    assert "too large to show" in cards.nth(2).inner_text()


def test_what_is_typed_finds_among_them_and_is_in_the_address(page: Console) -> None:
    cards = show(page, letter(1, key="LGA"), letter(2, reason="no such airport"), letter(3))
    assert cards.count() == 3
    page.page.get_by_label("Find").fill("AIRPORT such")
    page.page.wait_for_url("**/failures?find=AIRPORT+such")
    page.page.get_by_text("1 of the newest 3 in failed").wait_for()
    assert cards.all_inner_texts()[0].startswith("ValueError: no such airport")
    page.page.reload()
    page.page.get_by_text("1 of the newest 3 in failed").wait_for()
    page.page.get_by_label("Find").fill("nothing is like this")
    page.page.get_by_text("No record matches.").wait_for()


def test_they_are_read_again_when_somebody_wants_it(page: Console) -> None:
    cards = show(page, letter(1))
    say(page.page, FAILURES, {"topic": "failed", "records": [letter(2), letter(1)]})
    page.page.get_by_role("button", name="Read again").click()
    page.page.get_by_text("2 of the newest 2").wait_for()
    assert "no number in 2" in cards.first.inner_text()


def test_a_topic_without_any_says_that_nothing_has_failed(page: Console) -> None:
    show(page)
    page.page.get_by_text("Nothing has failed: failed is empty.").wait_for()


def test_a_token_that_may_not_see_them_is_told_so(page: Console) -> None:
    refused = {"title": "Forbidden", "status": 403, "reason": "FORBIDDEN", "detail": "Not for this one."}
    say(page.page, FAILURES, refused, status=403)
    page.page.reload()
    page.page.get_by_role("alert").get_by_text("Not for this one.").wait_for()


def test_what_a_worker_could_not_process_is_there(browser: Browser, tmp_path: Path) -> None:
    app = App("dividing")

    @app.process(app.topic("numbers", key=serdes.string, value=serdes.json))
    def divide(record: Any) -> None:
        1 / record.value["n"]

    log = EmbeddedLog(tmp_path / "log.db")
    create(log, {"numbers": 1, "failed": 1})
    dead = {"errors__dead__letter__queue__topic__name": "failed", "processing__exception__handler": "dead-letter"}
    topic = "errors.dead.letter.queue.topic.name=failed"
    with (
        running(app, configured(app, tmp_path, **dead), log),
        served_here(tmp_path, topic, app=app) as here,
        console(browser, f"http://127.0.0.1:{here.port}/failures", first=".nothing") as page,
    ):
        page.page.get_by_text("Nothing has failed: failed is empty.").wait_for()
        produce(log, "numbers", [(b"a", b'{"n": 0}', 5), (b"b", b'{"n": 1}', 6)])
        counted = page.page.get_by_role("row", name="worker-0 0 1 0")  # workers write their counts every few seconds
        while page.page.locator(".letters .card").count() == 0 or not counted.is_visible():
            with page.page.expect_response(f"**{FAILURES}*"):
                page.page.get_by_role("button", name="Read again").click()
        told = page.page.locator(".letters .card").inner_text()
        assert "division by zero" in told
        assert "numbers-0 @ 0" in told
