"""A server without tokens that lets pages of one other origin in; the same in a browser: `test_origins`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline.config.loading import load_config
from stateline_store import ConfigurationError
from support.processes.query_server import OwningWorker
from support.processes.served_here import Here, served_here

DASHBOARD = "https://dash.example"
KEY = "/v1/stores/aircraft/keys/k"
CROSS = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    worker.put("k", 1)
    worker.commit()
    with served_here(state_dir, f"server.cors.origins=http://other.example:81, {DASHBOARD}") as found:
        yield found


def allowed(
    method: str, headers: str = "authorization,last-event-id,content-type,mcp-protocol-version"
) -> dict[str, str]:
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return {"Origin": DASHBOARD, **CROSS, **asked}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "DELETE"])
def test_a_browser_that_asks_first_is_told_what_its_page_may_do(here: Here, method: str) -> None:
    answer = here.client.options("/v1/snapshots", headers=allowed(method))
    assert (answer.status_code, answer.headers.get_list("vary", split_commas=True).count("Origin")) == (200, 1)
    assert answer.headers["access-control-allow-origin"] == DASHBOARD
    assert method in answer.headers["access-control-allow-methods"]
    said = answer.headers["access-control-allow-headers"].lower()
    assert {"authorization", "last-event-id", "content-type"} <= {name.strip() for name in said.split(",")}
    assert "access-control-allow-credentials" not in answer.headers


def test_a_page_of_an_origin_that_is_named_reads_answers_and_problems(here: Here) -> None:
    for path, status in ((KEY, 200), ("/v1/stores/aircraft/keys/nobody", 404), ("/v1/stores?x=1", 422)):
        for headers in ({"Origin": DASHBOARD, **CROSS}, {"Origin": DASHBOARD}):
            answer = here.client.get(path, headers=headers)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == DASHBOARD
            assert "stateline-position" in answer.headers["access-control-expose-headers"].lower()
            assert answer.headers.get_list("vary") == ["Origin"]
    assert here.client.post("/v1/stores/aircraft/query", json={"type": "count"}, headers=allowed("POST")).is_success


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://dash.example", f"{DASHBOARD}:444", "", "*"])
def test_another_origin_gets_nothing(here: Here, origin: str) -> None:
    given = {"Origin": origin, **CROSS}
    for answer in (
        here.client.get(KEY, headers=given),
        here.client.options(KEY, headers=allowed("GET") | given),
        here.client.post("/v1/stores/aircraft/query", json={"type": "count"}, headers=given),
    ):
        assert answer.status_code == 403
        assert not any(name.startswith("access-control-") for name in answer.headers)
        assert "Origin" in answer.headers["vary"], "a cache must not give this answer to the page that may have another"


def test_what_depends_on_more_than_the_origin_says_so_too(here: Here) -> None:
    answer = here.client.get("/metrics", headers={"Origin": DASHBOARD, **CROSS})
    assert answer.headers.get_list("vary", split_commas=True) == ["Origin", "Accept-Encoding"]


def test_what_a_browser_asks_first_counts_as_a_request(state_dir: Path, worker: OwningWorker) -> None:
    settings = (f"server.cors.origins={DASHBOARD}", "server.rate.limit=1")
    with served_here(state_dir, *settings) as here:
        for _ in range(20):
            answer = here.client.options(KEY, headers=allowed("GET"))
            if answer.status_code == 429:
                break
        assert (answer.status_code, answer.json()["reason"]) == (429, "TOO_MANY_REQUESTS")
        assert here.client.options("/healthz", headers=allowed("GET")).status_code == 200


def test_without_origin_what_is_embedded_in_that_page_is_refused_as_everywhere(here: Here) -> None:
    assert here.client.get(KEY, headers=CROSS | {"Sec-Fetch-Mode": "no-cors"}).status_code == 403
    plain = here.client.get(KEY)
    assert (plain.status_code, plain.headers["vary"]) == (200, "Origin")


@pytest.mark.parametrize(
    "given", ["*", "null", "dash.example", "https://dash.example/", "https://a.b c", "ftp://a", ","]
)
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"server\.cors\.origins"):
        load_config("a", environment={}, overrides=[f"server.cors.origins={given}"])
