"""From a row of the console to the place of its key, whatever type the key has: in a real Chromium."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from stateline import App, serdes
from stateline.log.embedded import EmbeddedLog
from stateline.serde.plain import Serde
from support.console.console_page import Console, console
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here

if TYPE_CHECKING:
    from playwright.sync_api import Browser

UPPER = "0198C0DE-0000-7000-8000-0000000000AB"
# Type → text of a key as a URL has it → its bytes.
KEYS: dict[Serde, dict[str, bytes]] = {
    serdes.json: {text: text.encode() for text in ('"x"', '{"a": 1}', "[1,  2]", "7.0")},
    serdes.float64: {text: struct.pack(">d", float(text)) for text in ("NaN", "-Infinity", "0.5")},
    serdes.uuid: {UPPER: UPPER.encode()},
    serdes.msgpack: {"base64:0AI=": b"\xd0\x02"},
}


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    root = tmp_path_factory.mktemp("keys")
    bootstrap = f"embedded:{root / 'log.db'}"
    app = App("keys")
    for serde in KEYS:
        app.table(serde.name, key=serde, value=serdes.int64)
    config = configured(app, root, **{"bootstrap.servers": bootstrap})
    with closing(EmbeddedLog(root / "log.db")) as log:
        create(log, {serde.name: 1 for serde in KEYS})
        for serde, keys in KEYS.items():
            produce(log, serde.name, [(key, (42).to_bytes(8, "big"), 1) for key in keys.values()])
        with running(app, config, log), served_here(root, f"bootstrap.servers={bootstrap}", app=app) as here:
            for serde, keys in KEYS.items():
                path = f"/v1/stores/{serde.name}/range"
                wait_until(lambda path=path, keys=keys: len(here.client.get(path).json()["entries"]) == len(keys))  # type: ignore[misc]
            with console(browser, f"{here.client.base_url}/stores", "main h1") as opened:
                yield opened


@pytest.mark.parametrize(
    ("store", "key"), [(serde.name, key) for serde, keys in KEYS.items() for key in keys], ids=lambda part: str(part)
)
def test_the_key_of_a_row_leads_to_its_value(page: Console, store: str, key: str) -> None:
    page.visit(f"stores/{store}?open={quote(key, safe='')}")
    page.page.locator(".row h3 a").click()
    page.page.locator("#value-title").wait_for()
    page.page.locator(".value").nth(1).wait_for()
    assert page.page.locator(".value").all_inner_texts() == ["42", "42"]
    assert page.page.url.endswith(f"/stores/{store}/keys/{quote(key, safe='')}") or quote(key, safe="") in page.page.url


def test_keys_that_json_does_not_have_are_shown_in_their_column(page: Console) -> None:
    page.visit("stores/float64")
    page.page.locator(".tabulator-row").nth(2).wait_for()
    cells = page.page.locator(".tabulator-cell").all_inner_texts()
    assert {"NaN", "-Infinity", "0.5"} <= set(cells)


def test_many_keys_are_asked_for_one_a_line_as_a_url_has_them(page: Console) -> None:
    lines = quote('"x"\n[1,  2]\n{"a": 1}', safe="")
    page.visit(f"queries?store=json&ask=keys&keys={lines}")
    assert page.told().startswith("3 entries")
    assert (page.page.locator("#json").text_content() or "").count('"found": true') == 3
