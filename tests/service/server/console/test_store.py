"""The place of one store in the console: its entries in a grid, pages, files, in a real Chromium over a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from stateline.server.guard.tokens import hash_of
from support.apps.console_app import HOSTILE_KEY, LARGE
from support.console.console_browser import Flights
from support.console.console_page import Console, console, query_of
from support.console.told import change_look
from support.processes.ports import free_port
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

Served = tuple[Flights, str]
pytestmark = pytest.mark.usefixtures("unrouted")

NDJSON = "application/x-ndjson"


def show(page: Console, address: str) -> None:
    """Open a store's address, once it has a row."""
    page.visit(f"stores/{address}")
    page.page.locator(".tabulator-row").first.wait_for()


def column(page: Console, number: int) -> list[str]:
    """The texts of a column, from the first row on as far as the grid has them in the page."""
    return page.page.locator(f".tabulator-row .tabulator-cell[tabulator-field=c{number}]").all_text_contents()


def headings(page: Console) -> list[str]:
    return page.page.locator(".sorts").all_text_contents()


def answered_by(page: Console, lines: list[Any]) -> None:
    """Let streams of entries be these."""

    def answer(route: Route) -> None:
        if NDJSON not in route.request.headers["accept"]:
            return route.continue_()
        return route.fulfill(body="".join(json.dumps(line) + "\n" for line in lines), content_type=NDJSON)

    page.page.route("**/v1/stores/**", answer)


# The grid


def test_a_store_shows_its_entries_at_once_with_the_members_of_values_as_columns(page: Console) -> None:
    show(page, "hourly")
    assert headings(page) == ["key", "start", "end", "flights", "delay.total"]
    assert "Status 200" in page.told()
    show(page, "distances")
    assert headings(page) == ["key", "value"]
    assert set(column(page, 1)) == {str(LARGE)}


def test_times_are_in_the_readers_zone_with_utc_beside_them(page: Console) -> None:
    show(page, "hourly?ask=key_windows&key=JFK")
    cell = page.page.locator(".tabulator-cell").first
    assert cell.inner_text() == "2013-02-27 16:00:00"
    assert cell.get_attribute("title") == "2013-02-27T21:00:00.000Z"


def test_a_click_on_a_heading_sorts_by_number_and_back_undoes_it(page: Console) -> None:
    show(page, "distances")
    before = column(page, 0)
    key = page.page.get_by_role("button", name="key")
    key.click()
    page.page.wait_for_url("**sort=key")
    page.page.locator("[aria-sort=ascending]").wait_for()
    assert column(page, 0)[:12] == [str(n) for n in range(12)]
    key.click()
    page.page.wait_for_url("**sort=-key")
    page.page.locator("[aria-sort=descending]").wait_for()
    assert column(page, 0)[:3] == ["59", "58", "57"]
    page.page.go_back()
    page.page.go_back()
    page.page.locator("[aria-sort=descending]").wait_for(state="detached")
    assert column(page, 0)[:12] == before[:12]


def test_a_link_to_sorted_found_and_chosen_columns_shows_the_same(page: Console) -> None:
    show(page, "aircraft?prefix=N&find=N00&sort=-seats&columns=key,seats")
    assert headings(page) == ["key", "seats ▼"]
    assert column(page, 0) == [f"N{number:03}" for number in range(9, -1, -1)]
    page.page.get_by_label("Find in these rows").fill("N004")
    page.page.get_by_text("1 of 60 rows").wait_for()
    assert query_of(page)["find"] == ["N004"]
    page.page.get_by_text("Columns: 2 of 4").click()
    page.page.get_by_label("carrier").check()
    page.page.get_by_text("Columns: 3 of 4").wait_for()
    page.page.locator(".sorts", has_text="carrier").wait_for()
    assert headings(page) == ["key", "seats ▼", "carrier"]
    assert query_of(page)["columns"] == ["key,seats,carrier"]


def test_a_click_on_a_row_opens_it_and_the_arrow_keys_go_on(page: Console) -> None:
    show(page, "aircraft?prefix=N")
    page.page.locator(".tabulator-row").first.click()
    opened = page.page.locator(".row")
    assert opened.locator("h3 a").get_attribute("href") == page.url.replace("/stores", "/stores/aircraft/keys/N000")
    assert "seats: 50" in opened.inner_text()
    assert query_of(page)["open"] == ["N000"]
    page.page.locator(".tabulator-tableholder").focus()
    page.page.keyboard.press("ArrowDown")
    opened.get_by_text("N001").first.wait_for()
    page.page.locator("[aria-selected=true][data-id=N001]").wait_for()
    opened.get_by_role("button", name="Close").click()
    opened.wait_for(state="detached")


def test_a_json_key_is_linked_by_the_text_that_it_has(page: Console, served: Served) -> None:
    show(page, "routes")
    page.page.locator(".tabulator-row").first.click()
    link = page.page.locator(".row h3 a").get_attribute("href") or ""
    with httpx.Client() as client:
        found = client.get(link.replace("/stores/", "/v1/stores/")).json()
    assert found["found"] is True


def test_data_never_becomes_markup(page: Console) -> None:
    answered_by(page, [{"key": HOSTILE_KEY, "value": {HOSTILE_KEY: {"<b>x</b>": HOSTILE_KEY}}, "timestamp": 1}])
    show(page, "aircraft?rows=all")
    assert f"{HOSTILE_KEY}.<b>x</b>" in headings(page)
    assert HOSTILE_KEY in page.page.locator(".row").inner_text()
    assert page.page.locator("main img, main b").count() == 0
    assert page.page.title() == "aircraft · flights"


# Pages, all rows, files


def test_pages_go_on_and_back_on_one_state(page: Console) -> None:
    show(page, "aircraft?prefix=N0&limit=25")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/range" in request.url else None)
    pages = {1: column(page, 0)}

    def turn(button: str, number: int) -> list[str]:
        page.page.get_by_role("button", name=button).click()
        page.page.get_by_text(f"Page {number}", exact=True).wait_for()
        page.page.locator("#summary").filter(has_not_text="Asking").wait_for()
        last = f"N{min(25 * number, 60) - 1:03}"
        page.page.evaluate("document.querySelector('.tabulator-tableholder').scrollTop = 0")
        page.page.locator(f".tabulator-row[data-id=N{25 * (number - 1):03}]").wait_for()
        assert last >= column(page, 0)[-1]
        return column(page, 0)

    pages[2] = turn("Next page", 2)
    pages[3] = turn("Next page", 3)
    assert [pages[n][0] for n in (1, 2, 3)] == ["N000", "N025", "N050"]
    assert page.page.get_by_role("button", name="Next page").is_disabled()
    assert len(asked) == 2
    assert turn("Previous page", 2)[0] == "N025"
    assert turn("Previous page", 1)[0] == "N000"
    assert len(asked) == 2, "pages that were seen are kept"
    assert page.page.get_by_role("button", name="Previous page").is_disabled()


def test_a_link_to_a_page_shows_that_page_and_the_ones_after_it_and_can_begin_anew(
    page: Console, browser: Browser, served: Served
) -> None:
    show(page, "aircraft?prefix=N0&limit=20")
    page.page.get_by_role("button", name="Next page").click()
    page.page.locator(".tabulator-row[data-id=N020]").wait_for()
    with console(browser, page.page.url, ".tabulator-row[data-id=N020]") as other:
        shown = other.page
        shown.get_by_text("Page 2", exact=True).wait_for()
        assert shown.get_by_role("button", name="Previous page").count() == 0, "what was before it is not known"
        shown.get_by_role("button", name="Next page").click()
        shown.locator(".tabulator-row[data-id=N040]").wait_for()
        shown.get_by_text("Page 3", exact=True).wait_for()
        shown.get_by_role("button", name="Previous page").click()
        shown.locator(".tabulator-row[data-id=N020]").wait_for()
        shown.get_by_role("button", name="First page, as it is now").click()
        shown.locator(".tabulator-row[data-id=N000]").wait_for()
        shown.get_by_text("Page 1", exact=True).wait_for()
        assert "page" not in parse_qs(urlsplit(shown.url).query)


@long_only("few values have so many")
def test_values_with_hundreds_of_members_show_the_first_200_columns_and_say_so(page: Console) -> None:
    wide = {f"m{number}": number for number in range(300)}
    answered_by(page, [{"key": "A", "value": wide}])
    show(page, "aircraft?rows=all")
    page.page.get_by_text("Columns: 200 of 301").click()
    page.page.get_by_role("checkbox", name="m299").check()
    page.page.get_by_text("Columns: 201 of 301").wait_for()


def test_a_page_whose_state_is_gone_says_to_ask_anew(page: Console, served: Served) -> None:
    with served[0].server(free_port(), "server.cursors.max=1") as url, httpx.Client(base_url=url) as client:
        first = client.get("/v1/stores/aircraft/range?limit=2").json()["cursor"]
        client.get("/v1/stores/airports/range?limit=1")
        client.get("/v1/stores/hourly/windows?limit=2")  # the only one that is kept
        page.page.goto(f"{url}/stores/aircraft?cursor={first}&limit=2")
        page.page.locator(".problem", has_text="CURSOR_EXPIRED").wait_for()
        page.page.get_by_role("button", name="Ask again").click()
        page.page.locator(".tabulator-row").first.wait_for()
        assert "cursor" not in query_of(page)
        page.complaints.clear()  # another server than that of the other tests


@long_only("it has a hundred thousand rows, and the next test some")
def test_all_rows_are_one_stream_of_which_few_are_in_the_page(page: Console) -> None:
    answered_by(page, [{"key": f"K{n:06}", "value": {"n": n}, "timestamp": n} for n in range(100_001)])
    show(page, "aircraft?rows=all")
    page.page.get_by_text("The first 100,000 rows: there are more.").wait_for()
    page.page.locator("p", has_text=re.compile("^100,000 rows$")).wait_for()
    page.page.evaluate("document.querySelector('.tabulator-tableholder').scrollTop = 1e9")
    page.page.locator(".tabulator-row[data-id=K099999]").wait_for()
    assert page.page.locator(".tabulator-row").count() < 200
    page.page.get_by_role("button", name="n", exact=True).click()
    page.page.locator("[aria-sort=ascending]").wait_for()
    page.page.get_by_role("button", name="n", exact=True).click()
    page.page.locator(".tabulator-row[data-id=K099999]").wait_for()


def test_all_rows_of_a_real_stream_are_those_of_its_pages(page: Console) -> None:
    show(page, "aircraft?prefix=N&limit=25")
    page.page.get_by_role("button", name="All rows", exact=True).click()
    page.page.get_by_text("All 60 rows, of one state.").wait_for()
    page.page.get_by_text(re.compile(r"Read at read_\w+, up to flights-0 @ \d+")).wait_for()
    page.page.get_by_role("button", name="Page by page").click()
    page.page.get_by_text("Page 1", exact=True).wait_for()


def test_reading_all_rows_can_be_stopped(page: Console) -> None:
    held: list[Route] = []
    page.page.route("**/v1/stores/aircraft/range**", lambda route: held.append(route))
    page.visit("stores/aircraft?rows=all")
    page.page.get_by_role("button", name="Stop").click()
    page.page.get_by_text("Stopped after 0 rows.").wait_for()


# Everywhere


def test_streams_are_asked_with_the_token_too(browser: Browser, served: Served, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    entry = {"name": "ops", "sha256": hash_of("s3cret").hex(), "role": "admin"}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    tokens.chmod(0o600)
    with (
        served[0].server(free_port(), f"server.tokens.file={tokens}") as url,
        console(browser, f"{url}/stores/aircraft?rows=all&prefix=N", "#token") as opened,
    ):
        opened.page.fill("#token", "s3cret")
        opened.page.keyboard.press("Enter")
        opened.page.get_by_text("All 60 rows, of one state.").wait_for()
        opened.page.get_by_role("link", name="Changes").click()
        opened.page.locator("#feed", has_text="Connected.").wait_for()
        assert "s3cret" not in opened.page.content()


@long_only("test_console_accessibility.py has places of stores at four widths")
@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize(
    "address",
    ["aircraft", "hourly?open=JFK", "airports?tab=changes", "hourly?tab=chart", "rushes?tab=partitions", "routes"],
)
def test_nothing_is_wider_than_the_window(page: Console, width: int, address: str) -> None:
    page.page.set_viewport_size({"width": width, "height": 900})
    page.visit(f"stores/{address}")
    page.page.locator(".tabulator-row, .chart canvas, table, .nothing").first.wait_for()
    assert page.page.evaluate("document.scrollingElement.scrollWidth") == width
    page.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_store_that_is_not_there_is_said_so(page: Console) -> None:
    page.visit("stores/nothing")
    page.page.get_by_text("There is no store nothing here").wait_for()


def test_a_partition_of_another_node_has_a_worker_there(page: Console) -> None:
    def answer(route: Route) -> None:
        response = route.fetch()
        told = response.json() | {"cluster": {"node": "one", "nodes": {}, "tasks": []}}
        told["partitions"] = {p: each | {"node": "two", "owner": None} for p, each in told["partitions"].items()}
        route.fulfill(response=response, body=json.dumps(told))

    page.page.route("**/v1/console?*", answer)
    page.visit("stores/aircraft?tab=partitions")
    page.page.locator("td", has_text="of two").first.wait_for()


def test_partitions_have_their_state_and_positions(page: Console) -> None:
    page.visit("stores/airports?tab=partitions")
    page.page.locator("td", has_text=re.compile(r"airport-status-\d @ 2")).first.wait_for()
    assert page.page.locator("tbody tr").count() == 2


def test_the_partition_whose_input_lags_says_by_how_many_records(page: Console) -> None:
    def behind(said: dict[str, Any]) -> dict[str, Any]:
        partitions = dict(said["partitions"])
        partitions["1"] = partitions["1"] | {"input_lag": {"airport-status": 12_345}}
        stores = [s | {"input_lag": 12_345} if s["store"] == "airports" else s for s in said["stores"]]
        return {"partitions": partitions, "stores": stores}

    change_look(page.page, behind)
    page.visit("stores/airports?tab=partitions")
    table = page.page.get_by_role("table", name="Partitions of airports")
    table.get_by_text("12,345").wait_for()
    heads = table.locator("th[scope=col]").all_inner_texts()
    lags = [row.locator("th, td").nth(heads.index("Input lag")).inner_text() for row in table.locator("tbody tr").all()]
    assert lags == ["0", "12,345"]
    page.visit("")
    page.page.get_by_role("link", name="Store airports is 12,345 records behind its input").click()
    page.page.wait_for_url("**/stores/airports?tab=partitions")
