"""The console's files as they are served; no browser is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from stateline.server.console import page
from stateline.server.console.page import ConsolePage

FOLDER = Path(page.__file__).parent / "files"
FILES = sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file())
TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "md": "text/markdown",
    "txt": "text/plain",
}
ADDRESSES = [
    "/",
    "/stores",
    "/stores/totals",
    "/stores/totals/keys/alice",
    "/stores/totals/keys/",
    "/stores/totals/keys/a/b",
    "/stores/totals/keys/a%2Fb",
    "/stores/totals/keys/%2E%2E",
    "/stores/%C3%BC/keys/%22%3E%3Cscript%3E",
    *("/queries", "/sql", "/pipelines", "/topology", "/nodes", "/snapshots", "/failures", "/settings"),
]


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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A console of a few files, at the root and below ``/mounted``."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("places/store.js", "vendor/chart-4.5.1.js", "vendor/LICENSE.txt", "vendor/README.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / "index.html").write_text('<head><base href="./"><link href="console/console.css"></head>')
    routes = ConsolePage(folder).routes()
    with TestClient(
        Starlette(routes=[Mount("/mounted", routes=routes), *routes]), raise_server_exceptions=True
    ) as made:
        yield made


@pytest.mark.parametrize("address", [*ADDRESSES, "/stores/totals/keys/%0A"])
def test_every_address_of_the_console_shows_the_page(client: httpx.Client, address: str) -> None:
    answer = client.get(f"{address}?as_of=1&store=none")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    shown = re.sub('"console/@[0-9a-f]{16}/', '"console/', answer.text.replace(base_of(answer.text), "./"))
    assert shown == (FOLDER / "index.html").read_text(encoding="utf-8")
    assert "base-uri 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("prefix", ["", "/mounted"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_the_page_finds_the_root_of_its_server_at_every_address(small: TestClient, address: str, prefix: str) -> None:
    base = base_of(small.get(prefix + address).text)
    assert re.fullmatch(r"\./|(\.\./)+", base)
    # As a browser does, which may have come through a proxy that adds a path of its own.
    for proxy in ("", "/a/b"):
        shown = f"http://proxy{proxy}{prefix}{address.replace('%2E%2E', 'k')}"
        assert urljoin(urljoin(shown, base), "v1/stores") == f"http://proxy{proxy}{prefix}/v1/stores"


def base_of(text: str) -> str:
    """What the page's relative addresses begin at."""
    found = re.search(r'<base href="([^"]*)">', text)
    return "./" if found is None else found[1]


def test_pages_that_are_alike_have_one_etag(small: TestClient) -> None:
    tags = {address: small.get(address).headers["etag"] for address in ("/", "/stores", "/stores/a", "/stores/b")}
    assert tags["/"] == tags["/stores"] != tags["/stores/a"] == tags["/stores/b"]
    assert small.get("/stores/c", headers={"If-None-Match": tags["/stores/a"]}).status_code == 304


def test_the_page_leads_to_files_of_its_version_which_browsers_keep_and_to_no_others(small: TestClient) -> None:
    found = re.search(r'"console/(@[0-9a-f]{16})/console.css"', small.get("/stores/a").text)
    assert found is not None
    for name in ("places/store.js", "vendor/chart-4.5.1.js", "vendor/LICENSE.txt", "vendor/README.md"):
        for folder, kept in ((found[1], True), ("@0123456789abcdef", False), (None, False)):
            answer = small.get(f"/console/{name}" if folder is None else f"/console/{folder}/{name}")
            assert (answer.status_code, answer.text) == (200, name)
            assert answer.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])
            assert ("immutable" in answer.headers["cache-control"]) == kept
    for nothing in (
        "places",
        "places/",
        found[1],
        f"{found[1]}/",
        f"{found[1]}/places",
        f"@/{found[1]}/places/store.js",
    ):
        assert small.get(f"/console/{nothing}").status_code == 404


def test_another_file_makes_another_version(tmp_path: Path) -> None:
    pages = []
    for content in ("one", "two"):
        (tmp_path / "index.html").write_text('<link href="console/a.css">')
        (tmp_path / "a.css").write_text(content)
        with TestClient(Starlette(routes=ConsolePage(tmp_path).routes())) as client:
            pages.append(client.get("/").text)
    assert pages[0] != pages[1]


@pytest.mark.parametrize("path", ["/stores/", "/stores//keys/k", "/queries/x", "/stores/a/key/b", "/console", "/nope"])
def test_other_addresses_lead_nowhere(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/stores/totals/", "/Stores", "/nope", "/v1/nope"])
def test_a_browser_that_is_lost_gets_the_page_to_go_on_from_and_a_program_the_problem(
    client: httpx.Client, path: str
) -> None:
    answer = client.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "<base" in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    for accept in ("*/*", "application/json"):
        answer = client.get(path, headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert client.post(path, headers={"Accept": "text/html"}).headers["content-type"] == "application/problem+json"
    missing = client.get("/v1/stores/nope", headers={"Accept": "text/html"})
    assert missing.json()["reason"] == "DOES_NOT_EXIST", "a store that is not there is no lost reader"


def test_the_queries_of_the_form_are_those_that_are_declared(client: httpx.Client) -> None:
    text = client.get("/console/base/kinds.js").text
    queries = json.loads(text.removeprefix("export const QUERIES = ").removesuffix(";\n"))
    names = ["key", "versioned_key", "keys", "versioned_keys", "range", "versioned_range", "key_windows", "windows"]
    assert list(queries) == [*names, "sessions", "all_sessions", "versions", "count", "position"]
    assert queries["versioned_range"] == {
        "label": "Range or prefix, now or as of a time",
        "type": "range",
        "fields": ["lower", "upper", "prefix", "as_of", "order", "limit", "cursor"],
        "path": "range",
        "kinds": ["versioned"],
    }
    assert queries["range"]["fields"] == ["lower", "upper", "prefix", "order", "limit", "cursor"]
    assert queries["key_windows"]["path"] == "keys/{key}/windows"
    assert (queries["keys"]["path"], queries["keys"]["fields"]) == (None, ["keys"])
    assert len(queries["count"]["kinds"]) == 4


@pytest.mark.parametrize("path", ["/console/", "/console/none.js", "/console/..%2Fmain.py", "/console/%2e%2e/pages.py"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["reason"]) == (404, "DOES_NOT_EXIST")


def test_every_link_of_the_page_leads_somewhere(client: httpx.Client) -> None:
    links = re.findall(r'(?:href|src)="([^"#]+)"', client.get("/").text)
    assert len(links) >= 5
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_the_page_has_no_script_style_or_address_of_its_own_or_from_elsewhere() -> None:
    for name in (name for name in FILES if not name.startswith("vendor/")):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, name
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
            for imported in re.findall(r'from "(\.{1,2}/[\w./-]+)"', text):
                assert (FOLDER / name).parent.joinpath(imported).is_file() or imported == "./kinds.js", name
