"""Files in deploy/ and the Dockerfile: what they name exists, and the dashboards ask for what a server really has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.server.test_workers_metrics import TOLD
from stateline.cli.nodes.certificates import make_authority, make_certificate
from stateline.config.loading import PREFIX, load_config
from stateline.config.settings import Config
from stateline.deployment.backup_figures import FIGURES
from stateline.deployment.json_files import decoded
from stateline.deployment.workers.figures import WorkerFigures
from stateline.dsl.app import App
from stateline.problem_kinds import PROBLEMS
from stateline.server.certificates import Certificates
from stateline.server.nodes.keys import node_keys
from stateline.server.nodes.traffic import Traffic
from stateline.server.state.pipeline_states import PipelineStates
from stateline.server.telemetry.metrics import BackupCollector
from stateline.server.telemetry.node_metrics import CertificateCollector, LinkCollector, Linked, Links, NodeCounts
from stateline.server.telemetry.pipelines import PipelineCollector
from stateline.server.telemetry.workers_metrics import FiguresReader, WorkerCollector
from stateline.spark.connector import JARS
from support.processes import forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SERVERS = {"server-1", "server-2"}
OURS = {"topics", "certificates", "worker-1", "worker-2", "pipeline", *SERVERS}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def settings_of(environment: dict[str, str]) -> Config:
    """Raises when a variable of a deployment file is not a setting that Stateline accepts."""
    return load_config("flights", environment={k: v for k, v in environment.items() if k.startswith(PREFIX)})


def instructions(name: str) -> list[str]:
    """The arguments of every instruction of this name, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M))
    return re.findall(rf"^\s*{name} (.*(?:\n    CMD .*)?)$", joined, re.MULTILINE)


# ---- The image


def test_the_image_copies_only_what_the_build_context_has() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    copied = {name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_stages_build_on_stages_that_there_are() -> None:
    stages: list[str] = []
    for line in instructions("FROM"):
        base, _, name = line.split()
        assert base in stages or re.fullmatch(r"python:3\.\d+-slim-\w+", base), line
        stages.append(name)
    assert stages == ["build", "connector", "slim", "stateline"]
    sources = set(re.findall(r"^COPY --from=(\w+)", DOCKERFILE, re.MULTILINE))
    assert sources <= set(stages)
    assert len({line.split()[0] for line in instructions("FROM")} - {"slim"}) == 1, "the same Python runs it"


def test_both_images_run_without_privileges_and_without_build_tools() -> None:
    for stage in re.split(r"^FROM .* AS (?:slim|stateline)$", DOCKERFILE, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^USER (\w+)$", stage, re.MULTILINE)[-1] == "stateline"
        assert not re.search(r"\b(gcc|g\+\+|make|build-essential|pip|maven|-jdk)\b", re.sub("#.*", "", stage))


def test_the_image_has_sparks_kafka_connector_where_it_is_looked_for() -> None:
    (fetched,) = re.findall(r"dependency:copy-dependencies -DoutputDirectory=(\S+)", DOCKERFILE)
    (found,) = re.findall(rf"^COPY --from=connector {fetched} (\S+)$", DOCKERFILE, re.MULTILINE)
    (environment,) = re.findall(r"python -m venv --without-pip (\S+)", DOCKERFILE)
    assert Path(found).relative_to(environment) == JARS.relative_to(sys.prefix)
    (pom,) = re.findall(r"^COPY --from=build /src/(\S+) /src/pom.xml$", DOCKERFILE, re.MULTILINE)
    (version,) = re.findall(r"<spark.version>(.*?)</spark.version>", (ROOT / pom).read_text(encoding="utf-8"))
    assert f"\npyspark=={version} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_packages_of_the_image_are_those_of_the_lock() -> None:
    (install,) = [line for line in instructions("RUN") if " pip install --python " in line]
    assert '--constraint requirements.lock ".[$EXTRAS]"' in install
    assert instructions("ARG") == ["EXTRAS=spark,sql"]


def test_the_image_asks_for_its_own_health() -> None:
    (check,) = instructions("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    port = load_config("flights").server_port
    assert f"http://127.0.0.1:{port}/healthz" in compiled(command[2])
    assert instructions("EXPOSE") == [str(port)]


def compiled(source: str) -> str:
    compile(source, "health check", "exec")
    return source


def test_variables_of_the_image_are_settings() -> None:
    pairs = re.findall(r"(STATELINE_\w+)=(\S+)", DOCKERFILE)
    assert len(pairs) == 2
    settings_of(dict(pairs))


# ---- Compose


def compose() -> dict[str, Any]:
    (document,) = documents("compose.yaml")
    services: dict[str, Any] = document["services"]
    assert set(services) == {*OURS, "kafka", "prometheus", "grafana"}
    return services


NODES = {"worker-1": "1", "server-1": "1", "pipeline": "1", "worker-2": "2", "server-2": "2"}


def test_what_is_of_a_composed_node_shares_its_name_and_its_state_volume() -> None:
    services = compose()
    for name, number in NODES.items():
        assert f"state-{number}:/var/lib/stateline" in services[name]["volumes"]
        assert settings_of(services[name]["environment"]).node == f"node-{number}"
    for name in OURS:
        assert services[name]["init"] is True
        settings_of(services[name].get("environment", {}))


def test_composed_nodes_reach_each_other_by_certificates_that_are_made_before(tmp_path: Path) -> None:
    services = compose()
    maker = services["certificates"]
    (script,) = maker["command"]
    (made_in,) = [target for volume, target, *_ in split_mounts(maker) if volume == "certificates"]
    inside = {made_in: tmp_path / "volume", "/tmp/made": tmp_path / "made"}
    inside[made_in].mkdir()
    for folder, real in inside.items():
        script = script.replace(folder, str(real))
    for _ in range(2):  # what is there stays
        command = Path(sys.executable).parent
        path = {**os.environ, "PATH": f"{command}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-euc", script], env=path, check=True, capture_output=True)
    for number in "12":
        server = services[f"server-{number}"]
        config = settings_of(server["environment"])
        assert (config.node_peer_listen, config.node_peer_advertised) == ("0.0.0.0:8001", f"server-{number}:8001")
        assert str(config.node_url).split("//")[1] + ":8000" in server["ports"]
        assert node_keys(at_hand(config, "/etc/stateline-nodes", inside[made_in])) is not None
        assert ("certificates", "/etc/stateline-nodes", "ro") in split_mounts(server)
    assert not list(tmp_path.rglob("ca.key")), "who has it makes nodes"


def split_mounts(service: dict[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(mount.split(":")) for mount in service["volumes"] if not mount.startswith("$")]


def at_hand(config: Config, folder: str, real: Path) -> Config:
    """The same, its nodes' files being here."""
    names = [name for name in type(config).model_fields if name.startswith("node_peer_tls")]
    moved = {name: Path(str(getattr(config, name)).replace(folder, str(real))) for name in names}
    return config.model_copy(update=moved)


def test_every_volume_that_is_named_is_declared_and_every_file_exists() -> None:
    (document,) = documents("compose.yaml")
    named = set()
    for service in document["services"].values():
        for mount in service.get("volumes", []):
            source = re.sub(r"\$\{APP_DIR:-(.*?)\}", r"\1", mount).split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).resolve().exists(), mount
            else:
                named.add(source)
    assert named == set(document["volumes"])


def test_services_wait_for_services_that_there_are() -> None:
    services = compose()
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
    first = {key: {"condition": "service_completed_successfully"} for key in ("topics", "certificates")}
    for name in NODES:
        assert services[name]["depends_on"] == first
    assert services["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert services["kafka"]["healthcheck"]["test"]


def test_images_are_pinned_and_those_of_ours_are_built_from_stages_of_the_dockerfile() -> None:
    services = compose()
    built = {}
    for name, service in services.items():
        if name not in OURS:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]
        elif "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            built[service["image"]] = service["build"].get("target", "stateline")
    assert built == {"stateline-slim": "slim", "stateline": "stateline"}
    assert {services[name]["image"] for name in OURS} == set(built)
    assert services["pipeline"]["image"] == "stateline", "Spark needs Java"
    assert set(built.values()) <= {line.split()[-1] for line in instructions("FROM")}


def test_nothing_is_published_beyond_this_machine_where_servers_run_without_tokens() -> None:
    services = compose()
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for name in SERVERS:
        environment = services[name]["environment"]
        insecure = environment.get("STATELINE_SERVER_INSECURE") == "true"
        assert insecure != ("STATELINE_SERVER_TOKENS_FILE" in environment)


def test_only_servers_are_asked_for_their_health_over_http() -> None:
    services = compose()
    for name in OURS:
        check = services[name]["healthcheck"]
        if name in SERVERS:
            assert "/readyz" in compiled(check["test"][-1])
        else:
            assert check == {"disable": True}
        assert name == "certificates" or services[name]["command"][0] in ("topics", "worker", "pipeline", "serve")


def test_prometheus_asks_every_server() -> None:
    (scrape,) = documents("prometheus.yml")[0]["scrape_configs"]
    targets = [target for group in scrape["static_configs"] for target in group["targets"]]
    assert sorted(targets) == sorted(f"{name}:8000" for name in SERVERS)
    assert scrape.get("metrics_path", "/metrics") == "/metrics"


def test_grafana_is_given_its_source_and_its_dashboards() -> None:
    (sources,) = documents("grafana/provisioning/datasources/prometheus.yaml")
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (providers,) = documents("grafana/provisioning/dashboards/stateline.yaml")
    path = providers["providers"][0]["options"]["path"]
    grafana = compose()["grafana"]
    assert f"./grafana/dashboards:{path}:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{path}/service.json"
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}


def test_grafana_asks_a_server_for_state_by_the_plugin_that_it_is_told_to_install() -> None:
    (sources,) = documents("grafana/provisioning/datasources/stateline.yaml")
    (source,) = sources["datasources"]
    environment = compose()["grafana"]["environment"]
    assert re.fullmatch(rf"{source['type']}@\d+\.\d+\.\d+", environment["GF_PLUGINS_PREINSTALL_SYNC"])
    assert environment["STATELINE_URL"] in {f"http://{name}:8000" for name in SERVERS}
    assert source["url"] == "$STATELINE_URL"
    options = source["jsonData"]
    assert options["allowedHosts"] == [source["url"]], "the token goes to no other host"
    assert options["customHealthCheckUrl"] == f"{source['url']}/healthz"
    assert (options["auth_method"], source["secureJsonData"]) == ("bearerToken", {"bearerToken": "$STATELINE_TOKEN"})
    assert environment["STATELINE_TOKEN"], "the plugin refuses an empty one"
    used = panels(OF_STATE) + dashboards()[OF_STATE]["templating"]["list"]
    assert {json.dumps(each["datasource"]) for each in used} == {
        json.dumps({"type": source["type"], "uid": source["uid"]})
    }


# ---- The dashboards


def dashboards() -> dict[str, dict[str, Any]]:
    files = (DEPLOY / "grafana/dashboards").iterdir()
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


NAMES = ("cluster", "service", "stores")  # of metrics
OF_STATE = "flights"  # tests/flights/test_dashboard.py asks its queries


def panels(*names: str) -> list[dict[str, Any]]:
    """Those of these dashboards, or of all."""
    found = dashboards()
    return [panel for name in names or NAMES for panel in found[name]["panels"] if panel["type"] != "row"]


def expressions(*names: str) -> list[str]:
    asked = [target["expr"] for panel in panels(*names) for target in panel["targets"]]
    found = dashboards()
    asked += [v["query"]["query"] for name in names or NAMES for v in found[name]["templating"]["list"]]
    return asked


def test_the_dashboards_are_told_apart_and_lead_to_each_other() -> None:
    found = dashboards()
    assert set(found) == {*NAMES, OF_STATE}
    for which in ("uid", "title"):
        assert len({document[which] for document in found.values()}) == len(found)
    for document in found.values():
        (link,) = document["links"]
        assert (link["type"], link["tags"]) == ("dashboards", document["tags"])


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Sample → its labels, as a server and a worker under `stateline run` have them after some requests."""
    directory = tmp_path_factory.mktemp("run")
    module = "from support.processes.query_server import make_app\n\napp = make_app()\n"
    (directory / "shown.py").write_text(module)
    port = free_port()
    given = ["shown:app", "--set", "state.dir=state", "--set", f"server.port={port}"]
    given += ["--set", "commit.interval.ms=100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with chdir(directory):
        forked.run(["topics", *given, "--create", "--partitions", "3"], env=environment).check_returncode()
        typed = 'a\t{"n": 1}\nb\t{"n": 2}\n'
        forked.run(["produce", given[0], "flights", *given[1:]], env=environment, typed=typed).check_returncode()
    program = [sys.executable, "-m", "stateline", "run", *given]
    process = subprocess.Popen(program, cwd=directory, env=environment, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            wait_until(lambda: is_ready(client), timeout_s=90)
            wait_until(lambda: client.get("/v1/stores/aircraft/keys/a").status_code == 200, timeout_s=60)
            client.get("/v1/stores/aircraft/range")
            client.get("/v1/stores/aircraft/keys/a?isolation_level=read_committed")
            # Workers tell their figures once a second.
            wait_until(lambda: "stateline_commit_latency_avg_seconds{" in client.get("/metrics").text)
            families = list(text_string_to_metric_families(client.get("/metrics").text))
        for registry in (
            metrics_of_nodes(directory),
            metrics_of_standbys(),
            metrics_of_pipelines(),
            metrics_of_backups(directory),
        ):
            families += list(text_string_to_metric_families(generate_latest(registry).decode()))
        yield {s.name: set(s.labels) for family in families for s in family.samples}
    finally:
        process.terminate()
        assert process.wait(timeout=HANGING_S) == 0


def metrics_of_nodes(directory: Path) -> CollectorRegistry:
    """Those that only a server with other nodes, or with a certificate, has."""
    registry, traffic, links = CollectorRegistry(), Traffic(), LinkCollector()
    traffic.forwarded("two", "ok", 0.001)
    traffic.answers["two", "ok"] += 1
    traffic.failed_dials["two"] += 1
    traffic.copied_bytes["two", "sent"] += 1
    NodeCounts(registry).take(traffic)
    links.seen = Links([Linked("two", up=True, silent_s=0.1)])
    registry.register(links)
    make_authority(directory, datetime.now(UTC))
    made = make_certificate(directory, "one", (), datetime.now(UTC), timedelta(days=9))
    files = {"certificate": made.certificate, "key": made.key, "ca": directory / "ca.pem"}
    given = [f"node.peer.tls.{what}.file={path}" for what, path in files.items()]
    config = load_config("app", environment={}, overrides=["bootstrap.servers=localhost:9092", *given])
    registry.register(CertificateCollector(Certificates(config, node_keys(config))))
    return registry


def metrics_of_backups(application: Path) -> CollectorRegistry:
    """Those that only a server with a backup location has."""
    (application / FIGURES).write_text(json.dumps({"tasks": {"0_0": 1}}))
    registry = CollectorRegistry()
    registry.register(BackupCollector(application))
    return registry


def metrics_of_standbys() -> CollectorRegistry:
    """Those that only a worker has that follows tasks of other nodes."""
    told = TOLD | {"standbys": {"0_2": {"records": 3, "ms": 500}}}
    reader = FiguresReader(ROOT)
    reader.read = lambda: {"worker-0": decoded(WorkerFigures, json.dumps(told).encode())}  # type: ignore[method-assign]
    registry = CollectorRegistry()
    registry.register(WorkerCollector(reader))
    return registry


def metrics_of_pipelines() -> CollectorRegistry:
    """Those that only an application with pipelines has."""
    status: dict[str, Any] = {
        "state": "running", "batch_id": 7, "batch_at_ms": 1, "duration_ms": 20, "watermark_ms": 3, "restarts": 0,
        "lag_by_topic": {"orders": 4}, "steps_ms": {"compute": 5},
        "totals": dict.fromkeys(("batches", "rows_in", "rows_out", "tombstones", "skipped", "dead_lettered"), 1),
    }  # fmt: skip
    states = PipelineStates(App("no-such-application").topology(), ROOT)
    states.read = lambda: {"joined": status}  # type: ignore[method-assign]
    registry = CollectorRegistry()
    registry.register(PipelineCollector(states))
    return registry


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_every_expression_of_the_dashboards_names_metrics_and_labels_that_there_are(
    samples: dict[str, set[str]],
) -> None:
    assert len(expressions()) > 15
    for expression in expressions():
        names = re.findall(r"\bstateline_\w+", expression)
        assert names, expression
        assert set(names) <= set(samples), expression
        # `le` is Prometheus' own, `instance` what it adds to what it scrapes.
        labels = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression))
        labels |= {name.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(",")}
        known = set().union(*(samples[name] for name in names)) | {"instance"}
        assert labels <= known, expression


def test_every_metric_of_stores_and_requests_is_on_a_dashboard(samples: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"\bstateline_\w+", " ".join(expressions())))
    hidden = {name for name in samples if name.startswith("stateline_") and not name.endswith(("_sum", "_count"))}
    missing = {name for name in hidden - shown if not name.startswith("stateline_rocksdb_")}  # a choice of these
    assert missing == {
        "stateline_store_committed_at_ms",
        "stateline_certificate_expiry_seconds",
        "stateline_access_log_lines_dropped_total",
        "stateline_pipeline_batch_id",
        "stateline_pipeline_tombstones_total",
        "stateline_pipeline_watermark_seconds",
        # Their rates are shown.
        "stateline_commit_total",
        "stateline_commit_seconds_total",
        "stateline_process_total",
        "stateline_process_seconds_total",
        "stateline_restore_total",
        "stateline_standby_records_total",
    }


def alerts() -> list[dict[str, Any]]:
    (file,) = documents("grafana/provisioning/alerting/stateline.yaml")
    return [rule for group in file["groups"] for rule in group["rules"]]


def test_alerts_ask_for_metrics_and_labels_that_there_are(samples: dict[str, set[str]]) -> None:
    assert len({rule["uid"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        value, above = rule["data"]
        expression = value["model"]["expr"]
        assert_well_formed(expression)
        known = {"instance", "job"}
        names = re.findall(r"\bstateline_\w+", expression)
        assert names or "up{" in expression, expression
        assert set(names) <= set(samples), expression
        known = known.union(*(samples[name] for name in names))
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        asked = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression))
        assert grouped | asked <= known, expression
        outermost = {label.strip() for label in re.findall(r"by \(([^)]*)\)", expression)[0].split(",")}
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= outermost
        assert (rule["condition"], above["model"]["expression"]) == (above["refId"], value["refId"])


def test_there_is_an_alert_for_each_kind_of_trouble() -> None:
    asked = " ".join(rule["data"][0]["model"]["expr"] for rule in alerts())
    for name in (
        "up", "stateline_server_ready", "stateline_http_requests_total", "stateline_state_disk_free_bytes",
        "stateline_workers", "stateline_worker_up", "stateline_worker_starts_total",
        "stateline_worker_figures_age_seconds", "stateline_input_lag_records", "stateline_store_commit_age_seconds",
        "stateline_standby_lag_seconds", "stateline_dead_lettered_records_total", "stateline_rocksdb_background_errors",
        "stateline_rocksdb_is_write_stopped", "stateline_pipeline_state", "stateline_pipeline_lag_records",
        "stateline_certificate_expiry_seconds", "stateline_backup_task_last_timestamp_seconds",
    ):  # fmt: skip
        assert re.search(rf"\b{name}\b", asked), name


def test_failed_requests_are_those_of_reasons_with_a_5xx_status() -> None:
    (expression,) = [r["data"][0]["model"]["expr"] for r in alerts() if r["uid"] == "stateline-failures"]
    (told,) = re.findall(r'outcome=~"(.*?)"', expression)
    assert set(told.split("|")) == {problem.reason for problem in PROBLEMS.values() if problem.status >= 500}


def test_the_job_of_the_scrape_is_the_one_that_the_alerts_ask_for() -> None:
    jobs = {job["job_name"] for job in documents("prometheus.yml")[0]["scrape_configs"]}
    asked = " ".join(rule["data"][0]["model"]["expr"] for rule in alerts())
    assert set(re.findall(r'job="(.*?)"', asked)) == jobs


def test_workers_of_one_name_at_several_nodes_are_told_apart() -> None:
    shown = [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]
    told = [(rule["data"][0]["model"]["expr"], rule["annotations"]["summary"]) for rule in alerts()]
    of_workers = [(asked, said) for asked, said in shown + told if "worker" in asked + said]
    assert len(of_workers) > 10
    for asked, said in of_workers:
        assert "instance" in said, said
        assert all("instance" in group for group in re.findall(r"by \(([^)]*)\)", asked)), asked


@pytest.mark.parametrize(("name", "expression"), [(name, each) for name in NAMES for each in expressions(name)])
def test_an_expression_is_well_formed(name: str, expression: str) -> None:
    assert_well_formed(expression)
    assert set(re.findall(r"\[(.*?)\]", expression.replace("$__rate_interval", ""))) <= {""}
    variables = {variable["name"] for variable in dashboards()[name]["templating"]["list"]}
    assert set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"} <= variables


def assert_well_formed(expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "{}", "[]"):
        assert bare.count(opening) == bare.count(closing)
    called = set(re.findall(r"\b([a-z_]+)\(", bare)) | set(re.findall(r"\b([a-z]+) by \(", bare))
    called -= {"by", "on", "and"}
    assert called <= {"sum", "max", "min", "time", "rate", "increase", "histogram_quantile", "label_values"}
    assert set(re.findall(r"\[(.*?)\]", bare)) <= {"$__rate_interval", "5m", "10m"}
    for counter in re.findall(r"(?:rate|increase)\((\w+)", bare):
        assert counter.endswith(("_total", "_bucket")) or counter == "stateline_store_commit_number", "not a counter"


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_lie_on_each_other_and_say_what_they_show(name: str) -> None:
    document, taken = dashboards()[name], set[tuple[int, int]]()
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    titles = [panel["title"] for panel in document["panels"]]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in document["panels"]}) == len(titles)


# ---- Kubernetes and systemd


def test_the_settings_of_the_config_map_are_accepted() -> None:
    config_map = next(document for document in documents("kubernetes.yaml") if document["kind"] == "ConfigMap")
    config = load_config("flights", file=tomllib.loads(config_map["data"]["stateline.toml"]))
    assert config.exactly_once


def test_the_pods_have_the_tokens_file_that_the_settings_name() -> None:
    everything = documents("kubernetes.yaml")
    text = next(document for document in everything if document["kind"] == "ConfigMap")["data"]["stateline.toml"]
    tokens = load_config("flights", file=tomllib.loads(text)).server_tokens_file
    assert tokens is not None
    stores = next(d for d in everything if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "flights")
    pod = stores["spec"]["template"]["spec"]
    server = next(container for container in pod["containers"] if container["name"] == "server")
    (mount,) = [mount for mount in server["volumeMounts"] if tokens.is_relative_to(mount["mountPath"])]
    assert any(volume["name"] == mount["name"] and "secret" in volume for volume in pod["volumes"])


def test_a_pod_drains_for_longer_than_two_looks_at_it_take_and_ends_within_its_grace() -> None:
    everything = documents("kubernetes.yaml")
    text = next(document for document in everything if document["kind"] == "ConfigMap")["data"]["stateline.toml"]
    drain_s = load_config("flights", file=tomllib.loads(text)).server_drain_ms / 1000
    stores = next(d for d in everything if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "flights")
    pod = stores["spec"]["template"]["spec"]
    server = next(container for container in pod["containers"] if container["name"] == "server")
    assert 2 * server["readinessProbe"]["periodSeconds"] <= drain_s
    assert drain_s + 15 < pod["terminationGracePeriodSeconds"]
    worker = next(container for container in pod["containers"] if container["name"] == "worker")
    stops_s = environment_of(worker).worker_stop_timeout_ms / 1000
    assert 20 + drain_s / 2 + stops_s < pod["terminationGracePeriodSeconds"], "a worker may use all of its own limit"


def test_a_unit_and_a_container_drain_and_end_within_their_grace() -> None:
    unit = (DEPLOY / "stateline.service").read_text(encoding="utf-8")
    drain_ms, stop_s = re.search(r"SERVER_DRAIN_MS=(\d+)", unit), re.search(r"TimeoutStopSec=(\d+)", unit)
    assert drain_ms is not None
    assert stop_s is not None
    assert 0 < int(drain_ms[1]) / 1000 < min(15, int(stop_s[1]) - 15)
    (compose,) = documents("compose.yaml")
    for name, service in compose["services"].items():
        if service.get("command", [""])[0] == "serve":
            drain_s = int(service["environment"]["STATELINE_SERVER_DRAIN_MS"]) / 1000
            assert 0 < drain_s < int(service["stop_grace_period"].removesuffix("s")) - 15, name


def test_kubernetes_objects_refer_to_each_other() -> None:
    everything = documents("kubernetes.yaml")
    names = {(document["kind"], document["metadata"]["name"]) for document in everything}
    sets = [document["spec"] for document in everything if document["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for spec in sets:
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert ("Service", spec["serviceName"]) in names
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        (topics,) = pod["initContainers"]  # everything else waits for it
        assert topics["args"][:3] == ["topics", pod["containers"][0]["args"][1], "--create"]
        for container in (topics, *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            environment_of(container)
        assert pod["enableServiceLinks"] is False
        assert pod["terminationGracePeriodSeconds"] > 30, "less than a stop may take"


def environment_of(container: dict[str, Any], pod: str = "flights-1") -> Config:
    """Its settings in this pod."""
    config_map = next(document for document in documents("kubernetes.yaml") if document["kind"] == "ConfigMap")
    variables = {each["name"]: each.get("value", pod).replace("$(POD)", pod) for each in container.get("env", [])}
    environment = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
    file = tomllib.loads(config_map["data"]["stateline.toml"])
    return load_config("flights", environment=environment, file=file)


def stateful_set() -> dict[str, Any]:
    """That of the stores."""
    everything = documents("kubernetes.yaml")
    found: dict[str, Any] = next(
        d["spec"] for d in everything if (d["kind"], d["metadata"]["name"]) == ("StatefulSet", "flights")
    )
    return found


def test_three_pods_are_nodes_by_the_names_that_the_headless_service_gives_them() -> None:
    everything = {(d["kind"], d["metadata"]["name"]): d for d in documents("kubernetes.yaml")}
    stores, headless = stateful_set(), everything["Service", "flights-pods"]
    pod = stores["template"]["spec"]
    assert stores["replicas"] == 3
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True, "nodes link before they are ready"
    ports = {port["name"]: port["port"] for port in headless["spec"]["ports"]}
    containers = {c["name"]: c for c in (*pod["initContainers"], *pod["containers"])}
    configs = [environment_of(container) for container in containers.values()]
    assert configs == configs[:1] * 3
    config = configs[0]
    assert (config.node, config.group_instance_id) == ("flights-1", "flights-1")
    assert config.node_url == f"http://flights-1.{stores['serviceName']}:{ports['http']}"
    assert config.node_peer_advertised == f"flights-1.{stores['serviceName']}:{ports['nodes']}"
    assert str(config.node_peer_listen).endswith(f":{ports['nodes']}")
    assert {port["name"]: port["containerPort"] for port in containers["server"]["ports"]} == ports


def test_pods_have_the_certificates_that_the_comment_has_made(tmp_path: Path) -> None:
    pod = stateful_set()["template"]["spec"]
    server = next(container for container in pod["containers"] if container["name"] == "server")
    (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "nodes"]
    (mount,) = [mount["mountPath"] for mount in server["volumeMounts"] if mount["name"] == "nodes"]
    comment = re.sub(
        "^# ?", "", (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8").split("apiVersion")[0], flags=re.M
    )
    commands = [line.strip() for line in comment.splitlines() if line.startswith("    ")]
    (make,) = [line for line in commands if "node certificate" in line]
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-euc", make], env=path, cwd=tmp_path, check=True, capture_output=True)
    given = subprocess.run(
        ["sh", "-c", commands[-1].replace("$(for", "echo $(for")], capture_output=True, text=True, check=True
    )
    files = re.findall(r"--from-file=(\S+)", f"{commands[-2]} {given.stdout}")
    assert secret["secretName"] in commands[-2]
    assert "nodes-tls/ca.key" not in files
    (tmp_path / "mounted").mkdir()
    for file in files:
        (tmp_path / file).rename(tmp_path / "mounted" / Path(file).name)
    for number in range(3):
        config = environment_of(server, f"flights-{number}")
        assert node_keys(at_hand(config, mount, tmp_path / "mounted")) is not None


def test_no_two_pods_are_on_one_machine_and_one_at_a_time_is_taken_away() -> None:
    stores = stateful_set()
    labels = stores["selector"]["matchLabels"]
    (budget,) = [d["spec"] for d in documents("kubernetes.yaml") if d["kind"] == "PodDisruptionBudget"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    (term,) = stores["template"]["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    assert term == {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}


def test_a_worker_and_a_server_share_the_pod_that_the_service_selects() -> None:
    everything = documents("kubernetes.yaml")
    stores = next(d for d in everything if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "flights")
    service = next(d for d in everything if d["kind"] == "Service" and d["metadata"]["name"] == "flights")
    assert service["spec"]["selector"] == stores["spec"]["template"]["metadata"]["labels"]
    containers = {c["name"]: c for c in stores["spec"]["template"]["spec"]["containers"]}
    assert [containers[name]["args"][0] for name in ("worker", "server")] == ["worker", "serve"]
    assert containers["server"]["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert containers["server"]["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert containers["server"]["ports"][0]["name"] == service["spec"]["ports"][0]["targetPort"]


def pods() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each pod of the nodes and of the pipelines, with its containers of both kinds."""
    for document in (*documents("kubernetes.yaml"), *documents("kubernetes-backup.yaml")):
        if document["kind"] in ("StatefulSet", "Deployment"):
            pod = document["spec"]["template"]["spec"]
            yield pod, [*pod["initContainers"], *pod["containers"]]


def test_pods_are_admitted_by_pod_security_restricted() -> None:
    """The rules are those of kubernetes.io/docs/concepts/security/pod-security-standards, "Restricted"."""
    allowed = {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}
    for pod, containers in pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] != 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
        for container in containers:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"] is True
            assert "privileged" not in own


def test_containers_have_memory_limits_and_a_place_for_temporary_files() -> None:
    for pod, containers in pods():
        scratch = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        for container in containers:
            assert "memory" in container["resources"]["limits"]
            assert {m["mountPath"] for m in container["volumeMounts"] if m["name"] in scratch - {"state"}} == {"/tmp"}


def test_a_pod_that_ends_hands_its_tasks_to_a_standby_first() -> None:
    pod = stateful_set()["template"]["spec"]
    worker = next(container for container in pod["containers"] if container["name"] == "worker")
    assert environment_of(worker).num_standby_replicas == 1
    command = worker["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:4] == ["stateline", "node", "drain", worker["args"][1]]
    waits_s = float(command[command.index("--timeout") + 1])
    assert waits_s + 30 < pod["terminationGracePeriodSeconds"], "the stop itself takes its time"


def test_the_network_policy_and_the_service_monitor_select_what_kubernetes_yaml_has() -> None:
    everything = documents("kubernetes.yaml")
    policies = {d["metadata"]["name"]: d["spec"] for d in documents("kubernetes-network.yaml")}
    for name, spec in policies.items():
        template = next(d for d in everything if (d["kind"], d["metadata"]["name"]) == ("StatefulSet", name))
        assert spec["podSelector"]["matchLabels"] == template["spec"]["template"]["metadata"]["labels"]
    server = next(c for c in stateful_set()["template"]["spec"]["containers"] if c["name"] == "server")
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    opened = {port["port"] for rule in policies["flights"]["ingress"] for port in rule["ports"]}
    assert opened == set(ports)
    assert {port["port"] for port in policies["flights"]["egress"][0]["ports"]} == set(ports.values())
    (monitor,) = documents("kubernetes-monitoring.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [d for d in everything if d["kind"] == "Service" and wanted <= d["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_deployment_without_volumes_starts_from_a_backup() -> None:
    everything = {d["kind"]: d for d in documents("kubernetes-backup.yaml")}
    map_, spec = everything["ConfigMap"], everything["Deployment"]["spec"]
    config = load_config("flights", file=tomllib.loads(map_["data"]["stateline.toml"]))
    assert str(config.backup_location).startswith("s3://")
    assert config.exactly_once
    assert (config.node, config.group_instance_id) == ("flights", "flights"), "a pod's own name is new each time"
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "no two pods have that name"
    pod = spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert everything["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"]
    assert pod["serviceAccountName"] == everything["ServiceAccount"]["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert not any("persistentVolumeClaim" in volume for volume in volumes.values())
    assert "emptyDir" in volumes["state"]
    (topics,) = pod["initContainers"]
    for container in (topics, *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        (region,) = container["env"]
        assert region["valueFrom"]["configMapKeyRef"] == {"name": map_["metadata"]["name"], "key": region["name"]}
        assert region["name"] in map_["data"]
        assert container["envFrom"] == [{"secretRef": {"name": "flights-backup"}}], "no secret is in a config map"
    assert [container["args"][0] for container in pod["containers"]] == ["worker", "serve"]
    stops_s = (config.worker_stop_timeout_ms + config.server_drain_ms) / 1000
    assert stops_s < pod["terminationGracePeriodSeconds"]


def test_systemd_rates_the_exposure_of_the_unit_below_four() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing")
    command = [analyze, "security", "--offline=true", "--threshold=40", "--no-pager", str(DEPLOY / "stateline.service")]
    rated = subprocess.run(command, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr


def test_the_unit_lets_the_processes_raise_their_own_limits_and_compile() -> None:
    """`open_files.py` raises the number of open files, and Spark's JVM writes code and runs it."""
    lines = (DEPLOY / "stateline.service").read_text(encoding="utf-8").splitlines()
    filters = " ".join(line for line in lines if line.startswith("SystemCallFilter="))
    assert "@resources" not in filters
    assert not any(line.startswith("MemoryDenyWriteExecute=yes") for line in lines)


def test_the_unit_stops_the_supervisor_alone_and_does_not_repeat_a_mistake() -> None:
    unit = (DEPLOY / "stateline.service").read_text(encoding="utf-8")
    assert "KillMode=mixed" in unit
    assert "RestartPreventExitStatus=2" in unit
