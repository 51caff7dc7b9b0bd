"""The long run of faults over several nodes: `make chaos CLUSTER=3 MINUTES=30`, with standbys `STANDBYS=1`. Prints each
fault, then a report.

Each node is on a host of its own (network namespaces: root's alone). Input keeps coming, clients ask random nodes, and
every answer is held against plain Python (`support/oracles/cluster_oracle.py`). What is wrong ends the run, with a
report as well.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.node_faults import FAULTS, OF_STANDBYS
from chaos.node_scene import NodeScene, node_scene
from support.kafka.kafka_broker import KafkaBroker
from support.oracles.cluster_askers import SLOW_S
from support.processes import hosts

# By default the shortest that Kafka's brokers take. A busy machine needs more, or sessions end without a fault.
SESSION_S = float(os.environ.get("SESSION_S") or 6.0)
CALM = bool(os.environ.get("CALM"))  # clients ask, and input comes, less often: for a busy machine, too


def long_run(nodes: int, minutes: float, seed: int, names: Collection[str], standbys: int) -> None:
    """Faults, or those of these names, for so long, and a report. Raises what was wrong."""
    chance, found = random.Random(seed), defaultdict[str, list[tuple[float, float, float]]](list)
    known = {**FAULTS, **(OF_STANDBYS if standbys else {})}
    faults = [fault for fault in known if not names or fault.__name__ in names]
    weights = [known[fault] for fault in faults]
    called = [f"node-{number}" for number in range(1, nodes + 1)]
    scene: NodeScene | None = None
    with KafkaBroker() as broker:
        try:
            with node_scene(broker, chance, SESSION_S, called, calm=CALM, standbys=standbys) as scene:
                began_s = time.monotonic()
                while (now_s := time.monotonic()) < began_s + 60 * minutes:
                    fault = chance.choices(faults, weights)[0]
                    scene.oracle.new_gaps()
                    print(f"{(now_s - began_s) / 60:5.1f} min  {fault.__name__}: ", end="", flush=True)
                    fault(scene)
                    took_s = time.monotonic() - now_s
                    settled_s = scene.settle()
                    shared_s = settled_s + scene.until_shared()
                    scene.until_asked(50)
                    gap_s = scene.oracle.new_gaps().get("require_active", 0.0)
                    found[fault.__name__].append((settled_s, shared_s, gap_s))
                    print(f"{took_s:.1f} s, settled {settled_s:.1f} s later, tasks at all nodes {shared_s:.1f} s later")
                    print(f"           no owner answered for {gap_s:.1f} s at most")
                    print(f"           {scene.told()}", flush=True)
        finally:
            if scene is not None:
                report(scene, found)


def report(scene: NodeScene, found: Mapping[str, Sequence[tuple[float, float, float]]]) -> None:
    """Rows of tables: faults, questions, answers."""
    oracle, askers = scene.oracle, scene.askers
    figures = [f"{kind}, median | at most" for kind in ("settled after", "all nodes have tasks", "owner gap")]
    print(f"\n| fault | how often | {' | '.join(figures)} |\n|---|---|{6 * '---|'}")
    for fault, seconds in sorted(found.items()):
        told = " | ".join(f"{statistics.median(s):.1f} s | {max(s):.1f} s" for s in zip(*seconds, strict=True))
        print(f"| {fault.replace('_', ' ')} | {len(seconds)} | {told} |")
    print("\n| questions | |\n|---|---|")
    for kind, number in sorted(askers.asked.items()):
        print(f"| {kind.replace('_', ' ')} | {number:,} |")
    print(f"| to nodes that were away | {askers.unanswered:,} |\n| streams that broke off | {askers.broken_off:,} |")
    print(f"| asked once more after {SLOW_S:.0f} s | {askers.slow:,} |")
    print("\n| answers by role, and refusals | |\n|---|---|")
    for told, number in sorted(oracle.told.items()):
        print(f"| {told} | {number:,} |")
    print("\n| what was wrong | |\n|---|---|")
    for kind, number in oracle.wrong.items():
        print(f"| {kind} | {number} |")
    print("\n| asked with | longest time without an answer of a partition |\n|---|---|")
    for kind, gap_s in sorted(oracle.longest_gap_s.items()):
        print(f"| {kind} | {gap_s:.1f} s |")
    print(f"Slowest question: {askers.slowest[0]:.1f} s, {askers.slowest[1]}")
    print("; ".join([f"Workers that gave up, and were started again: {len(scene.gave_up)}", *scene.gave_up]))


def main() -> None:
    """Arguments: number of nodes, minutes, seed, names of faults. STANDBYS is how many each task has."""
    if (why := hosts.missing()) is not None:
        sys.exit(f"Several nodes on this machine: {why}.")
    logging.getLogger("stateline.kafka").setLevel(logging.CRITICAL)
    standbys = int(os.environ.get("STANDBYS") or 0)
    known = {fault.__name__ for fault in (*FAULTS, *(OF_STANDBYS if standbys else ()))}
    if unknown := set(sys.argv[4:]) - known:
        sys.exit(f"No such fault: {', '.join(sorted(unknown))}. There are {', '.join(sorted(known))}.")
    nodes, minutes = int(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print(f"{nodes} nodes, {standbys} standbys, {minutes:g} minutes, seed {seed}", flush=True)
    long_run(nodes, minutes, seed, sys.argv[4:], standbys)


if __name__ == "__main__":
    main()
