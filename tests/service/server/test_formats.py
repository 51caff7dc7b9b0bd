"""How answers look: formats by `Accept` and `format=`, columns, details. The oracle is the plain answer."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes
from stateline.testing import TestDriver

HOUR = timedelta(hours=1)
TIME_MS = 1_700_000_000_000
JSON, NDJSON, CSV = "application/json", "application/x-ndjson", "text/csv; charset=utf-8"
ARROW = "application/vnd.apache.arrow.stream"
HOSTILE = ['a,"b"', "=1+1", "", "line\nbreak", "é", " x "]
# Path below /v1/stores of each query with entries → the columns that they have.
ENTRIES = {
    "texts/range": ["key", "value", "timestamp"],
    "texts-old/range": ["key", "value", "timestamp", "valid_to"],
    "texts-old/keys/é/versions": ["value", "timestamp", "valid_to"],
    "texts-win/windows": ["key", "start", "end", "value", "timestamp"],
    "texts-win/keys/é/windows": ["start", "end", "value", "timestamp"],
    "texts-ses/sessions": ["key", "start", "end", "value", "timestamp"],
    "texts-ses/keys/é/sessions": ["start", "end", "value", "timestamp"],
    "floats/range": ["key", "value", "timestamp"],
    "blobs/range": ["key", "value", "timestamp"],
}
SINGLE = ["texts/keys/é", "texts/count", "texts/position", "texts-old/keys/é", "texts/keys/nobody"]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = App("formats", config={"default.state.isolation.level": "read_committed"})
    texts = app.topic("texts", key=serdes.string, value=serdes.json)
    app.table(texts, store="texts")
    app.table("old", key=serdes.string, value=serdes.json, store="texts-old", versioned=HOUR)
    grouped = app.stream(texts).group_by_key()
    grouped.windowed_by(TumblingWindows(HOUR)).count("texts-win", retention=timedelta(days=1))
    grouped.windowed_by(SessionWindows(HOUR)).count("texts-ses", retention=timedelta(days=1))
    app.table("floats", key=serdes.float64, value=serdes.float64, store="floats")
    app.table("blobs", key=serdes.bytes, value=serdes.string, store="blobs")
    with TestDriver(app) as driver:
        for number, key in enumerate(HOSTILE):
            for topic in ("texts", "old", "old"):
                driver.pipe(topic, key, {"n": number, "text": key}, timestamp_ms=TIME_MS + number)
            driver.pipe("blobs", key.encode(), key, timestamp_ms=TIME_MS)
        driver.pipe_bytes("texts", b"spaced", b'{ "a": [1,\n 2] }', timestamp_ms=TIME_MS)
        for real in (0.5, math.nan, math.inf):
            driver.pipe("floats", real, real, timestamp_ms=TIME_MS)
        yield driver.client


def entries(client: httpx.Client, path: str, **parameters: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v1/stores/{path}", params=parameters).json()["entries"]
    return found


def table(response: httpx.Response) -> list[dict[str, str]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == CSV
    return list(csv.DictReader(io.StringIO(response.text, newline="")))


def cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("path", ENTRIES)
@pytest.mark.parametrize("how", ["accept", "format"])
def test_every_query_with_entries_is_csv_when_asked(client: httpx.Client, path: str, how: str) -> None:
    headers, parameters = ({"Accept": "text/csv"}, {}) if how == "accept" else ({}, {"format": "csv"})
    response = client.get(f"/v1/stores/{path}", params=parameters, headers=headers)
    rows, expected = table(response), entries(client, path)
    assert len(rows) == len(expected) > 0
    assert response.text.startswith(",".join(ENTRIES[path]) + "\r\n")
    assert json.loads(response.headers["stateline-position"])
    for row, entry in zip(rows, expected, strict=True):
        assert list(row) == ENTRIES[path]
        for name in row.keys() - {"key", "value"}:
            assert row[name] == cell(entry[name])
        if "key" in row:
            assert row["key"] == entry.get(
                "key_text", entry["key"] if isinstance(entry["key"], str) else str(entry["key"])
            )
        if path == "floats/range":
            assert row["value"] == row["key"]
        elif isinstance(entry["value"], str):
            assert row["value"] == entry["value"]
        else:
            assert json.loads(row["value"]) == entry["value"]


def test_json_in_a_cell_is_the_text_that_is_stored(client: httpx.Client) -> None:
    (row,) = table(client.get("/v1/stores/texts/range", params={"format": "csv", "prefix": "spaced"}))
    assert row == {"key": "spaced", "value": '{ "a": [1,\n 2] }', "timestamp": str(TIME_MS)}
    empty = client.get("/v1/stores/texts/range", params={"format": "csv", "prefix": "nothing"})
    assert empty.text == "key,value,timestamp\r\n"


@pytest.mark.parametrize("path", ENTRIES)
def test_formats_by_name_are_those_of_accept(client: httpx.Client, path: str) -> None:
    for name, media_type in (("json", JSON), ("ndjson", NDJSON), ("csv", "text/csv"), ("arrow", ARROW)):
        by_name = client.get(f"/v1/stores/{path}", params={"format": name}, headers={"Accept": "application/xml"})
        by_accept = client.get(f"/v1/stores/{path}", headers={"Accept": media_type})
        assert by_name.headers["content-type"] == by_accept.headers["content-type"]
        if name != "json":  # which has another cursor each time
            assert by_name.content == by_accept.content
        kind, _, rest = path.partition("/")
        body = {"type": rest.rpartition("/")[2], "format": name} | ({"key": "é"} if "keys" in rest else {})
        assert (
            client.post(f"/v1/stores/{kind}/query", json=body).headers["content-type"]
            == by_name.headers["content-type"]
        )


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", JSON),
        ("*", JSON),
        ("application/*", JSON),
        ("text/*", CSV),
        ("text/html, text/csv;q=0.5", CSV),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
        ("application/json;q=0, */*", NDJSON),
        ("TEXT/CSV; header=present", CSV),
    ],
)
def test_the_first_range_that_covers_a_format_counts(client: httpx.Client, accept: str, answered: str) -> None:
    response = client.get("/v1/stores/texts/range", headers={"Accept": accept})
    assert response.headers["content-type"] == answered


@pytest.mark.parametrize("path", [*ENTRIES, *SINGLE])
@pytest.mark.parametrize("accept", ["text/html", "application/xml", "text/csv;q=0, image/*", "application/pdf"])
def test_what_cannot_be_had_is_not_acceptable(client: httpx.Client, path: str, accept: str) -> None:
    response = client.get(f"/v1/stores/{path}", headers={"Accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (406, "application/problem+json")
    problem = response.json()
    assert (problem["reason"], problem["status"]) == ("NOT_ACCEPTABLE", 406)
    assert JSON in problem["detail"]


@pytest.mark.parametrize("path", SINGLE)
@pytest.mark.parametrize("name", ["csv", "ndjson", "arrow"])
def test_an_answer_without_entries_is_json_alone(client: httpx.Client, path: str, name: str) -> None:
    response = client.get(f"/v1/stores/{path}", params={"format": name})
    assert (response.status_code, response.json()["reason"]) == (406, "NOT_ACCEPTABLE")
    assert response.json()["detail"].endswith("it is application/json. Ask for that, with Accept or format.")
    assert client.get(f"/v1/stores/{path}", params={"format": "json"}).headers["content-type"] == JSON
    wrong = client.get(f"/v1/stores/{path}", params={"format": "xml"})
    assert (wrong.status_code, wrong.json()["reason"]) == (422, "INVALID_ARGUMENT")


def test_a_page_behind_a_cursor_is_json_and_a_refusal_says_so(client: httpx.Client) -> None:
    cursor = client.get("/v1/stores/texts/range", params={"limit": "1"}).json()["cursor"]
    response = client.get("/v1/stores/texts/range", params={"cursor": cursor, "format": "csv"})
    assert response.status_code == 406
    assert "with a cursor, it is application/json. Ask for that" in response.json()["detail"]


def test_many_keys_are_csv_and_ndjson_with_those_that_are_not_there(client: httpx.Client) -> None:
    for store in ("texts", "texts-old"):
        path, body = f"/v1/stores/{store}/query", {"type": "keys", "keys": ["é", "nobody", "=1+1"]}
        plain = client.post(path, json=body).json()["entries"]
        rows = table(client.post(path, json=body, headers={"Accept": "text/csv"}))
        assert [(row["found"], row["key"]) for row in rows] == [("true", "é"), ("false", "nobody"), ("true", "=1+1")]
        assert rows[1]["value"] == rows[1]["timestamp"] == ""
        lines = client.post(path, json={**body, "format": "ndjson"})
        assert [json.loads(line) for line in lines.text.splitlines()] == plain
        assert json.loads(lines.headers["stateline-position"])
        refused = client.post(path, json={**body, "format": "arrow"})
        assert (refused.status_code, refused.json()["reason"]) == (406, "NOT_ACCEPTABLE")


@pytest.mark.parametrize("path", ENTRIES)
def test_columns_name_the_members_of_entries_in_every_format(client: httpx.Client, path: str) -> None:
    columns = ["timestamp", "key"] if "ses" not in path and "win" not in path else ["start", "key"]
    all_of_it = entries(client, path)
    asked = {"columns": ",".join(columns)}
    found = entries(client, path, **asked)
    for entry, whole in zip(found, all_of_it, strict=True):
        assert list(entry)[:2] == columns
        assert entry.keys() <= {*columns, "key_text"}
        assert entry.items() >= {name: whole[name] for name in columns if name in whole}.items()
    lines = client.get(f"/v1/stores/{path}", params={**asked, "format": "ndjson"}).text.splitlines()
    assert [json.loads(line) for line in lines] == found
    assert list(table(client.get(f"/v1/stores/{path}", params={**asked, "format": "csv"}))[0]) == columns
    arrow = client.get(f"/v1/stores/{path}", params={**asked, "format": "arrow"})
    if "timestamp" in columns or "key" in columns:
        assert pa.ipc.open_stream(arrow.content).schema.names == columns


def test_columns_of_answers_without_entries(client: httpx.Client) -> None:
    answer = client.get("/v1/stores/texts/keys/é", params={"columns": "value"}).json()
    assert answer.keys() == {"store", "isolation_level", "value", "position", "partitions"}
    answer = client.get("/v1/stores/texts/position", params={"columns": "committed", "details": "none"}).json()
    assert answer.keys() == {"store", "isolation_level", "committed"}
    answer = client.get("/v1/stores/floats/keys/NaN", params={"columns": "key,found"}).json()
    assert (answer["key"], answer["key_text"], answer["found"]) == (None, "NaN", True)


@pytest.mark.parametrize("path", [*ENTRIES, *SINGLE])
@pytest.mark.parametrize("columns", ["nope", "", "value,value", "key_text", "position"])
def test_columns_that_there_are_not_are_refused(client: httpx.Client, path: str, columns: str) -> None:
    response = client.get(f"/v1/stores/{path}", params={"columns": columns})
    assert (response.status_code, response.json()["reason"]) == (422, "INVALID_ARGUMENT")


@pytest.mark.parametrize("path", [*ENTRIES, *SINGLE])
def test_details_can_be_left_out_of_every_query(client: httpx.Client, path: str) -> None:
    whole = client.get(f"/v1/stores/{path}").json()
    short = client.get(f"/v1/stores/{path}", params={"details": "none"})
    expected = {name: member for name, member in whole.items() if name not in ("position", "partitions")}
    assert short.json() == expected
    assert client.get(f"/v1/stores/{path}", params={"details": "all"}).json() == whole
    assert client.get(f"/v1/stores/{path}", params={"details": "some"}).status_code == 422
    if path in ENTRIES:
        stream = client.get(f"/v1/stores/{path}", params={"details": "none", "format": "ndjson"})
        assert "stateline-position" not in stream.headers
        assert stream.headers["stateline-isolation-level"]


def test_every_page_of_a_cursor_has_the_shape_of_the_first(client: httpx.Client) -> None:
    parameters = {"columns": "key", "details": "none", "limit": "2"}
    page = client.get("/v1/stores/texts/range", params=parameters).json()
    keys: list[str] = []
    while True:
        assert page.keys() - {"cursor"} == {"store", "isolation_level", "entries"}
        assert all(entry.keys() == {"key"} for entry in page["entries"])
        keys += [entry["key"] for entry in page["entries"]]
        if "cursor" not in page:
            break
        page = client.get("/v1/stores/texts/range", params={"cursor": page["cursor"], "format": "json"}).json()
    assert sorted(keys) == sorted([*HOSTILE, "spaced"])
    cursor = client.get("/v1/stores/texts/range", params=parameters).json()["cursor"]
    for given, headers in (({"format": "csv"}, {}), ({}, {"Accept": "text/csv"})):
        refused = client.get("/v1/stores/texts/range", params={"cursor": cursor, **given}, headers=headers)
        assert (refused.status_code, refused.json()["reason"]) == (406, "NOT_ACCEPTABLE")
