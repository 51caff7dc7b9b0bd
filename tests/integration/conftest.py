"""Each test on both logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline.log import Log, open_log


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'log.db'}"
    return str(request.getfixturevalue("kafka_broker").bootstrap_servers)


@pytest.fixture
def log(bootstrap: str, tmp_path: Path) -> Iterator[Log]:
    with closing(open_log(bootstrap, tmp_path)) as made:
        yield made
