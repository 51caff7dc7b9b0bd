"""What tests share: applications, oracles, brokers, processes. No test is in here."""

from pathlib import Path

TESTS = Path(__file__).parents[1]  # what processes that tests start need on their PYTHONPATH
REPOSITORY = TESTS.parent
CACHE = REPOSITORY / ".cache"  # what is fetched or recorded once per machine
