"""Settings: what wins over what, what is refused, and how that is said."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stateline.config.loading import load_config, read_config
from stateline.config.secrets import HIDDEN
from stateline.config.settings import PASSED_ON, Config, dotted_name
from stateline_store.errors import ConfigurationError
from stateline_store.state_store import IsolationLevel

EXACTLY_ONCE = "processing.guarantee=exactly_once_v2"


def refusal(**sources: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_config("flights", **sources)
    message = str(caught.value)
    assert "\n" not in message
    return message


def origin(config: Config, name: str) -> str:
    return next(row.origin for row in config.describe() if row.name == name)


def test_without_any_source_the_defaults_hold() -> None:
    config = load_config("flights")
    assert config.application_id == "flights"
    assert config.bootstrap_servers == "embedded"
    assert config.state_dir == Path(".stateline")
    assert config.statestore_uncommitted_max_bytes == 67_108_864
    assert (config.server_host, config.server_port) == ("127.0.0.1", 8000)
    assert {row.origin for row in config.describe() if row.name != "application.id"} == {"default"}


def test_each_source_wins_over_the_one_before_it() -> None:
    in_rising_order: list[dict[str, Any]] = [
        {"defaults": {"commit.interval.ms": 1}},
        {"file": {"commit.interval.ms": 2}},
        {"environment": {"STATELINE_COMMIT_INTERVAL_MS": "3"}},
        {"overrides": ["commit.interval.ms=4"]},
    ]
    sources: dict[str, Any] = {}
    for number, source in enumerate(in_rising_order, start=1):
        sources.update(source)
        assert load_config("flights", **sources).commit_interval_ms == number


def test_a_value_says_where_it_came_from() -> None:
    config = load_config(
        "flights",
        defaults={"num.workers": 2},
        file={"server.port": 1},
        file_name="conf/my.toml",
        environment={"STATELINE_SERVER_HOST": "0.0.0.0"},
        overrides=["statestore.sync=true"],
    )
    assert origin(config, "num.workers") == "App(config=…)"
    assert origin(config, "server.port") == "conf/my.toml"
    assert origin(config, "server.host") == "environment, STATELINE_SERVER_HOST"
    assert origin(config, "statestore.sync") == "--set"


@pytest.mark.parametrize(
    "text",
    [
        '"commit.interval.ms" = 7',
        "commit.interval.ms = 7",
        "[commit]\ninterval.ms = 7",
        "[commit.interval]\nms = 7",
    ],
)
def test_toml_may_be_flat_or_nested(text: str) -> None:
    assert load_config("flights", file=tomllib.loads(text)).commit_interval_ms == 7


def test_exactly_once_commits_often_and_reads_committed_unless_told_otherwise() -> None:
    loose, strict = load_config("flights"), load_config("flights", overrides=[EXACTLY_ONCE])
    assert (loose.commit_interval_ms, strict.commit_interval_ms) == (30_000, 100)
    assert loose.default_state_isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert strict.default_state_isolation_level is IsolationLevel.READ_COMMITTED
    assert (loose.exactly_once, strict.exactly_once) == (False, True)
    told = load_config(
        "flights",
        overrides=[
            EXACTLY_ONCE,
            "commit.interval.ms=5",
            "default.state.isolation.level=READ_UNCOMMITTED",
        ],
    )
    assert told.commit_interval_ms == 5
    assert told.default_state_isolation_level is IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize("name", ["default.interactive.query.isolation.level", "default.state.isolation.level"])
def test_the_default_isolation_level_has_two_names(name: str) -> None:
    config = load_config("flights", file={name: "read_committed"})
    assert config.default_state_isolation_level is IsolationLevel.READ_COMMITTED
    variable = f"STATELINE_{name.upper().replace('.', '_')}"
    again = load_config("flights", environment={variable: "READ_COMMITTED"})
    assert again.default_state_isolation_level is IsolationLevel.READ_COMMITTED


def test_both_names_of_the_isolation_level_may_be_set_alike_and_are_refused_if_they_differ() -> None:
    names = ("default.interactive.query.isolation.level", "default.state.isolation.level")
    alike = load_config("flights", file={names[0]: "read_committed"}, overrides=[f"{names[1]}=READ_COMMITTED"])
    assert alike.default_state_isolation_level is IsolationLevel.READ_COMMITTED
    message = refusal(file={names[1]: "read_uncommitted"}, overrides=[f"{names[0]}=READ_COMMITTED"])
    assert message == (
        f"{names[0]} = 'READ_COMMITTED' (from --set) differs from {names[1]} = 'read_uncommitted' (from "
        f"stateline.toml). Both names mean the same setting: leave {names[1]} out."
    )


def test_a_refused_value_under_the_other_name_says_which_name_was_written() -> None:
    message = refusal(overrides=["default.state.isolation.level=SERIALIZABLE"])
    assert "'SERIALIZABLE' (from --set, default.state.isolation.level) is not allowed" in message


def test_stores_are_always_transactional() -> None:
    assert load_config("x", overrides=["enable.transactional.statestores=true"]).enable_transactional_statestores
    message = refusal(overrides=["enable.transactional.statestores=false"])
    assert message.startswith("enable.transactional.statestores = 'false' (from --set) is refused: Stateline's stores")


@pytest.mark.parametrize("text", ["READ_COMMITTED", "read_committed", "Read_Committed"])
def test_words_are_read_in_any_case(text: str) -> None:
    config = load_config("flights", overrides=[f"default.state.isolation.level={text}"])
    assert config.default_state_isolation_level is IsolationLevel.READ_COMMITTED


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("commit.interval.ms", "0", "a whole number of milliseconds from 1 to 2147483647"),
        ("session.timeout.ms", "2147483648", "a whole number of milliseconds from 1 to 2147483647"),
        ("server.wait.max.ms", "9" * 23, "a whole number of milliseconds from 0 to 2147483647"),
        ("num.workers", "9" * 5000, "a whole number from 1 to 2147483647"),
        ("statestore.uncommitted.max.bytes", str(2**63), "-1 (no limit) or a number of bytes from 1 to"),
        ("bootstrap.servers", "localhost:99999", "embedded, embedded:PATH, or host:port"),
        ("bootstrap.servers", "a:9092,b:0", "embedded, embedded:PATH, or host:port"),
        ("state.dir", "", "a directory"),
        ("commit.interval.ms", "soon", "a whole number of milliseconds from 1"),
        ("processing.guarantee", "exactly_once", "at_least_once or exactly_once_v2"),
        ("default.interactive.query.isolation.level", "SERIALIZABLE", "READ_UNCOMMITTED or READ_COMMITTED"),
        ("statestore.uncommitted.max.bytes", "0", "-1 (no limit) or a number of bytes from 1"),
        ("statestore.uncommitted.max.bytes", "-2", "-1 (no limit) or a number of bytes from 1"),
        ("replication.factor", "0", "-1 (the broker's default) or a number from 1"),
        ("server.port", "65536", "a port from 0"),
        ("statestore.sync", "maybe", "true or false"),
        ("bootstrap.servers", "localhost", "embedded, embedded:PATH, or host:port"),
        ("processing.exception.handler", "ignore", "fail, skip or dead-letter"),
        ("production.exception.handler", "dead-letter", "fail or skip"),
        ("group.instance.id", "", "a text that is not empty"),
        ("node.name", "machine 1", "up to 200 letters, digits, '.', '_' and '-'"),
        ("node.url", "http://somebody@node-1", "a URL as http://node-1.example:8000, without a path or a user"),
        ("node.url", "http://node-1/path", "a URL as"),
        ("node.url", "node-1:8000", "a URL as"),
        ("node.url", "http://node-1:70000", "a URL as"),
        ("node.peer.listen", "::1:8001", "host:port with a port from 0 (any free one) to 65535, as 127.0.0.1:8001"),
        ("node.peer.listen", "node-1:65536", "host:port with a port from 0"),
        ("node.peer.advertised", "node-1:0", "host:port with a port from 1 to 65535, as node-1:8001"),
    ],
)
def test_a_refused_value_is_named_with_its_origin_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    message = refusal(overrides=[f"{name}={value}"])
    assert message.startswith(f"{name} = {value!r} (from --set) is not allowed: use {allowed}")


def test_the_largest_values_are_accepted() -> None:
    largest = [f"session.timeout.ms={2**31 - 1}", f"statestore.uncommitted.max.bytes={2**63 - 1}"]
    config = load_config("flights", overrides=[*largest, "bootstrap.servers=a:65535"])
    assert (config.session_timeout_ms, config.statestore_uncommitted_max_bytes) == (2**31 - 1, 2**63 - 1)


def test_the_origin_of_a_refused_value_is_the_source_that_won() -> None:
    environment = {"STATELINE_COMMIT_INTERVAL_MS": "-1"}
    message = refusal(file={"commit.interval.ms": 100}, environment=environment)
    assert "'-1' (from environment, STATELINE_COMMIT_INTERVAL_MS)" in message


def test_a_toml_boolean_is_not_a_number() -> None:
    assert refusal(file={"num": {"workers": True}}).startswith("num.workers = True (from stateline.toml)")


@pytest.mark.parametrize("value", ["embedded", "embedded:/data/log.db", "a:9092", "a:9092,b:9092", "a:1, b:2"])
def test_the_log_is_embedded_or_a_list_of_brokers(value: str) -> None:
    assert load_config("flights", overrides=[f"bootstrap.servers={value}"]).bootstrap_servers == value


def test_a_toml_list_of_brokers_is_joined() -> None:
    config = load_config("flights", file={"bootstrap.servers": ["a:9092", "b:9092"]})
    assert config.bootstrap_servers == "a:9092,b:9092"


@pytest.mark.parametrize("value", [-1, 1])
def test_the_uncommitted_limit_may_be_off_or_one_byte(value: int) -> None:
    config = load_config("flights", overrides=[f"statestore.uncommitted.max.bytes={value}"])
    assert config.statestore_uncommitted_max_bytes == value


@pytest.mark.parametrize(
    ("limit", "workers", "share"), [(1000, 1, 1000), (1000, 4, 250), (1000, 3, 333), (2, 3, 1), (-1, 4, -1)]
)
def test_workers_share_the_uncommitted_limit_evenly(limit: int, workers: int, share: int) -> None:
    overrides = [f"statestore.uncommitted.max.bytes={limit}", f"num.workers={workers}"]
    assert load_config("flights", overrides=overrides).worker_uncommitted_max_bytes == share


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("commit.intervall.ms", "commit.interval.ms"),
        ("commit_interval_ms", "commit.interval.ms"),
        ("state.directory", "state.dir"),
        ("Num.Workers", "num.workers"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(typo: str, meant: str) -> None:
    message = refusal(overrides=[f"{typo}=1"])
    assert message == f"Unknown setting {typo} = '1' (from --set). Did you mean {meant}?"


def test_a_typo_in_a_variable_is_refused_too() -> None:
    message = refusal(environment={"STATELINE_COMIT_INTERVAL_MS": "1"})
    assert "STATELINE_COMIT_INTERVAL_MS" in message
    assert "Did you mean commit.interval.ms?" in message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STATELINE_TRACEBACK", "1"),
        ("STATELINE_SERVICE_HOST", "10.0.0.1"),
        ("STATELINE_SERVICE_PORT_HTTP", "80"),
        ("STATELINE_PORT", "tcp://10.0.0.1:80"),
        ("STATELINE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("STATELINE_QUERY_SERVICE_PORT", "80"),
        ("PATH", "/bin"),
    ],
)
def test_variables_that_are_no_settings_are_left_alone(variable: str, value: str) -> None:
    assert load_config("flights", environment={variable: value}) == load_config("flights")


def test_a_setting_is_never_taken_for_a_variable_of_kubernetes() -> None:
    assert refusal(environment={"STATELINE_SERVER_PORT": "tcp://10.0.0.1:80"}).startswith("server.port = ")


def test_settings_for_librdkafka_and_spark_are_passed_on_as_text() -> None:
    config = load_config(
        "flights",
        file=tomllib.loads("consumer.fetch.min.bytes = 1\nproducer.enable.idempotence = true"),
        environment={"STATELINE_ADMIN_CLIENT_ID": "me"},
        overrides=["spark.sql.shuffle.partitions=2", "spark.master=local[1]"],
    )
    assert config.consumer == {"fetch.min.bytes": "1"}
    assert config.producer == {"enable.idempotence": "true"}
    assert config.admin == {"client.id": "me"}
    assert config.spark == {"spark.sql.shuffle.partitions": "2"}
    assert config.spark_master == "local[1]"
    assert origin(config, "consumer.fetch.min.bytes") == "stateline.toml"


def test_secrets_are_never_shown() -> None:
    config = load_config("flights", overrides=["consumer.sasl.password=hunter2"])
    assert "hunter2" not in str([tuple(row) for row in config.describe()])
    assert config.consumer["sasl.password"] == "hunter2"


def test_an_override_without_an_equals_sign_is_explained() -> None:
    assert refusal(overrides=["commit.interval.ms"]).startswith("--set commit.interval.ms: write it as")


def test_the_application_id_is_the_apps_to_say() -> None:
    assert load_config("flights", file={"application.id": "flights"}).application_id == "flights"
    message = refusal(file={"application.id": "trains"})
    assert message.startswith("application.id = 'trains' (from stateline.toml) is not allowed")
    assert "'flights'" in message


def test_a_dead_letter_handler_needs_its_topic() -> None:
    handler = "processing.exception.handler=dead-letter"
    assert "errors.dead.letter.queue.topic.name" in refusal(overrides=[handler])
    config = load_config("flights", overrides=[handler, "errors.dead.letter.queue.topic.name=bad"])
    assert config.dead_letter_topic == "bad"


def test_an_upgrade_says_its_mode_and_a_mode_alone_says_nothing() -> None:
    assert "needs upgrade.mode: in_place or roll_over" in refusal(overrides=["upgrade.from=v1"])
    assert refusal(overrides=["upgrade.from=v3"]).startswith("upgrade.from = 'v3' (from --set)")
    config = load_config("flights", overrides=["upgrade.from=v1", "upgrade.mode=in_place"])
    assert (config.upgrade_from, config.upgrade_mode) == ("v1", "in_place")
    assert load_config("flights", overrides=["upgrade.mode=in_place"]).upgrade_from is None


def test_a_transaction_outlives_the_commit_interval() -> None:
    settings = [EXACTLY_ONCE, "commit.interval.ms=2000", "transaction.timeout.ms=1000"]
    assert refusal(overrides=settings).startswith("transaction.timeout.ms = 1000 (from --set)")
    assert load_config("flights", overrides=settings[1:]).transaction_timeout_ms == 1000


def test_a_default_limit_above_the_largest_is_refused() -> None:
    assert refusal(overrides=["server.limit.max=10"]).startswith("server.limit.default = 1000 (from the defaults)")


KAFKA = "bootstrap.servers=broker:9092"
TLS = {f"node.peer.tls.{each}.file": f"{each}.pem" for each in ("certificate", "key", "ca")}


@pytest.mark.parametrize("missing", TLS)
def test_certificate_key_and_authority_of_a_node_go_together(missing: str) -> None:
    given = {name: value for name, value in TLS.items() if name != missing}
    first = next(iter(given))
    assert refusal(overrides=[KAFKA], file=given) == (
        f"{first} = '{given[first]}' (from stateline.toml) needs {missing}: set all, or none."
    )
    load_config("flights", overrides=[KAFKA], file=TLS)


def test_a_node_has_certificates_or_a_secret() -> None:
    told = refusal(overrides=[KAFKA, "node.peer.secret.file=s"], file=TLS)
    assert told.startswith("node.peer.secret.file = 's' (from --set) stands beside node.peer.tls.certificate.file: ")


@pytest.mark.parametrize("listen", [[], ["node.peer.listen=[::1]:0"]])
def test_an_advertised_address_needs_a_port_that_stays(listen: list[str]) -> None:
    told = refusal(overrides=[KAFKA, "node.peer.advertised=node-1:8001", *listen])
    assert told.startswith("node.peer.advertised = 'node-1:8001' (from --set) needs node.peer.listen with a port ")
    load_config("flights", overrides=[KAFKA, "node.peer.advertised=node-1:8001", "node.peer.listen=[::]:8001"])


@pytest.mark.parametrize("setting", ["node.peer.listen=127.0.0.1:0", "node.peer.secret.file=s"])
def test_what_links_nodes_has_no_use_on_the_embedded_log(setting: str) -> None:
    name, _, value = setting.partition("=")
    told = refusal(overrides=[setting])
    assert told.startswith(f"{name} = '{value}' (from --set) has no use on the embedded log, which is one machine's: ")
    load_config("flights", overrides=[setting, KAFKA])
    load_config("flights", overrides=["node.name=one", "node.url=http://one:8000"])  # of any log


def test_every_setting_is_described_under_its_dotted_name() -> None:
    rows = load_config("flights").describe()
    assert [row.name for row in rows] == [dotted_name(f) for f in Config.model_fields if f not in PASSED_ON]
    assert all(row.description and row.allowed for row in rows)


def test_tags_of_this_node_are_settings_of_any_name() -> None:
    tags = ["client.tag.zone=eu-1", "client.tag.rack=7", "rack.aware.assignment.tags=zone, rack"]
    config = load_config("flights", overrides=[KAFKA, *tags])
    assert (config.client_tag, config.rack_tags) == ({"zone": "eu-1", "rack": "7"}, ["zone", "rack"])
    assert {row.name: row.value for row in config.describe()}["client.tag.zone"] == "eu-1"
    assert "rack.aware.assignment.tags = 'a b'" in refusal(overrides=["rack.aware.assignment.tags=a b"])


def test_a_config_never_changes() -> None:
    config = load_config("flights")
    with pytest.raises(ValidationError):
        config.num_workers = 2


def test_stateline_toml_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_config("flights").num_workers == 1
    (tmp_path / "stateline.toml").write_text("num.workers = 3")
    monkeypatch.setenv("STATELINE_SERVER_PORT", "9")
    config = read_config("flights")
    assert (config.num_workers, config.server_port) == (3, 9)


def test_a_named_file_must_exist_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        read_config("flights", path=tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("num.workers = ")
    with pytest.raises(ConfigurationError, match=r"broken\.toml cannot be read as TOML"):
        read_config("flights", path=broken)


def test_settings_of_a_schema_registry_are_passed_on_and_passwords_in_them_hidden() -> None:
    given = ["schema.registry.url=http://ann:secret@registry:8081", "schema.registry.basic.auth.user.info=ann:secret"]
    config = load_config("shop", environment={"STATELINE_SCHEMA_REGISTRY_TIMEOUT": "2"}, overrides=given)
    assert config.schema_registry["timeout"] == "2"
    assert config.schema_registry["basic.auth.user.info"] == "ann:secret"
    assert "secret" not in " ".join(row.value for row in config.describe())


@pytest.mark.parametrize(
    ("name", "value", "is_shown"),
    [
        ("spark.hadoop.fs.s3a.access.key", "AKIA", False),
        ("spark.hadoop.fs.azure.account.key.box.dfs.core.windows.net", "c2VjcmV0", False),
        ("pipeline.checkpoint.location", "s3a://user:pass@bucket/checkpoints", False),
        ("pipeline.checkpoint.location", "s3a://bucket/checkpoints", True),
        ("pipeline.checkpoint.location", "abfss://container@account.dfs.core.windows.net/checkpoints", True),
        ("schema.registry.url", "http://ann:se/cret@registry:8081", False),
        ("spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net", "sv=2020&x=c2VjcmV0", False),
        ("spark.executorEnv.API_KEY", "abc", False),
        ("spark.executorEnv.PRIVATE_KEY", "abc", False),
        ("spark.executorEnv.DB_PASS", "abc", False),
        ("spark.executorEnv.PASSWD", "abc", False),
        ("spark.executorEnv.TZ", "UTC", True),
        ("spark.driver.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.keyStorePassword=abc", False),
        ("spark.driver.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.keyStore=/etc/keys.p12", True),
        ("spark.jdbc", "jdbc:postgresql://db/flights?user=ann&password=abc", False),
        ("spark.jdbc", "jdbc:postgresql://db:5432/flights?user=ann", True),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Provider", True),
        ("bootstrap.servers", "one:9092,two:9092", True),
        ("consumer.ssl.key.pem", "-----BEGIN", False),
        ("consumer.ssl.key.location", "/etc/key.pem", True),
        ("server.tokens.file", "/etc/tokens.json", True),
    ],
)
def test_listings_hide_keys_and_logins_and_show_where_they_lie(name: str, value: str, is_shown: bool) -> None:
    (row,) = [row for row in load_config("a", overrides=[f"{name}={value}"]).describe() if row.name == name]
    assert (row.value == value) is is_shown


def test_a_listing_shows_every_default() -> None:
    assert HIDDEN not in {row.value for row in load_config("a").describe()}


@pytest.mark.parametrize(
    "given",
    [
        "schema.registry.url=ann:c2VjcmV0@registry:8081",
        "bootstrap.servers=ann:c2VjcmV0@kafka",
        "node.url=http://ann:c2VjcmV0@node-1",
        "shcema.registry.url=http://ann:c2VjcmV0@registry:8081",
        "consumr.sasl.password=c2VjcmV0",
    ],
)
def test_an_error_names_the_setting_and_not_the_password_in_it(given: str) -> None:
    told = refusal(overrides=[given])
    assert f"{given.partition('=')[0]} = [hidden] (from --set)" in told
    assert "c2VjcmV0" not in told
