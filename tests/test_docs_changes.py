"""What docs/changes.md shows is what happens: its commands are run, on the application of the README."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from support.processes import forked
from support.processes.running_worker import eventually
from support.run.patience import HANGING_S

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/changes.md").read_text(encoding="utf-8")
SETTINGS = ("--set", "commit.interval.ms=50", "--set", "session.timeout.ms=2000")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def stateline(directory: Path, *arguments: str, typed: str = "") -> str:
    with chdir(directory):
        done = forked.run(arguments, env=os.environ, typed=typed)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def worker(directory: Path, said: Path, target: str = "hello:app", application_id: str = "hello") -> Iterator[None]:
    """One that has caught up."""
    with said.open("wb") as output:
        command = ["worker", target, *SETTINGS]
        process = forked.Forked(command, cwd=directory, env=os.environ, output=output.fileno())
    file = directory / ".stateline" / application_id / "instances/worker-0.json"
    try:  # who was stopped before is in the group until its session is over
        eventually(lambda: file.exists() and '"running"' in file.read_text(), "the worker runs")
        stateline(directory, "status", target, "--until-caught-up", "--timeout", str(HANGING_S), *SETTINGS)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGING_S) == 0, said.read_text()


def entries(directory: Path, store: str, application_id: str = "hello") -> dict[str, int]:
    looked_for = ["--store", store, "--from", "a", "--to", "z", "--value-type", "int64", "--json"]
    told = json.loads(stateline(directory, "inspect", f".stateline/{application_id}", *looked_for))
    return {entry["key"]: entry["value"] for entry in told["entries"]}


def test_a_new_store_gets_its_history_as_the_page_says(tmp_path: Path) -> None:
    module = tmp_path / "hello.py"
    module.write_text(blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")[0])
    starting, filling = blocks(PAGE, "console")
    stateline(tmp_path, "topics", "hello:app", "--create", "--partitions", "1")
    typed = 'alice\t{"amount": 30}\nbob\t{"amount": 5}\nalice\t{"amount": 12}\n'
    stateline(tmp_path, "produce", "hello:app", "orders", typed=typed)
    with worker(tmp_path, tmp_path / "first"):
        pass
    shown = starting.splitlines()
    assert stateline(tmp_path, *shlex.split(shown[0][2:])[1:], *SETTINGS).splitlines() == shown[1:-1]
    module.write_text(module.read_text() + "\n\n" + blocks(PAGE, "python")[0])
    with worker(tmp_path, tmp_path / "second"):
        pass
    warned = next(line.strip() for line in PAGE.splitlines() if "is new, and orders was read before" in line)
    assert warned in (tmp_path / "second").read_text()
    stateline(tmp_path, *shlex.split(filling[2:])[1:], *SETTINGS)
    with worker(tmp_path, tmp_path / "third"):
        pass
    assert entries(tmp_path, "totals") == {"alice": 42, "bob": 5}
    assert entries(tmp_path, "counts") == {"alice": 2, "bob": 1}
    stateline(tmp_path, *shlex.split(shown[-1][2:])[1:], *SETTINGS)
    with worker(tmp_path, tmp_path / "fourth"):
        pass
    assert entries(tmp_path, "totals") == {"alice": 42, "bob": 5}


def test_blue_and_green_change_places_while_orders_come_in(tmp_path: Path) -> None:
    old = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")[0]
    new = old.replace('"hello"', '"hello-2"').replace('order.value["amount"])', '2 * order.value["amount"])')
    assert new.count("hello-2") == 1
    assert "2 * " in new
    (tmp_path / "hello.py").write_text(old)
    (tmp_path / "hello2.py").write_text(new)
    recipe = PAGE.split("## Blue and green\n", 1)[1]
    (waiting,) = re.findall(r"`stateline (status .*?)`", recipe.split("\n\n", 2)[1])
    (deleting,) = re.findall(r"`stateline (topics .*?)`", recipe.split("\n\n", 2)[1])
    stateline(tmp_path, "topics", "hello:app", "--create", "--partitions", "1")
    stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 30}\nbob\t{"amount": 5}\n')
    with worker(tmp_path, tmp_path / "old"):
        with chdir(tmp_path):
            nobody = forked.run([*shlex.split(waiting)[:-1], "0", *SETTINGS], env=os.environ)
        assert nobody.returncode == 1, "without a worker in the group nothing has caught up"
        with worker(tmp_path, tmp_path / "new", "hello2:app", "hello-2"):
            stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 12}\n')
            stateline(tmp_path, *shlex.split(waiting), *SETTINGS)
    assert entries(tmp_path, "totals", "hello") == {"alice": 42, "bob": 5}
    assert entries(tmp_path, "totals", "hello-2") == {"alice": 84, "bob": 10}
    stateline(tmp_path, *shlex.split(deleting), *SETTINGS)
    shutil.rmtree(tmp_path / ".stateline/hello")
    with worker(tmp_path, tmp_path / "later", "hello2:app", "hello-2"):
        pass
    assert entries(tmp_path, "totals", "hello-2") == {"alice": 84, "bob": 10}


def test_a_check_says_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")[0])
    command, _, shown = blocks(PAGE, "text")[0].partition("\n")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command[2:])],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANGING_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (shown, 1)
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["hello.py"]
