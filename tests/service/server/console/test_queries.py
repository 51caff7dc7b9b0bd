"""The console's questions, each at an address of its own, in a real Chromium over a real server and worker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from support.apps.console_app import HOSTILE_KEY, HOUR_MS, LARGE, START_MS
from support.console.console_browser import Flights
from support.console.console_page import Console, console, lasting
from support.run.length import long_or_short

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
ONE_OF_EACH = [*{query: (store, query, values) for store, query, values in QUERIES[::-1]}.values()]


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Console]:
    """One page for all tests: each goes to an address of its own."""
    with console(browser, f"{served[1]}/queries", "#summary") as opened:
        yield opened


def ask(page: Console, store: str, query: str, **values: str) -> str:
    """Open the address of a question; the sentence that says how it went."""
    page.visit("queries?" + urlencode({"store": store, "ask": query, **values}))
    return page.told()


def answer(page: Console) -> str:
    """The exact JSON of the answer that is shown."""
    return page.page.locator("#json").text_content() or ""


def curl(page: Console) -> str:
    """What the page's curl line prints when a shell runs it."""
    line = page.page.locator("#curl").inner_text()
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("store", "query", "values"), long_or_short(QUERIES, ONE_OF_EACH))
def test_an_address_and_its_curl_line_get_the_same_answer(
    page: Console, store: str, query: str, values: dict[str, str]
) -> None:
    absent = values.get("key") in ("nobody", "..") and query != "versions"
    assert f"Status {404 if absent else 200}" in ask(page, store, query, **values)
    assert json.loads(answer(page))["store"] == store
    assert lasting(answer(page)) == lasting(curl(page))


def test_every_query_of_every_kind_is_tried(page: Console) -> None:
    offered, options = set(), page.page.locator("#ask option")
    for store in ("aircraft", "airports", "hourly", "rushes"):
        page.visit(f"queries?store={store}")
        options.first.wait_for(state="attached")
        offered |= set(options.evaluate_all("all => all.map(o => o.value)"))
    assert offered == {query for _, query, _ in QUERIES}


def test_a_form_that_is_sent_becomes_an_address_and_back_leads_to_the_one_before(page: Console) -> None:
    ask(page, "aircraft", "key", key="N001")
    page.page.fill("#field-key", "N002")
    page.page.get_by_role("button", name="Ask", exact=True).click()
    page.page.locator(".row h3", has_text="N002").wait_for()
    assert parse_qs(urlsplit(page.page.url).query) == {"store": ["aircraft"], "ask": ["key"], "key": ["N002"]}
    page.page.go_back()
    page.page.locator(".row h3", has_text="N001").wait_for()
    assert page.page.locator("#field-key").input_value() == "N001"


def test_integers_beyond_what_javascript_holds_are_exact(page: Console) -> None:
    ask(page, "distances", "key", key="3")
    page.page.locator(".tabulator-row").wait_for()
    assert page.page.locator(".tabulator-cell").all_inner_texts() == ["3", str(LARGE)]
    assert f'"value": {LARGE}' in answer(page)


def test_an_absent_key_is_said_so(page: Console) -> None:
    assert ask(page, "aircraft", "key", key="nobody").startswith("There is no such key. Status 404")


@pytest.mark.parametrize(
    ("query", "values", "reason"),
    [
        ("range", {"limit": "0"}, "INVALID_ARGUMENT (status 422)"),
        ("count", {"partition": "9"}, "DOES_NOT_EXIST (status 404)"),
        ("count", {"position_bound": '{"flights": {"0": 9999}}'}, "NOT_UP_TO_BOUND (status 412)"),
    ],
)
def test_a_problem_is_told_in_words(page: Console, query: str, values: dict[str, str], reason: str) -> None:
    assert ask(page, "aircraft", query, **values) == "There is no answer."
    problem = page.page.locator(".problem")
    assert reason in problem.inner_text()
    assert problem.locator("p").inner_text() == json.loads(curl(page))["detail"]


def test_the_newest_position_becomes_the_next_bound(page: Console) -> None:
    ask(page, "aircraft", "count")
    position = json.loads(answer(page))["position"]
    page.page.get_by_text("Isolation level, Position bound").click()
    page.page.get_by_role("button", name="Bound: the newest").click()
    assert json.loads(page.page.locator("#field-position_bound").input_value()) == position
    page.page.get_by_role("button", name="Ask", exact=True).click()
    page.page.wait_for_url("**position_bound=*")
    assert "Status 200" in page.told()


def test_a_copied_curl_line_is_the_one_shown(page: Console) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.visit("queries?store=aircraft&ask=key&key=it%27s")
    page.page.get_by_role("button", name="Copy curl").click()
    page.page.get_by_text("Copied.").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == page.page.locator("#curl").inner_text()


def test_the_last_questions_of_the_tab_are_links(page: Console) -> None:
    page.page.evaluate("sessionStorage.clear()")
    ask(page, "aircraft", "key", key="N003")
    ask(page, "hourly", "key_windows", key="JFK")
    links = page.page.locator(".last a")
    links.nth(1).wait_for()
    assert links.all_inner_texts() == ["hourly: Windows of a key", "aircraft: One key"]
    links.last.click()
    page.page.locator(".row h3", has_text="N003").wait_for()
