"""Bad input and failures over HTTP: each is a problem of the contract's table, and the server lives on."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from stateline.problem_kinds import PROBLEMS, error_of, problem_of
from stateline.query.values import Failure
from stateline.query.wire import decode_outcome, encode_outcome
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_body
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    InvalidArgumentError,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    PoisonedError,
    StatelineError,
    StoreState,
    UnknownQueryTypeError,
)
from support.processes.query_server import OwningWorker, wait_until
from support.run.patience import HANGING_S

INVALID, UNKNOWN_TYPE, MISSING = (422, "INVALID_ARGUMENT"), (400, "UNKNOWN_QUERY_TYPE"), (404, "DOES_NOT_EXIST")


def refused(response: httpx.Response) -> tuple[int, str]:
    """Status and reason, having checked that it is a problem that says what to do."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert len(problem["detail"]) > 10
    assert "Traceback" not in response.text
    return response.status_code, problem["reason"]


@pytest.fixture(autouse=True)
def _lives_on(client: httpx.Client) -> Any:
    yield
    assert client.get("/healthz").json() == {"status": "alive"}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UnknownQueryTypeError("x"), ("UNKNOWN_QUERY_TYPE", 400)),
        (InvalidArgumentError("x"), ("INVALID_ARGUMENT", 422)),
        (DoesNotExistError("x"), ("DOES_NOT_EXIST", 404)),
        (NotUpToBoundError("x"), ("NOT_UP_TO_BOUND", 412)),
        (NotPresentError("x"), ("NOT_PRESENT", 421)),
        (NotActiveError("x"), ("NOT_ACTIVE", 503)),
        (NotReadyError("x"), ("NOT_READY", 503)),
        (PoisonedError("x"), ("STORE_EXCEPTION", 500)),
        (DamagedDataError("x"), ("STORE_EXCEPTION", 500)),
        (ZeroDivisionError("x"), ("STORE_EXCEPTION", 500)),
    ],
)
def test_each_error_has_its_line_of_the_contracts_table(error: Exception, line: tuple[str, int]) -> None:
    assert problem_of(error)[:2] == line


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/stores/nope/keys/a", MISSING),
        ("/v1/stores/nope", MISSING),
        ("/v1/stores/nope/range", MISSING),
        ("/nope", MISSING),
        ("/v1/stores/aircraft/keys", MISSING),
        ("/v1/stores/aircraft/range?partition=3", MISSING),
        ("/v1/stores/aircraft/range?partition=-1", MISSING),
        ("/v1/stores/aircraft/range?partition=99999999999999999999", MISSING),
        ("/v1/stores/aircraft/range?partition=x", INVALID),
        ("/v1/stores/aircraft/range?partition=", INVALID),
        ("/v1/stores/counts/keys/abc", INVALID),
        ("/v1/stores/counts/keys/9223372036854775808", INVALID),
        ("/v1/stores/counts/keys/", INVALID),
        ("/v1/stores/counts/range?lower=x", INVALID),
        ("/v1/stores/blobs/keys/!!", INVALID),
        ("/v1/stores/aircraft/keys/%FF", INVALID),
        ("/v1/stores/aircraft/keys/%ED%A0%80", INVALID),
        ("/v1/stores/aircraft/range?prefix=%FF", INVALID),
        ("/v1/stores/aircraft/range?limit=0", INVALID),
        ("/v1/stores/aircraft/range?limit=-1", INVALID),
        ("/v1/stores/aircraft/range?limit=10001", INVALID),
        ("/v1/stores/aircraft/range?limit=99999999999999999999999", INVALID),
        ("/v1/stores/aircraft/range?limit=ten", INVALID),
        ("/v1/stores/aircraft/range?limit=1&limit=2", INVALID),
        ("/v1/stores/aircraft/range?order=up", INVALID),
        ("/v1/stores/aircraft/range?prefix=a&lower=b", INVALID),
        ("/v1/stores/aircraft/range?nonsense=1", INVALID),
        ("/v1/stores/aircraft/keys/a?limit=1", INVALID),
        ("/v1/stores/aircraft/count?isolation_level=serializable", INVALID),
        ("/v1/stores/aircraft/count?isolation_level=", INVALID),
        ("/v1/stores/aircraft/count?wait_ms=600001", INVALID),
        ("/v1/stores/aircraft/count?wait_ms=-1", INVALID),
        ("/v1/stores/aircraft/count?wait_ms=1.5", INVALID),
        ("/v1/stores/aircraft/count?require_active=yes", INVALID),
        ("/v1/stores/aircraft/count?allow_partial=1", INVALID),
        ("/v1/stores/aircraft/count?position_bound={", INVALID),
        ("/v1/stores/aircraft/count?position_bound=[]", INVALID),
        ("/v1/stores/aircraft/count?position_bound=NaN", INVALID),
        ('/v1/stores/aircraft/count?position_bound={"t":{"x":1}}', INVALID),
        ('/v1/stores/aircraft/count?position_bound={"t":{"0":-1}}', INVALID),
        ('/v1/stores/aircraft/count?position_bound={"t":{"0":1.5}}', INVALID),
        ('/v1/stores/aircraft/count?position_bound={"t":{"0":true}}', INVALID),
        ('/v1/stores/aircraft/count?position_bound={"t":{"0":9223372036854775808}}', INVALID),
        ("/v1/stores/aircraft/count?position_bound=" + "[" * 5000, INVALID),
        ("/v1/stores?x=1", INVALID),
        ("/v1/stores/aircraft/windows", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/keys/a/versions", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/keys/a/windows?from=1", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/keys/a/sessions", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/keys/a?as_of=1", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/range?as_of=1", UNKNOWN_TYPE),
        ("/v1/stores/aircraft/range?as_of=x", INVALID),
        ("/v1/topology?x=1", INVALID),
        ("/v1/instances?x=1", INVALID),
        ("/v1/snapshots?x=1", INVALID),
    ],
)
def test_a_bad_url_is_refused(client: httpx.Client, path: str, expected: tuple[int, str]) -> None:
    assert refused(client.get(path)) == expected


def test_pages_probes_and_metrics_do_not_mind_what_others_add_to_their_address(client: httpx.Client) -> None:
    for path in ("/", "/docs", "/docs/", "/openapi.json", "/healthz", "/readyz", "/metrics", "/console/console.js"):
        assert client.get(f"{path}?utm=x&utm=y&%").status_code == 200, path


@pytest.mark.parametrize("name", ["from", "to", "as_of"])
def test_a_date_without_hyphens_is_not_taken_for_milliseconds(client: httpx.Client, name: str) -> None:
    path = "/v1/stores/aircraft/keys/a" + ("" if name == "as_of" else "/windows")
    for written in ("20260101", "10000000", "99999999", "20260101000000", "99991231235959"):
        answer = client.get(path, params={name: written})
        assert refused(answer) == INVALID
        detail = answer.json()["detail"]
        assert detail.startswith(f"{name}={written} ")
        assert "2026-01-01" in detail
    plain = ("9999999", "100000000", "9999999999999", "100000000000000")
    for written in ("020260101", "020260101000000", "-20260101", "2026-01-01", "2026-01-01T00:00:00Z", *plain):
        assert refused(client.get(path, params={name: written})) == UNKNOWN_TYPE, "it is read"


def test_in_a_body_a_number_is_milliseconds_and_a_text_is_a_date() -> None:
    def read(value: object) -> int | None:
        return Arguments(from_body(json.dumps({"from": value}).encode())).time("from")

    assert (read(20260101), read(20260101000000)) == (20260101, 20260101000000)
    assert read("20260101") == read("2026-01-01") == 1_767_225_600_000
    for text in ("1700000000000", "2026013112345", "20260101000000", "7", "-1"):
        with pytest.raises(InvalidArgumentError, match=f'from="{text}" is no time'):
            read(text)


LONG = "x" * 5_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/stores/{LONG}", None),
        ("GET", f"/v1/stores/{LONG}/count", None),
        ("GET", f"/v1/stores/{LONG}/changes", None),
        ("POST", f"/v1/stores/{LONG}/query", {"type": "count"}),
        ("GET", f"/v1/{LONG}", None),
        ("GET", f"/v1/stores/aircraft/range?{LONG}=1", None),
        ("GET", f"/v1/stores/aircraft/range?cursor={LONG}", None),
        ("GET", f"/v1/stores/aircraft/count?partition={LONG}", None),
        ("GET", f"/v1/stores/aircraft/count?wait_ms={'9' * 4_000}", None),
        ("GET", f'/v1/stores/aircraft/count?position_bound={{"{LONG}":{{"0":1}}}}', None),
        ("GET", f"/v1/stores/counts/keys/{LONG}", None),
        ("GET", f'/v1/stores/aircraft/changes?from={{"{LONG}":{{"0":1}}}}', None),
        ("POST", "/v1/stores/aircraft/query", {"type": LONG}),
        ("POST", "/v1/stores/aircraft/query", {"type": "count", "position_bound": {LONG: {"0": 1}}}),
        ("POST", "/v1/snapshots", {"stores": [LONG]}),
        ("POST", "/v1/snapshots", {"stores": ["aircraft"], "pin": LONG}),
        ("GET", f"/v1/snapshots/{LONG}", None),
    ],
)
def test_what_is_long_is_shortened_where_a_problem_repeats_it(
    client: httpx.Client, method: str, path: str, body: object
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code >= 400
    assert len(answer.content) < 1_000, answer.json()["detail"][:200]
    assert "x" * 250 not in answer.text


def test_an_unknown_parameter_is_named(client: httpx.Client) -> None:
    assert "nonsense" in client.get("/v1/stores/aircraft/range?nonsense=1").json()["detail"]


def test_a_wait_beyond_the_cap_is_told_the_cap(client: httpx.Client) -> None:
    detail = client.get("/v1/stores/aircraft/count?wait_ms=600001").json()["detail"]
    assert "600000" in detail
    assert "server.wait.max.ms" in detail


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", INVALID),
        (b"{", INVALID),
        (b"[]", INVALID),
        (b"null", INVALID),
        (b'"key"', INVALID),
        (b"{}", INVALID),
        (b"\xff\xfe", INVALID),
        (b'{"type": "key"}', INVALID),
        (b'{"type": "key", "key": null}', INVALID),
        (b'{"type": "key", "key": 5}', INVALID),
        (b'{"type": "key", "key": {"a": 1}}', INVALID),
        (b'{"type": "key", "key": "a", "keys": ["a"]}', INVALID),
        (b'{"type": "key", "key": NaN}', INVALID),
        (b'{"type": "key", "key": "\\ud800"}', INVALID),
        (b'{"type": "keys", "keys": []}', INVALID),
        (b'{"type": "keys", "keys": "abc"}', INVALID),
        (b'{"type": "keys", "keys": [1]}', INVALID),
        (b'{"type": "range", "limit": "5"}', INVALID),
        (b'{"type": "range", "limit": true}', INVALID),
        (b'{"type": "range", "limit": 1.0}', INVALID),
        (b'{"type": "range", "order": 5}', INVALID),
        (b'{"type": "range", "order": ["asc"]}', INVALID),
        (b'{"type": "range", "position_bound": "{}"}', INVALID),
        (b'{"type": "range", "allow_partial": "true"}', INVALID),
        (b'{"type": "range", "partition": "0"}', INVALID),
        (b'{"type": "range", "partition": []}', INVALID),
        (b'{"type": "range", "partition": [true]}', INVALID),
        (b'{"type": "range", "partition": 99999999999999999999}', MISSING),
        (b'{"type": "range", "partition": 7}', MISSING),
        (b'{"type": "range", "wait_ms": {}}', INVALID),
        (b'{"type": ["range"]}', INVALID),
        (b'{"type": "nonsense"}', INVALID),
        (b'{"type": "range", "limit": 1, "limit": 2}', INVALID),
        (b'{"type": "range", "position_bound": {"t": {"0": 1, "0": 2}}}', INVALID),
        (b'{"type": "key", "key": "a", "as_of": 1}', UNKNOWN_TYPE),
        (b'{"type": "range", "as_of": 1}', UNKNOWN_TYPE),
        (b'{"type": "range", "from": 1}', INVALID),
        (b'{"type": "windows"}', UNKNOWN_TYPE),
        (b'{"type": "versions", "key": "a"}', UNKNOWN_TYPE),
        (b'{"type": "sessions"}', UNKNOWN_TYPE),
        (b"[" * 100_000, INVALID),
        (b'{"a":' * 100_000, INVALID),
    ],
)
def test_a_bad_body_is_refused(client: httpx.Client, body: bytes, expected: tuple[int, str]) -> None:
    assert refused(client.post("/v1/stores/aircraft/query", content=body)) == expected


def test_a_parameter_in_the_url_and_in_the_body_is_refused(client: httpx.Client) -> None:
    body = {"type": "count", "isolation_level": "read_committed"}
    url = "/v1/stores/aircraft/query?isolation_level=read_committed"
    assert refused(client.post(url, json=body)) == INVALID


def test_more_keys_than_the_limit_are_refused(client: httpx.Client) -> None:
    body = {"type": "keys", "keys": [str(i) for i in range(10_001)]}
    assert refused(client.post("/v1/stores/aircraft/query", json=body)) == INVALID


def test_a_key_of_10_mb_in_a_body_is_refused(client: httpx.Client) -> None:
    body = {"type": "key", "key": "x" * 10_000_000}
    assert refused(client.post("/v1/stores/aircraft/query", json=body)) == INVALID


def test_a_body_of_20_mb_is_refused(client: httpx.Client) -> None:
    assert refused(client.post("/v1/stores/aircraft/query", content=b" " * 20_000_000)) == INVALID


def raw_answer(client: httpx.Client, *parts: bytes) -> tuple[bytes, dict[str, Any]]:
    """Status line and problem of an answer to these bytes, each part a packet of its own where that can be."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=HANGING_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            raw.sendall(part)
            assert client.get("/healthz").status_code == 200  # the server has had its turn to read
        answer = b""
        while b"}" not in answer and (more := raw.recv(65536)):
            answer += more
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"content-type: application/problem+json" in head.lower()
    return head.split(b"\r\n")[0], json.loads(body)


@pytest.mark.parametrize("size", [65_536, 70_000, 10_000_000])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_url_of_more_than_64_kib_is_refused(client: httpx.Client, size: int, pieces: int) -> None:
    url = [b"x" * (size // pieces + 1)] * pieces
    line, problem = raw_answer(
        client, b"GET /v1/stores/aircraft/keys/", *url, b"?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert line == b"HTTP/1.1 422 Unprocessable Entity"
    assert problem["reason"] == "INVALID_ARGUMENT"
    assert "64 KiB" in problem["detail"]


def test_a_url_of_nearly_64_kib_is_read(client: httpx.Client) -> None:
    path = "/v1/stores/aircraft/keys/"
    assert client.get(path + "x" * (65_535 - len(path))).json()["found"] is False


@pytest.mark.parametrize("request_line", [b"FOO / HTTP/1.1", b"GET / HTTP/9.9", b"\0\1\2", b"GET /\0 HTTP/1.1"])
def test_what_is_not_http_is_a_problem(client: httpx.Client, request_line: bytes) -> None:
    line, problem = raw_answer(client, request_line + b"\r\nHost: localhost\r\n\r\n")
    assert line == b"HTTP/1.1 422 Unprocessable Entity"
    assert problem["reason"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"FOO / HTTP/1.1", "method of HTTP"),
        (b"GET / HTTP/9.9", "Only HTTP/1.1"),
        (b"GET /\0 HTTP/1.1", "percent-encode"),
        (b"POST /v1/snapshots HTTP/1.1\r\nContent-Length: many", "Invalid character in Content-Length"),
        (b"POST /v1/snapshots HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", "Content-Length"),
        (b"GET / HTTP/1.1\r\nA header: 1", "Invalid header token"),
    ],
)
def test_what_is_not_http_is_told_what_is_wrong(client: httpx.Client, head: bytes, why: str) -> None:
    _, problem = raw_answer(client, head + b"\r\nHost: localhost\r\n\r\n")
    assert why in problem["detail"]
    assert "GET and POST" not in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/stores/aircraft/keys/N1", "/v1/stores", "/nope"])
@pytest.mark.parametrize("hosts", [0, 2, 3])
def test_a_request_of_http_1_1_has_one_host(client: httpx.Client, path: str, hosts: int) -> None:
    """Those that are answered at once, and those that are not."""
    line, problem = raw_answer(
        client, b"GET %b HTTP/1.1\r\n" % path.encode() + hosts * b"Host: localhost\r\n" + b"\r\n"
    )
    assert line == b"HTTP/1.1 400 Bad Request"
    assert (problem["status"], problem["reason"]) == (400, "INVALID_ARGUMENT")
    assert f"has {hosts or 'none'}" in problem["detail"]


def test_a_second_host_is_not_passed_over_behind_a_request_that_had_one(client: httpx.Client) -> None:
    good = b"GET /v1/stores/aircraft/count HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=HANGING_S) as raw:
        raw.sendall(good)
        answer = b""
        while not answer.endswith(b"}"):  # head and body come as they like
            answer += raw.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        raw.sendall(good.replace(b"\r\n\r\n", b"\r\nHOST: evil.example\r\n\r\n"))
        assert raw.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_request_of_http_1_0_may_go_without_a_host(client: httpx.Client) -> None:
    for hosts, status in ((0, b"200"), (1, b"200"), (2, b"400")):
        with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=HANGING_S) as raw:
            raw.sendall(b"GET /healthz HTTP/1.0\r\n" + hosts * b"Host: localhost\r\n" + b"\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("path", ["keys/%zz", "keys/a%2", "range?prefix=%zz", "range?prefix=%"])
def test_what_is_not_percent_encoded_is_refused(client: httpx.Client, path: str) -> None:
    line, problem = raw_answer(client, f"GET /v1/stores/aircraft/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert line == b"HTTP/1.1 422 Unprocessable Entity"
    assert "%25" in problem["detail"]


def test_a_kind_that_cannot_answer_is_called_what_the_listing_calls_it(client: httpx.Client) -> None:
    kind = client.get("/v1/stores/aircraft").json()["kind"]
    answer = client.post("/v1/stores/aircraft/query", json={"type": "versions"})
    assert refused(answer) == UNKNOWN_TYPE
    assert f"is of kind {kind} and cannot" in answer.json()["detail"]


def test_an_integer_beyond_64_bits_is_out_of_range(client: httpx.Client) -> None:
    detail = client.get("/v1/stores/aircraft/range?limit=99999999999999999999").json()["detail"]
    assert "out of range" in detail


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"type": "range", "limit": true}', "limit=true is"),
        (b'{"type": "range", "limit": "5"}', 'limit="5" is'),
        (b'{"type": "range", "partition": [false]}', "partition=false is"),
        (b'{"type": "key", "key": {"a": [null]}}', '{"a":[null]} is'),
        (b'{"type": "keys"}', "keys is missing"),
        (b'{"type": true}', "type=true is"),
        (b"{}", "type is missing: it is one of key, keys,"),
        (b"null", "not null"),
        (b"{", "begins with {"),
        (b'{"type": "range", "limit": 1180591620717411303424}', "limit=1180591620717411303424 is out of range"),
        (b'{"type": "range", "limit": ' + b"9" * 5_000 + b"}", "9999... has 5000 digits"),
        (
            b'{"type": "range", "position_bound": {"flights": {"0": 99999999999999999999999}}}',
            "99999999999999999999999 is not an offset",
        ),
        (b'{"type": "range", "position_bound": {"flights": {"' + b"9" * 5_000 + b'": 1}}}', "position_bound: "),
    ],
    ids=lambda given: str(given)[:60],
)
def test_messages_show_the_json_that_was_sent(client: httpx.Client, body: bytes, shown: str) -> None:
    assert shown in client.post("/v1/stores/aircraft/query", content=body).json()["detail"]


def test_an_offset_in_a_url_is_shown_as_it_was_sent(client: httpx.Client) -> None:
    params = {"position_bound": '{"flights":{"0":99999999999999999999999}}'}
    detail = client.get("/v1/stores/aircraft/range", params=params).json()["detail"]
    assert "99999999999999999999999 is not an offset" in detail


def test_a_refused_method_is_told_the_ones_that_are_taken(client: httpx.Client) -> None:
    assert "POST" in client.get("/v1/stores/aircraft/query").json()["detail"]
    assert "GET" in client.put("/v1/stores").json()["detail"]


def test_the_documentation_is_there_with_a_slash_too(client: httpx.Client) -> None:
    assert client.get("/docs/").text == client.get("/docs").text.replace('"./', '"../')


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/stores"), ("GET", "/v1/stores/aircraft/query")])
def test_a_method_that_is_not_taken_is_a_problem(client: httpx.Client, method: str, path: str) -> None:
    response = client.request(method, path)
    assert refused(response) == (405, "INVALID_ARGUMENT")
    assert response.headers["allow"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_stored_value_that_is_not_of_its_type_is_the_services_failure(
    client: httpx.Client, worker: OwningWorker, level: str
) -> None:
    worker.run(lambda: worker.stores["counts", 0].put(b"\0" * 8, b"short"))
    worker.commit()
    for _ in range(3):  # the first headers, and the same again
        answer = client.get("/v1/stores/counts/keys/0", params={"isolation_level": level})
        assert refused(answer) == (500, "STORE_EXCEPTION")


@pytest.mark.parametrize("state", [StoreState.RESTORING, StoreState.STANDBY])
def test_require_active_refuses_a_copy_that_is_not(
    client: httpx.Client, worker: OwningWorker, state: StoreState
) -> None:
    worker.set_state(state)
    try:
        for level in ("read_committed", "read_uncommitted"):
            params = {"isolation_level": level}
            answer = client.get("/v1/stores/aircraft/range", params=params)
            if (state, level) == (StoreState.STANDBY, "read_uncommitted"):  # what is staged is the owner's alone
                assert refused(answer) == (503, "NOT_ACTIVE")
            else:
                assert {p["served_by"] for p in answer.json()["partitions"].values()} == {state.name.lower()}
            response = client.get("/v1/stores/aircraft/range", params={**params, "require_active": "true"})
            assert refused(response) == (503, "NOT_ACTIVE")
            assert response.headers["retry-after"]
    finally:
        worker.set_state(StoreState.ACTIVE)
    wait_until(lambda: client.get("/v1/stores/aircraft/range?require_active=true").status_code == 200)


@pytest.mark.parametrize(
    "path", ["/v1/stores/aircraft/keys%2Fk", "/v1%2Fstores%2Faircraft%2Frange", "/v1/stores/aircraft%2Frange"]
)
def test_an_encoded_slash_before_the_key_leads_nowhere(client: httpx.Client, path: str) -> None:
    problem = client.get(path)
    assert (problem.status_code, problem.json()["reason"]) == (404, "DOES_NOT_EXIST")


@pytest.mark.parametrize("kind", [kind for kind in PROBLEMS if issubclass(kind, StatelineError)])
def test_what_another_process_or_node_answers_with_a_reason_has_it_here_too(kind: type[StatelineError]) -> None:
    arrived = decode_outcome(encode_outcome(Failure(kind("why"))), NotImplemented)
    assert isinstance(arrived, Failure)
    assert (type(arrived.error), str(arrived.error)) == (kind, "why")
    over_http = error_of(problem_of(kind()).reason, "why")
    assert (problem_of(over_http), str(over_http)) == (PROBLEMS[type(over_http)], "why")
    assert problem_of(over_http).reason == problem_of(kind()).reason
