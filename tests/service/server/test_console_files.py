"""The console's files as they are served; no browser is needed."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

FOLDER = files("stateline.server.console") / "files"
FILES = sorted(file.name for file in FOLDER.iterdir())
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_with_its_type_and_a_strict_policy(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/console/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])
    assert "default-src 'self';" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get("/", headers={"If-None-Match": '"other"'}).content == first.content
    assert client.get("/console/console.js").headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("path", ["/console/", "/console/none.js", "/console/..%2Fmain.py", "/console/%2e%2e/pages.py"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (404, "DOES_NOT_EXIST")


def test_every_link_of_the_page_leads_somewhere(client: httpx.Client) -> None:
    links = re.findall(r'(?:href|src)="([^"#]+)"', client.get("/").text)
    assert len(links) > 10
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_the_page_has_no_script_style_or_address_of_its_own_or_from_elsewhere() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, name
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
            imported = re.findall(r'from "\./([\w.]+)"', text)
            assert set(imported) <= set(FILES), name
