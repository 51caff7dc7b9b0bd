"""The console's place of one key, in a real Chromium, over a real server and worker."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from support.apps.console_app import HOSTILE_KEY, HOUR_MS, LARGE, START_MS
from support.console.console_browser import Flights, flights, served_flights
from support.console.console_page import Console, console, query
from support.processes.ports import free_port
from support.processes.running_worker import produce
from support.run.length import long_only
from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

Served = tuple[Flights, str]

SHOWN = ".key-place dl"
JFK = "/stores/airports/keys/JFK"


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Console]:
    """One page for all tests that only read: each goes to its address first. Its reader lives in UTC."""
    with console(browser, f"{served[1]}{JFK}", SHOWN, timezone_id="UTC") as opened:
        yield opened


@pytest.fixture(scope="module")
def moving(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An application of its own, for tests that write."""
    with flights(tmp_path_factory.mktemp("m")) as made, made.server(free_port()) as url:
        yield made, url


def visit(page: Console, path: str) -> Page:
    """Go to an address of the console, and wait for the answer there."""
    page.page.goto(f"{urlsplit(page.url).scheme}://{urlsplit(page.url).netloc}{path}")
    page.page.locator(SHOWN).first.wait_for()
    return page.page


def level(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def fact(where: Locator, name: str) -> str:
    return where.locator("dl > div", has=where.page.get_by_text(name, exact=True)).locator("dd").inner_text()


def seats(key: str, number: int, at: int = 0) -> list[tuple[bytes, bytes, int]]:
    return [(key.encode(), json.dumps({"seats": number, "carrier": "UA"}).encode(), START_MS + HOUR_MS + at)]


# Key-value stores


def test_a_key_has_its_value_at_both_levels_and_where_each_comes_from(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N001")
    shown.get_by_text("Both levels show the same value.").wait_for()
    for name in ("read_committed", "read_uncommitted"):
        card = level(shown, name)
        assert "seats: 51" in card.locator(".value").inner_text()
        partition = fact(card, "Partition")
        assert partition in ("0", "1")
        assert re.fullmatch(rf"flights-{partition} @ \d+", fact(card, "Position"))
        assert fact(card, "Staged there") == "nothing"
        assert fact(card, "Served by") == "active"
        card.get_by_text("2013-02-27T21:00:00.001Z").wait_for()


@long_only("test_key_moving.py has both levels beside each other")
def test_what_is_not_committed_yet_stands_beside_what_is(browser: Browser, tmp_path: Path) -> None:
    with (
        flights(tmp_path, commit_interval_ms=3_600_000) as made,
        made.server(free_port()) as url,
        console(browser, f"{url}/stores/aircraft/keys/N001?every=1", SHOWN) as opened,
    ):
        shown = opened.page
        shown.get_by_text("Not committed yet: only read_uncommitted has this key.").wait_for()
        assert "seats: 51" in level(shown, "read_uncommitted").locator(".value").inner_text()
        assert "No such key at read_committed" in level(shown, "read_committed").inner_text()
        assert "not committed" in fact(level(shown, "read_uncommitted"), "Staged there")


@long_only("test_key_moving.py has both levels, and another test here members that differ")
def test_what_differs_between_the_levels_is_shown_member_by_member(browser: Browser, tmp_path: Path) -> None:
    with served_flights(tmp_path):
        pass
    with (
        flights(tmp_path, commit_interval_ms=3_600_000) as made,
        made.server(free_port()) as url,
        console(browser, f"{url}/stores/aircraft/keys/N001?every=1", SHOWN) as opened,
    ):
        produce(made.log, "flights", seats("N001", 7))
        table = opened.page.get_by_role("table", name="From read_committed to read_uncommitted")
        table.wait_for()
        assert table.locator("tbody").inner_text().split("\t") == ["seats", "51", "7"]


def test_an_absent_key_is_said_so_with_a_way_to_those_like_it(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N0nobody")
    shown.get_by_text("Both levels show the same: no such key.").wait_for()
    link = level(shown, "read_committed").get_by_role("link", name="Keys with this prefix")
    assert "prefix=N0n" in (link.get_attribute("href") or "")


def test_a_key_that_is_none_of_the_stores_type_is_told_in_the_servers_words(page: Console) -> None:
    page.page.goto(f"{page.url.removesuffix(JFK)}/stores/distances/keys/many")
    page.page.get_by_text("'many' is not an int64").first.wait_for()


def test_a_store_that_is_not_there_is_said_so(page: Console) -> None:
    page.page.goto(f"{page.url.removesuffix(JFK)}/stores/nope/keys/a")
    page.page.get_by_text("There is no store nope here").wait_for()
    page.page.get_by_role("link", name="All stores").wait_for()


@pytest.mark.parametrize("key", [HOSTILE_KEY, 'it\'s a "key" & $HOME/..'])
def test_any_text_is_a_key_and_never_markup(page: Console, key: str) -> None:
    shown = visit(page, f"/stores/aircraft/keys/{quote(key, safe='')}")
    shown.get_by_text("Both levels show the same value.").wait_for()
    assert shown.locator("h1").inner_text() == f"aircraft · {key}"
    assert shown.locator("main img, .value b").count() == 0


@pytest.mark.parametrize("key", ["..", ""])
def test_keys_that_no_path_can_have_are_asked_for_too(page: Console, key: str) -> None:
    shown = visit(page, f"/stores/aircraft/keys/?key={key}")
    shown.get_by_text("Both levels show the same: no such key.").wait_for()


def test_integers_beyond_what_javascript_holds_are_exact(page: Console) -> None:
    shown = visit(page, "/stores/distances/keys/3")
    level(shown, "read_committed").get_by_text(str(LARGE)).wait_for()


def test_the_curl_line_gets_what_is_shown(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N001")
    line = shown.get_by_label("The request as a curl line").inner_text()
    answer = json.loads(subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout)
    assert (answer["value"]["seats"], answer["isolation_level"]) == (51, "read_committed")


@pytest.mark.parametrize(
    ("store", "key", "neighbour"),
    [
        pytest.param("aircraft", "N001", "N002", marks=long_only("others have keys of a type")),
        ("distances", "3", "4"),
        ("routes", '["EWR","ORD"]', '["EWR","SFO"]'),
    ],
)
def test_a_key_leads_to_the_next_one_and_back(page: Console, store: str, key: str, neighbour: str) -> None:
    shown = visit(page, f"/stores/{store}/keys/{quote(key, safe='')}")
    shown.get_by_role("link", name="Next key: ").click()
    shown.locator("h1", has_text=f"{store} · {neighbour}").wait_for()
    shown.get_by_text("Both levels show the same value.").wait_for()
    shown.get_by_role("link", name="Previous key: ").click()
    shown.locator("h1", has_text=f"{store} · {key}").wait_for()
    shown.get_by_role("link", name=f"Store {store}").click()
    shown.locator("h1", has_text=re.compile(f"^{store}$")).wait_for()


# Versioned stores


def value(page: Page) -> Locator:
    return level(page, "read_committed").locator(".value")


def test_the_slider_shows_the_value_of_its_time(page: Console) -> None:
    shown = visit(page, JFK)
    slider = shown.get_by_role("slider", name="As of")
    value(shown).get_by_text("open again").wait_for()
    shown.get_by_role("button", name="Earlier change").click()  # it stands a little behind the last one
    shown.get_by_role("button", name="Earlier change").click()
    value(shown).get_by_text("snow").wait_for()
    assert slider.get_attribute("aria-valuetext") == "2013-02-27 22:00:00, 2013-02-27T22:00:00.000Z"
    slider.focus()
    shown.keyboard.press("ArrowLeft")  # a hundredth before the change
    value(shown).get_by_text('"open"').wait_for()
    shown.keyboard.press("End")
    value(shown).get_by_text("open again").wait_for()
    table = shown.get_by_role("table", name="Versions of JFK, the newest first")
    ends = table.locator("td:nth-child(2)")
    ends.nth(2).wait_for()
    assert ends.all_inner_texts() == ["still valid", "2013-02-27 23:00:00", "2013-02-27 22:00:00"]


def test_a_time_is_in_the_address_so_a_link_shows_the_same_and_back_works(page: Console) -> None:
    shown = visit(page, f"{JFK}?as_of={START_MS + HOUR_MS + 5}")
    value(shown).get_by_text("snow").wait_for()
    shown.get_by_role("button", name="Newest").click()
    value(shown).get_by_text("open again").wait_for()
    assert "as_of" not in query(shown)
    shown.go_back()
    value(shown).get_by_text("snow").wait_for()


@long_only("another test moves the slider")
def test_dragging_leaves_no_trail_for_back(page: Console) -> None:
    shown = visit(page, JFK)
    before = shown.evaluate("history.length")
    slider = shown.get_by_role("slider", name="As of")
    slider.focus()
    for _ in range(8):  # hundredths, of which the last change is five from the end
        shown.keyboard.press("ArrowLeft")
    value(shown).get_by_text("snow").wait_for()
    assert "as_of" in query(shown)
    shown.keyboard.press("Home")
    value(shown).get_by_text('"open"').wait_for()
    assert shown.evaluate("history.length") == before


@pytest.mark.parametrize(
    "written",
    [
        *("2013-02-27 22:30", "2013-02-28 00:30+02:00"),
        pytest.param("2013-02-27T22:30:00Z", marks=long_only("another one has a zone")),
        pytest.param("1362004200000", marks=long_only("it is what the address has, which another test opens")),
    ],
)
def test_a_time_is_typed_as_people_write_it(page: Console, written: str) -> None:
    shown = visit(page, JFK)
    shown.get_by_role("textbox", name="As of").fill(written)
    shown.keyboard.press("Enter")
    value(shown).get_by_text("snow").wait_for()
    assert query(shown)["as_of"] == "1362004200000"


def test_what_is_no_time_is_said_with_what_to_write(page: Console) -> None:
    shown = visit(page, JFK)
    field = shown.get_by_role("textbox", name="As of")
    field.fill("yesterday")
    shown.keyboard.press("Enter")
    shown.get_by_text("'yesterday' is no time: write 2013-03-01 12:00, ISO 8601, or milliseconds.").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    assert "as_of" not in query(shown)


def test_a_time_in_the_address_that_is_none_is_said_so_too(page: Console) -> None:
    shown = visit(page, f"{JFK}?as_of=tomorrow")
    shown.get_by_text("'tomorrow' is no time: write 2013-03-01 12:00").wait_for()


def test_members_that_changed_between_two_versions_are_marked(page: Console) -> None:
    shown = visit(page, JFK)
    changed = shown.get_by_role("table", name="Members that differ")
    changed.wait_for()
    rows = changed.locator("tbody tr")
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        ["state", "snow", "open again"],
        ["runways", "3", "2"],
    ]
    assert changed.locator(".changed").all_inner_texts() == ["open again", "2"]
    versions = shown.get_by_role("table", name="Versions of JFK, the newest first")
    versions.locator("tbody tr").last.get_by_role("link", name="compare").click()
    changed.get_by_text("4", exact=True).wait_for()
    assert query(shown)["compare"] == str(START_MS)
    assert rows.last.inner_text().split("\t") == ["runways", "4", "2"]


def test_versions_are_steps_of_a_number_in_them_and_a_step_leads_to_its_time(page: Console) -> None:
    shown = visit(page, JFK)
    drawing = shown.get_by_role("img", name="runways of JFK over time: 3 bars")
    drawing.wait_for()
    assert "numbers from 2 to 4" in (drawing.get_attribute("aria-label") or "")
    drawing.locator("rect").nth(1).click()
    value(shown).get_by_text("snow").wait_for()
    assert query(shown)["as_of"] == str(START_MS + HOUR_MS)


def test_before_the_first_version_there_is_no_value(page: Console) -> None:
    shown = visit(page, f"{JFK}?as_of={START_MS - 1}")
    level(shown, "read_committed").get_by_text("No value at that time").wait_for()


# Windows and sessions


def entries(page: Console, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{page.url.removesuffix(JFK)}/v1/stores/{path}").json()["entries"]
    return found


def test_windows_are_bars_of_the_number_that_was_picked(page: Console) -> None:
    expected = entries(page, "hourly/keys/JFK/windows")
    shown = visit(page, "/stores/hourly/keys/JFK")
    for field in ("delay.total", "flights"):
        shown.get_by_label("Drawn").select_option(field)
        drawing = shown.get_by_role("img", name=f"{field} of JFK by time: {len(expected)} bars")
        drawing.wait_for()
        titles = drawing.locator("rect title").evaluate_all("all => all.map(t => t.textContent)")
        values = [e["value"]["flights"] if field == "flights" else e["value"]["delay"]["total"] for e in expected]
        assert [int(re.sub(r".*: ", "", title)) for title in titles] == values
        assert query(shown)["number"] == field
    assert shown.get_by_role("table", name="Windows of JFK").locator("tbody tr").count() == len(expected)


def test_windows_of_a_time_are_in_the_address(page: Console) -> None:
    shown = visit(page, "/stores/hourly/keys/JFK")
    shown.get_by_role("textbox", name="First start").fill("2013-02-27 22:00")
    shown.get_by_role("textbox", name="Last start").fill("2013-02-27 23:00")
    shown.keyboard.press("Enter")
    rows = shown.get_by_role("table", name="Windows of JFK").locator("tbody th")
    rows.nth(2).wait_for(state="detached")
    assert rows.all_inner_texts() == ["2013-02-27 23:00:00", "2013-02-27 22:00:00"]
    assert query(shown) == {"from": str(START_MS + HOUR_MS), "to": str(START_MS + 2 * HOUR_MS)}
    shown.reload()
    rows.nth(1).wait_for()
    assert rows.count() == 2


def test_sessions_are_bars_from_where_they_start_to_where_they_end(page: Console) -> None:
    expected = entries(page, "rushes/keys/EWR/sessions")
    shown = visit(page, "/stores/rushes/keys/EWR")
    shown.get_by_role("heading", name="Sessions").wait_for()
    spans = shown.locator(".spans rect")
    spans.nth(len(expected) - 1).wait_for(state="attached")
    places = spans.evaluate_all("all => all.map((r) => [r.getAttribute('x'), r.getAttribute('width')].map(parseFloat))")
    first, last = expected[0]["start"], max(each["end"] for each in expected)
    for (x, width), session in zip(places, expected, strict=True):
        assert x == pytest.approx(100 * (session["start"] - first) / (last - first))
        assert width == pytest.approx(max(0.25, 100 * (session["end"] - session["start"]) / (last - first)))


def test_a_key_without_windows_is_said_so(page: Console) -> None:
    shown = visit(page, "/stores/hourly/keys/nobody")
    shown.get_by_text("This key has no windows there.").wait_for()


# As it changes


def test_changes_come_by_the_feed_the_newest_first_each_with_what_it_changed(browser: Browser, moving: Served) -> None:
    made, url = moving
    with console(browser, f"{url}/stores/aircraft/keys/N001?every=live", SHOWN) as opened:
        shown = opened.page
        shown.get_by_text("Connected. 0 changes read").wait_for()
        produce(made.log, "flights", [*seats("N001", 7), *seats("N002", 99)])
        shown.get_by_role("table", name="Changes of N001").get_by_text('"seats": 7').wait_for()
        produce(made.log, "flights", seats("N001", 8, 1))
        table = shown.get_by_role("table", name="Changes of N001")
        table.get_by_text("seats: 7 → 8").wait_for()
        rows = table.locator("tbody tr").all_inner_texts()
        assert ['"seats": 8' in rows[0], '"seats": 7' in rows[1], len(rows)] == [True, True, 2]
        level(shown, "read_committed").get_by_text("seats: 8").wait_for()  # what is shown is asked for again
        shown.get_by_role("img", name="seats of N001 by timestamp: 2 bars").wait_for()


def test_the_feed_can_begin_with_what_the_log_still_has(browser: Browser, moving: Served) -> None:
    with console(browser, f"{moving[1]}/stores/hourly/keys/JFK?every=live&since=earliest", SHOWN) as opened:
        table = opened.page.get_by_role("table", name="Changes of JFK")
        table.wait_for()
        assert table.locator("thead th").all_inner_texts() == ["Seen", "Stretch", "Value", "Changed"]


def test_a_deletion_is_a_change(browser: Browser, moving: Served) -> None:
    made, url = moving
    with console(browser, f"{url}/stores/aircraft/keys/N003?every=live", SHOWN) as opened:
        opened.page.get_by_text("Connected. 0 changes read").wait_for()
        produce(made.log, "flights", [(b"N003", None, START_MS + HOUR_MS)])
        opened.page.get_by_role("table", name="Changes of N003").get_by_text("deleted").wait_for()


@long_only("test_key_moving.py asks every second, too")
def test_asking_every_second_lists_what_changed_between_two_answers(browser: Browser, moving: Served) -> None:
    made, url = moving
    with console(browser, f"{url}/stores/aircraft/keys/N004", SHOWN) as opened:
        shown = opened.page
        shown.get_by_label("Watch", exact=True).select_option("by asking every second")
        shown.get_by_text("No change seen yet.").wait_for()
        assert query(shown)["every"] == "1"
        level(shown, "read_committed").get_by_text("seats: 54").wait_for()
        produce(made.log, "flights", seats("N004", 70))
        shown.get_by_role("table", name="Changes of N004").get_by_text('"seats": 70').wait_for()


def test_a_page_that_nobody_sees_lets_go_of_the_feed_and_goes_on_where_it_was(browser: Browser, moving: Served) -> None:
    made, url = moving
    with console(browser, f"{url}/stores/aircraft/keys/N005?every=live", SHOWN) as opened:
        shown = opened.page
        shown.get_by_text("Connected. 0 changes read").wait_for()
        produce(made.log, "flights", seats("N005", 1))
        shown.get_by_role("table", name="Changes of N005").wait_for()
        with shown.expect_event("requestfailed", lambda request: "/changes" in request.url):
            _hide(shown, hidden=True)
        produce(made.log, "flights", seats("N005", 2, 1))
        with shown.expect_request("**/changes*") as asked:
            _hide(shown, hidden=False)
        assert "last-event-id" in asked.value.headers
        shown.get_by_text("seats: 1 → 2").wait_for()


def _hide(page: Page, *, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_an_open_key_asks_once_and_nothing_more_until_it_is_watched(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N001")
    shown.get_by_role("link", name="Next key: ").wait_for()
    shown.get_by_text("Both levels show the same value.").wait_for()
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.hurry()
    for _ in range(2):
        with shown.expect_response("**/v1/console*"):
            pass
    assert set(asked) == {"/v1/console"}


def test_a_key_that_was_opened_out_of_sight_is_asked_for_once_it_is_seen(browser: Browser, served: Served) -> None:
    with browser.new_context() as context:
        context.set_default_timeout(1000 * HANGING_S)
        page = context.new_page()
        page.add_init_script("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.goto(f"{served[1]}/stores/aircraft/keys/N001")
        page.locator("h1").wait_for()
        _hide(page, hidden=False)
        page.get_by_text("Both levels show the same value.").wait_for()


# Positions


def test_a_position_that_is_awaited_is_reached_when_the_record_is_committed(browser: Browser, moving: Served) -> None:
    made, url = moving
    with console(browser, f"{url}/stores/aircraft/keys/N006", SHOWN) as opened:
        shown = opened.page
        shown.get_by_role("button", name="One record further").click()
        shown.get_by_label("Wait, in ms").fill("30000")
        with shown.expect_request("**position_bound**") as asked:
            shown.get_by_role("button", name="Wait", exact=True).click()
        shown.get_by_text("Waiting, 30.0 s at most").wait_for()
        produce(made.log, "flights", seats("N006", 60))
        shown.get_by_text(re.compile(r"Reached after .*: at read_committed the store is at flights-\d @")).wait_for()
        assert "wait_ms=30000" in asked.value.url
        level(shown, "read_committed").get_by_text("seats: 60").wait_for()


def test_a_position_that_is_not_reached_in_time_is_said_plainly(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N001")
    shown.get_by_role("button", name="One record further").click()
    shown.get_by_label("Wait, in ms").fill("50")
    shown.keyboard.press("Enter")
    told = shown.get_by_role("alert").filter(has_text="Not reached in that time.")
    told.wait_for()
    at, wanted = (int(fact(told, name).rpartition(" ")[2]) for name in ("It is at", "Wanted"))
    assert wanted == at + 1


def test_a_position_in_the_address_is_waited_for(page: Console) -> None:
    shown = visit(page, "/stores/rushes/keys/EWR?position_bound=" + quote('{"departures": {"0": 0}}') + "&wait_ms=1000")
    told = shown.get_by_text("Reached after")
    told.wait_for()
    assert "at read_committed the store is at departures-" in told.inner_text()  # as what is shown


def test_a_text_that_is_no_position_is_refused_in_the_servers_words(page: Console) -> None:
    shown = visit(page, "/stores/aircraft/keys/N001")
    shown.get_by_label("Position, as JSON").fill("tomorrow")
    shown.get_by_role("button", name="Wait", exact=True).click()
    shown.get_by_role("alert").filter(has_text="INVALID_ARGUMENT").wait_for()


# Small and large screens


@long_only("test_console_accessibility.py has places of keys at four widths")
@pytest.mark.parametrize("path", ["aircraft/keys/N001", "airports/keys/JFK", "hourly/keys/JFK", "rushes/keys/EWR"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_wider_than_the_window(page: Console, path: str, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 900})
    shown = visit(page, f"/stores/{path}?every=1")
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    page.page.set_viewport_size({"width": 1280, "height": 900})
