"""The console's overview, in a real Chromium: what is wrong, and the last hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.console.canvas import coloured
from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.console.told import change_look, say
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Served = tuple[Flights, str]
HISTORY = "/v1/console/history"
NAMES = [
    *("ingest_per_s", "commits_per_s", "commit_age_ms", "lag"),
    *("queries_per_s", "p50_ms", "p99_ms", "restore_remaining"),
]
POINTS = 720


@pytest.fixture(scope="module")
def opened(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, served[1]) as opened:
        yield opened


@pytest.fixture
def page(opened: Console) -> Console:
    """The overview of what the server really says."""
    opened.page.unroute_all(behavior="ignoreErrors")
    opened.visit("")
    opened.page.locator(".card").first.wait_for()
    return opened


class Hour:
    """An hour of points, one every five seconds, to which one is added whenever the page asks for new ones."""

    def __init__(self) -> None:
        now = int(time.time() * 1000)
        self.points = [self.point(now - (POINTS - i) * 5000) for i in range(POINTS)]
        self.since: list[int | None] = []

    def point(self, at_ms: int) -> list[float | None]:
        return [at_ms, 40.0, 10.0, 90, 0, 3.5, 2.0, 9.0, 0]

    def answer(self, given: dict[str, str]) -> dict[str, Any]:
        since = int(given["since_ms"]) if "since_ms" in given else None
        self.since.append(since)
        if since is not None:
            self.points.append(self.point(since + 5000))
        points = [p for p in self.points if since is None or (p[0] or 0) > since]
        return {"interval_ms": 5000, "names": NAMES, "points": points}


def rows(page: Console, chart: str) -> int:
    """How many points a chart's table says that there are, itself cut to the newest 500."""
    page.page.get_by_text(f"{chart} as a table").click()
    table = page.page.get_by_role("table", name=chart)
    caption = table.locator("caption").inner_text()
    found = int(caption.rpartition(" of ")[2]) if " of " in caption else table.locator("tbody tr").count()
    page.page.get_by_text(f"{chart} as a table").click()
    return found


def test_what_the_server_really_keeps_is_drawn(page: Console) -> None:
    chart = page.page.get_by_role("img", name="Records taken in, per second")
    chart.locator("canvas").wait_for()
    assert "taken in: " in (chart.get_attribute("aria-label") or "")


def test_a_page_that_opens_late_sees_the_past_and_new_points_are_added_to_it(page: Console) -> None:
    hour = Hour()
    say(page.page, HISTORY, hour.answer)
    page.page.reload()
    page.page.get_by_role("img", name="Commits, per second").locator("canvas").wait_for()
    assert rows(page, "Commits, per second") == POINTS
    last = hour.points[-1][0]
    with page.page.expect_request(lambda request: f"since_ms={last}" in request.url):
        page.hurry()
    page.page.get_by_role("img", name="Commits, per second").wait_for()
    assert hour.since[:2] == [None, last], "what is known is not asked for again"


def test_how_much_is_shown_is_in_the_address(page: Console) -> None:
    say(page.page, HISTORY, Hour().answer)
    page.page.reload()
    page.page.get_by_role("link", name="5 minutes", exact=True).click()
    page.page.wait_for_url("**from=5*")
    page.page.locator("a[aria-current=true]", has_text="5 minutes").wait_for()
    assert rows(page, "Commits, per second") == 61
    page.page.reload()
    page.page.get_by_role("img", name="Commits, per second").locator("canvas").wait_for()
    assert page.page.get_by_role("link", name="5 minutes", exact=True).get_attribute("aria-current") == "true"
    page.page.go_back()
    page.page.locator("a[aria-current=true]", has_text="60 minutes").wait_for()


# Lets tests see what each chart shows of its times: uPlot keeps that to itself.
WITNESS = """
let library; window.plots = [];
const kept = { construct(made, given) { const plot = new made(...given); window.plots.push(plot); return plot; } };
Object.defineProperty(window, "uPlot", { get: () => library, set: (loaded) => { library = new Proxy(loaded, kept); } });
"""


def shown(page: Console) -> list[list[int]]:
    """From when to when each chart is drawn."""
    found: list[list[int]] = page.page.evaluate(
        "plots.map(({ scales }) => [Math.round(scales.x.min), Math.round(scales.x.max)])"
    )
    return found


def wait_for_zoom(page: Console, begin: int, end: int) -> None:
    """Until all six charts are drawn so: they are, a moment after the page says it."""
    page.page.wait_for_function(
        """([begin, end]) => plots.length === 6 && plots.every(
          ({ scales: { x } }) => Math.round(x.min) === begin && Math.round(x.max) === end)""",
        arg=[begin, end],
    )


def test_a_drag_zooms_all_charts_which_new_points_do_not_undo(page: Console) -> None:
    hour = Hour()
    say(page.page, HISTORY, hour.answer)
    page.page.add_init_script(WITNESS)
    page.page.reload()
    page.page.get_by_role("img", name="Commits, per second").locator("canvas").wait_for()
    page.page.wait_for_function("() => plots.length === 6")
    all_of_it = shown(page)[0]
    over = page.page.locator(".plot .u-over").first.bounding_box()
    assert over is not None
    for x, act in ((0.25, page.page.mouse.down), (0.5, page.page.mouse.up)):
        page.page.mouse.move(over["x"] + over["width"] * x, over["y"] + 20, steps=4)
        act()
    page.page.wait_for_url("**zoom=*")
    begin, end = (int(part) for part in parse_qs(urlsplit(page.page.url).query)["zoom"][0].split(".."))
    assert (end - begin) / (all_of_it[1] - all_of_it[0]) == pytest.approx(0.25, abs=0.01)
    page.page.get_by_text("Zoomed to").wait_for()
    wait_for_zoom(page, begin, end)
    polls = len(hour.since)
    page.hurry()
    for _ in range(2):  # what the first brought is drawn by the second
        with page.page.expect_response(f"**{HISTORY}?since_ms=*"):
            pass
    assert len(hour.since) >= polls + 2
    assert shown(page) == [[begin, end]] * 6
    page.page.reload()
    wait_for_zoom(page, begin, end)
    page.page.get_by_role("button", name="Show all").click()
    page.page.wait_for_function(f"() => plots.every(({{ scales }}) => scales.x.max > {end} + 60_000)")
    page.page.go_back()
    page.page.get_by_text("Zoomed to").wait_for()
    page.page.locator(".plot .u-over").first.dblclick()
    page.page.get_by_text("Zoomed to").wait_for(state="detached")
    assert "zoom" not in page.page.url


@long_only("test_a_drag_zooms_all_charts_which_new_points_do_not_undo ends one by a click")
def test_minutes_end_a_zoom(page: Console) -> None:
    hour = Hour()
    say(page.page, HISTORY, hour.answer)
    page.visit(f"?from=5&zoom={hour.points[100][0]}..{hour.points[200][0]}")
    page.page.get_by_role("img", name="Commits, per second").locator("canvas").wait_for()
    assert rows(page, "Commits, per second") == 101, "older than five minutes"
    assert page.page.locator("main a[aria-current=true]").count() == 0
    page.page.get_by_role("link", name="15 minutes").click()
    page.page.wait_for_url("**?from=15")
    page.page.get_by_text("Zoomed to").wait_for(state="detached")


def test_a_hole_in_the_past_is_no_line(page: Console) -> None:
    hour = Hour()
    del hour.points[300:400]
    say(page.page, HISTORY, hour.answer)
    page.page.reload()
    page.page.get_by_text("Commits, per second as a table").click()
    missing = page.page.get_by_role("table", name="Commits, per second").locator("tr", has_text="none")
    missing.wait_for()
    assert missing.count() == 1


@long_only("another line is drawn by the first test")
def test_a_line_of_noughts_is_drawn(page: Console) -> None:
    hour = Hour()
    for point in hour.points:
        point[5] = 0.0
    say(page.page, HISTORY, hour.answer)
    page.page.reload()
    chart = page.page.get_by_role("img", name="Queries, per second")
    chart.locator("canvas").wait_for()
    assert len(coloured(chart.locator("canvas"))) > 100


def test_a_token_that_may_not_know_of_queries_sees_the_other_charts(page: Console) -> None:
    hour = Hour()
    for point in hour.points:
        point[5:8] = [None, None, None]
    say(page.page, HISTORY, hour.answer)
    page.page.reload()
    page.page.get_by_role("img", name="Records taken in, per second").locator("canvas").wait_for()
    assert page.page.get_by_role("img", name="Time to answer queries").count() == 0
    page.page.get_by_text("need a token for all stores").wait_for()


def test_a_history_that_cannot_be_had_is_said(page: Console) -> None:
    say(page.page, HISTORY, {"title": "no", "status": 503, "detail": "The server is closing."}, status=503)
    page.page.reload()
    page.page.get_by_role("alert").get_by_text("The server is closing.").wait_for()


def test_all_is_well_until_something_is_not(page: Console) -> None:
    page.page.get_by_text("Every store can be queried.").wait_for()
    pipeline = {"reads": ["a"], "writes": "b", "tables": [], "static": [], "branches": []}
    status = {"state": "failed", "last_error": "<b>no</b>", "next_start_at_ms": None}

    def broken(said: dict[str, Any]) -> dict[str, Any]:
        first, second, *others = said["stores"]
        slow = first | {"states": {"restoring": 2}, "lag": 1234}
        lost = second | {"states": {"unknown": 2}}
        return {"stores": [slow, lost, *others], "pipelines": {"delays": pipeline | {"status": status}}}

    change_look(page.page, broken)
    page.hurry()
    alerts = page.page.get_by_role("list", name="Needs attention").get_by_role("listitem")
    alerts.nth(2).wait_for()
    told = alerts.all_inner_texts()
    assert told[0].startswith("broken Pipeline delays is failed: <b>no</b> Fix the error")
    assert told[1].startswith("broken Store airports: 2 unknown No worker has these partitions. Start one")
    assert told[2].startswith("look Store aircraft is being restored: 1,234 offsets left")
    page.page.get_by_role("list").get_by_text("failed", exact=True).wait_for()  # pipelines have a line
    page.page.get_by_role("link", name="Store airports: 2 unknown").click()
    page.page.wait_for_url("**/stores/airports?tab=partitions")


def test_a_worker_that_tells_nothing_of_itself_and_records_that_failed_are_told(page: Console) -> None:
    def stands_still(said: dict[str, Any]) -> dict[str, Any]:
        (name,) = said["workers"]
        return {"workers": {name: {"told_at_ms": int(time.time() * 1000) - 40_000, "failed": 3}}}

    page.page.get_by_text("Every store can be queried.").wait_for()
    change_look(page.page, stands_still)
    page.hurry()
    alerts = page.page.get_by_role("list", name="Needs attention").get_by_role("listitem")
    alerts.nth(1).wait_for()
    told = alerts.all_inner_texts()
    assert told[0].startswith("broken Worker worker-0 has sent no figures for 4")
    assert told[1].startswith("look 3 records failed since the workers started")
    page.page.get_by_role("link", name="3 records failed").click()
    page.page.wait_for_url("**/failures")


def test_a_step_that_drops_more_than_one_record_in_a_hundred_is_told(page: Console) -> None:
    def dropping(said: dict[str, Any]) -> dict[str, Any]:
        (name,) = said["workers"]
        steps = {
            "count per_hour": {"taken": 1_000, "dropped": {"late": 8, "no_key": 1}},
            "count per_day": {"taken": 1_000, "dropped": {"late": 5}},
        }
        now, worker = int(time.time() * 1000), said["workers"][name] | {"steps": steps}
        return {"workers": {name: worker | {"told_at_ms": now}, "other": worker | {"told_at_ms": now, "steps": more}}}

    more = {"count per_hour": {"taken": 500, "dropped": {"late": 7}}}
    page.page.get_by_text("Every store can be queried.").wait_for()
    change_look(page.page, dropping)
    page.hurry()
    alerts = page.page.get_by_role("list", name="Needs attention").get_by_role("listitem")
    alerts.first.wait_for()
    (told,) = alerts.all_inner_texts()
    assert told.startswith("look Step count per_hour dropped 16 of 1,500 records: late 15, no_key 1")
    page.page.get_by_role("link", name="Step count per_hour").click()
    page.page.wait_for_url("**/failures")


def test_while_nobody_answers_nothing_is_called_well(page: Console) -> None:
    page.page.get_by_text("Every store can be queried.").wait_for()
    page.page.route("**/v1/console", lambda route: route.abort())
    page.hurry()
    page.page.get_by_role("alert").get_by_text("The server does not answer.").first.wait_for()
    assert page.page.get_by_text("Every store can be queried.").count() == 0
