"""vectors.json is what the real Kafka Streams writes today: made anew, it is the same file."""

from __future__ import annotations

import shutil
import subprocess
from itertools import zip_longest
from pathlib import Path

import pytest

from conformance.golden import FOLDER
from support.kafka.java_streams import BY_STORES
from support.kafka.kafka_broker import missing_is_a_failure
from support.kafka.maven import one_at_a_time
from support.run.length import long_only
from support.run.patience import HANGING_S

_DEADLINE_S = HANGING_S  # the first time Maven fetches 80 MB of jars


def unavailable(why: str) -> None:
    if missing_is_a_failure():
        pytest.fail(why)
    pytest.skip(why)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    with one_at_a_time("maven"):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)


@long_only("no code of ours is in this")
@pytest.mark.parametrize("transactional", BY_STORES.values(), ids=BY_STORES)
def test_vectors_made_anew_are_the_ones_checked_in(transactional: str, tmp_path: Path) -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            unavailable(f"Golden vectors are made with {tool!r}, which is not on the PATH.")
    made = tmp_path / "vectors.json"
    maven = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), f"-Dbuild.folder={tmp_path / 'build'}"]
    fetched = run(*maven, "dependency:resolve")
    if fetched.returncode:
        unavailable(f"Maven could not fetch Kafka Streams: {fetched.stdout}{fetched.stderr}")
    done = run(*maven, "compile", "exec:java", f"-Dvectors={made}", f"-Dtransactional={transactional}")
    assert done.returncode == 0, done.stdout + done.stderr
    fresh, kept = (path.read_text().splitlines() for path in (made, FOLDER / "vectors.json"))
    assert [line for line in zip_longest(fresh, kept) if line[0] != line[1]][:1] == []
