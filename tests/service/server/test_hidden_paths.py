"""No answer says where on the machine files lie."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from query_server import OwningWorker, server_process, wait_until
from stateline.server import hidden_paths
from stateline.server.hidden_paths import hide_directory, told

COMMITTED = "default.state.isolation.level=read_committed"
PATHS = (
    "/readyz",
    "/v1/stores",
    "/v1/stores/aircraft",
    "/v1/topology",
    "/v1/instances",
    "/v1/stores/aircraft/keys/k",
    "/v1/stores/aircraft/range",
    "/v1/stores/aircraft/count?allow_partial=true",
    "/v1/stores/aircraft/position",
    "/v1/stores/aircraft/range?isolation_level=read_uncommitted",
    "/v1/stores/cache/range",
)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that are hidden for this test alone."""
    monkeypatch.setattr(hidden_paths, "_hidden", {})


@pytest.mark.usefixtures("hidden")
def test_a_hidden_directory_stands_under_its_name() -> None:
    hide_directory(Path("/var/lib/stateline"), "<state.dir>")
    assert told("/var/lib/stateline/a/0_1 is damaged") == "<state.dir>/a/0_1 is damaged"
    assert told("(IO error: '/var/lib/stateline': it is full)") == "(IO error: '<state.dir>': it is full)"
    assert told(OSError("file:///var/lib/stateline/x")) == "file://<state.dir>/x"
    assert told("/var/lib/stateline-2/x and /var/lib/stateliner") == "/var/lib/stateline-2/x and /var/lib/stateliner"


@pytest.mark.usefixtures("hidden")
def test_a_relative_directory_is_hidden_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hide_directory(Path("state"), "<state.dir>")
    assert told("state/a and " + f"{tmp_path}/state/b") == "<state.dir>/a and <state.dir>/b"
    assert told("the state of my-state/a, other/state/b") == "the state of my-state/a, other/state/b"


@pytest.mark.usefixtures("hidden")
def test_the_working_directory_and_the_root_hide_nothing_but_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hide_directory(Path("."), "<state.dir>")
    hide_directory(Path("/"), "<root>")
    assert told(f"1.5 of {tmp_path}/a, /b") == "1.5 of <state.dir>/a, /b"


def refused(client: httpx.Client, state_dir: Path) -> int:
    """How many of the paths are refused; none of the answers has a path of the state directory."""
    responses = [client.get(path) for path in PATHS]
    for response in responses:
        assert str(state_dir) not in response.text, response.url
        assert "Traceback" not in response.text
    return sum(response.status_code >= 400 for response in responses)


def test_no_answer_has_a_path_of_the_state_directory(tmp_path: Path) -> None:
    """Before a worker starts, with damaged tables, and with files that are gone."""
    with server_process(tmp_path, COMMITTED) as client:
        assert refused(client, tmp_path) > 5
        assert "<state.dir>" in client.get("/v1/stores/aircraft/range").text
        worker = OwningWorker(tmp_path)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        worker.put("k", 1)
        worker.commit()
        worker.close(killed=True)
        for store in worker.stores.values():
            store.close()
        for notice in worker.application.glob("0_*/aircraft*.notice"):
            notice.write_bytes(b"damaged")
        assert refused(client, tmp_path) > 0
    with server_process(tmp_path, COMMITTED) as client:
        assert refused(client, tmp_path) > 3
        (worker.application / "topology.json").write_text("{")
        for database in worker.application.glob("0_*/rocksdb/aircraft-v2/CURRENT"):
            database.write_bytes(b"damaged")
        assert refused(client, tmp_path) > 3
