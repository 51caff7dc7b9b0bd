"""What /metrics counts, under which labels, and that clients cannot make series."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from stateline.server.snapshots import sweeper
from stateline.server.telemetry.store_metrics import Noticed, shown_partitions
from stateline.testing import Record, TestDriver
from stateline_store.files.commit_notice import NoticeStatus
from support.apps.kinds_app import SIZE_MS, build
from support.processes.query_server import PARTITIONS, OwningWorker, make_app, wait_until
from support.run.patience import HANGING_S

STORE = "/v1/stores/{store}"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def scraped(client: httpx.Client) -> dict[str, Metric]:
    """Every metric by its name."""
    return {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}


def value(client: httpx.Client, sample: str, **labels: str) -> float:
    """The sample with exactly these labels; 0 when there is none."""
    samples = [s for family in scraped(client).values() for s in family.samples]
    return sum(s.value for s in samples if s.name == sample and s.labels == labels)


ASKED = [
    ("GET", "/v1/stores/aircraft/keys/there", None, f"{STORE}/keys/{{key}}", "aircraft", COMMITTED, "ok"),
    ("GET", "/v1/stores/aircraft/keys/absent", None, f"{STORE}/keys/{{key}}", "aircraft", COMMITTED, "not_found"),
    ("GET", "/v1/stores/aircraft/count?wait_ms=x", None, f"{STORE}/count", "aircraft", COMMITTED, "INVALID_ARGUMENT"),
    ("GET", "/v1/stores/aircraft/range?who=x", None, f"{STORE}/range", "aircraft", "", "INVALID_ARGUMENT"),
    ("GET", "/v1/stores/nobody/keys/a", None, f"{STORE}/keys/{{key}}", "", "", "DOES_NOT_EXIST"),
    ("POST", "/v1/stores/aircraft/query", {"type": "count", "isolation_level": UNCOMMITTED}, f"{STORE}/query",
     "aircraft", UNCOMMITTED, "ok"),
    ("DELETE", "/v1/stores", None, "/v1/stores", "", "", "INVALID_ARGUMENT"),
    ("GET", "/readyz", None, "/readyz", "", "", "ok"),
    ("GET", "/docs", None, "/docs", "", "", "ok"),
    ("GET", "/docs/", None, "/docs", "", "", "ok"),
    ("GET", "/nowhere/at/all", None, "unmatched", "", "", "DOES_NOT_EXIST"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "route", "store", "level", "outcome"), ASKED)
def test_a_request_counts_under_its_route_and_under_its_store(
    client: httpx.Client,
    worker: OwningWorker,
    method: str,
    path: str,
    body: Any,
    route: str,
    store: str,
    level: str,
    outcome: str,
) -> None:
    worker.put("there", 1)
    worker.commit()
    under = {
        "stateline_http_requests_total": {"route": route, "level": level, "outcome": outcome},
        "stateline_http_request_seconds_count": {"route": route, "level": level},
        "stateline_store_requests_total": {"store": store, "outcome": outcome},
    }
    before = [value(client, name, **labels) for name, labels in under.items()]
    client.request(method, path, json=body)
    # Without a store what is asked for metrics counts as well.
    counts = [value(client, name, **labels) for name, labels in under.items()]
    assert counts[:2] == [count + 1 for count in before[:2]]
    assert counts[2] == before[2] + 1 if store else counts[2] > before[2]


def test_what_clients_write_into_urls_is_in_no_label(client: httpx.Client) -> None:
    for path in ("/v1/stores/aircraft/keys/mine-alone", "/v1/stores/mine-alone", "/mine-alone", "/v1/stores/%0A/count"):
        client.get(path)
    assert "mine-alone" not in client.get("/metrics").text
    stores = {s.labels.get("store", "") for family in scraped(client).values() for s in family.samples}
    assert stores <= {"", *make_app().topology().stores}


def test_bytes_and_entries_are_those_that_clients_got(client: httpx.Client, worker: OwningWorker) -> None:
    for number in range(5):
        worker.put(f"sized-{number}", number)
    worker.commit()
    labels = {"store": "aircraft"}
    names = ("stateline_http_response_bytes_total", "stateline_http_response_rows_total")
    size, rows = (value(client, name, **labels) for name in names)
    answer = client.get("/v1/stores/aircraft/range?prefix=sized-")
    assert len(answer.json()["entries"]) == 5
    streamed = client.get("/v1/stores/aircraft/range?prefix=sized-", headers={"Accept": "application/x-ndjson"})
    assert len(streamed.text.splitlines()) == 5
    wait_until(lambda: value(client, names[1], **labels) == rows + 10)  # a stream counts a moment after its end
    assert value(client, names[0], **labels) == size + answer.num_bytes_downloaded + streamed.num_bytes_downloaded


def test_a_query_that_waits_is_seen_waiting(client: httpx.Client, worker: OwningWorker) -> None:
    topic = worker.put("awaited", 1, partition=0)
    bound = {"position_bound": f'{{"flights": {{"0": {worker.offset(0)}}}}}', "wait_ms": "60000", "partition": "0"}
    answers: list[httpx.Response] = []
    url = f"{client.base_url}/v1/stores/aircraft/keys/awaited"
    asking = threading.Thread(target=lambda: answers.append(httpx.get(url, params=bound, timeout=HANGING_S)))
    asking.start()
    wait_until(lambda: value(client, "stateline_http_requests_waiting") == 1)
    assert value(client, "stateline_http_requests_in_progress") == 2  # it, and the scrape
    worker.commit()
    asking.join(HANGING_S)
    assert answers[0].status_code == 200, topic
    assert value(client, "stateline_http_requests_waiting") == 0
    assert value(client, "stateline_http_requests_in_progress") == 1


def test_secondaries_are_counted_as_they_are_opened_and_follow(client: httpx.Client, worker: OwningWorker) -> None:
    persistent = sum(definition.persistent for definition in make_app().topology().stores.values())
    assert value(client, "stateline_secondaries_open") == persistent * PARTITIONS
    assert value(client, "stateline_secondaries_opened_total") >= persistent * PARTITIONS
    before = value(client, "stateline_secondary_catch_ups_total")
    for number in range(3):
        worker.put("followed", number, partition=1)
        worker.commit()
        client.get("/v1/stores/aircraft/keys/followed?partition=1")
    assert value(client, "stateline_secondary_catch_ups_total") >= before + 3


def test_each_page_counts_under_the_path_of_its_query_whichever_path_has_the_cursor() -> None:
    with TestDriver(build("pages")) as driver:
        driver.pipe_all("events-pages", [Record("a", 1, n * SIZE_MS) for n in range(4)])
        driver.commit()
        store, client = "/v1/stores/counts", driver.client
        for path in ("windows", "keys/a/windows"):
            page = client.get(f"{store}/{path}", params={"limit": 1, "isolation_level": COMMITTED}).json()
            page = client.get(f"{store}/range", params={"cursor": page["cursor"]}).json()
            client.head(f"{store}/range", params={"cursor": page["cursor"]})
        labels = {"level": COMMITTED, "outcome": "ok"}
        for path in ("windows", "keys/{key}/windows"):
            route = f"{STORE}/{path}"
            assert value(client, "stateline_http_requests_total", route=route, **labels) == 1
            assert value(client, "stateline_http_requests_total", route=route, level="", outcome="ok") == 2
        assert value(client, "stateline_http_requests_total", route=f"{STORE}/range", level="", outcome="ok") == 0


def test_cursors_and_snapshots_are_seen_while_they_are_kept(
    client: httpx.Client, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_COUNT_INTERVAL_S", 0.1)
    for number in range(9):
        worker.put(f"kept-{number}", number)
    worker.commit()
    page = client.get("/v1/stores/aircraft/range?prefix=kept-&limit=2").json()
    assert value(client, "stateline_cursors_open") == 1
    assert value(client, "stateline_cursors_held_bytes") > 0
    while "cursor" in page:
        page = client.get("/v1/stores/aircraft/range", params={"cursor": page["cursor"]}).json()
    assert value(client, "stateline_cursors_held_bytes") < 1000  # its last page can be asked for again
    made = client.post("/v1/snapshots", json={"stores": ["aircraft"]}).json()
    wait_until(lambda: value(client, "stateline_snapshots") == 1)
    client.delete(f"/v1/snapshots/{made['id']}")
    wait_until(lambda: value(client, "stateline_snapshots") == 0)
    assert value(client, "stateline_snapshots_kept_bytes") == 0


def test_the_age_of_a_partitions_newest_commit_is_shown(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("aged", 1, partition=0)
    worker.commit()
    store = worker.stores["aircraft", 0]
    committed_s = worker.run(lambda: store.committed_at_ms) / 1000
    earliest = time.time()
    age = value(client, "stateline_store_commit_age_seconds", task="0_0", store="aircraft")
    assert earliest - committed_s <= age <= time.time() - committed_s


def test_names_and_types_are_as_prometheus_wants_them(client: httpx.Client) -> None:
    client.get("/v1/stores")
    families = scraped(client)
    assert all(name.startswith("stateline_") for name in families)
    for name, family in families.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert not name.endswith(("_ms", "_seconds_total")) or name == "stateline_store_committed_at_ms"
    answered = {"route": "/v1/stores"}
    latency = [s for s in families["stateline_http_request_seconds"].samples if answered.items() <= s.labels.items()]
    buckets = [s.value for s in latency if "le" in s.labels]
    assert buckets == sorted(buckets)
    assert buckets[-1:] == [s.value for s in latency if s.name.endswith("_count")]


def test_metrics_grow_with_routes_and_with_stores_and_not_with_both(client: httpx.Client) -> None:
    """Whatever is asked: the series of a histogram are by route and level, the others by two small sets each."""
    stores = [*make_app().topology().stores, "nobody"]
    below = ("", "/range", "/count", "/position", "/keys/7", "/keys/7/versions", "/windows", "/changes/offsets")
    wrong = ("", "?who=x", "?partition=99", '?position_bound={"flights":{"0":99999}}', "?cursor=x")
    for url in (f"/v1/stores/{store}{path}{query}" for store in stores for path in below for query in wrong):
        client.get(url)
        client.get(url, params={"isolation_level": UNCOMMITTED} if not url.count("?") else None)
    families = scraped(client)
    labels = {
        name: {frozenset(s.labels) - {"le"} for s in families[f"stateline_{name}"].samples}
        for name in ("http_request_seconds", "http_requests", "store_requests", "http_response_bytes")
    }
    assert labels == {
        "http_request_seconds": {frozenset({"route", "level"})},
        "http_requests": {frozenset({"route", "level", "outcome"})},
        "store_requests": {frozenset({"store", "outcome"})},
        "http_response_bytes": {frozenset({"store"})},
    }
    assert len(client.get("/metrics").content) < 120_000


def test_metrics_are_compressed_for_who_takes_that(client: httpx.Client) -> None:
    plain = client.get("/metrics", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = client.get("/metrics", headers={"Accept-Encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 4
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.text.splitlines()[:1] == plain.text.splitlines()[:1]
    refused = client.get("/metrics", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_of_many_partitions_only_stores_are_shown() -> None:
    def notice(task: int, **told: int) -> Noticed:
        given = {"committed_at_ms": 0, "staged_records": 0, "staged_bytes": 0, "state_number": 2}
        return Noticed(f"0_{task}", "s", 10, NoticeStatus(**{**given, "restore_remaining": 0, **told}))

    few = [notice(0, staged_records=3), notice(1, staged_records=4, state_number=1, committed_at_ms=5)]
    assert shown_partitions(few, 2) == few
    (one,) = shown_partitions(few, 1)
    assert (one.task, one.store, one.commit_number) == ("", "s", 20)
    assert one.status == NoticeStatus(5, 7, 0, 1, 0)
