"""Finding places, stores and keys from anywhere, and the keys of the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.console.console_browser import Flights
from support.console.console_page import Console, console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Route

Served = tuple[Flights, str]


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/settings", "main h1") as opened:
        yield opened


def searching(page: Console) -> Locator:
    page.page.locator("#connection", has_text="Connected").wait_for(state="attached")
    page.page.keyboard.press("/")
    field = page.page.get_by_role("combobox", name="A place, a store or a key")
    field.wait_for()
    return field


def found(page: Console) -> list[str]:
    return [text.strip() for text in page.page.locator("#found li").all_inner_texts()]


def test_a_slash_finds_stores_places_and_keys_and_enter_goes_there(page: Console) -> None:
    searching(page).fill("N01")
    page.page.locator("#found", has_text="key of aircraft N010").wait_for()
    assert found(page) == [f"key of aircraft N{number:03}" for number in range(10, 15)]
    page.page.keyboard.press("ArrowDown")
    page.page.locator("#found [aria-selected=true]", has_text="N011").wait_for()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/stores/aircraft/keys/N011")
    page.page.locator("dialog").wait_for(state="detached")


def test_stores_and_places_are_found_by_any_part_of_their_names(page: Console) -> None:
    searching(page).fill("po")
    page.page.locator("#found", has_text="airports").wait_for()
    assert found(page)[:2] == ["store airports", "place Topology"]


def test_escape_ends_a_search_and_the_focus_is_where_it_was(page: Console) -> None:
    page.page.get_by_role("link", name="Topology", exact=True).focus()
    searching(page).fill("N01")
    page.page.keyboard.press("Escape")
    page.page.locator("dialog").wait_for(state="detached")
    assert page.page.evaluate("document.activeElement.textContent") == "Topology"


def test_keys_of_windows_and_sessions_are_found_whole(page: Console) -> None:
    searching(page).fill("EWR")
    page.page.locator("#found", has_text="key of rushes EWR").wait_for()
    page.page.locator("#found", has_text="key of hourly EWR").wait_for()


def test_keys_that_come_late_do_not_replace_those_of_what_was_typed_since(page: Console) -> None:
    held: list[Route] = []
    page.page.route("**/aircraft/range?*prefix=N00*", lambda route: held.append(route))
    field = searching(page)
    field.fill("N00")
    while not held:
        page.page.wait_for_timeout(20)
    field.fill("N01")
    page.page.locator("#found", has_text="N010").wait_for()
    for route in held:
        route.continue_()
    page.page.wait_for_timeout(300)
    assert found(page)[0] == "key of aircraft N010"


def test_a_slash_searches_from_a_box_that_is_checked_but_not_from_a_field(page: Console) -> None:
    page.visit("stores/aircraft")
    page.page.locator(".tabulator-row").first.wait_for()
    page.page.get_by_label("Find in these rows").press("/")
    assert page.page.get_by_label("Find in these rows").input_value() == "/"
    assert page.page.locator("dialog").count() == 0
    page.page.get_by_text("Columns: ").click()
    page.page.get_by_role("checkbox", name="carrier").focus()
    searching(page)


def test_the_switch_of_colours_goes_over_the_systems_is_kept_and_can_be_given_back(page: Console) -> None:
    def ground() -> str:
        return str(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.page.get_by_label("Colours").select_option("dark")
    dark = ground()
    assert dark != light
    page.page.reload()
    page.page.locator("main h1").wait_for()
    assert ground() == dark
    page.page.get_by_label("Colours").select_option("system")
    assert ground() == light
    page.page.emulate_media(color_scheme="dark")
    assert ground() == dark
    page.page.get_by_label("Colours").select_option("light")
    assert ground() == light
