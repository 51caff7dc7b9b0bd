"""`stateline reset`: an application, or a part of it, starts over, and its stores are those of one that began there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stateline import serdes
from stateline.cli.reset import execution
from stateline.cli.reset.running import running_here
from stateline.cli.reset.scope import Asked
from stateline.cli.reset.where_to import WhereTo
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import NodeEntry, ensure_nodes_topic, say_node
from stateline.deployment.partition_counts import PartitionsChangedError
from stateline.deployment.pipelines.reports import PipelineReporter, reports_partition
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.deployment.stores.discarding import settle_resets
from stateline.deployment.stores.resets import ResetWork, begun, done, followed_epoch, newest_reset, say_reset
from stateline.dsl.app import App
from stateline.log import Log, open_log
from stateline.worker.loop.worker import Worker
from stateline_store import (
    ConfigurationError,
    InvalidArgumentError,
    LockedError,
    RetryLaterError,
    TopicPartition,
    TopologyError,
)
from support import TESTS
from support.apps.counting_app import PARTITIONS, counting, expected, kept
from support.kafka.shared_broker import SharedBroker
from support.processes import forked
from support.processes.running_worker import Stores, create, eventually, produce, running
from support.run.length import long_or_short, on_one_log
from support.run.patience import HANGING_S

KILLED = -signal.SIGKILL
Rows = list[tuple[bytes, bytes, int]]


def records(first: int, last: int) -> Rows:
    """Records of a few keys and values, a second apart."""
    return [(b"k%d" % (n % 7), b"v%d" % (n % 3), n * 1000) for n in range(first, last)]


class Scene:
    """An application on a log, with a state directory of its own for each `disk`."""

    def __init__(self, log: Log, bootstrap: str, guarantee: str, tmp_path: Path, name: str | None = None) -> None:
        self.log, self.bootstrap, self.guarantee, self.path = log, bootstrap, guarantee, tmp_path
        self.id = name or f"app-{uuid4().hex[:8]}"
        self.source = f"{self.id}-in"
        self.app = counting(self.id)
        self.written: Rows = []
        self.settings: dict[str, str] = {}
        self._readers = 0
        create(log, {self.source: PARTITIONS, f"{self.id}-alone": 1})

    def config(self, disk: str = "one") -> Config:
        settings = {
            "state.dir": str(self.path / disk), "commit.interval.ms": "50", "bootstrap.servers": self.bootstrap,
            "processing.guarantee": self.guarantee, "session.timeout.ms": "6000", "node.name": disk, **self.settings,
        }  # fmt: skip
        return load_config(self.id, environment={}, overrides=[f"{k}={v}" for k, v in settings.items()])

    def write(self, rows: Rows) -> None:
        self.written += rows
        produce(self.log, self.source, rows)

    def works_until(self, wanted: dict[str, object], disk: str = "one", app: App | None = None) -> None:
        """Run a worker on this disk until its stores are these, and stop it."""
        config = self.config(disk)
        self._readers += 1
        with running(app or self.app, config, self.log):
            stored = Stores(self.app, config, self.path / f"readers-{self._readers}")
            eventually(lambda: kept(stored) == wanted, f"the stores are {wanted}, and not {kept(stored)}")
            stored.close()

    def works_until_it_ends(self) -> None:
        """Raises what the worker does."""
        Worker(self.app, self.config(), self.log, instance="worker-0").run()

    def reset(self, asked: Asked | None = None, *, disk: str = "one", dry_run: bool = False) -> list[str]:
        """What it said."""
        said: list[str] = []
        execution.reset(
            self.app, self.config(disk), asked or Asked(), dry_run=dry_run, agreed=lambda: True, say=said.append,
            warn=said.append,
        )  # fmt: skip
        return said

    def arguments(self, command: str, *arguments: str, disk: str = "one") -> list[str]:
        settings = [
            f"state.dir={self.path / disk}", "commit.interval.ms=50", f"bootstrap.servers={self.bootstrap}",
            f"processing.guarantee={self.guarantee}", "session.timeout.ms=6000", f"node.name={disk}",
        ]  # fmt: skip
        given = [part for setting in settings for part in ("--set", setting)]
        return [command, "support.apps.counting_app:app", *arguments, *given]

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{os.environ.get('PYTHONPATH', '')}:{TESTS}"
        return {**os.environ, "COUNTING_ID": self.id, "PYTHONPATH": path, **more}

    def command(self, *arguments: str, disk: str = "one", **environment: str) -> tuple[int, str]:
        """Exit code and output of the real command."""
        done = forked.run(self.arguments(*arguments, disk=disk), env=self.environment(**environment))
        return done.returncode, done.stdout + done.stderr


in_the_log = on_one_log("embedded", "one that is interrupted starts over on Kafka")


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(log: Log, bootstrap: str, guarantee: str, tmp_path: Path) -> Scene:
    return Scene(log, bootstrap, guarantee, tmp_path)


@in_the_log
def test_a_topic_is_not_deleted_while_the_application_runs_nor_is_one_that_may_be_anothers(scene: Scene) -> None:
    similar = f"{scene.id}-eu-orders-changelog"  # of an application whose id begins with this one's
    create(scene.log, {similar: 1})
    with running(scene.app, scene.config(), scene.log):
        eventually(lambda: bool(running_here(scene.config())), "a worker runs")
        for command in (("topics", "--delete", scene.source, "--yes"), ("reset", "--yes")):
            code, said = scene.command(*command)
            assert (code, said.count("\n")) == (1, 1), said
            assert "runs, or may run" in said
    code, said = scene.command("topics", "--delete", similar, "--yes")
    assert (code, scene.source in said) == (2, True)
    with closing(scene.log.admin()) as admin:
        assert {scene.source, similar} <= admin.topics().keys()
    code, said = scene.command("topics", "--delete", scene.source, "--yes")
    assert code == 0, said
    with closing(scene.log.admin()) as admin:
        assert scene.source not in admin.topics()


@in_the_log
def test_an_application_that_starts_over_has_the_stores_of_a_fresh_one(scene: Scene) -> None:
    scene.write(records(0, 40))
    scene.works_until(expected(scene.written, scene.written))
    said = scene.reset(dry_run=True)
    assert f"delete the changelog {scene.id}-counts-changelog" in said
    assert f"delete the internal topic {scene.id}-values-repartition" in said
    assert "delete 0_0 on this machine" in said
    scene.works_until(expected(scene.written, scene.written))  # nothing was done
    scene.reset()
    assert not (scene.path / "one" / scene.id / "0_0" / "rocksdb").exists()
    scene.write(records(40, 50))
    scene.works_until(expected(scene.written, scene.written))


@pytest.mark.parametrize("to", [WhereTo("time", 25_000), WhereTo("latest")], ids=["time", "end"])
@in_the_log
def test_an_application_that_starts_over_later_has_what_comes_from_there(scene: Scene, to: WhereTo) -> None:
    scene.write(records(0, 40))
    scene.works_until(expected(scene.written, scene.written))
    scene.reset(Asked(to))
    scene.write(records(40, 50))
    from_ms = 25_000 if to.kind == "time" else 40_000
    scene.works_until(expected([row for row in scene.written if row[2] >= from_ms], scene.written))


@in_the_log
def test_a_second_disk_with_older_state_does_not_win(scene: Scene) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written), disk="one")
    shutil.copytree(scene.path / "one" / scene.id, scene.path / "two" / scene.id)
    scene.reset(Asked(WhereTo("latest")), disk="one")
    scene.write(records(20, 30))
    only_new = expected(records(20, 30), scene.written)
    scene.works_until(only_new, disk="two")
    scene.write(records(30, 35))
    scene.works_until(expected(records(20, 35), scene.written), disk="one")


@in_the_log
def test_a_worker_that_is_killed_while_it_deletes_what_is_older_deletes_the_rest_at_its_next_start(
    scene: Scene,
) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written), disk="two")
    scene.reset(Asked(WhereTo("latest")), disk="one")
    scene.write(records(20, 30))
    code, said = scene.command("worker", disk="two", STATELINE_CRASH_AT="reset:stores-deleted")
    assert code == KILLED, said
    assert followed_epoch(scene.path / "two" / scene.id) == 0
    scene.works_until(expected(records(20, 30), scene.written), disk="two")
    found = newest_reset(scene.log, scene.id)
    assert found is not None
    assert followed_epoch(scene.path / "two" / scene.id) == found.epoch


def test_state_of_another_log_is_refused_with_the_command_that_deletes_it(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    embedded, kafka = f"embedded:{tmp_path / 'log.db'}", kafka_broker.bootstrap_servers
    with closing(open_log(embedded, tmp_path)) as one, closing(open_log(kafka, tmp_path)) as other:
        before = Scene(one, embedded, "exactly_once_v2", tmp_path)
        after = Scene(other, kafka, "exactly_once_v2", tmp_path, before.id)
        both = (
            (before, after, "is of the embedded log, and .* is Kafka cluster"),
            (after, before, "is of Kafka cluster .* is the embedded log"),
        )
        for was, now, named in long_or_short(both, both[:1]):
            was.write(records(0, 20))
            was.works_until(expected(was.written, was.written))
            now.write(records(0, 7))
            code, said = now.command("worker")
            assert code == 2, said
            assert re.search(named, said)
            checked, found = now.command("check")
            assert checked == 1
            assert re.search(named, found)
            was.works_until(expected(was.written, was.written))  # nothing was changed
            (command,) = set(re.findall("`stateline (reset [^`]*)`", said))
            assert command == "reset support.apps.counting_app:app"
            assert now.command("reset", "--yes")[0] == 0
            now.works_until(expected(now.written, now.written))


@in_the_log
def test_a_part_starts_over_alone_where_nothing_is_counted_twice(scene: Scene) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written))
    with pytest.raises(InvalidArgumentError, match="they start over together, with --subtopology 0 --subtopology 2"):
        scene.reset(Asked(subtopologies=(0,)))
    with pytest.raises(InvalidArgumentError, match="they start over together"):
        scene.reset(Asked(stores=("by_value",)))
    with pytest.raises(InvalidArgumentError, match="is always rebuilt from the beginning of its topic"):
        scene.reset(Asked(WhereTo("latest"), stores=("newest",)))
    scene.reset(Asked(stores=("newest",)))
    scene.works_until(expected(scene.written, scene.written))
    scene.reset(Asked(subtopologies=(0, 2)))
    scene.works_until(expected(scene.written, scene.written))


@in_the_log
def test_a_store_that_others_would_be_counted_twice_for_is_refused(scene: Scene) -> None:
    scene.app = counting(scene.id, more=True)
    with pytest.raises(InvalidArgumentError, match=r"so is counts, which would count .* with --subtopology 0"):
        scene.reset(Asked(stores=("again",)))


@in_the_log
def test_a_store_that_is_new_on_an_old_topic_is_said_with_what_fills_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written))
    assert "is new" not in caplog.text
    more = counting(scene.id, more=True)
    scene.works_until(expected(scene.written, scene.written), app=more)
    assert "again of subtopology 0 is new" in caplog.text
    assert "stateline reset MODULE:APP --subtopology 0 --subtopology 2" in caplog.text
    caplog.clear()
    scene.app = more
    scene.reset(Asked(subtopologies=(0, 2)))
    scene.works_until(expected(scene.written, scene.written))
    stored = Stores(more, scene.config(), scene.path / "again")
    assert {k: int.from_bytes(n) for k, n in stored.rows("again", PARTITIONS).items()} == kept(stored)["counts"]
    stored.close()
    assert "is new" not in caplog.text


@in_the_log
def test_nothing_starts_over_while_a_worker_runs(scene: Scene) -> None:
    scene.write(records(0, 5))
    with running(scene.app, scene.config("other"), scene.log) as worker:
        with closing(scene.log.admin()) as admin:
            eventually(lambda: bool(admin.members(scene.id)), "the worker is in the group")
        with pytest.raises(RetryLaterError, match="worker worker-0 here"):
            scene.reset(disk="other")
        assert newest_reset(scene.log, scene.id) is None
        del worker
    scene.reset(disk="other")


@in_the_log
def test_a_store_of_another_type_is_filled_under_its_old_name(scene: Scene) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written))
    scene.app = counting(scene.id, as_text=True)
    with pytest.raises(TopologyError, match="counts"):
        scene.works_until_it_ends()
    scene.reset(Asked(subtopologies=(0, 2)))
    with running(scene.app, scene.config(), scene.log):
        stored = Stores(scene.app, scene.config(), scene.path / "text")
        wanted = {key: b"%d" % n for key, n in Counter(key for key, _, _ in scene.written).items()}
        eventually(lambda: stored.rows("counts", PARTITIONS) == wanted, "the counts are texts")
        stored.close()


@in_the_log
def test_where_nobody_can_answer_it_says_what_to_give_and_does_nothing(scene: Scene) -> None:
    code, said = scene.command("reset")
    assert (code, "Nobody has answered, so nothing was done: give --yes" in said) == (2, True), said


@on_one_log("kafka", "the next test has the embedded log, where nobody is waited for")
def test_a_worker_that_was_killed_is_waited_for_until_its_session_is_over(scene: Scene) -> None:
    scene.write(records(0, 20))
    output = scene.path / "worker.txt"
    with output.open("wb") as file:
        worker = forked.Forked(scene.arguments("worker"), cwd=scene.path, env=scene.environment(), output=file.fileno())
    instance = scene.path / "one" / scene.id / "instances" / "worker-0.json"
    eventually(lambda: instance.exists() and b'"running"' in instance.read_bytes(), "the worker runs")
    code, said = scene.command("reset", "--yes")
    assert (code, "worker worker-0 here" in said) == (1, True), said
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    told = scene.command("reset", "--dry-run")[1]
    assert "group member" not in told, told
    code, said = scene.command("reset", "--yes")
    if "transaction" in said:  # it was killed amid a commit, which ends by itself
        return
    assert code == 0, said
    with closing(scene.log.admin()) as admin:
        assert not admin.members(scene.id)
    # On the embedded log it is let go of at once; on a slow machine its session is over before anybody looks.
    may_wait = not scene.bootstrap.startswith("embedded")
    assert may_wait or "Waiting until the session of one-worker-0 is over" not in said, said
    scene.works_until(expected(scene.written, scene.written))


def test_a_member_with_another_disk_is_in_the_way_and_stays_in_the_group(scene: Scene) -> None:
    if not scene.bootstrap.startswith("embedded"):
        return  # where nobody is let go of
    scene.write(records(0, 5))
    scene.works_until(expected(scene.written, scene.written))
    with closing(scene.log.consumer(scene.id, instance_id="one-worker-0")) as ended:
        ended.subscribe([f"{scene.id}-in"], lambda places: None, lambda places: None)
        ended.poll(1, 0.0)
    with running(scene.app, scene.config("other"), scene.log), closing(scene.log.admin()) as admin:
        eventually(lambda: len(admin.members(scene.id)) == 2, "both are in the group, one of which has ended")
        with pytest.raises(RetryLaterError, match="group member member-"):
            scene.reset()
        assert "one-worker-0" not in [member.member_id for member in admin.members(scene.id)]


def test_a_worker_that_looked_before_a_reset_began_ends_when_it_is_given_tasks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scene.bootstrap.startswith("embedded"):
        return  # where its lock is seen
    monkeypatch.setattr("stateline.worker.loop.worker.settle_resets", lambda config, log, target: None)
    say_reset(scene.log, scene.id, None, begun(None, 0, ResetWork(everything=True)))
    with pytest.raises(ConfigurationError, match="--resume"):
        scene.works_until_it_ends()


def test_a_worker_that_was_out_of_its_group_during_a_reset_ends_when_it_is_back(scene: Scene) -> None:
    if scene.bootstrap.startswith("embedded"):
        return  # where its lock is seen
    scene.write(records(0, 20))
    raised: list[BaseException] = []

    def work() -> None:
        try:
            scene.works_until_it_ends()
        except LockedError as error:
            raised.append(error)

    first = threading.Thread(target=work)
    first.start()
    stored = Stores(scene.app, scene.config(), scene.path / "readers")
    eventually(lambda: kept(stored) == expected(scene.written, scene.written), "the records are counted")
    stored.close()
    say_reset(scene.log, scene.id, None, done(begun(None, 0, ResetWork(everything=True))))
    with running(scene.app, scene.config("two"), scene.log, instance="worker-1"):
        eventually(lambda: bool(raised), "the first one ends")
    first.join()
    assert "was reset while this worker was out of its group" in str(raised[0])


def test_a_topic_with_more_partitions_is_read_again_through_a_repartition_topic(scene: Scene) -> None:
    if scene.log.embedded_file is not None:
        return  # its topics cannot grow
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written))
    add_partitions(scene.bootstrap, scene.source, PARTITIONS + 1)
    with pytest.raises(PartitionsChangedError):
        scene.works_until_it_ends()
    scene.reset()
    scene.write(records(20, 40))
    wanted = dict(Counter(value for _, value, _ in scene.written))
    with running(scene.app, scene.config(), scene.log):
        stored = Stores(scene.app, scene.config(), scene.path / "grown")
        eventually(
            lambda: {k: int.from_bytes(n) for k, n in stored.rows("by_value", PARTITIONS + 1).items()} == wanted,
            "each value is counted once",
        )
        stored.close()


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    for future in client.create_partitions([NewPartitions(topic, total)]).values():
        future.result(HANGING_S)


@on_one_log("kafka", "the same steps, and on Kafka each of them waits for more")
def test_what_is_interrupted_is_completed_and_nothing_starts_before(scene: Scene) -> None:
    steps = [
        "reset:begun", "reset:changelogs-deleted", "reset:offsets-set", "reset:topics-deleted", "reset:stores-deleted",
        "reset:state-deleted", "reset:checkpoints-deleted",
    ]  # fmt: skip
    if not scene.bootstrap.startswith("embedded"):
        steps = long_or_short(["reset:changelogs-deleted", "reset:topics-deleted"], ["reset:changelogs-deleted"])
    scene.app.target = "shop:app"
    for step in steps:
        scene.write(records(0, 20))
        scene.works_until(expected(scene.written, scene.written))
        code, said = scene.command("reset", "--yes", STATELINE_CRASH_AT=step)
        assert code == KILLED, f"{step}: {said}"
        with (
            pytest.raises(ConfigurationError, match="stateline reset shop:app --resume"),
            running(scene.app, scene.config(), scene.log),
        ):
            pass
        with pytest.raises(ConfigurationError, match="stateline reset shop:app --resume"):
            settle_resets(scene.config("elsewhere"), scene.log, "shop:app")
        code, said = scene.command("reset", "--yes")
        assert (code, "stateline reset support.apps.counting_app:app --resume" in said) == (2, True), said
        code, said = scene.command("reset", "--resume")
        assert (code, "Completed" in said) == (0, True), said
        scene.works_until(expected(scene.written, scene.written))


@in_the_log
def test_offsets_are_set_to_a_place_within_the_topic(scene: Scene) -> None:
    scene.write(records(0, 20))
    places_of: dict[WhereTo, Callable[[int, int], int]] = {
        WhereTo("offset", 3): lambda first, end: 3,
        WhereTo("offset", 999): lambda first, end: end,
        WhereTo("shift", -2): lambda first, end: end - 2,
        WhereTo("earliest"): lambda first, end: first,
    }
    for to, wanted in places_of.items():
        scene.reset(Asked(WhereTo("latest")))
        scene.reset(Asked(to))
        places = [TopicPartition(scene.source, number) for number in range(PARTITIONS)]
        with closing(scene.log.admin()) as admin:
            bounds = admin.bounds(places)
            assert admin.committed(scene.id, places) == {each: wanted(*bounds[each]) for each in places}


def test_a_node_that_may_live_keeps_an_application_from_starting_over(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    if scene.bootstrap.startswith("embedded"):
        return  # one machine's
    with closing(scene.log.admin()) as admin:
        ensure_nodes_topic(scene.id, admin)
    say_node(scene.log, scene.id, "far", NodeEntry("", "127.0.0.1:1", "d", "1.0", "t"))
    with pytest.raises(RetryLaterError, match=r"node far .*stateline node forget MODULE:APP far"):
        scene.reset()


def answers(said: Path) -> bool:
    """Whether the server that writes there answers at the address that it has written."""
    found = re.search(r"Answering at (http://\S+)", said.read_text())
    with suppress(httpx.TransportError):
        return found is not None and httpx.get(f"{found[1]}/healthz").is_success
    return False


@in_the_log
def test_nothing_starts_over_while_a_server_answers(scene: Scene) -> None:
    scene.write(records(0, 5))
    with (scene.path / "server.txt").open("wb") as file:
        given = [*scene.arguments("serve"), "--set", "server.port=0"]
        server = forked.Forked(given, cwd=scene.path, env=scene.environment(), output=file.fileno())
    eventually(lambda: answers(scene.path / "server.txt"), "the server answers")
    assert any((scene.path / "one" / scene.id / "servers").glob("*.sock"))
    with pytest.raises(RetryLaterError, match="a server here"):
        scene.reset()
    server.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    scene.reset()


def piped(application_id: str) -> App:
    app = App(application_id)
    source = app.topic(f"{application_id}-in", key=serdes.string, value=serdes.json, schema="k string")
    app.pipeline(reads=source, writes=f"{application_id}-out", key="k", name="p")(_as_it_is)
    return app


def _as_it_is(frame: object) -> object:
    return frame


def test_a_checkpoint_that_all_nodes_reach_goes_at_once(scene: Scene) -> None:
    if scene.bootstrap.startswith("embedded"):
        return  # one machine's
    scene.app, location = piped(scene.id), scene.path / "shared"
    folders = [root / scene.id / "pipelines" / "p" / "checkpoint" for root in (location, scene.path / "one")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "metadata").write_text("{}")
    scene.settings = {"pipeline.checkpoint.location": str(location)}
    said = scene.reset(Asked(pipelines=("p",)))
    assert f"delete the checkpoint {folders[0]}" in said
    assert [folder.exists() for folder in folders] == [False, False]


def test_a_driver_elsewhere_is_heard_and_one_that_died_is_not_waited_for_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scene.bootstrap.startswith("embedded"):
        return  # one machine's
    monkeypatch.setattr("stateline.cli.reset.running.SILENT_S", 4.0)
    monkeypatch.setattr("stateline.deployment.pipelines.reports.REPEAT_S", 1.0)
    scene.app = piped(scene.id)
    status = PipelineStatus(
        "p", 1, "running", "q", 0, 0, 0, 0, 0, 0, 0, 0, None, {}, None, {}, None, {}, 0, None, None, None
    )
    reporter = PipelineReporter(scene.log, scene.id, "far", "another-directory")
    reporter.say("p", status)
    with closing(scene.log.admin()) as admin:
        topic = reports_partition(scene.id).topic
        eventually(lambda: topic in admin.topics([topic]), "it says so")
    with pytest.raises(RetryLaterError, match="pipeline p on node far"):
        scene.reset()
    reporter.close()  # as one that is killed: it does not say that it stops
    scene.reset()


@in_the_log
def test_the_command_says_what_it_does_asks_and_refuses(scene: Scene) -> None:
    scene.write(records(0, 20))
    scene.works_until(expected(scene.written, scene.written))
    code, said = scene.command("reset", "--to-latest", "--to-offset", "3")
    assert (code, "--to-latest and --to-offset are different places" in said) == (2, True)
    code, said = scene.command("reset", "--resume")
    assert (code, "nothing is to be resumed" in said) == (2, True)
    code, said = scene.command("reset", "--dry-run")
    assert (code, f"set the offsets of {scene.source}: 0: " in said) == (0, True), said
    code, said = scene.command("reset")  # nobody says yes
    assert code != 0
    assert newest_reset(scene.log, scene.id) is None
