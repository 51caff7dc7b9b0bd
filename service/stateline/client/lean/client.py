"""Send requests to a Stateline server, with only the standard library and the store library's errors.

Temporary failures are retried (`stateline.client.passing`). Other failures raise the library's error of that name. The
token is sent as a header. No message and no `repr` shows it.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from socket import gaierror
from typing import Any
from urllib.parse import quote, urlsplit

from stateline.client.passing import PASSING, Pauses, retry_after_s
from stateline.problem_kinds import ELSEWHERE_STATUS, error_of
from stateline_store.clock import now_ms
from stateline_store.errors import ConfigurationError, NotReadyError, StatelineError

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
# How long planning a query retries: a server restarts in this time, and a wrong address fails soon.
PLANNING_S = 15.0
_PASSING = PASSING | {ELSEWHERE_STATUS}
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,1024}=*")  # the server's rule
_SHOWN = 2000  # characters of an answer in a message


class PassingError(Exception):
    """This attempt failed, and another may succeed. `status` is HTTP's, or 0 without an answer. `retry_after_s` is the
    server's `Retry-After` in seconds.
    """

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


# Failures that a connection may have at any time.
LOST = (OSError, HTTPException, PassingError)


@dataclass(frozen=True, slots=True)
class LeanRequest:
    """One request. `target` is path and query string below the server's address. `members` become a JSON body."""

    method: str
    target: str
    members: Mapping[str, Any] | None = None
    accept: str = JSON


@dataclass(frozen=True, slots=True)
class LeanClient:
    """The addresses and the token of requests. Thread-safe and picklable: it holds no connection.

    If one of `urls` does not answer, the next one is asked. The token is `token`, or the content of `token_file`. The
    file is read for each request, so the token may be renewed. Retries for an answer or the next rows end after
    `retry_s`. `to_wait_longer` is what errors say of that.
    """

    urls: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    timeout_s: float = 30.0
    retry_s: float = 120.0
    to_wait_longer: str = "wait for longer (in Spark the option retry_s)"

    def ask(self, request: LeanRequest, *, patience_s: float | None = None) -> Any:
        """Return the answer's JSON, or None if it is empty.

        Raises the server's error. Raises `NotReadyError` if all attempts within `patience_s` (default: `retry_s`) had
        temporary failures."""
        return self.ask_when(request, patience_s=patience_s)[0]

    def ask_when(self, request: LeanRequest, *, patience_s: float | None = None) -> tuple[Any, int]:
        """Return the answer of `ask`, and the server's time in milliseconds since the epoch.

        The time is HTTP's `Date`, precise to a second; without it, this machine's clock. Compare times in the answer
        only with it. Raises like `ask`."""
        failover = Failover(self, self.retry_s if patience_s is None else patience_s)
        while True:
            try:
                with self.opened(failover.url, request) as response:
                    data, date = response.read(), response.headers["Date"]
                break
            except LOST as error:
                failover.pause(error)
        try:
            at_ms = now_ms() if date is None else int(parsedate_to_datetime(date).timestamp() * 1000)
            return json.loads(data) if data else None, at_ms
        except ValueError as error:
            raise ConfigurationError(
                f"{failover.url} answers, but not as a Stateline server: is the option url right?"
            ) from error

    @contextlib.contextmanager
    def opened(self, url: str, request: LeanRequest) -> Iterator[HTTPResponse]:
        """Yield a successful answer, to read as it arrives. The connection is closed after the block. One attempt:
        raises one of `LOST`, or the server's error.
        """
        connection = self._connection(url)
        try:
            body = None if request.members is None else json.dumps(request.members).encode()
            headers = {
                "Accept": request.accept,
                **({} if body is None else {"Content-Type": JSON}),
                **self._credentials(),
            }
            connection.request(request.method, urlsplit(url).path.rstrip("/") + request.target, body, headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise _failure(url, response)
            yield response
        except ssl.SSLCertVerificationError as error:
            raise ConfigurationError(
                f"The certificate of {url} is not trusted ({error.verify_message}): name the authority that signed it "
                "with the option ca_file."
            ) from error
        except gaierror as error:
            if len(self.urls) > 1:  # the name of a lost node may be gone, too
                raise
            raise ConfigurationError(f"{url} is not found ({error.strerror}): is the option url right?") from error
        finally:
            connection.close()

    def _connection(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None, "options are checked when they are read"
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        context = ssl.create_default_context(cafile=self.ca_file)
        return HTTPSConnection(parts.hostname, parts.port, timeout=self.timeout_s, context=context)

    def _credentials(self) -> dict[str, str]:
        token = self.token
        if self.token_file is not None:
            try:
                token = Path(self.token_file).read_text().strip()
            except OSError as error:
                raise ConfigurationError(
                    f"token_file {self.token_file} cannot be read on this machine: {error.strerror}."
                ) from error
        if token is None:
            return {}
        if not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                "The token is none: letters, digits and ._~+/- are, in one line. Copy it as `stateline token add` says."
            )
        return {"Authorization": f"Bearer {token}"}


class Failover:
    """Chooses the server and the pause of the next attempt, for one request or one stream. For one thread."""

    def __init__(self, client: LeanClient, patience_s: float) -> None:
        self._urls, self._patience_s, self._to_wait_longer = client.urls, patience_s, client.to_wait_longer
        self._next = 0
        self._pauses = Pauses(patience_s)
        self.progressed = self._pauses.succeeded  # call it when data arrives: the time for retries restarts

    @property
    def url(self) -> str:
        return self._urls[self._next % len(self._urls)]

    def pause(self, error: Exception) -> None:
        """Wait for the next attempt. Raises `NotReadyError` if no time is left for one, at once if the server's
        `Retry-After` is longer than the time left."""
        url = self.url
        self._next += 1
        pause_s = self._pauses.next_s(error.retry_after_s if isinstance(error, PassingError) else 0.0)
        if pause_s is None:
            raise NotReadyError(_given_up(url, error, self._patience_s, self._to_wait_longer)) from error
        time.sleep(pause_s)


def segment(text: str) -> str:
    """Return the text as one segment of a URL's path."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def _failure(url: str, response: HTTPResponse) -> StatelineError | PassingError:
    data = response.read(65536)
    try:
        problem = json.loads(data)
        reason, detail = str(problem.get("reason", "")), str(problem["detail"])[:_SHOWN]
    except (ValueError, KeyError, TypeError, AttributeError):
        reason, detail = "", f"{url} answers with status {response.status} and no reason."
    if response.status in _PASSING:
        asked_s = retry_after_s(response.headers.get("Retry-After", ""), datetime.now(UTC))
        return PassingError(f"{detail} (status {response.status}).", response.status, asked_s or 0.0)
    if response.status == 401:
        detail += " Give the option token_file, or token, or set STATELINE_TOKEN for the driver."
    return error_of(reason, detail, response.status)


def _given_up(url: str, error: Exception, patience_s: float, to_wait_longer: str) -> str:
    why = (str(error) or type(error).__name__).rstrip(".")
    if isinstance(error, PassingError) and error.retry_after_s >= patience_s:
        return (
            f"{url} wants to be asked again in {error.retry_after_s:g} s, and only {patience_s:g} s are waited for it: "
            f"{why}. Ask again then, or {to_wait_longer}."
        )
    if isinstance(error, PassingError) and error.status == 429:
        return (
            f"{url} has refused for {patience_s:g} s: {why}. A DataFrame of .load() keeps its snapshot until Spark's "
            'driver ends: use stateline.spark.cut, which releases it, or .options(lease="ttl", max_age_s="60"), or '
            "allow for more."
        )
    return (
        f"{url} did not answer as it should for {patience_s:g} s: {why}. Is the server running there, and reached from "
        f"this machine? If it only takes longer, {to_wait_longer}."
    )
