"""A pipeline that starts over writes what it would have written had it never run, on Spark itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.spark import departures as d
from stateline.cli.reset import execution
from stateline.cli.reset.scope import Asked
from stateline.config.settings import Config
from stateline.deployment.stores.resets import followed_epoch, newest_reset, say_followed
from stateline.log.embedded import EmbeddedLog
from stateline.spark.drivers.process import pipeline_lock
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.sink.checkpoint_folder import HadoopFolder
from stateline_store import RetryLaterError
from support.run.length import long_only
from support.run.patience import HANGING_S


def reset(config: Config, **asked: object) -> list[str]:
    said: list[str] = []
    given = Asked(pipelines=("hourly",), **asked)  # type: ignore[arg-type]  # by name
    execution.reset(d.app, config, given, dry_run=False, agreed=lambda: True, say=said.append, warn=said.append)
    return said


def test_a_pipeline_starts_over_with_its_checkpoint_its_markers_and_its_results(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    def run_now() -> None:
        run_pipelines(d.app, ["hourly"], config, log, available_now=True, session=session)

    made = d.random_departures(300, seed=1)
    d.load(log, made[:200])
    run_now()
    once = d.written_updates(log)
    said = reset(config, delete_results=True)
    assert any("hourly/checkpoint" in line for line in said)
    assert not (config.state_dir / "flights/pipelines/hourly/checkpoint").exists()
    d.create_topics(log)
    run_now()
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made[:200]).items()}
    reset(config)
    d.load(log, made[200:])
    run_now()  # the results of before are still there, and those of all departures behind them
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}
    assert sum(d.written_updates(log).values()) > sum(once.values())


def test_a_checkpoint_that_is_older_than_a_reset_is_deleted_when_its_driver_starts(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    made = d.random_departures(100, seed=2)
    d.load(log, made)
    run_pipelines(d.app, ["hourly"], config, log, available_now=True, session=session)
    there = {"state_dir": config.state_dir / "other", "bootstrap_servers": f"embedded:{config.state_dir / 'log.db'}"}
    elsewhere = config.model_copy(update=there)
    reset(elsewhere)
    assert (config.state_dir / "flights/pipelines/hourly/checkpoint").exists()
    run_pipelines(d.app, ["hourly"], config, log, available_now=True, session=session)
    found = newest_reset(log, "flights")
    assert found is not None
    assert followed_epoch(config.state_dir / "flights") == found.epoch
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}
    say_followed(config.state_dir / "flights", found.epoch)


def test_a_pipeline_that_runs_does_not_start_over(config: Config, log: EmbeddedLog) -> None:
    folder = config.state_dir / "flights/pipelines/hourly"
    folder.mkdir(parents=True)
    lock = pipeline_lock(folder)
    with pytest.raises(RetryLaterError, match="pipeline hourly here"):
        reset(config)
    lock.release()
    reset(config)


def test_a_checkpoint_at_a_url_is_deleted_whole(session: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(session, f"file://{tmp_path}/checkpoint")
    folder.keep("offsets/0", b"v1")
    folder.delete()
    assert not (tmp_path / "checkpoint").exists()
    folder.delete()


@long_only("the test above deletes such a checkpoint in a session that runs already")
def test_checkpoints_at_urls_are_deleted_by_a_session_of_their_own(config: Config, tmp_path: Path) -> None:
    (tmp_path / "far/checkpoint/offsets").mkdir(parents=True)
    program = (
        "import sys; from stateline.config.loading import load_config; "
        "from stateline.spark.sink.checkpoint_folder import delete_checkpoints; "
        "delete_checkpoints(load_config('flights', overrides=sys.argv[2:]), [sys.argv[1]])"
    )
    url = f"file://{tmp_path}/far/checkpoint"
    given = [sys.executable, "-c", program, url, *d.settings(str(tmp_path))]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "far").exists()
    assert not (tmp_path / "far/checkpoint").exists()
