"""`stateline snapshot`: files with the rows of the stores, all there or none that counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.http.faulty_proxy import Cut, FaultyProxy, faulty_proxy
from support.processes import forked
from support.processes.query_server import PARTITIONS, TIMESTAMP_MS, OwningWorker, wait_until
from support.processes.served_here import http_server
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    worker.put_all({f"k{n}": {"n": n} for n in range(500)})
    worker.run(lambda: worker.stores["blobs", 1].put_all([(b"%06d" % n, bytes(2000)) for n in range(10_000)]))
    worker.commit()
    with http_server(state_dir) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.fixture
def proxy(client: httpx.Client) -> Iterator[FaultyProxy]:
    with faulty_proxy(client.base_url.port or 0) as proxy:
        yield proxy


def command(*words: str | Path) -> list[str]:
    return [str(SCRIPT), "snapshot", *map(str, words)]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(["snapshot", *words], env=os.environ)


def kept(client: httpx.Client) -> list[str]:
    return [each["id"] for each in client.get("/v1/snapshots").json()["snapshots"]]


def test_stores_become_parquet_files_of_one_moment(client: httpx.Client, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("aircraft", "counts", "--url", str(client.base_url), "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{out / 'aircraft'}: 500 rows" in done.stdout
    read = pq.read_table(out / "aircraft")
    assert {k: json.loads(v) for k, v in zip(read["key"].to_pylist(), read["value"].to_pylist(), strict=True)} == {
        f"k{n}": {"n": n} for n in range(500)
    }
    assert read.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert {round(at.timestamp() * 1000) for at in read["timestamp"].to_pylist()} == {TIMESTAMP_MS}
    assert sorted(path.name for path in (out / "counts").iterdir()) == [
        f"part-{p:05d}.parquet" for p in range(PARTITIONS)
    ], "a file of every partition, though there be no row"
    about = json.loads((out / "snapshot.json").read_text())
    assert about["stores"] == {"aircraft": 500, "counts": 0}
    assert set(about["position"]) == {"flights"}
    assert (out / "_SUCCESS").read_bytes() == b""
    assert kept(client) == []


def test_arrow_files_have_what_was_asked_for(client: httpx.Client, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.faults.extend([Cut(0), Cut(1_000)])
    done = run("aircraft", "--to", "arrow", "--columns", "key", "--prefix", "k1", "--url", proxy.url, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    keys = set()
    for path in (tmp_path / "aircraft").iterdir():
        with pa.ipc.open_file(path) as reader:
            keys |= set(reader.read_all()["key"].to_pylist())
    assert keys == {f"k{n}" for n in range(500) if str(n).startswith("1")}


def test_one_that_is_interrupted_lets_its_snapshot_go_and_says_no_success(client: httpx.Client, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with faulty_proxy(client.base_url.port or 0) as proxy:
        proxy.most_bytes = 100_000  # so it cannot come to its end
        running = subprocess.Popen(
            command("blobs", "--url", proxy.url, "--out", out), stderr=subprocess.DEVNULL,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # the shell's & has it ignored
        )  # fmt: skip
        wait_until(lambda: (out / "blobs").exists(), HANGING_S)
        running.send_signal(signal.SIGINT)
        assert running.wait(HANGING_S) == 130
    assert not (out / "_SUCCESS").exists()
    assert kept(client) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nope",), "no store 'nope'"),
        (("aircraft", "--to", "csv"), "parquet or arrow"),
        (("aircraft", "--columns", "nope"), "it has key, value, timestamp"),
        (("cache",), "in memory"),
        (("aircraft", "--as-of", "5"), "as_of"),
    ],
)
def test_what_cannot_be_written_is_the_callers_mistake(
    client: httpx.Client, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    done = run(*words, "--url", str(client.base_url), "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_with_something_in_it_is_left_alone(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = run("aircraft", "--url", str(client.base_url), "--out", tmp_path)
    assert (done.returncode, "mine" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
