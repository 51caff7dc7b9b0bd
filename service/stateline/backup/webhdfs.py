"""`WebHdfs`: the part of an obstore's store that backups need, over HDFS's REST API (WebHDFS, HttpFS).

obstore has no HDFS, and pyarrow's needs libhdfs and a JVM in each process. The name node redirects reads and writes to
data nodes, so all of them must be reached. A file gets its name when it is whole: it is written as ``.part-<random>``,
and renamed. The sweep deletes parts that a crash has left.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import httpx

_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
_TIMEOUT_S = 60.0
_Bytes: TypeAlias = bytes  # `_Content` has a method of that name, as obstore's


class WebHdfs:
    """Thread-safe. Paths are below the URL's. All raise `FileNotFoundError` for an absent path, and `OSError` for
    anything else that the cluster refuses."""

    def __init__(self, url: str) -> None:
        """Ask nothing yet. The user is the URL's, else ``HADOOP_USER_NAME``. Kerberos is not supported. Raises
        `ValueError` without a host and a port."""
        parts = urlsplit(url)
        if not (parts.hostname and parts.port):
            raise ValueError("give the name node's host and its port for HTTP, as in webhdfs://namenode:9870/stateline")
        self._folder = parts.path.rstrip("/")
        self._root = f"{_SCHEMES[parts.scheme]}://{parts.hostname}:{parts.port}/webhdfs/v1"
        user = parts.username or os.environ.get("HADOOP_USER_NAME")
        self._user = {"user.name": user} if user else {}
        self._client = httpx.Client(timeout=_TIMEOUT_S)

    def put(self, path: str, content: bytes | Iterable[bytes], **_: Any) -> None:
        """Write a file whole or not at all. An existing file is replaced."""
        part = f"{path}.part-{secrets.token_hex(4)}"
        place = self._told("Location", "PUT", "CREATE", part, noredirect="true")
        with _refused(f"CREATE {part}"):
            _checked(self._client.put(place, content=content), part)
        self._ask("PUT", "RENAME", part, destination=f"{self._folder}/{path}", renameoptions="OVERWRITE")

    def get(self, path: str) -> _Content:
        """Return a file's content, which is read from the data node later."""
        return _Content(self._client, self._told("Location", "GET", "OPEN", path, noredirect="true"), path)

    def head(self, path: str) -> dict[str, Any]:
        """Return the file's `path`, `size` and `last_modified`."""
        return _described(path, self._told("FileStatus", "GET", "GETFILESTATUS", path))

    def list(self, prefix: str) -> Iterator[Sequence[dict[str, Any]]]:
        """Yield all files below this folder, a folder at a time; nothing if there is none."""
        try:
            found = self._told("FileStatuses", "GET", "LISTSTATUS", prefix)["FileStatus"]
        except FileNotFoundError:
            return
        yield [_described(f"{prefix}/{each['pathSuffix']}", each) for each in found if each["type"] == "FILE"]
        for each in found:
            if each["type"] == "DIRECTORY":
                yield from self.list(f"{prefix}/{each['pathSuffix']}")

    def list_with_delimiter(self) -> dict[str, Sequence[str]]:
        """Return the names of the folders here as `common_prefixes`."""
        found = self._told("FileStatuses", "GET", "LISTSTATUS", "")["FileStatus"]
        return {"common_prefixes": [each["pathSuffix"] for each in found if each["type"] == "DIRECTORY"]}

    def delete(self, paths: str | Sequence[str]) -> None:
        """Delete these files. Absent ones are ignored."""
        for path in [paths] if isinstance(paths, str) else paths:
            self._ask("DELETE", "DELETE", path)

    def _told(self, member: str, method: str, operation: str, path: str, **parameters: str) -> Any:
        """Return this member of the answer. Another answer is a refusal: a proxy's page, for example."""
        answer = self._ask(method, operation, path, **parameters)
        try:
            return answer.json()[member]
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{operation} {path}: {answer.text:.300} is no answer of WebHDFS.") from error

    def _ask(self, method: str, operation: str, path: str, **parameters: str) -> httpx.Response:
        url, terms = f"{self._root}{quote(f'{self._folder}/{path}')}", {"op": operation, **self._user, **parameters}
        with _refused(f"{operation} {path}"):
            return _checked(self._client.request(method, url, params=terms), path)


class _Content:
    def __init__(self, client: httpx.Client, place: str, path: str) -> None:
        self._client, self._place, self._path = client, place, path

    def stream(self) -> Iterator[_Bytes]:
        with _refused(f"OPEN {self._path}"), self._client.stream("GET", self._place) as answer:
            if answer.is_error:
                answer.read()
            yield from _checked(answer, self._path).iter_bytes()

    def bytes(self) -> _Bytes:
        return b"".join(self.stream())


def _described(path: str, status: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(status["modificationTime"] / 1000, UTC)
    return {"path": path, "size": int(status["length"]), "last_modified": at}


def _checked(answer: httpx.Response, path: str) -> httpx.Response:
    if answer.status_code == HTTPStatus.NOT_FOUND:
        raise FileNotFoundError(path)
    if answer.is_error:
        raise OSError(f"{answer.status_code} {answer.text:.300}")
    return answer


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise OSError(f"{what}: {error!r:.300}") from error
