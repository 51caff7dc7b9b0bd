"""The settings of an application, under Kafka Streams' names where Kafka Streams has the setting.

Settings that begin with ``consumer.``, ``producer.`` or ``admin.`` go to librdkafka unchanged. Those that begin with
``topic.`` go to topics that Stateline creates, those with ``spark.`` to Spark, under their full names. Sources of
settings: `stateline.config.loading`.
"""

from __future__ import annotations

import ast
import inspect
import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from stateline.config import types
from stateline.config.embedded import EMBEDDED
from stateline.config.secrets import HIDDEN, is_secret
from stateline_store.state_store import IsolationLevel


class SettingDescription(NamedTuple):
    """One setting: its dotted name, value as text, origin, description and allowed values."""

    name: str
    value: str
    origin: str
    description: str
    allowed: str


class Config(BaseModel):
    """Every setting of a running application as an attribute. Immutable, so thread-safe. `load_config` makes one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    application_id: types.Text
    """The application's name: its consumer group, its state directory, the prefix of its internal topics."""
    bootstrap_servers: types.Servers = EMBEDDED
    """Where topics live: the embedded log (in the state directory, or in the file PATH), or Kafka brokers."""
    processing_guarantee: types.Guarantee = "at_least_once"
    """exactly_once_v2 commits results and input offsets in one Kafka transaction."""
    commit_interval_ms: types.Milliseconds = Field(
        default_factory=lambda data: 100 if data.get("processing_guarantee") == "exactly_once_v2" else 30_000
    )
    """How often stores and offsets are committed: 30000 unless set, 100 under exactly_once_v2."""
    state_dir: types.Directory = Path(".stateline")
    """Stores live in <state.dir>/<application.id>. Never a directory that the system cleans, such as /tmp."""
    default_state_isolation_level: types.Isolation = Field(
        default_factory=lambda data: (
            IsolationLevel.READ_COMMITTED
            if data.get("processing_guarantee") == "exactly_once_v2"
            else IsolationLevel.READ_UNCOMMITTED
        )
    )
    """Isolation level of queries that name none: READ_UNCOMMITTED, or READ_COMMITTED under exactly_once_v2."""
    enable_transactional_statestores: types.Switch = True
    """Stores buffer writes until they are committed. Always true: false is refused."""
    dsl_store_format: types.StoreFormat = "DEFAULT"
    """HEADERS: tables and the stores of streams keep the headers of records (KIP-1271)."""
    topology_auto_repartition: types.Switch = False
    """Repartition rows with a changed key before a group, join or table. Only App(config=…) can have it."""
    topology_optimization: types.Optimization = "none"
    """single.store.self.join: an inner join of a stream with itself keeps its rows in one store (KIP-862)."""
    topology_pattern_topics: types.OptionalTopics = None
    """The topics that patterns of app.stream match. Unset: those of the log at the start."""
    ensure_explicit_internal_resource_naming: types.Switch = False
    """Refuse to start if a store, and with it a changelog, has a generated name."""
    repartition_purge_interval_ms: types.Milliseconds = 30_000
    """How often committed records of repartition topics are deleted."""
    statestore_uncommitted_max_bytes: types.BytesOrUnlimited = 64 * 1024 * 1024
    """A worker commits early if its buffers would exceed its share of this, one num.workers-th."""
    state_cleanup_delay_ms: types.Milliseconds = 600_000
    """A task's directory unused for this long is deleted, unless a store in it could not be rebuilt."""
    automatic_state_relocation: types.Switch = True
    """Move stores whose subtopology has a new number. false: refuse to start, and show where they are."""
    upgrade_from: types.UpgradeFrom = None
    """v1 while stores get timestamps: plain files are served until this is unset again (needs upgrade.mode)."""
    upgrade_mode: types.Upgrade = None
    """in_place builds the new files beside the plain ones; roll_over leaves that to standbys and new nodes."""
    ttl_clock: types.TimeSource = "stream"
    """wall: entries with a time to live also expire by the worker's clock, without input."""
    retention_clock: types.TimeSource = "stream"
    """wall: queries also hide windows and sessions that are past their retention by the clock."""
    statestore_sync: types.Switch = False
    """fsync each commit. Without it, a power cut can lose the last commits. They are then replayed."""
    node_name: types.OptionalNodeName = None
    """This machine's name in the whole application. Unset: the host's name. One directory, one name."""
    node_url: types.OptionalUrl = None
    """Where clients reach this node's HTTP. Unset: the server's address, unless it listens on every address."""
    node_peer_listen: types.OptionalListen = None
    """Where other nodes reach this one. Unset: any free port, of server.host with certificates, else of 127.0.0.1."""
    node_peer_advertised: types.OptionalAddress = None
    """The address given to other nodes, if it is not the one of node.peer.listen."""
    node_peer_tls_certificate_file: types.OptionalFile = None
    """This node's certificate as PEM, issued to its name. On a link by TLS, both nodes show theirs."""
    node_peer_tls_key_file: types.OptionalFile = None
    """The certificate's private key, as PEM, without a password."""
    node_peer_tls_ca_file: types.OptionalFile = None
    """The authority that signed the certificates of all nodes and of nobody else, as PEM."""
    node_peer_secret_file: types.OptionalFile = None
    """For nodes of one machine, instead of certificates: a file with a secret that all of them have."""
    node_leave: types.Switch = False
    """A node that is stopped leaves its group for good. Others get its tasks at once, not after its session."""
    node_copy_max_bytes_per_second: types.BytesPerSecond = 52_428_800
    """Limit for copying stores' files to a node that begins to follow them. 0: neither send nor fetch any."""
    backup_location: types.OptionalBackupLocation = None
    """Where nodes write backups of their stores, as s3://bucket/stateline or a directory. Unset: nowhere."""
    backup_interval_ms: types.Milliseconds = 600_000
    """Between two backups. A node that was away at that moment waits for the next."""
    backup_retention_ms: types.Milliseconds = 604_800_000
    """Backups are deleted after that time, except the newest (backup.keep)."""
    backup_keep: types.Count = 3
    """At least so many backups of each store partition, and so many whole ones, are kept, however old they are."""
    backup_max_bytes_per_second: types.BytesOrUnlimited = 52_428_800
    """Bytes per second that a node writes of backups at most."""
    num_standby_replicas: types.CountOrNone = 0
    """Copies of each task on other nodes. They follow its changelogs. If its node is lost, one takes over."""
    max_warmup_replicas: types.Count = 2
    """Standbys that catch up on a worker at a time. The next begins when one has caught up."""
    acceptable_recovery_lag: types.CountOrNone = 10_000
    """A standby that lacks at most this many records has caught up: its task may move there."""
    rack_aware_assignment_tags: types.OptionalNames = None
    """Names of client.tag.* in which nodes with further copies of a task are to differ, as zone,rack."""
    group_instance_id: types.OptionalText = None
    """Static membership: a restarted worker of this name keeps its tasks and its disk. Unset: <node>-<instance>."""
    session_timeout_ms: types.Milliseconds = 45_000
    """After this long without a heartbeat a worker's tasks go to others."""
    transaction_timeout_ms: types.Milliseconds = 60_000
    """After this long the broker aborts an open transaction."""
    max_poll_interval_ms: types.Milliseconds = 300_000
    """After this long without a poll a worker counts as stuck."""
    max_partition_skew_ms: types.MillisecondsOrUnlimited = 10_000
    """How far in event time a partition is read ahead of another one that has no records yet; -1: in the order read."""
    max_task_idle_ms: types.Wait = 1_000
    """How long a partition without records, or one that restores, holds back partitions that are further ahead."""
    deserialization_exception_handler: types.Handler = "fail"
    """How to handle a record that cannot be read."""
    processing_exception_handler: types.Handler = "fail"
    """How to handle a record whose processor raises."""
    production_exception_handler: types.ProductionHandler = "fail"
    """How to handle a forwarded record that the log refuses."""
    dead_letter_topic: types.OptionalText = None
    """The topic of dead letters, for handlers of dead-letter (errors.dead.letter.queue.topic.name)."""
    max_timestamp_ahead_ms: types.MillisecondsOrUnlimited = -1
    """A record whose timestamp is further ahead of the worker's clock counts as unreadable."""
    replication_factor: types.Replication = -1
    """The replication factor of changelog and repartition topics that Stateline creates."""
    windowstore_changelog_additional_retention_ms: types.MillisecondsToAdd = 86_400_000
    """How much longer than its store a changelog of windows or sessions keeps records, for clocks that differ."""
    server_host: types.Text = "127.0.0.1"
    """The address that the server listens on."""
    server_port: types.Port = 8000
    """The port that the server listens on."""
    server_wait_max_ms: types.Wait = 60_000
    """The largest wait_ms of a query; a larger one is refused."""
    server_limit_default: types.Count = 1_000
    """Entries on a page of a query that names no limit."""
    server_limit_max: types.Count = 10_000
    """The largest limit of a query."""
    server_body_max_bytes: types.Count = 4 * 1024 * 1024
    """The largest body of a request. All large bodies of a process together may have 16 times as much."""
    server_processes: types.Count = 1
    """Server processes behind the port. Each can use one core."""
    server_scan_processes: types.CountOrNone = 1
    """Processes for large reads, such as streams and snapshots. 0: the server processes answer them."""
    server_drain_ms: types.Wait = 0
    """How long a server that is stopped still accepts requests, while /readyz says 503."""
    server_access_log: types.AccessLogging = "off"
    """A log line for each request, or for slow and failed ones."""
    server_slow_query_ms: types.Wait = 1_000
    """A request that takes this long is slow."""
    server_follow_ms: types.Wait = 300_000
    """Store partitions queried within this time follow each commit. Others follow less often."""
    server_cursor_ttl_ms: types.Milliseconds = 60_000
    """How long after its last page a cursor is kept."""
    server_cursors_max: types.Count = 256
    """Cursors of a server process. Beyond it, the caller with the most loses the least recently used one."""
    server_cursors_max_bytes: types.Count = 1_073_741_824
    """Files on disk kept only for cursors and streams. Beyond it, the caller with the most loses its first cursor."""
    server_snapshots_max: types.Count = 16
    """Snapshots of an application at a time. One more gets TOO_MANY_REQUESTS."""
    server_snapshots_max_bytes: types.BytesOrUnlimited = 10_737_418_240
    """Bytes on disk kept only for snapshots. Beyond it, no snapshot is made and no lease extended."""
    server_snapshot_ttl_max_ms: types.Milliseconds = 3_600_000
    """The longest lease of a snapshot, from its start or renewal. A longer one is refused."""
    server_query_timeout_ms: types.Milliseconds = 60_000
    """How long a query may work before its answer begins, without wait_ms. Then it gets TOO_MANY_REQUESTS."""
    server_scans_max: types.CountOrUnlimited = 64
    """Scans that a server process runs at a time, without waiting ones. One more gets TOO_MANY_REQUESTS."""
    server_rate_limit: types.CountOrUnlimited = -1
    """Requests per second of a token, or of an address without one, at a server process. More get TOO_MANY_REQUESTS."""
    server_caller_share_percent: types.Percent = 50
    """How much of the snapshots, scans, SQL, change feeds and large bodies one caller (token or address) may have."""
    sql_processes: types.Count = 4
    """Statements of SQL that run at a time. Each has a process. One more waits until its deadline."""
    sql_timeout_ms: types.Milliseconds = 10_000
    """How long a statement may run. Then its process is killed."""
    sql_memory_bytes: types.Count = 512 * 1024 * 1024
    """The memory of a statement, beyond that of its process at rest."""
    sql_max_rows_scanned: types.Count = 10_000_000
    """How many rows of stores a statement may read."""
    sql_max_rows: types.Count = 100_000
    """The most rows of a result."""
    sql_max_bytes: types.Count = 16 * 1024 * 1024
    """The most bytes of a result, as Arrow."""
    server_forwarded_allow_ips: types.OptionalAddresses = None
    """Proxies whose X-Forwarded-For is trusted, where server.rate.limit counts addresses. Unset: none."""
    server_cors_origins: types.OptionalOrigins = None
    """Origins whose pages may ask the server from a browser, and read its answers."""
    server_tokens_file: types.OptionalFile = None
    """The permissions of tokens: a file that `stateline token` writes. Unset: everyone may ask everything."""
    server_mcp: types.Switch = True
    """Agents may ask at /mcp, with the rights of their token (needs stateline[mcp])."""
    server_tls_certificate_file: types.OptionalFile = None
    """The server's certificate and its intermediates, as PEM, for TLS (needs server.tls.key.file)."""
    server_tls_key_file: types.OptionalFile = None
    """The certificate's private key, as PEM, without a password."""
    server_insecure: types.Switch = False
    """Something else guards the server: without tokens, listen on any address, and accept any host name."""
    server_changes_max: types.Count = 64
    """Change feeds at a time. One more is refused with 429."""
    server_changes_buffer_bytes: types.Count = 1024 * 1024
    """How much may wait for the reader of a change feed. About as much is read ahead from Kafka."""
    server_changes_slow_ms: types.Milliseconds = 30_000
    """A reader of a change feed that takes nothing for this long is disconnected."""
    server_changes_heartbeat_ms: types.Milliseconds = 5_000
    """How often a change feed without changes sends a heartbeat."""
    num_workers: types.Count = 1
    """Worker processes that `stateline run` starts."""
    worker_stop_timeout_ms: types.Milliseconds = 60_000
    """How long a worker of `stateline run` may take to commit and close its stores. After that it is killed."""
    log_format: types.LogFormat = "text"
    """The format of the processes' logs: lines of text, or an object of JSON on each line."""
    tracing_exporter: types.TracingExporter = "none"
    """OpenTelemetry traces: none, or sent by OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT (needs stateline[otel])."""
    spark_master: types.Text = "local[2]"
    """The Spark master that pipelines run on."""
    spark_jars: types.OptionalText = None
    """Spark's Kafka connector: a folder of jars (default: share/stateline/spark-jars), or Maven coordinates."""
    spark_trigger_interval_ms: types.Wait = 500
    """The pause between the starts of two micro-batches of a pipeline; 0 starts the next at once."""
    pipeline_drivers: types.PipelineDrivers = "each"
    """Under `stateline run`: a driver process per pipeline, or one for all of them, which takes less memory."""
    pipeline_node: types.OptionalText = None
    """The node (node.name) that runs the pipelines, with several nodes. Unset: the first that has started them."""
    pipeline_checkpoint_location: types.OptionalSharedLocation = None
    """Where all nodes reach pipelines' checkpoints, so that another can take over. Unset: below state.dir, on one."""
    pipeline_max_offsets_per_trigger: types.Count = 200_000
    """How many records of each topic a micro-batch of a pipeline reads at most (Spark's maxOffsetsPerTrigger)."""
    pipeline_transaction_timeout_max_ms: types.Milliseconds = 900_000
    """The longest write of a large micro-batch: at most the brokers' transaction.max.timeout.ms."""
    pipeline_results_port: types.Port = 0
    """Where a pipeline's driver receives results of executors, or one of the next 15 ports. 0: any free one."""
    pipeline_restart_max_ms: types.Milliseconds = 30_000
    """The longest pause before a failed pipeline starts again. The first is 500 ms, and each doubles the last."""
    client_tag: types.PassedOn = Field(default_factory=dict)
    """client.tag.*: where this node stands, as client.tag.zone; rack.aware.assignment.tags says which of them count."""
    consumer: types.PassedOn = Field(default_factory=dict)
    """consumer.*: settings of librdkafka's consumer."""
    producer: types.PassedOn = Field(default_factory=dict)
    """producer.*: settings of librdkafka's producer."""
    admin: types.PassedOn = Field(default_factory=dict)
    """admin.*: settings of librdkafka's admin client."""
    topic: types.PassedOn = Field(default_factory=dict)
    """topic.*: settings of the changelog and repartition topics that Stateline creates, as topic.segment.ms."""
    schema_registry: types.PassedOn = Field(default_factory=dict)
    """schema.registry.*: settings of confluent-kafka's Schema Registry client, as schema.registry.url."""
    spark: types.PassedOn = Field(default_factory=dict)
    """spark.*: settings of the Spark session, here under their full names (spark.sql.shuffle.partitions)."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def exactly_once(self) -> bool:
        return self.processing_guarantee == "exactly_once_v2"

    @property
    def worker_uncommitted_max_bytes(self) -> int:
        """One worker's share of statestore.uncommitted.max.bytes, at least 1; -1 for no limit."""
        limit = self.statestore_uncommitted_max_bytes
        return limit if limit < 0 else max(1, limit // self.num_workers)

    @property
    def node(self) -> str:
        """The node's name: node.name, or else the host's name."""
        return self.node_name or os.uname().nodename

    @property
    def runs_pipelines(self) -> bool:
        """Whether pipeline.node allows pipelines here. Unset, it allows any node."""
        return self.pipeline_node in (None, self.node)

    @property
    def pipelines_move(self) -> bool:
        """Whether another node may continue a pipeline: pipeline.checkpoint.location is set."""
        return self.pipeline_checkpoint_location is not None

    def member_name(self, instance: str) -> str:
        """The worker's name in its group and its transactions. A restarted worker fences its predecessor by it. It is
        unique over all machines."""
        return self.group_instance_id or f"{self.node}-{instance}"

    @property
    def rack_tags(self) -> list[str]:
        return [name.strip() for name in (self.rack_aware_assignment_tags or "").split(",") if name.strip()]

    @property
    def pattern_topics(self) -> list[str] | None:
        """The names in topology.pattern.topics, None if it is unset."""
        given = self.topology_pattern_topics
        return None if given is None else [name.strip() for name in given.split(",")]

    def caller_share(self, most: int) -> int:
        """One caller's share of `most`: server.caller.share.percent, rounded up."""
        return -(-most * self.server_caller_share_percent // 100)

    def describe(self) -> list[SettingDescription]:
        """Every setting in the order of declaration, with those passed on. Secrets are hidden."""
        descriptions = _descriptions()
        rows = []
        for field in type(self).model_fields:
            value = getattr(self, field)
            named = {dotted_name(field): value}
            if field in PASSED_ON:
                prefix = "" if field == "spark" else f"{dotted_name(field)}."
                named = {f"{prefix}{key}": value[key] for key in sorted(value)}
            for name, each in named.items():
                text = as_text(each)
                shown = HIDDEN if is_secret(name, text) else text
                allowed = allowed_values(field)
                rows.append(SettingDescription(name, shown, self.origin(name), descriptions[field], allowed))
        return rows

    def origin(self, name: str) -> str:
        """The origin of the setting with this dotted name, for error messages."""
        return self._origins.get(name, "default")


PASSED_ON = ("consumer", "producer", "admin", "topic", "spark", "client_tag", "schema_registry")
_IRREGULAR = {
    "dead_letter_topic": "errors.dead.letter.queue.topic.name",
    "default_state_isolation_level": "default.interactive.query.isolation.level",
}
ALIASES = {"default.state.isolation.level": "default.interactive.query.isolation.level"}
"""Other accepted names of settings."""


def _descriptions() -> dict[str, str]:
    """The fields' docstrings. They are read on demand: pydantic's `use_attribute_docstrings` reads the source at every
    start, which takes three times as long as the rest of `Config`."""
    declaration = ast.parse(inspect.getsource(Config)).body[0]
    assert isinstance(declaration, ast.ClassDef)
    return {
        ast.unparse(field.target): inspect.cleandoc(str(text.value.value))
        for field, text in pairwise(declaration.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def dotted_name(field: str) -> str:
    """The setting's name for users: `commit_interval_ms` is ``commit.interval.ms``."""
    return _IRREGULAR.get(field, field.replace("_", "."))


def allowed_values(field: str) -> str:
    """The allowed values of this field's setting, for error messages."""
    metadata = Config.model_fields[field].metadata
    return next(mark.text for mark in metadata if isinstance(mark, types.Allowed))


def as_text(value: object) -> str:
    """The value as users write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    return "" if value is None else str(value)
