"""The metrics of other nodes: the links to them, what they were asked, and what was answered to them.

Names of nodes are labels. Only writers of the registry's topic make them. A process has series of `MOST_NODES` names,
and counts further ones as the node "other". Counts are of all processes that share their metrics; links are those of
the process that answers.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.deployment.nodes_topic import MOST_NODES
from stateline.server.certificates import Certificates
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.own_map import OwnMap
from stateline.server.nodes.traffic import BUCKETS_S, Traffic
from stateline.server.telemetry.request_counts import add_observed


class NodeCounts:
    """Counts of requests and bytes over the links. For the event loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"stateline_node_{name}", about, ("node", *labels), registry=registry)

        self._forwards = counter("forwards", "Requests sent to the node.", "outcome")
        about = "Time until the node answers, including the wait for a bound."
        self._latency = Histogram(
            "stateline_node_forward_seconds", about, ("node",), registry=registry, buckets=BUCKETS_S
        )
        self._answers = counter("answers", "Requests of the node that were answered here.", "outcome")
        self._dials = counter("dial_failures", "Failed attempts to link with the node.")
        self._named: set[str] = set()
        self._copied = counter(
            "copied_bytes", "Bytes of stores' files sent to or received from the node, for new standbys.", "direction"
        )

    def take(self, traffic: Traffic) -> None:
        """Add what has come together to the metrics, and reset it."""
        counted = (
            (self._forwards, traffic.forwards),
            (self._answers, traffic.answers),
            (self._copied, traffic.copied_bytes),
        )
        for counter, counts in counted:
            for (node, of), count in counts.items():
                counter.labels(self._label(node), of).inc(count)
            counts.clear()
        for node, count in traffic.failed_dials.items():
            self._dials.labels(self._label(node)).inc(count)
        traffic.failed_dials.clear()
        for node, latency in traffic.latency.items():
            add_observed(self._latency.labels(self._label(node)), latency.buckets, latency.seconds)
        traffic.latency.clear()

    def _label(self, node: str) -> str:
        if node not in self._named and len(self._named) >= MOST_NODES:
            return "other"
        self._named.add(node)
        return node


class Linked(NamedTuple):
    """A link at the moment; `silent_s` is None without one."""

    node: str
    up: bool
    silent_s: float | None


class Links(NamedTuple):
    """All links of this process, and how many tasks this node has in which role."""

    others: Sequence[Linked] = ()
    roles: Mapping[str, int] = MappingProxyType({})


def seen_links(nodes: Nodes | None, own_map: OwnMap) -> Links:
    """Return the links as they are now; none while there is no other node."""
    if nodes is None or not nodes.others:
        return Links()
    links = [
        Linked(name, other.link is not None and other.link.alive, None if other.link is None else other.link.silent_s)
        for name, other in nodes.others.items()
    ]
    own = own_map.now()
    left = {task for task, held in own.tasks.items() if held.role == "standby"} - own.followed
    return Links(links, Counts("left" if task in left else held.role for task, held in own.tasks.items()))


_TASKS = "Tasks of this node in a role. Role left: no worker keeps the copy up to date."


class LinkCollector(Collector):
    """Shows the links of `seen`. Thread-safe, except while `seen` is set."""

    def __init__(self) -> None:
        self.seen = Links()

    def collect(self) -> Iterator[Metric]:
        up = _gauge("link_up", "1 while the other node is linked and heard.", "node")
        silent = _gauge("link_silent_seconds", "For how long a linked node has been silent.", "node")
        tasks = _gauge("tasks", _TASKS, "role")
        for link in self.seen.others:
            up.add_metric([link.node], float(link.up))
            if link.silent_s is not None:
                silent.add_metric([link.node], link.silent_s)
        if self.seen.others:
            for role in ("active", "restoring", "standby", "left"):
                tasks.add_metric([role], self.seen.roles.get(role, 0))
        yield from (up, silent, tasks)


_EXPIRY = "Unix time at which the certificate in use expires, for clients or for nodes. Absent without TLS."


class CertificateCollector(Collector):
    """Shows when certificates in use expire. Thread-safe."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        expiry = GaugeMetricFamily("stateline_certificate_expiry_seconds", _EXPIRY, labels=("certificate",))
        for certificate in self._certificates.loaded:
            if certificate.expires_s is not None:
                expiry.add_metric([certificate.used_for], certificate.expires_s)
        yield expiry


def _gauge(name: str, about: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_node_{name}", about, labels=(label,))
