"""`stateline node drain` of workers, on the embedded log; on Kafka `test_rolling_restart.py` has it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from service.worker.faults import counting
from stateline.cli.nodes.drain import drain_node
from stateline.deployment.configured_log import configured_log
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.files.registration import Registration
from stateline_store import DoesNotExistError, RetryLaterError, StateDirectory
from support.processes.running_worker import configured, create, eventually, running
from support.run.patience import HANGING_S


def test_a_worker_that_has_no_tasks_at_the_moment_has_not_handed_over(tmp_path: Path) -> None:
    config = configured(counting(), tmp_path)
    directory = StateDirectory(config.state_dir, config.application_id)
    registration = Registration(directory.application, "worker-0")
    try:
        registration.update(tmp_path / "socket", {}, directory.process_id())  # it is between two groups
        with pytest.raises(RetryLaterError, match="worker-0 has not handed over"):
            drain_node(config, print, 0.2)
        registration.update(tmp_path / "socket", {}, directory.process_id(), drained=True)
        drain_node(config, print, 0.2)
    finally:
        registration.remove()


def test_who_waits_hears_of_each_worker_that_has_handed_over_and_of_one_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, told = counting(), list[str]()
    config = configured(app, tmp_path)
    with closing(configured_log(config)) as log:
        create(log, {"in": 2})
        with running(app, config, log) as worker:
            eventually(lambda: len(worker.tasks.running) == 2, "it has both tasks")
            with monkeypatch.context() as patched:
                patched.setattr(DeploymentFiles, "is_to_drain", lambda _: False)
                with pytest.raises(RetryLaterError, match=r"worker-0 has not handed over within 0\.5 s"):
                    drain_node(config, told.append, 0.5)
            assert told == []
            for _ in range(2):
                drain_node(config, told.append, HANGING_S)
            assert told == ["worker-0", "worker-0"], "one that has nothing any more has handed over"
            assert not worker.tasks.all
        with running(app, config, log) as worker:
            eventually(lambda: len(worker.tasks.running) == 2, "started anew it takes them again")
    with pytest.raises(DoesNotExistError, match="nothing is to be drained"):
        drain_node(config, told.append, 0.5)
