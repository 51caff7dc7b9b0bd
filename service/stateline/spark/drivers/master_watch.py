"""Ends a driver that has lost its standalone cluster: all masters and all executors.

Spark waits for ever for a master to return (`StandaloneAppClient.onDisconnected`), because a master with recovery does.
Executors and the driver work without one. If both are gone for ``spark.network.timeout``, the driver ends. Other kinds
of clusters end their drivers themselves.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

_STANDALONE = "spark://"
_LOOK_S = 5.0
_CONNECT_S = 2.0


@contextmanager
def watched_master(session: SparkSession, lost: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, watch the session's cluster. Call `lost` once, on another thread, with the reason. Only
    standalone clusters are watched."""
    master = session.sparkContext.master or ""
    if not master.startswith(_STANDALONE):
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(session, master, lost, ended), name="master-watch")
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(session: SparkSession, master: str, lost: Callable[[str], None], ended: threading.Event) -> None:
    context = session.sparkContext._jsc.sc()
    patience_s = float(context.conf().getTimeAsSeconds("spark.network.timeout", "120s"))
    seen_s = time.monotonic()
    while not ended.wait(min(_LOOK_S, patience_s / 3)):
        try:
            executors = int(context.getExecutorMemoryStatus().size()) - 1  # Spark counts the driver too
            is_there = executors > 0 or any(map(_answers, masters(master)))
        except (Py4JError, OSError, AttributeError):
            return  # Spark has ended: the pipelines notice that
        now_s = time.monotonic()
        if is_there:
            seen_s = now_s
        elif now_s - seen_s >= patience_s:
            lost(f"No Spark master of {master} has answered for {now_s - seen_s:.0f} s, and no executor is left")
            return


def masters(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports of ``spark://host:port,host:port``."""
    places = [place.rpartition(":") for place in master.removeprefix(_STANDALONE).split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in places]


def _answers(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, _CONNECT_S).close()
    except OSError:
        return False
    return True
