"""The console's settings, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.console.told import say

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Served = tuple[Flights, str]
SETTINGS = "/v1/console/settings"


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/settings", first="table") as opened:
        yield opened


def rows(page: Console) -> list[list[str]]:
    found: list[list[str]] = page.page.locator("tbody tr").evaluate_all(
        "all => all.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return found


def test_every_setting_is_there_with_its_value_and_where_it_was_set(page: Console, served: Served) -> None:
    told = {name: (value, origin, about) for name, value, origin, about in rows(page)}
    value, origin, about = told["state.dir"]
    assert value == str(served[0].directory)
    assert origin != "default"
    assert about
    assert told["server.limit.default"][1] == "default"
    assert len(told) > 50


def test_what_is_typed_finds_names_values_and_what_they_are_for(page: Console) -> None:
    page.page.get_by_label("Find").fill("state dir")
    page.page.wait_for_url("**/settings?find=state+dir")
    page.page.get_by_text("server.limit.default", exact=True).wait_for(state="detached")
    told = rows(page)
    assert "state.dir" in [row[0] for row in told]
    assert all("state" in " ".join(row).lower() for row in told)
    page.page.reload()
    page.page.locator("table").wait_for()
    assert rows(page) == told
    page.page.get_by_label("Find").fill("no setting is like this")
    page.page.get_by_text("No setting matches.").wait_for()


def test_the_defaults_can_be_left_out(page: Console) -> None:
    page.page.get_by_label("Only those that are not the default").check()
    page.page.wait_for_url("**/settings?only=set")
    page.page.get_by_text("server.limit.default", exact=True).wait_for(state="detached")
    told = rows(page)
    assert told
    assert all(origin != "default" for _, _, origin, _ in told)
    page.page.go_back()
    page.page.get_by_text("server.limit.default", exact=True).wait_for()
    assert len(rows(page)) > len(told)


def test_a_token_that_may_not_see_them_is_told_so(page: Console) -> None:
    refused: dict[str, Any] = {
        "title": "Forbidden",
        "status": 403,
        "reason": "FORBIDDEN",
        "detail": "Not for this one.",
    }
    say(page.page, SETTINGS, refused, status=403)
    page.page.reload()
    page.page.get_by_role("alert").get_by_text("Not for this one.").wait_for()
    page.page.get_by_role("alert").get_by_text("FORBIDDEN (status 403)").wait_for()
