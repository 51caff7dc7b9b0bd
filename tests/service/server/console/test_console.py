"""The console in a real Chromium, over a real server and worker."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from stateline.server.guard.tokens import hash_of
from support.apps.console_app import HOSTILE_KEY, HOUR_MS, LARGE, START_MS, aircraft_records
from support.console.console_browser import Flights, flights
from support.console.console_page import Console, console, lasting
from support.processes.ports import free_port
from support.processes.running_worker import produce

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

Served = tuple[Flights, str]

COMMITTED = {"isolation_level": "read_committed"}
QUERIES: list[tuple[str, str, dict[str, str]]] = [
    ("aircraft", "key", {"key": "N001"}),
    ("aircraft", "key", {"key": HOSTILE_KEY}),
    ("aircraft", "key", {"key": 'it\'s a "key" & $HOME/..'}),
    ("aircraft", "key", {"key": "nobody"}),
    ("aircraft", "key", {"key": ".."}),
    ("aircraft", "keys", {"keys": 'N001\nit\'s a "key" & $HOME/..\nnobody'}),
    ("aircraft", "range", {"prefix": "N00", "limit": "3"}),
    ("aircraft", "range", {"lower": "N010", "upper": "N020", "order": "desc", **COMMITTED}),
    ("aircraft", "count", {"partition": "1"}),
    ("aircraft", "position", {}),
    ("aircraft", "key", {"key": "N001", "position_bound": '{"flights": {"0": 3}}', "wait_ms": "10", **COMMITTED}),
    ("aircraft", "key", {"key": "N001", "require_active": "true", "allow_partial": "true"}),
    ("airports", "versioned_key", {"key": "JFK"}),
    ("airports", "versioned_key", {"key": "JFK", "as_of": str(START_MS + HOUR_MS + 5)}),
    ("airports", "versioned_key", {"key": "JFK", "as_of": "2013-02-27T21:30:00+00:00"}),
    ("airports", "versioned_keys", {"keys": "JFK\nLGA", "as_of": str(START_MS)}),
    ("airports", "versions", {"key": "JFK", "order": "asc"}),
    ("airports", "versioned_range", {"as_of": str(START_MS + HOUR_MS), "order": "desc"}),
    ("airports", "versions", {"key": "..", "limit": "1"}),
    ("hourly", "key_windows", {"key": "LGA", "from": str(START_MS + HOUR_MS)}),
    ("hourly", "windows", {"to": str(START_MS + HOUR_MS), **COMMITTED}),
    ("rushes", "sessions", {"key": "EWR", "order": "desc"}),
    ("rushes", "all_sessions", {"from": str(START_MS), "limit": "2"}),
    ("distances", "key", {"key": "3"}),
    ("distances", "keys", {"keys": "3\n4"}),
    ("distances", "range", {"lower": "1", "upper": "5"}),
    ("routes", "range", {}),
]


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Console]:
    """One page for all tests: each chooses its store first, which empties the forms."""
    with console(browser, served[1]) as opened:
        yield opened


# Queries


@pytest.mark.parametrize(("store", "query", "values"), QUERIES)
def test_the_form_and_its_curl_line_get_the_same_answer(
    page: Console, store: str, query: str, values: dict[str, str]
) -> None:
    page.choose(store)
    absent = values.get("key") in ("nobody", "..") and query != "versions"
    assert f"Status {404 if absent else 200}" in page.ask(query, **values)
    answer = page.answer()
    assert json.loads(answer)["store"] == store
    assert lasting(answer) == lasting(page.curl())


def test_a_partition_of_another_node_has_a_worker_there(page: Console) -> None:
    def answer(route: Route) -> None:
        response = route.fetch()
        told = response.json() | {"cluster": {"node": "one", "nodes": {}, "tasks": []}}
        told["partitions"] = {p: each | {"node": "two", "owner": None} for p, each in told["partitions"].items()}
        route.fulfill(response=response, body=json.dumps(told))

    page.choose("aircraft")
    page.page.route("**/v1/console*", answer)
    page.page.locator("#partitions-body td", has_text="of two").first.wait_for()
    page.page.unroute("**/v1/console*")


def test_every_query_of_every_kind_is_tried(page: Console) -> None:
    offered = set()
    for store in ("aircraft", "airports", "hourly", "rushes"):
        page.choose(store)
        offered |= set(page.page.locator("#query-type option").evaluate_all("all => all.map(o => o.value)"))
    assert offered == {query for _, query, _ in QUERIES}


def test_integers_beyond_what_javascript_holds_are_exact(page: Console) -> None:
    page.choose("distances")
    page.ask("key", key="3")
    assert page.page.locator("#result td").all_inner_texts() == ["true", "3", str(LARGE), "none"]
    assert f'"value": {LARGE}' in page.answer()


def test_an_absent_key_is_said_so(page: Console) -> None:
    page.choose("aircraft")
    assert page.ask("key", key="nobody").startswith("There is no such key. Status 404")


@pytest.mark.parametrize(
    ("query", "values", "reason"),
    [
        ("range", {"limit": "0"}, "INVALID_ARGUMENT (status 422)"),
        ("count", {"partition": "9"}, "DOES_NOT_EXIST (status 404)"),
        ("count", {"position_bound": '{"flights": {"0": 9999}}'}, "NOT_UP_TO_BOUND (status 412)"),
    ],
)
def test_a_problem_is_told_in_words(page: Console, query: str, values: dict[str, str], reason: str) -> None:
    page.choose("aircraft")
    assert page.ask(query, **values) == "There is no answer."
    assert reason in page.page.locator("#result").inner_text()
    detail = json.loads(page.curl())["detail"]
    assert page.page.locator("#result .problem").inner_text() == detail


def test_the_newest_position_becomes_the_next_bound(page: Console) -> None:
    page.choose("aircraft")
    page.ask("count")
    position = json.loads(page.answer())["position"]
    page.page.get_by_role("button", name="Bound: the newest").click()
    assert json.loads(page.page.locator("#field-position_bound").input_value()) == position
    assert "Status 200" in page.ask("count")


def test_a_copied_curl_line_is_the_one_shown(page: Console) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.choose("aircraft")
    page.fill_query("key", key="it's")
    page.page.get_by_role("button", name="Copy").click()
    page.page.get_by_text("Copied.").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == page.page.locator("#curl").inner_text()


# Keys


def listed(page: Console) -> list[str]:
    return page.page.locator("#browse-result button.key").all_inner_texts()


def turn(page: Console, button: str, shown: str) -> list[str]:
    page.page.locator("#browse").get_by_role("button", name=button, exact=True).click()
    page.page.locator("#browse-summary", has_text=shown).wait_for()
    return listed(page)


def test_pages_of_keys_go_on_and_back_on_one_state(page: Console, served: Served) -> None:
    page.choose("aircraft")
    page.page.select_option("#browse-limit", "25")
    page.page.fill("#browse-prefix", "N0")
    first = turn(page, "List", "Page 1")
    second = turn(page, "Next", "Page 2")
    third = turn(page, "Next", "Page 3")
    assert [*first, *second, *third] == [key.decode() for key, _, _ in aircraft_records(60)]
    assert turn(page, "Back", "Page 2") == second
    assert turn(page, "Back", "Page 1") == first
    back = page.page.get_by_role("button", name="Back", exact=True)
    assert back.get_attribute("aria-disabled") == "true"


def test_a_key_that_is_clicked_becomes_a_question(page: Console) -> None:
    page.choose("routes")
    turn(page, "List", "Page 1")
    page.page.locator("#browse-result button.key").first.click()
    page.page.locator("#query-form button[type=submit]").click()
    assert "Status 200" in page.summary()
    assert json.loads(page.answer())["found"] is True


def test_windows_of_all_keys_are_listed_too(page: Console) -> None:
    page.choose("hourly")
    assert set(turn(page, "List", "Page 1")) == {"EWR", "JFK", "LGA"}


def test_data_never_becomes_markup(page: Console) -> None:
    page.choose("aircraft")
    assert HOSTILE_KEY in turn(page, "List", "Page 1")
    page.page.get_by_role("button", name=HOSTILE_KEY).click()
    page.ask("keys", keys=f'{HOSTILE_KEY}\nit\'s a "key" & $HOME/..')
    assert HOSTILE_KEY in page.page.locator("#result td").all_inner_texts()
    assert page.page.locator("img, td b").count() == 0
    assert page.page.title() == "Stateline: flights"


# Time


def test_the_slider_shows_the_value_of_its_time(page: Console) -> None:
    page.choose("airports")
    page.page.fill("#moment-key", "JFK")
    page.page.keyboard.press("Enter")
    value, slider = page.page.locator("#moment-value"), page.page.locator("#moment-slider")
    value.get_by_text("open again").wait_for()
    page.page.get_by_role("button", name="Earlier change").click()
    value.get_by_text("snow").wait_for()
    assert slider.get_attribute("aria-valuetext") == "2013-02-27T22:00:00.000Z"
    slider.focus()
    page.page.keyboard.press("ArrowLeft")  # a hundredth before the change
    value.get_by_text('"open"').wait_for()
    page.page.keyboard.press("End")
    value.get_by_text("open again").wait_for()
    ends = page.page.locator("#moment-table td:nth-child(2)").all_inner_texts()
    assert ends == ["2013-02-27T22:00:00.000Z", "2013-02-27T23:00:00.000Z", "still valid"]


def test_windows_are_bars_of_the_number_that_was_picked(page: Console) -> None:
    page.choose("hourly")
    page.ask("key_windows", key="JFK")
    entries: list[dict[str, Any]] = json.loads(page.answer())["entries"]
    page.page.fill("#window-key", "JFK")
    page.page.keyboard.press("Enter")
    page.page.locator("#window-table table").wait_for()
    for field in ("flights", "delay.total"):
        page.page.select_option("#window-field", field)
        titles = page.page.locator("#window-chart rect title").evaluate_all("all => all.map(t => t.textContent)")
        values = [e["value"]["flights"] if field == "flights" else e["value"]["delay"]["total"] for e in entries]
        assert [int(re.sub(r".*: ", "", title)) for title in titles] == values
    assert page.page.locator("#window-table tbody tr").count() == len(entries)
    assert f"{len(entries)} bars" in (page.page.locator("#window-chart").get_attribute("aria-label") or "")


def test_sessions_are_bars_of_their_values(page: Console) -> None:
    page.choose("rushes")
    page.page.fill("#window-key", "EWR")
    page.page.keyboard.press("Enter")
    page.page.locator("#window-chart rect").first.wait_for()
    assert page.page.locator("#window-section h2").inner_text() == "Sessions"


# The service, live


def test_stores_show_their_kind_and_move_as_records_come(page: Console, served: Served) -> None:
    kinds = ["aircraft", "airports", "hourly", "rushes", "distances", "routes"]
    assert [page.card(store, "Kind") for store in kinds] == [
        *("timestamped key value", "versioned", "window", "timestamped session", "key value", "key value")
    ]
    assert page.card("aircraft", "Partitions") == "2 active"
    before = int(re.sub(r"\D", "", page.card("aircraft", "Committed")))
    produce(served[0].log, "flights", aircraft_records(3))
    card = page.page.locator(".card").first
    card.locator("dd", has_text=f"flights {before + 3}").nth(1).wait_for()  # committed, and uncommitted
    assert page.card("aircraft", "Committed") == f"flights {before + 3}"


def test_charts_say_in_words_and_tables_what_they_draw(page: Console) -> None:
    page.choose("aircraft")
    page.ask("count")
    for name in ("ingest", "commits", "latency"):
        chart = page.page.locator(f"#{name}-chart")
        chart.locator("polyline, circle").first.wait_for(state="attached")  # a level line has no height to be seen
        assert re.search(r": \d", chart.get_attribute("aria-label") or "")
        page.page.locator(f"#{name}-data summary").click()
        page.page.locator(f"#{name}-table tbody tr").first.wait_for()  # it is drawn anew with the next look


def test_what_is_not_committed_yet_is_told_apart(browser: Browser, tmp_path: Path) -> None:
    with (
        flights(tmp_path, commit_interval_ms=3_600_000) as made,
        made.server(free_port()) as url,
        console(browser, url) as page,
    ):
        page.page.locator(".card dd", has_text="flights 62").wait_for()
        assert page.card("aircraft", "Uncommitted") == "flights 62"
        assert page.card("aircraft", "Committed") == "nothing yet"


def test_a_server_that_is_gone_leaves_the_last_state_and_comes_back_by_itself(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with flights(tmp_path) as made, contextlib.ExitStack() as last:
        with made.server(port) as url:
            page = last.enter_context(console(browser, url))
            page.page.locator(".card dd", has_text="flights 62").first.wait_for()
        page.page.locator("#alert", has_text="The server does not answer.").wait_for()
        assert page.page.locator("body.stale #connection").inner_text() == "Not connected"
        assert page.card("aircraft", "Kind") == "timestamped key value"
        assert page.ask("key", key="N001") == "There is no answer."
        last.enter_context(made.server(port))
        page.page.locator("#connection", has_text=re.compile("^Connected")).wait_for()
        assert page.page.locator("#alert").inner_text() == ""
        assert page.page.locator("body.stale").count() == 0
        assert "Status 200" in page.ask("key", key="N001")


def test_a_page_that_nobody_sees_asks_nothing(browser: Browser, served: Served) -> None:
    asked: list[str] = []
    with console(browser, served[1]) as opened:
        page = opened.page
        page.clock.install(time=0)
        page.clock.pause_at(1)  # else what the machine needs for the rest of the test passes, too
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_load_state("networkidle")
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(10_000)
        assert asked == []
        page.evaluate("delete document.hidden")
        answered: list[str] = []
        page.on("requestfinished", lambda request: answered.append(urlsplit(request.url).path.rpartition("/")[2]))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        while len(answered) < 7:
            page.wait_for_timeout(20)
        assert sorted(answered) == ["console", *["position"] * 6], "no more than a page shows"
        asked.clear()
        page.clock.run_for(2_000)
        assert asked == [], "every few seconds"
        with page.expect_request("**/v1/console*"):
            page.clock.run_for(1_500)


def test_a_token_is_asked_for_and_kept_for_the_tab_only(browser: Browser, served: Served, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    entry = {"name": "ops", "sha256": hash_of("s3cret").hex(), "role": "admin"}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    tokens.chmod(0o600)
    with served[0].server(free_port(), f"server.tokens.file={tokens}") as url:
        page = browser.new_page()
        page.goto(url)
        field = page.get_by_label("The server wants a token")
        field.wait_for()
        field.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("does not take this token").wait_for()
        field.fill("s3cret")
        page.keyboard.press("Enter")
        page.locator(".card").first.wait_for()
        assert page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
        assert 'curl -s -H "Authorization: Bearer $STATELINE_TOKEN"' in page.locator("#curl").inner_text()
        assert "s3cret" not in page.content()
        page.context.close()
