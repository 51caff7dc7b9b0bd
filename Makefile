# make demo    Stateline on real data, in one command (ONCE=1 stops after the answers, PORT=8080 moves the server)
# make demo NODES=3  three nodes on a real Kafka broker, one of which is killed while they answer (ONCE=1, PORT=8080)
# make test    the tests, six at a time (WORKERS=4 for fewer; PYTEST_ARGS="-k position" for some of them, "-n 0 --pdb" to debug)
# make test-all  the same with the long counts, as a release needs it (CONTRIBUTING.md says what it shows besides)
# make test-changed  those that reach what differs from main (BASE=HEAD~3 for another commit)
# make test-cluster  operators of pipelines, and kills of their drivers, on a standalone Spark cluster with HDFS
# make check   lint, formatting, types, who imports whom, stale pages, prose
# make wheel   dist/: the wheel and the source distribution
# make docs    dist/site: the documentation as a site, with a reference of the Python API
# make bench   the benchmarks (BENCH=name for one)
# make chaos   a worker under faults of itself, its brokers and its disk (MINUTES=30; CLUSTER=3 for three nodes, as root; STANDBYS=1)
# make lock    renew requirements.lock
# make clean   remove the environment and caches; applications' state (.stateline) stays
#
# Each installs what it needs into .venv by itself, again only when requirements.lock or pyproject.toml change.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-changed test-cluster check quick-check wheel docs bench chaos lock clean java maven

# Some machines keep Python from writing what it has compiled: every process would compile Stateline anew then, a third
# of a second, and every process of the tests all of the tests, ten seconds.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS := .venv-docs
PIP := $(BIN)/pip --quiet --disable-pip-version-check
PYTEST_ARGS ?=
# A call of a C library that hangs holds up the signal that ends a test at its timeout: its process is ended then.
ENDED := -o faulthandler_timeout=700 -o faulthandler_exit_on_timeout=true
WORKERS ?= 6
BENCH ?= *
MINUTES ?= 30
STANDBYS ?=

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(INSTALLED) java
	@PYTHONPATH=tests $(BIN)/python -m flights $(if $(ONCE),--once) $(if $(PORT),--port $(PORT)) $(if $(NODES),--nodes $(NODES))

# Six for two processors: some of the time is spent waiting. Of an option that is given twice the last one counts.
test test-all: $(INSTALLED) java maven
	@$(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(if $(filter test-all,$@),--long,$(ENDED)) $(PYTEST_ARGS)

# Those that reach what differs from main, or from BASE. `make test` stays whole.
test-changed: $(INSTALLED) java maven
	@files=$$($(BIN)/python tests/changed.py $(BASE)); echo "$$(wc -w <<< "$$files") files of tests"; \
	$(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS) $$files

# Checkpoints of test_pipeline_crashes stay on the local disk: its log is embedded, and so on one machine.
test-cluster: $(INSTALLED) java maven
	@SPARK_ON=cluster $(BIN)/pytest -n 0 tests/service/spark/operators tests/service/spark/test_driver_kill.py tests/integration/test_pipeline_crashes.py $(PYTEST_ARGS)

# mypy takes as long as all others: they run beside it. Not $(MAKE): with --dry-run, too, make runs a line that has it.
check: $(INSTALLED)
	@$(BIN)/mypy & mypy=$$!; make --no-print-directory quick-check || { wait $$mypy || true; exit 1; }; wait $$mypy

quick-check: $(INSTALLED)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tests/console_imports.py
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python tests/prose.py --quiet

wheel: $(INSTALLED)
	@rm -f dist/stateline-*
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@ls dist/stateline-*

# Without --quiet, which hides the warnings that --strict fails for. What makes it is in an environment of its own, and none of the tests'.
docs: $(DOCS)/.installed
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "Open dist/site/index.html, or serve it: python3 -m http.server --directory dist/site"

$(DOCS)/.installed: pyproject.toml
	@test -x $(DOCS)/bin/pip || $(PYTHON) -m venv $(DOCS)
	@grep -o '^[^ ]*==[^ ]*' requirements.lock > $(DOCS)/versions
	@$(DOCS)/bin/pip --quiet --disable-pip-version-check install --constraint $(DOCS)/versions '.[docs]'
	@touch $@

bench: $(INSTALLED) java maven
	@for file in tests/benchmarks/bench_$(BENCH).py; do echo "== $$file"; $(BIN)/python "$$file"; done

chaos: $(INSTALLED) java maven
	@STANDBYS=$(STANDBYS) $(BIN)/python tests/chaos/$(if $(CLUSTER),run_nodes.py $(CLUSTER),run.py) $(MINUTES) $(SEED)

# For every Python from 3.11 on, whatever runs this. The hashes of a version are those of all its files.
lock: $(INSTALLED)
	@echo "Looking for newer versions …"
	@$(PIP) install 'uv>=0.8'
	@$(BIN)/uv --quiet pip compile --universal --python-version 3.11 --extra dev --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --output-file .venv/lock pyproject.toml
	@{ sed '/^[^#]/,$$d' requirements.lock; cat .venv/lock; } > .venv/lock.new
	@mv .venv/lock.new requirements.lock

clean:
	@rm -rf .venv $(DOCS) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log dist
	@find service store tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml examples/flights/pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "Python is missing: install Python 3.11 or newer (Debian: python3 python3-venv)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) --version): Stateline needs Python 3.11 or newer, so name one, as in make PYTHON=python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "Python's venv is missing: install it (Debian: python3-venv)." >&2; exit 1; }
	@echo "Installing Stateline into .venv (once, one to two minutes) …"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --editable . --editable examples/flights
	@touch $@

java:
	@{ test -n "$${JAVA_HOME:-}" && test -x "$$JAVA_HOME/bin/java"; } || command -v java > /dev/null || { echo "Java is missing: install Java 17 or newer (Debian: openjdk-17-jre-headless)." >&2; exit 1; }

# Without Maven only the tests against a real broker are left out; in CI they must run.
maven:
	@command -v mvn > /dev/null || { echo "Maven is missing, so there is no Kafka broker to test against: install it (Debian: maven)." >&2; test -z "$${CI:-}"; }
