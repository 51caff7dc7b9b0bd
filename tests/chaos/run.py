"""The long run of faults: `make chaos MINUTES=30`. Prints each fault, then rows for docs/reliability.md.

A worker keeps counts, a table and a topic of what it forwards, on three brokers, while input keeps coming; a reader
looks at its committed state all the time (`crash_watch`): under exactly-once it must be what the input up to its
Position makes, under at-least-once nothing may be missing, and no Position may go back. The first difference ends it.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.cluster import KafkaCluster
from chaos.faults import FAULTS, SESSION_S, TRANSACTION_S, Fault, possible_faults
from chaos.scene import Scene
from stateline.log.kafka import KafkaLog
from support.oracles.crash_watch import WatchedRun
from support.processes.small_disk import small_disk

GUARANTEES = ("exactly_once_v2", "at_least_once")
_DISK_MIB = 256


@contextmanager
def chaos(cluster: KafkaCluster, guarantee: str, chance: random.Random, pace_s: float = 0.02) -> Iterator[Scene]:
    """A worker that works, watched, for as long as the block goes on; then it works off what there is, and all that
    came out is held against the input. What is wrong is raised, with what the workers have printed. Input comes, and
    is committed, at this pace."""
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        is_small = stack.enter_context(small_disk(disk, _DISK_MIB))
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(closing(KafkaLog(cluster.bootstrap_servers)))
        run = WatchedRun(
            cluster.bootstrap_servers, log, guarantee, own, state_dir=disk / "state", follow=True, feed_s=pace_s
        )
        run.settings += [f"session.timeout.ms={int(SESSION_S * 1000)}"]
        run.settings += [f"transaction.timeout.ms={int(TRANSACTION_S * 1000)}"]
        run.settings += [f"commit.interval.ms={int(pace_s * 1000)}"]
        scene = Scene(cluster, run, guarantee, disk, chance, disk_is_small=is_small)
        stack.callback(scene.close)
        try:
            with run:
                scene.start()
                yield scene
                scene.kill()
                run.work_off()
            run.check_forwarded()
        except BaseException as error:
            error.add_note(scene.printed())
            raise
        records = sum(map(len, run.inputs))
        print(f"{guarantee}: {scene.starts} starts, {records:,} records, {run.watcher.looks:,} looks, all right")
        print(f"{guarantee}: ended by themselves: {', '.join(scene.ended) or 'none'}", flush=True)


def suffer(scene: Scene, fault: Fault) -> float:
    """Seconds from the end of the fault until the worker had committed all its tasks again."""
    began_s = time.monotonic()
    fault(scene)
    took_s, seconds = time.monotonic() - began_s, scene.until_whole()
    name = fault.__name__
    print(f"{scene.guarantee} {name}: {took_s:.1f} s, committing again after {seconds:.1f} s", flush=True)
    return seconds


def long_run(guarantee: str, minutes: float, seed: int, names: Collection[str]) -> dict[str, list[float]]:
    """Faults, or those of these names, for so long; per fault the seconds until the worker had committed again."""
    chance, found = random.Random(seed), defaultdict[str, list[float]](list)
    with KafkaCluster() as cluster, chaos(cluster, guarantee, chance) as scene:
        possible = [fault for fault in possible_faults(scene) if not names or fault.__name__ in names]
        weights = [FAULTS[fault] for fault in possible]
        until_s = time.monotonic() + 60 * minutes
        while time.monotonic() < until_s:
            fault = chance.choices(possible, weights)[0]
            found[fault.__name__].append(suffer(scene, fault))
    return found


def report(guarantee: str, found: dict[str, list[float]]) -> None:
    """Rows of a table: fault, how often, seconds until the next commit in the median and at most."""
    for fault, seconds in sorted(found.items()):
        spoken = fault.replace("_", " ")
        print(
            f"| {spoken} | {guarantee} | {len(seconds)} | {statistics.median(seconds):.1f} s | {max(seconds):.1f} s |"
        )


def main() -> None:
    """Arguments: minutes, seed, names of faults."""
    logging.getLogger("stateline.kafka").setLevel(logging.CRITICAL)  # of brokers that are not there
    known = {fault.__name__ for fault in FAULTS}
    if unknown := set(sys.argv[3:]) - known:
        sys.exit(f"No such fault: {', '.join(sorted(unknown))}. There are {', '.join(sorted(known))}.")
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    print(f"{minutes:g} minutes, seed {seed}", flush=True)
    results = {each: long_run(each, minutes / len(GUARANTEES), seed, sys.argv[3:]) for each in GUARANTEES}
    for guarantee, found in results.items():
        report(guarantee, found)


if __name__ == "__main__":
    main()
