"""Stores without a name of their own: one that goes on with another's rows, because the numbers of their names have
moved, is told at the start, and before it by `stateline check`."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from pathlib import Path

import pytest

from stateline import App, serdes
from stateline.cli.check.run import check
from stateline.log import Log
from stateline.worker.loop.worker import Worker
from stateline_store import ConfigurationError
from support.processes.running_worker import configured, create, eventually, running

pytestmark = pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
STORE = "KSTREAM-AGGREGATE-STATE-STORE-0000000000"
SAID = (
    f"Store {STORE!r} has a generated name, and was made of `{{}}`, now of `{{}}`. It keeps its rows. If you declared "
    "or removed stores without a name before it, these rows belong to another store: stop the application everywhere, "
    f"start over (stateline reset MODULE:APP --store {STORE}), and give it a name."
)


def build(*topics: str, filtered: bool = False, name: str | None = None) -> App:
    """Counts of each topic, in this order."""
    app = App("unnamed")
    for topic in topics:
        rows = app.stream(topic, key=serdes.string, value=serdes.string)
        (rows.filter(lambda key, value: True) if filtered else rows).group_by_key().count(name)
    return app


def said_at_start(app: App, state_dir: Path, log: Log, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING), running(app, configured(app, state_dir), log) as worker:
        eventually(lambda: worker.tasks.are_settled and bool(worker.tasks.running), "the worker runs")
    return [message for message in caplog.messages if "generated name" in message]


def checked(app: App, state_dir: Path) -> list[str]:
    messages = [finding.message for finding in check(app, configured(app, state_dir)).findings]
    return [message for message in messages if "generated name" in message]


def test_a_start_that_needs_explicit_names_refuses_each_generated_one(log: Log, tmp_path: Path) -> None:
    create(log, {"a": 1, "b": 1})
    config = configured(build("a", "b"), tmp_path, ensure__explicit__internal__resource__naming="true")
    with pytest.raises(ConfigurationError) as caught:
        Worker(build("a", "b"), config, log, instance="worker-0")
    message = str(caught.value)
    assert message.startswith("ensure.explicit.internal.resource.naming = true, and these stores have generated names:")
    for number in range(2):
        store = f"KSTREAM-AGGREGATE-STATE-STORE-{number:010d}"
        said = rf"'{store}' \(changelog 'unnamed-{store}-changelog', \S+\.py, line \d+: write store='{store}' to keep"
        assert re.search(said, message)
    refused = [finding.message for finding in check(build("a", "b"), config).findings if finding.level == "refused"]
    assert [line.split(":")[0] for line in refused] == [message.split(":")[0]]


def test_a_generated_name_that_is_written_out_counts_as_explicit(log: Log, tmp_path: Path) -> None:
    create(log, {"a": 1})
    app = build("a", name=STORE)
    config = configured(app, tmp_path, ensure__explicit__internal__resource__naming="true")
    with running(app, config, log) as worker:
        eventually(lambda: worker.tasks.are_settled and bool(worker.tasks.running), "the worker runs")


def test_a_store_that_has_taken_over_another_ones_rows_is_told_once(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(log, {"a": 1, "b": 1})
    assert said_at_start(build("a"), tmp_path, log, caplog) == []
    assert checked(build("a", "b"), tmp_path) == []
    before = build("b", "a")
    assert checked(before, tmp_path) == [SAID.format("a → count", "b → count")]
    assert said_at_start(before, tmp_path, log, caplog) == [SAID.format("a → count", "b → count")]
    assert said_at_start(before, tmp_path, log, caplog) == []


def test_other_steps_before_it_are_told_and_a_store_with_a_name_is_its_own(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(log, {"a": 1})
    said_at_start(build("a"), tmp_path, log, caplog)
    assert checked(build("a", filtered=True), tmp_path) == [SAID.format("a → count", "a → filter → count")]
    assert said_at_start(build("a", name="counts"), tmp_path, log, caplog) == []
    assert said_at_start(build("a", name="counts", filtered=True), tmp_path, log, caplog) == []


def test_a_store_whose_changelog_this_start_creates_has_nobody_s_rows_and_is_not_told(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(log, {"a": 1, "b": 1})
    said_at_start(build("a"), tmp_path, log, caplog)
    with closing(log.admin()) as admin:
        admin.delete_topics([f"unnamed-{STORE}-changelog"])
    assert checked(build("b"), tmp_path) == []
    assert said_at_start(build("b"), tmp_path, log, caplog) == []
