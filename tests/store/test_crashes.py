"""kill -9 at random instants: what was acknowledged is there, and nothing is there by halves."""

import random
import subprocess
from pathlib import Path

import pytest

from stateline_store import IsolationLevel
from store import store_processes as programs


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    for round_number in range(3):
        command = [*programs.COMMAND, "forever", str(tmp_path), str(rnd.random())[2:]]
        writer = subprocess.Popen(command, cwd=programs.TESTS, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(rnd.randrange(1, 1500)):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        rest, _ = writer.communicate()
        lines = [line for line in rest.split(b"\n")[:-1] if line]
        acknowledged = int(lines[-1]) if lines else acknowledged

        store = programs.open_store(tmp_path)
        position = store.position(IsolationLevel.READ_COMMITTED)
        reached = position.get(*programs.COMMIT)
        assert reached in (acknowledged, acknowledged + 1), round_number
        assert store.committed_offset(programs.CHANGELOG) == store.commit_number == reached
        assert programs.agrees(dict(store.all()), position)
        store.close()
