"""SQL in the console: a statement of the address, its plan and its rows, in a real Chromium over a real server."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from stateline.config.extras import install_line
from support.console.console_page import Console, query
from support.processes.running_worker import eventually
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Route

pytestmark = pytest.mark.usefixtures("unrouted")
OF_JFK = "select key, start, value->>'flights' as flights, null as nothing from hourly where key = 'JFK' limit 2"


def ask(page: Console, sql: str, **values: str) -> str:
    """Open the address of a statement; the sentence about its answer."""
    page.visit("sql?" + urlencode({"q": sql, **values}))
    return page.told()


def run(page: Console, sql: str) -> str:
    """Write a statement and run it with the keyboard; the sentence about its answer."""
    statement(page).fill(sql)
    statement(page).press("Control+Enter")
    page.page.wait_for_url(lambda url: urlencode({"q": sql}) in url)
    return page.told()


def statement(page: Console) -> Locator:
    return page.page.get_by_label("Statement", exact=True)


def planned(page: Console) -> str:
    page.page.locator("#plan b").wait_for()
    return page.page.locator("#plan").inner_text()


def cells(page: Console) -> list[str]:
    page.page.locator(".tabulator-row").first.wait_for()
    return page.page.locator(".tabulator-row").first.locator(".tabulator-cell").all_inner_texts()


def refuse(page: Console, status: int, body: dict[str, Any]) -> None:
    """From now on every statement has this problem."""

    def answered(route: Route) -> None:
        route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(body))

    page.page.route("**/v1/sql", answered)


def test_an_address_runs_its_statement_and_shows_rows_plan_and_state(page: Console) -> None:
    assert ask(page, OF_JFK).startswith("2 rows, 8 rows read.")
    assert cells(page) == ["JFK", "2013-02-27 16:00:00", "3", "NULL"]
    assert planned(page) == "Plan: reads 1 key of hourly (JFK)."
    state = page.page.locator(".answer .note").first.inner_text()
    assert re.match(r"Read at read_committed, up to departures-0 @ 19, departures-1 @ 39, as it was at \S+\.$", state)


def test_a_store_leads_to_its_rows_in_sql(page: Console) -> None:
    page.visit("stores/routes")
    page.page.get_by_role("link", name="Query in SQL").click()
    page.page.wait_for_url("**/sql?q=select+*+from+routes+limit+100")
    assert page.told().startswith("6 rows, 6 rows read.")


def test_a_written_statement_becomes_an_address_and_back_leads_to_the_one_before(page: Console) -> None:
    ask(page, "select 1 as one")
    assert run(page, "select 2 as two").startswith("1 row, 0 rows read.")
    assert cells(page) == ["2"]
    page.page.go_back()
    eventually(lambda: cells(page) == ["1"], "the statement before is answered")
    assert statement(page).input_value() == "select 1 as one"
    page.page.get_by_text("No store was read.").wait_for()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        pytest.param(
            *("select count(*) from aircraft", r"Plan: scans about 6\d rows of aircraft\."),
            marks=long_only("the next one reads a part of them"),
        ),
        ("select * from aircraft where key >= 'N010'", r"Plan: reads part of about 6\d rows of aircraft: range .*"),
        ("select * from hourly where start >= '2013-02-27 22:00Z'", r"Plan: .*: all keys, start from .* 17:00:00\."),
        ("select 1", r"Plan: reads no rows of a store\."),
        ("select * from aircraf", r"No plan: .*aircraft.*"),
    ],
)  # fmt: skip
def test_a_plan_is_shown_before_the_statement_runs(page: Console, sql: str, said: str) -> None:
    page.visit("sql")
    statement(page).fill(sql)
    assert re.match(said, planned(page))
    assert page.page.locator("#summary").inner_text() == "No statement yet."


def test_rows_of_several_tables_name_their_cut_and_positions(page: Console) -> None:
    ask(page, "select h.key, r.value from hourly h join rushes r using (key)")
    page.page.get_by_text("All tables are of one cut.").wait_for()
    page.page.get_by_text("Positions of 2 tables").click()
    rows = page.page.get_by_role("table", name="Positions").locator("tbody tr").all_inner_texts()
    assert sorted(row.split("\t")[:2] for row in rows) == [["hourly", "full scan"], ["rushes", "full scan"]]


def test_an_error_leads_to_its_place(page: Console) -> None:
    assert ask(page, "select key\nfrom aircraft\nwhere sets = 1") == "There is no answer."
    problem = page.page.locator(".problem")
    assert "SQL_INVALID (status 422)" in problem.inner_text()
    problem.get_by_role("button", name="To line 3, column 7").click()
    marked = "(e) => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert statement(page).evaluate(marked) == "sets"
    statement(page).press_sequentially("1")
    assert statement(page).input_value().endswith("where 1 = 1")


def test_a_place_in_a_long_line_is_found(page: Console) -> None:
    before, after = (", ".join(f"{n} as {name}{n}" for n in range(60)) for name in "ab")
    ask(page, f"select {before}, sets, {after} from aircraft")
    page.page.get_by_role("button", name="To line 1").click()
    assert statement(page).evaluate("(e) => e.value.slice(e.selectionStart, e.selectionEnd)") == "sets"


def test_a_server_without_duckdb_names_the_command(page: Console) -> None:
    command = install_line("sql")
    refuse(page, 501, {"reason": "SQL_NOT_INSTALLED", "detail": f"SQL needs DuckDB: run `{command}`."})
    page.visit("sql")
    page.page.get_by_text(command).wait_for()
    page.page.get_by_role("button", name="Copy the command").wait_for()
    assert statement(page).count() == 0


def test_names_are_written_at_the_caret(page: Console) -> None:
    page.visit("sql")
    statement(page).fill("select  from ")
    page.page.locator(".tables summary", has_text="hourly").click()
    page.page.get_by_role("button", name="hourly table").click()
    statement(page).evaluate("(e) => e.setSelectionRange(7, 7)")
    page.page.get_by_role("button", name='"end" TIMESTAMPTZ').click()
    assert statement(page).input_value() == 'select "end" from hourly'


def test_the_keyboard_completes_names_one_after_the_other(page: Console) -> None:
    page.visit("sql")
    page.page.locator(".tables summary").first.wait_for()
    statement(page).press_sequentially("select * from air")
    expected = ("aircraft", "airports", "airports_versions", "aircraft")
    for at, name in enumerate(expected):
        statement(page).press("Control+Space")
        assert statement(page).input_value() == f"select * from {name}"
        page.page.get_by_text(f"{name}, {at % 3 + 1} of 3").wait_for()


def test_saved_statements_are_kept_replaced_and_deleted(page: Console) -> None:
    page.page.evaluate("localStorage.clear()")
    ask(page, "select 1 as one", isolation_level="read_committed")
    for sql in ("select 1 as one", "select 3 as three"):
        statement(page).fill(sql)
        page.page.get_by_label("Name").fill("numbers")
        page.page.get_by_role("button", name="Save the statement").click()
        page.page.get_by_text("Saved as numbers.").wait_for()
    page.visit("sql")
    page.page.get_by_role("link", name="numbers").click()
    page.page.wait_for_url(lambda url: "three" in url)
    assert query(page.page) == {"q": "select 3 as three", "isolation_level": "read_committed"}
    page.page.get_by_role("button", name="Delete numbers").click()
    page.page.get_by_text("Deleted numbers.").wait_for()
    assert page.page.get_by_role("link", name="numbers").count() == 0
    assert json.loads(page.page.evaluate("localStorage.getItem('stateline-saved-statements')")) == []


def test_the_last_statements_of_the_tab_are_links(page: Console) -> None:
    page.page.evaluate("sessionStorage.clear()")
    ask(page, "select 4 as four")
    ask(page, "select 5 as five")
    links = page.page.locator(".last a")
    assert links.all_inner_texts() == ["select 5 as five", "select 4 as four"]
    links.last.click()
    eventually(lambda: cells(page) == ["4"], "the statement is answered")


def downloaded(page: Console, button: str) -> bytes:
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name=button, exact=True).click()
    path: Path = download.value.path()
    return path.read_bytes()


def test_csv_is_what_the_grid_shows_and_arrow_the_servers_rows(page: Console) -> None:
    ask(
        page,
        "select key, value->>'seats' as seats, timestamp from aircraft where key < 'N003'",
        sort="-key",
        columns="key,seats",
    )
    cells(page)
    found = list(csv.reader(io.StringIO(downloaded(page, "CSV").decode(), newline="")))
    assert found[:3] == [["key", "seats"], ["N002", "52"], ["N001", "51"]]
    table = pa.ipc.open_stream(downloaded(page, "Arrow")).read_all()
    assert table.schema.names == ["key", "seats", "timestamp"]
    assert table.num_rows == len(found) - 1


def lines(page: Console) -> list[str]:
    page.page.locator(".chart canvas").wait_for()
    return page.page.locator(".legend li, .chart .unseen li").all_inner_texts()


def choice(page: Console, name: str) -> Locator:
    return page.page.locator("label.watch", has_text=re.compile(f"^{name}")).locator("select")


def choices(page: Console) -> list[str]:
    values = (choice(page, name).input_value() for name in ("Time", "Lines", "Number"))
    return [value.replace("\u2400", "") for value in values]


def test_rows_with_times_are_drawn_by_key(page: Console) -> None:
    """Also numbers in JSON. If times repeat, a text column has the lines."""
    ask(page, "select * from hourly")
    page.page.get_by_role("link", name="Chart").click()
    assert sorted(lines(page)) == ["EWR", "JFK", "LGA"]
    assert choices(page) == ["start", "key", "value.flights"]
    choice(page, "Number").select_option("value.delay.total")
    page.page.get_by_text("value.delay.total by key", exact=True).wait_for()
    assert query(page.page)["number"] == "value.delay.total"
    page.page.get_by_role("link", name="Rows", exact=True).click()
    assert cells(page)[0] in ("EWR", "JFK", "LGA")


def test_numbers_over_time_are_a_line_each(page: Console) -> None:
    sql = "select start, count(*) as n, max((value->>'flights')::int) as most from hourly group by all"
    ask(page, sql, view="chart")
    assert lines(page) == ["n", "most"]
    assert choices(page) == ["start", "", ""]
    drawn = page.page.locator(".plot").get_attribute("aria-label") or ""
    assert drawn.startswith("n, most. 2013-02-27 16:00:00 to 2013-02-27 23:00:00. n: 3 last, between 3 and 3; most: 2")
    choice(page, "Number").select_option("most")
    eventually(lambda: lines(page) == ["most"], "one line is drawn")


def test_times_without_a_zone_are_those_of_utc(page: Console) -> None:
    ask(page, "select timestamp '2013-02-27 21:00:00' as at, date '2013-02-28' as day, 1 as n", view="chart")
    drawn = page.page.locator(".plot")
    drawn.locator("canvas").wait_for()
    assert "2013-02-27 16:00:00 to 2013-02-27 16:00:00" in (drawn.get_attribute("aria-label") or "")
    choice(page, "Time").select_option("day")
    page.page.get_by_role("img", name="2013-02-27 19:00:00 to").wait_for()


def test_rows_without_times_or_numbers_have_no_chart(page: Console) -> None:
    for sql in ("select key, start from hourly", "select 1 as n"):
        ask(page, sql, view="chart")
        cells(page)
        assert page.page.get_by_role("link", name="Chart").count() == 0


def test_a_running_statement_is_stopped(page: Console) -> None:
    page.visit("sql")
    page.page.locator(".tables summary").first.wait_for()  # a statement is sent after their list
    statement(page).fill("select count(*) from range(100000000000)")
    page.page.get_by_role("button", name="Run").click()
    page.page.get_by_text("Asking …").wait_for()
    with page.page.expect_event("requestfailed", lambda request: "range" in (request.post_data or "")):
        page.page.get_by_role("button", name="Stop").click()
    page.page.get_by_text("Stopped.").wait_for()
    assert run(page, "select 6 as six").startswith("1 row")


def test_an_isolation_level_is_in_the_address_and_in_the_request(page: Console) -> None:
    ask(page, "select key from aircraft limit 1")
    page.page.get_by_label("Isolation level").select_option("read_uncommitted")
    page.page.locator(".answer code", has_text="read_uncommitted").wait_for()
    assert query(page.page)["isolation_level"] == "read_uncommitted"
    page.page.get_by_text("As a request").click()
    assert '"isolation_level":"read_uncommitted"' in page.page.locator("#curl").inner_text()


def test_parameters_and_a_time_are_in_the_address_and_in_the_request(page: Console) -> None:
    said = ask(page, "select $1::hugeint as n, key from airports", params="[12345678901234567890123]", as_of="0")
    assert said.startswith("0 rows")
    sent = page.page.locator("#curl")
    page.page.get_by_text("As a request").click()
    assert '"as_of":0' in sent.inner_text()
    assert '"params":[12345678901234567890123]' in sent.inner_text()
    page.page.get_by_label("As of").fill("")
    page.page.get_by_label("Parameters", exact=True).fill("[5]")
    assert planned(page).startswith("Plan: scans")
    page.page.get_by_label("Parameters", exact=True).press("Enter")
    eventually(lambda: cells(page)[0] == "5", "the statement is answered with the new parameter")
    assert query(page.page) == {"q": "select $1::hugeint as n, key from airports", "params": "[5]"}
    assert page.page.locator(".last a").first.inner_text() == "select $1::hugeint as n, key from airports"


def test_parameters_that_are_no_json_and_times_that_are_none_are_refused(page: Console) -> None:
    ask(page, "select $1 as n", params="JFK")
    page.page.get_by_text('params="JFK": an array for $1, $2 …, or an object for $name.').wait_for()
    page.page.get_by_label("As of").fill("yesterday")
    page.page.get_by_role("button", name="Run").click()
    page.page.get_by_text("'yesterday' is no time").wait_for()
    assert "as_of" not in query(page.page)


def test_fields_for_parameters_open_with_a_statement_that_has_some(page: Console) -> None:
    page.visit("sql")
    field = page.page.get_by_label("Parameters", exact=True)
    assert not field.is_visible()
    statement(page).fill("select $1")
    field.wait_for()


def test_tables_are_listed_before_a_statement_that_runs_long(page: Console) -> None:
    asked: list[str] = []

    def answered(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "")["sql"].split()[0])
        route.continue_()

    page.page.route("**/v1/sql", answered)
    ask(page, "values (1)")
    assert asked.index("values") > next(at for at, sql in enumerate(asked) if sql == "select")


def test_repeated_statements_mark_what_has_changed(page: Console) -> None:
    turn = iter(range(1, 100))

    def answered(route: Route) -> None:
        if '"details"' not in (route.request.post_data or ""):  # the plan, and the names of tables
            return route.continue_()
        body = route.fetch().json()
        return route.fulfill(json=body | {"rows": [{"name": "a", "n": next(turn)}, {"name": "b", "n": 0}]})

    page.page.route("**/v1/sql", answered)
    ask(page, "select 'a' as name, 1 as n", every="1")
    page.page.get_by_text("Since the answer before: 1 changed, 0 new, 0 gone.").wait_for()
    assert page.page.locator(".tabulator-cell.changed").count() == 1
