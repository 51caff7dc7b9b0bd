"""The console's place of snapshots, in a real Chromium, over a real server and worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pytest

from stateline.server.guard.tokens import hash_of
from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.processes.ports import free_port
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Served = tuple[Flights, str]

MAKE = "text=Make one"


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Console]:
    """The place with no snapshot there."""
    api = f"{served[1]}/v1/snapshots"
    for each in httpx.get(api).json()["snapshots"]:
        httpx.delete(f"{api}/{each['id']}")
    with console(browser, f"{served[1]}/snapshots", MAKE) as opened:
        yield opened


def make(page: Page, *stores: str, pin: str = "") -> str:
    """Make a snapshot by the form; its id."""
    for store in stores:
        page.get_by_role("checkbox", name=store, exact=True).check()
    page.get_by_label("Pin (optional)").fill(pin)
    page.get_by_role("button", name="Make it").click()
    return page.locator("#one-title").inner_text().removeprefix("Snapshot ")


def test_without_snapshots_it_says_what_they_are_for(page: Console) -> None:
    page.page.get_by_text("No snapshot is kept now.").wait_for()
    assert "for an export, for Spark or pandas" in page.page.locator(".nothing").inner_text()


def test_one_that_is_made_is_open_and_in_the_list_and_in_the_address(page: Console) -> None:
    made = make(page.page, "aircraft", "hourly")
    row = page.page.get_by_role("table", name="Kept now").locator("tbody tr", has_text=made)
    row.get_by_text("aircraft, hourly").wait_for()
    assert "in 5 min" in row.inner_text()
    page.page.wait_for_url(f"**?id={made}")
    partitions = page.page.get_by_role("table", name="Partitions of ")
    partitions.nth(1).wait_for()
    assert partitions.count() == 2


def test_the_lines_of_a_partition_read_its_rows(page: Console, tmp_path: Path) -> None:
    make(page.page, "aircraft")
    rows = 0
    for partition in (0, 1):
        page.page.locator("summary", has_text=f"/stores/aircraft/partitions/{partition}").click()
        curl = page.page.get_by_label(f"curl line for aircraft-{partition}").inner_text()
        subprocess.run(["bash", "-c", curl], cwd=tmp_path, check=True)
        rows += pa.ipc.open_stream((tmp_path / f"aircraft-{partition}.arrow").read_bytes()).read_all().num_rows
        python = page.page.get_by_label(f"Python line for aircraft-{partition}").inner_text()
        line = python.replace("python ", f"{sys.executable} ", 1)
        printed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
        assert "carrier" in printed
    assert rows == 62


def test_a_size_is_asked_for_when_it_is_wanted(page: Console) -> None:
    make(page.page, "aircraft")
    page.page.get_by_role("button", name="Size").first.click()
    page.page.get_by_role("status").filter(has_text="less than a table").wait_for()


def test_one_is_renewed_for_longer(page: Console, served: Served) -> None:
    made = make(page.page, "aircraft")
    page.page.get_by_label("Keep it, from now, for").select_option("an hour")
    page.page.get_by_role("button", name="Renew").click()
    page.page.get_by_text("Renewed.").wait_for()
    page.page.get_by_role("table", name="Kept now").get_by_text("in 60 min").wait_for()
    kept = httpx.get(f"{served[1]}/v1/snapshots/{made}").json()
    assert kept["expires_at"] - kept["created_at"] >= 3_600_000


def test_one_is_released_only_when_that_is_confirmed(page: Console, served: Served) -> None:
    made = make(page.page, "aircraft")
    page.page.get_by_role("button", name="Release").click()
    asked = page.page.get_by_role("dialog", name=f"Release {made}?")
    assert "Open streams run to their end." in asked.inner_text()
    asked.get_by_role("button", name="Keep it").click()
    asked.wait_for(state="detached")
    page.page.get_by_role("button", name="Release").click()
    asked.wait_for()
    page.page.keyboard.press("Escape")
    asked.wait_for(state="detached")
    assert httpx.get(f"{served[1]}/v1/snapshots/{made}").status_code == 200
    page.page.get_by_role("button", name="Release").click()
    asked.get_by_role("button", name="Release it").click()
    page.page.get_by_text("No snapshot is kept now.").wait_for()
    assert httpx.get(f"{served[1]}/v1/snapshots/{made}").status_code == 410


def test_the_same_pin_is_the_same_snapshot(page: Console) -> None:
    first = make(page.page, "aircraft", pin="nightly")
    page.page.get_by_role("button", name="Make it").click()
    page.page.get_by_text(f"This pin already has the snapshot {first}").wait_for()


def test_without_a_store_none_is_made(page: Console) -> None:
    page.page.get_by_role("button", name="Make it").click()
    page.page.get_by_text("Choose at least one store.").wait_for()


def test_one_that_is_gone_is_said_so(browser: Browser, served: Served) -> None:
    with console(browser, f"{served[1]}/snapshots?id=0000", MAKE) as opened:
        opened.page.get_by_text("Snapshot 0000 is not kept any more").wait_for()


def test_one_too_many_is_refused_in_words(browser: Browser, served: Served) -> None:
    with (
        served[0].server(free_port(), "server.snapshots.max=1") as url,
        console(browser, f"{url}/snapshots", MAKE) as opened,
    ):
        for each in httpx.get(f"{url}/v1/snapshots").json()["snapshots"]:
            httpx.delete(f"{url}/v1/snapshots/{each['id']}")
        make(opened.page, "aircraft")
        opened.page.get_by_role("button", name="Make it").click()
        opened.page.get_by_role("alert").filter(has_text="TOO_MANY_REQUESTS (status 429)").wait_for()


def test_a_token_that_did_not_make_one_cannot_release_it(browser: Browser, served: Served, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    entries = [
        {"name": "maker", "sha256": hash_of("maker").hex(), "role": "admin"},
        {"name": "reader", "sha256": hash_of("reader").hex(), "role": "read"},
    ]
    tokens.write_text(json.dumps({"tokens": entries}))
    tokens.chmod(0o600)
    with served[0].server(free_port(), f"server.tokens.file={tokens}") as url:
        maker = {"Authorization": "Bearer maker"}
        made = httpx.post(f"{url}/v1/snapshots", json={"stores": ["aircraft"]}, headers=maker).json()["id"]
        with console(browser, f"{url}/snapshots?id={made}", "#token") as opened:
            opened.page.fill("#token", "reader")
            opened.page.keyboard.press("Enter")
            opened.page.get_by_role("button", name="Release").click()
            opened.page.get_by_role("button", name="Release it").click()
            opened.page.get_by_role("alert").filter(has_text="FORBIDDEN (status 403)").wait_for()
            opened.page.locator("summary", has_text="partitions/0").click()
            assert "$STATELINE_TOKEN" in opened.page.get_by_label("curl line for aircraft-0").inner_text()
            assert "reader" not in opened.page.get_by_label("Python line for aircraft-0").inner_text()


@pytest.mark.parametrize(
    "width",
    [390, *(pytest.param(width, marks=long_only("the narrowest one is the hardest")) for width in (1280, 1920))],
)
def test_nothing_is_wider_than_the_window(page: Console, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 900})
    make(page.page, "aircraft", "airports")
    page.page.locator("summary").first.click()
    assert page.page.evaluate("document.documentElement.scrollWidth") == width
