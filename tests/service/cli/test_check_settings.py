"""`stateline check`, of settings and topics: what a start refuses is refused, and what a row of a topic leaves out."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import App, InputRecord, StoreView, serdes, stores
from stateline.cli.check.report import report_as_text
from stateline.cli.check.run import check
from stateline.config import extras
from stateline.config.settings import Config
from stateline.log import Log
from stateline.log.interface import NewTopic
from stateline.processes.application import only_run
from stateline.worker.loop.worker import Worker
from stateline_store import ConfigurationError, InvalidArgumentError
from support.processes.running_worker import configured, create, produce

EMBEDDED = pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)


def counting(application_id: str, **logging: object) -> App:
    app = App(application_id)
    source = app.topic(f"{application_id}-in", key=serdes.string, value=serdes.string)
    counts = stores.key_value("counts", key=serdes.string, value=serdes.int64)
    kept = app.store(counts.with_logging({name.replace("_", "."): value for name, value in logging.items()}))

    @app.process(source, stores=[kept])
    def count(record: InputRecord, counts: StoreView) -> None: ...

    return app


def refused(app: App, config: Config) -> list[str]:
    return [finding.message for finding in check(app, config).findings if finding.level == "refused"]


def deleting(policy: str, **settings: str) -> dict[str, str]:
    return {"topic__cleanup__policy": policy, **settings}


@EMBEDDED
def test_a_port_that_somebody_else_has_is_refused_and_one_of_its_own_server_is_not(
    application_id: str, bootstrap: str, tmp_path: Path, log: Log
) -> None:
    create(log, {f"{application_id}-in": 2})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        app = counting(application_id)
        config = configured(app, tmp_path, bootstrap__servers=bootstrap, server__port=port)
        (why,) = refused(app, config)
        assert f"server.port = {port} on 127.0.0.1 is in use" in why
        with only_run(config):
            assert refused(app, config) == []
    assert refused(app, config) == []


@EMBEDDED
@pytest.mark.parametrize("settings", [deleting("delete", topic__retention__ms="60000"), deleting("compact,delete")])
def test_a_policy_by_which_every_changelog_would_lose_rows_is_refused_by_a_check_and_at_the_start(
    application_id: str, bootstrap: str, tmp_path: Path, log: Log, settings: dict[str, str]
) -> None:
    config = configured(App(application_id), tmp_path, bootstrap__servers=bootstrap, **settings)
    create(log, {f"{application_id}-in": 2})
    app = counting(application_id)
    (why,) = refused(app, config)
    assert f"topic.cleanup.policy={settings['topic__cleanup__policy']!r} would delete rows" in why
    assert "store 'counts'" in why
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        Worker(app, config, log, instance="worker-0").run()
    with closing(log.admin()) as admin:
        assert f"{application_id}-counts-changelog" not in admin.topics()


@EMBEDDED
def test_a_policy_that_deletes_after_a_time_that_is_said_is_taken_and_so_is_a_store_s_own(
    application_id: str, bootstrap: str, tmp_path: Path, log: Log
) -> None:
    create(log, {f"{application_id}-in": 2})
    after = configured(
        App(application_id),
        tmp_path,
        bootstrap__servers=bootstrap,
        **deleting("compact,delete", topic__retention__ms="60000"),
    )
    assert refused(counting(application_id), after) == []
    deletes = configured(App(application_id), tmp_path, bootstrap__servers=bootstrap, **deleting("delete"))
    assert refused(counting(application_id, cleanup_policy="compact"), deletes) == []


def test_a_setting_of_a_changelog_that_the_log_does_not_know_is_refused_and_no_topic_is_made(
    application_id: str, config: Config, log: Log
) -> None:
    create(log, {f"{application_id}-in": 2})
    changelog = f"{application_id}-counts-changelog"
    (why,) = refused(counting(application_id, nosuch="1"), config)
    assert why.startswith("The changelog of store 'counts' cannot be created with ")
    assert "nosuch=1" in why
    assert "with_logging" in why
    with closing(log.admin()) as admin:
        assert changelog not in admin.topics()
        assert check(counting(application_id, segment_ms="60000"), config).would_start
        assert changelog not in admin.topics()
        admin.create_topics([NewTopic(changelog, 2)])
    assert check(counting(application_id, nosuch="1"), config).would_start  # it is there, and keeps its own


def test_a_topic_that_is_only_looked_at_is_not_made(log: Log) -> None:
    name = f"t-{uuid4().hex[:8]}"
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(name, 1, {"retention.ms": "1000"})], validate_only=True)
        assert name not in admin.topics()
        with pytest.raises(InvalidArgumentError, match="nosuch"):
            admin.create_topics([NewTopic(name, 1, {"nosuch": "1"})], validate_only=True)
        admin.create_topics([NewTopic(name, 1)])
        admin.create_topics([NewTopic(name, 1)], validate_only=True)


@EMBEDDED
def test_a_tokens_file_that_cannot_be_read_is_refused(
    application_id: str, bootstrap: str, log: Log, tmp_path: Path
) -> None:
    create(log, {f"{application_id}-in": 2})
    file = tmp_path / "nosuch.json"
    app = counting(application_id)
    (why,) = refused(app, configured(app, tmp_path, bootstrap__servers=bootstrap, server__tokens__file=file))
    assert str(file) in why


@EMBEDDED
def test_a_server_that_others_reach_without_tokens_is_refused(
    application_id: str, bootstrap: str, log: Log, tmp_path: Path
) -> None:
    create(log, {f"{application_id}-in": 2})
    app, open_to_all = counting(application_id), {"bootstrap__servers": bootstrap, "server__host": "0.0.0.0"}
    (why,) = refused(app, configured(app, tmp_path, **open_to_all))
    assert why.startswith("server.host = '0.0.0.0'")
    assert check(app, configured(app, tmp_path, **open_to_all, server__insecure="true")).would_start


@EMBEDDED
def test_a_pipeline_where_pyspark_is_missing_is_refused(
    application_id: str, config: Config, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, {f"{application_id}-in": 2})
    app = counting(application_id)

    @app.pipeline(reads=f"{application_id}-in", writes="ranked", key="a", name="rank")
    def rank(orders: object) -> object: ...

    assert check(app, config).would_start
    monkeypatch.setattr(extras, "_is_installed", lambda package: package != "pyspark")
    (why,) = refused(app, config)
    assert why.startswith("Pipelines need pyspark, not installed here: run ")


@EMBEDDED
def test_a_dead_letter_topic_has_its_offsets_and_a_topic_its_other_settings(
    application_id: str, bootstrap: str, log: Log, tmp_path: Path
) -> None:
    dead, changelog = f"{application_id}-dead", f"{application_id}-counts-changelog"
    create(log, {f"{application_id}-in": 2, dead: 1})
    produce(log, dead, [(b"k", b"v", n) for n in range(3)])
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(changelog, 2, {"cleanup.policy": "delete"})])
    app, setting = counting(application_id), {"errors__dead__letter__queue__topic__name": dead}
    report = check(app, configured(app, tmp_path, bootstrap__servers=bootstrap, **setting))
    rows = {row["topic"]: row for row in report.topics}
    assert (rows[dead]["offsets"], rows[dead]["partitions"]) == (3, 1), report_as_text(report)
    assert "cleanup.policy is delete, declared compact" in str(rows[changelog]["state"])


@EMBEDDED
def test_a_missing_topic_of_a_global_table_is_called_a_source_topic(
    application_id: str, config: Config, log: Log
) -> None:
    create(log, {f"{application_id}-in": 2})
    app = counting(application_id)
    app.global_table(f"{application_id}-codes", key=serdes.string, value=serdes.string)
    (why,) = refused(app, config)
    assert why.startswith(f"Missing source topic: {application_id}-codes.")
