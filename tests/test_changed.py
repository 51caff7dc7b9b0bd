"""`changed.py` selects the tests that a change can break."""

from __future__ import annotations

from functools import cache

import pytest

from changed import ROOT, Users, git


@cache
def users() -> Users:
    return Users(git("ls-files", "-co", "--exclude-standard", "*.py").splitlines())


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        pytest.param("store/stateline_store/position.py", "tests/store/test_position.py", id="what it imports"),
        pytest.param("store/stateline_store/rocksdb/engine.py", "tests/store/test_queries.py", id="by a lazy package"),
        pytest.param("service/stateline/cli/state/status.py", "tests/service/cli/test_status.py", id="a command"),
        pytest.param("service/stateline/worker/loop/worker.py", "tests/integration/test_sick_nodes.py", id="a process"),
        pytest.param("tests/support/apps/sick_app.py", "tests/integration/test_sick_nodes.py", id="an application"),
        pytest.param("tests/support/kafka/shared_broker.py", "tests/integration/test_sick_nodes.py", id="a fixture"),
        pytest.param("docs/http.md", "tests/test_docs.py", id="a page"),
    ],
)
def test_a_change_selects_the_tests_that_use_the_file(changed: str, test: str) -> None:
    assert (ROOT / changed).exists()
    assert test in users().tests_that_reach([changed])


def test_a_change_of_the_worker_selects_no_test_of_the_store_alone() -> None:
    found = users().tests_that_reach(["service/stateline/worker/loop/worker.py"])
    assert not any(test.startswith("tests/store/") for test in found)


def test_a_change_of_the_environment_selects_all() -> None:
    assert users().tests_that_reach(["requirements.lock"]) == users().tests
