"""Files in deploy/ and the Dockerfile: what they name exists, and the dashboard asks for what a server really has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own
from prometheus_client.parser import text_string_to_metric_families

from stateline.config.loading import load_config
from stateline.config.sources import PREFIX
from stateline.spark.connector import JARS
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SERVERS = {"server-1", "server-2"}
OURS = {"topics", "worker", "pipeline", *SERVERS}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def settings_of(environment: dict[str, str]) -> None:
    """Raises when a variable of a deployment file is not a setting that Stateline accepts."""
    load_config("flights", environment={k: v for k, v in environment.items() if k.startswith(PREFIX)})


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
    assert f"\npyspark=={version}\n" in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_packages_of_the_image_are_those_of_the_lock() -> None:
    (install,) = [line for line in instructions("RUN") if " install --no-cache-dir" in line]
    assert "--constraint requirements.lock ." in install


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


def test_the_composed_services_share_one_state_volume() -> None:
    services = compose()
    for name in OURS:
        assert "state:/var/lib/stateline" in services[name]["volumes"]
        assert services[name]["init"] is True
        settings_of(services[name]["environment"])


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
    for name in OURS - {"topics"}:
        assert services[name]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
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
        assert services[name]["command"][0] in ("topics", "worker", "pipeline", "serve")


def test_prometheus_asks_every_server() -> None:
    (scrape,) = documents("prometheus.yml")[0]["scrape_configs"]
    targets = [target for group in scrape["static_configs"] for target in group["targets"]]
    assert sorted(targets) == sorted(f"{name}:8000" for name in SERVERS)
    assert scrape.get("metrics_path", "/metrics") == "/metrics"


def test_grafana_is_given_its_source_and_its_dashboard() -> None:
    (sources,) = documents("grafana/provisioning/datasources/prometheus.yaml")
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (providers,) = documents("grafana/provisioning/dashboards/stateline.yaml")
    path = providers["providers"][0]["options"]["path"]
    grafana = compose()["grafana"]
    assert f"./grafana/dashboards:{path}:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{path}/stateline.json"
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}


# ---- The dashboard


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/stateline.json").read_text(encoding="utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked += [variable["query"]["query"] for variable in dashboard()["templating"]["list"]]
    return asked


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Sample → its labels, as a server and a worker under `stateline run` have them after some requests."""
    directory = tmp_path_factory.mktemp("run")
    module = "from support.processes.query_server import make_app\n\napp = make_app()\n"
    (directory / "shown.py").write_text(module)
    program = [sys.executable, "-m", "stateline"]
    port = free_port()
    given = ["shown:app", "--set", "state.dir=state", "--set", f"server.port={port}"]
    given += ["--set", "commit.interval.ms=100"]
    place: dict[str, Any] = {"cwd": directory, "env": {**os.environ, "PYTHONPATH": str(ROOT / "tests")}}
    subprocess.run([*program, "topics", *given, "--create", "--partitions", "3"], **place, check=True)
    typed = b'a\t{"n": 1}\nb\t{"n": 2}\n'
    subprocess.run([*program, "produce", given[0], "flights", *given[1:]], **place, check=True, input=typed)
    process = subprocess.Popen([*program, "run", *given], **place, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            wait_until(lambda: is_ready(client), timeout_s=90)
            wait_until(lambda: client.get("/v1/stores/aircraft/keys/a").status_code == 200, timeout_s=60)
            client.get("/v1/stores/aircraft/range")
            client.get("/v1/stores/aircraft/keys/a?isolation_level=read_committed")
            # Workers tell their figures once a second.
            wait_until(lambda: "stateline_commit_latency_avg_seconds{" in client.get("/metrics").text)
            families = list(text_string_to_metric_families(client.get("/metrics").text))
        yield {s.name: set(s.labels) for family in families for s in family.samples}
    finally:
        process.terminate()
        assert process.wait(timeout=HANGING_S) == 0


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_every_expression_of_the_dashboard_names_metrics_and_labels_that_there_are(
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


def test_every_metric_of_stores_and_requests_is_on_the_dashboard(samples: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"\bstateline_\w+", " ".join(expressions())))
    hidden = {name for name in samples if name.startswith("stateline_") and not name.endswith(("_sum", "_count"))}
    missing = {name for name in hidden - shown if not name.startswith("stateline_rocksdb_")}  # a choice of these
    assert missing == {
        "stateline_store_committed_at_ms",
        "stateline_access_log_lines_dropped_total",
        # Their rates are shown.
        "stateline_commit_total",
        "stateline_commit_seconds_total",
        "stateline_process_total",
        "stateline_process_seconds_total",
        "stateline_restore_total",
    }


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_is_well_formed(expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "{}", "[]"):
        assert bare.count(opening) == bare.count(closing)
    called = set(re.findall(r"\b([a-z_]+)\(", bare)) | set(re.findall(r"\b([a-z]+) by \(", bare))
    assert called - {"by"} <= {"sum", "max", "rate", "histogram_quantile", "label_values"}
    assert set(re.findall(r"\[(.*?)\]", bare)) <= {"$__rate_interval"}
    for name in re.findall(r"rate\((\w+)", bare):
        assert name.endswith(("_total", "_bucket")) or name == "stateline_store_commit_number", "not a counter"
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"} <= variables


def test_panels_do_not_lie_on_each_other_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    titles = [panel["title"] for panel in dashboard()["panels"]]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(titles)


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
            settings_of({variable["name"]: "a-pod" for variable in container.get("env", [])})
        assert pod["enableServiceLinks"] is False
        assert pod["terminationGracePeriodSeconds"] > 30, "less than a stop may take"


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


def test_the_unit_stops_the_supervisor_alone_and_does_not_repeat_a_mistake() -> None:
    unit = (DEPLOY / "stateline.service").read_text(encoding="utf-8")
    assert "KillMode=mixed" in unit
    assert "RestartPreventExitStatus=2" in unit
