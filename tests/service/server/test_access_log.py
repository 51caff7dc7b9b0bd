"""The access log: a line per request, with no key or value in it, and none that a request waits for."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from pathlib import Path

import httpx
import pytest

from stateline.server.guard.tokens import TokenEntry, TokensFile
from stateline.server.telemetry.access_log import MOST_WAITING, AccessLog, Line, RequestOrigin
from stateline.server.telemetry.request_counts import Answered
from support.processes.query_server import OwningWorker
from support.processes.serve_process import served, until_ready, wait_until
from support.run.patience import HANGING_S

ASKED = Answered("/v1/stores/{store}/keys/{key}", "aircraft", "read_committed", "ok")
KEY = "/v1/stores/aircraft/keys/mine-alone"


def members(line: str) -> dict[str, str]:
    """The members of a line, from its first."""
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line[line.index("method=") :]))


def test_a_line_tells_what_was_asked_and_answered_and_no_key_or_value(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("mine-alone", "of-mine")
    worker.commit()
    with served(tmp_path, "server.access.log=on") as one:
        until_ready(one)
        answer = one.fresh(KEY)
        assert answer.json()["value"] == "of-mine"
        one.fresh("/v1/stores/aircraft/range?prefix=mine-alone", headers={"Accept": "application/x-ndjson"})
        one.fresh("/mine-alone")
        wait_until(lambda: bool(one.lines("route=unmatched")))
        (line,) = map(members, one.lines("route=/v1/stores/{store}/keys/{key}"))
        assert float(line.pop("ms")) > 0
        assert line.pop("request_id") == answer.headers["x-request-id"]
        assert line == {
            "client": "127.0.0.1",
            "method": "GET",
            "route": "/v1/stores/{store}/keys/{key}",
            "store": "aircraft",
            "level": "read_committed",
            "outcome": "ok",
            "status": "200",
            "rows": "1",
            "bytes": str(len(answer.content)),
        }
        (streamed,) = map(members, one.lines("route=/v1/stores/{store}/range"))
        assert streamed["rows"] == "1"
        (nowhere,) = map(members, one.lines("route=unmatched"))
        assert (nowhere["status"], nowhere["outcome"]) == ("404", "DOES_NOT_EXIST")
        assert not one.lines("mine-alone")
        assert not one.lines("of-mine")
    worker.close()


def test_with_json_logs_a_request_is_an_object_with_the_numbers_as_numbers(tmp_path: Path) -> None:
    with served(tmp_path, "server.access.log=on", "log.format=json") as one:
        wait_until(lambda: answers(one.url))
        one.fresh("/v1/stores", headers={"x-request-id": "mine/7"})
        wait_until(lambda: bool(one.lines("mine/7")))
        (line,) = map(json.loads, one.lines("mine/7"))
    assert {"time", "level", "node", "application", "process"} <= set(line)
    assert (line["message"], line["logger"]) == ("GET /v1/stores", "stateline.access")
    assert (line["status"], line["client"], line["request_id"]) == (200, "127.0.0.1", "mine/7")
    assert isinstance(line["ms"], float)


def test_the_name_of_a_token_is_told_and_not_the_token(tmp_path: Path) -> None:
    token = "stateline_" + "a" * 43
    digest = hashlib.sha256(token.encode()).hexdigest()
    file = tmp_path / "tokens.json"
    file.write_text(TokensFile(tokens=(TokenEntry(name="dashboard", sha256=digest),)).model_dump_json())
    file.chmod(0o600)
    with served(tmp_path, "server.access.log=on", f"server.tokens.file={file}") as one:
        wait_until(lambda: bool(one.lines("Answering at")))
        shown = {"Authorization": f"Bearer {token}"}
        wait_until(lambda: answers(one.url))
        assert one.fresh("/v1/topology", headers=shown).status_code == 200
        assert one.fresh("/v1/topology").status_code == 401
        wait_until(lambda: bool(one.lines("outcome=UNAUTHENTICATED")))
        (line,) = map(members, one.lines("route=/v1/topology"))
        assert line["token"] == "dashboard"
        assert not one.lines(token)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_only_slow_and_failed_requests_are_told_when_only_those_are_wanted(tmp_path: Path) -> None:
    with served(tmp_path, "server.access.log=slow", "server.slow.query.ms=2147483647") as one:
        wait_until(lambda: answers(one.url))
        assert one.fresh("/v1/stores").status_code == 200
        assert one.fresh(KEY).status_code == 503  # there is no worker
        wait_until(lambda: bool(one.lines("outcome=NOT_READY")))
        assert not one.lines("status=200")


def test_by_default_there_is_none(tmp_path: Path) -> None:
    with served(tmp_path) as one:
        wait_until(lambda: answers(one.url))
        one.fresh(KEY)
        one.process.terminate()
        assert one.process.wait(HANGING_S) == 0
        assert not one.lines("stateline.access")


def test_what_could_be_taken_for_more_members_is_quoted() -> None:
    line = Line("GET", ASKED._replace(store='a b="c"\n'), 200, 0.0012345, 0, 12, RequestOrigin())
    assert line.text() == (
        'method=GET route=/v1/stores/{store}/keys/{key} store="a b=\\"c\\"\\n" level=read_committed outcome=ok '
        "status=200 ms=1.234 rows=0 bytes=12"
    )


@pytest.mark.parametrize(
    ("mode", "seconds", "status", "wanted"),
    [("on", 0.0, 200, True), ("slow", 0.4, 200, False), ("slow", 0.5, 200, True), ("slow", 0.0, 500, True)],
)
def test_the_mode_decides_which_requests_are_wanted(mode: str, seconds: float, status: int, wanted: bool) -> None:
    log = AccessLog("on" if mode == "on" else "slow", 500)
    assert log.wants(seconds, status) is wanted
    log.close()


class _Stuck(logging.Handler):
    """A log whose reader takes nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.let, self.written = threading.Event(), threading.Event(), 0

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        assert self.let.wait(HANGING_S)
        self.written += 1


def test_a_reader_that_hangs_holds_nobody_up_and_what_is_left_out_is_known() -> None:
    logger, stuck = logging.getLogger("stateline.access"), _Stuck()
    logger.addHandler(stuck)
    logger.setLevel(logging.INFO)
    log = AccessLog("on", 0)
    line = Line("GET", ASKED, 200, 0.001, 1, 10, RequestOrigin())
    try:
        assert log.write(line)
        assert stuck.entered.wait(HANGING_S)  # it hangs with this one
        written = [log.write(line) for _ in range(MOST_WAITING + 5)]
        assert written == [True] * MOST_WAITING + [False] * 5
    finally:
        stuck.let.set()
        log.close(timeout_s=60)
        logger.removeHandler(stuck)
        logger.setLevel(logging.NOTSET)
    assert stuck.written == MOST_WAITING + 1
