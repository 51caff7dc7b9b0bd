"""The checks find what is wrong, and the requests shown can be pasted into a shell."""

from __future__ import annotations

import shlex

import httpx
import pytest

from flights.checks import Tally, check_keys, check_range
from flights.shown import LastRequest, curl_of, shortened
from stateline.client import NEVER, Client, Entry

ENTRIES = [Entry(key="a", value={"n": 1}, timestamp=None), Entry(key="b", value={"n": 2}, timestamp=None)]


def test_right_answers_are_counted() -> None:
    tally = Tally()
    check_range("totals", ENTRIES, {"a": {"n": 1}, "b": {"n": 2.0}}, tally)
    assert tally.verdict == "checked 3 answers, all right"


def test_a_wrong_value_is_named_with_both_values() -> None:
    tally = Tally()
    check_range("totals", ENTRIES, {"a": {"n": 1}, "b": {"n": 3}}, tally)
    assert tally.wrong == ["totals b: answered {'n': 2}, expected {'n': 3}"]
    assert tally.verdict == "checked 3 answers, 1 wrong"


def test_a_key_that_is_missing_or_too_many_or_out_of_order_is_wrong() -> None:
    expected = {"a": {"n": 1}, "b": {"n": 2}}
    for entries in (ENTRIES[:1], [*ENTRIES, Entry(key="c", value=None, timestamp=None)], ENTRIES[::-1], []):
        tally = Tally()
        check_range("totals", entries, expected, tally)
        assert tally.wrong, entries


def test_a_request_is_shown_as_a_curl_line_that_a_shell_reads_back() -> None:
    url = "http://127.0.0.1:8000/v1/stores/aircraft/keys/N1"
    bound = '{"departures":{"2":17}}'
    assert shlex.split(curl_of(httpx.Request("GET", url))) == ["curl", "-s", url]
    line = curl_of(httpx.Request("GET", url, params={"position_bound": bound, "wait_ms": "500"}))
    wanted = ["curl", "-sG", url, "--data-urlencode", f"position_bound={bound}", "-d", "wait_ms=500"]
    assert shlex.split(line) == wanted


def test_a_long_answer_is_shown_shortened() -> None:
    entries = [{"key": f"k{number}", "value": number} for number in range(100)]
    shown = shortened({"entries": entries, "partitions": {"0": {}, "1": {}}})
    assert '"k2"' in shown
    assert '"k3"' not in shown
    assert "… and 97 more" in shown
    assert "… of 2" in shown


@pytest.mark.parametrize(
    "refusal", [(404, '{"reason": "DOES_NOT_EXIST", "detail": "no"}'), (502, "<html>no server of ours</html>")]
)
def test_what_is_refused_is_counted_and_the_rest_is_asked(refusal: tuple[int, str]) -> None:
    last, tally = LastRequest(), Tally()
    answers = httpx.MockTransport(lambda request: httpx.Response(refusal[0], text=refusal[1]))
    http = httpx.Client(transport=answers, event_hooks={"response": [last]})
    with Client("http://127.0.0.1:1", retries=NEVER, http=http) as client:
        check_keys(client, "airlines", {str(key): {"n": key} for key in range(5_000)}, {}, {}, tally)
    assert tally.verdict == "checked 2 answers, 2 wrong"
    assert last.status == refusal[0]
