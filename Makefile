# Every target makes its own .venv first and needs nothing but Python 3.11+ and make; a second run starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo dev test test-record model test-e2e test-versions check check-supply format wire lock clean requirements explain catalogue fuzz faults \
        mutants failover overload soak bench bench-record bench-long bench-peers bench-docs

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headgate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11 (or newer).")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## a server, a worker and a few thousand jobs, live; ends by itself
	@$(BIN)/python -m examples.demo

dev: $(READY) ## embedded PostgreSQL, migrated, until Ctrl-C; prints how to reach it
	@$(BIN)/headgate dev

test: $(READY) ## everything: rules, store, dispatch, SDK, CLI; real servers and workers; kill -9, outages, drains
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-record: $(READY) ## the same, and note how long each file took, for the order of the next runs: tests/seconds.json
	@RECORD_SECONDS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

model: $(READY) ## a long search for a sequence of verbs in which the store and its model differ: EXAMPLES=2000
	@HEADGATE_MODEL_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -q tests/property/test_store_model.py

test-e2e: $(READY) ## only the tests of whole processes: real servers and workers over real sockets, and what kills them
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests/e2e tests/fault

failover: $(READY) ## Patroni, PgBouncer and backups under load, with a verdict; as root, installs Debian packages
	@$(BIN)/python -m tests.failover $(PARTS)

check: $(READY) ## format, lint, types, import direction
	@$(BIN)/ruff format --check --quiet . || { echo "format: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tools/generate_wire.py --check

fuzz: $(READY) ## wrong bytes for MINUTES=5 from SEED=1: every call of a real server, every reader of text
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1)

catalogue: $(READY) ## the rows of bad input: which surface is tested, which waits
	@$(BIN)/python -m tests.catalogue

wire: $(READY) ## generate src/headgate/wire from proto/
	@$(BIN)/python tools/generate_wire.py

format: $(READY) ## format and fix what can be fixed
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

bench: $(READY) ## measure; nothing else may run on the machine meanwhile
	@$(BIN)/python -m bench

bench-record: $(READY) ## renew what a job may cost in `make test`: tests/bench/recorded.json
	@BENCH_RECORD=1 $(BIN)/python -m pytest -q tests/bench
	@cat tests/bench/recorded.json

overload: $(READY) ## three times what this machine can do, for SECONDS: goodput, refusals, memory, recovery
	@$(BIN)/python -m bench.overload --seconds $(or $(SECONDS),120)

soak: $(READY) ## mixed load at 60 % of the maximum with small faults, for MINUTES: nothing may grow or drift
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),30)

bench-long: $(READY) ## a snapshot held for ten minutes under load, and the soak
	@$(BIN)/python -m bench.long --soak-minutes $(or $(MINUTES),30)
bench-peers: $(READY) ## the same jobs through other queues; ONLY=saq,rq for some of them, RESUME=1 for the rest, SWEEP=1 for other settings, QUICK=1 or BRIEF=1 to try
	@$(BIN)/python -m bench.peers $(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume) $(if $(SWEEP),--sweep) $(if $(QUICK),--quick) $(if $(BRIEF),--brief)

bench-docs: $(READY) ## docs/benchmarks.md and its plots, from the last results
	@$(BIN)/python -m bench.peers.report

explain: $(READY) ## pages read by a claim of 100 in every hard case
	@$(BIN)/python -m pytest -q -s tests/integration/test_claim_pages.py

# ONLY=F31,F32: some of them. LONG=1: each fault for as long as the catalogue says. SECONDS=60 SEED=1: a random mix
# instead. (SECONDS is also a variable of bash, not of make.)
faults: $(READY) ## break everything on purpose, one fault after the other, and check what must hold; ONLY=, LONG=1, SECONDS=, SEED=
	@$(BIN)/python -m tests.fault.lab $(if $(ONLY),--only $(ONLY)) $(if $(LONG),--long) $(if $(SECONDS),--seconds $(SECONDS)) --seed $(or $(SEED),1)

mutants: $(READY) ## prove the checker: each planted bug must turn its invariant red; ONLY=name
	@$(BIN)/python -m tests.fault.lab.mutants $(if $(ONLY),--only $(ONLY))

hostile: $(READY) ## attacks by strangers and token holders beside a neighbour, with verdicts; about six minutes; ONLY=text
	@$(BIN)/python -m tests.hostile.lane $(if $(ONLY),--only "$(ONLY)")

requirements: $(READY) ## each requirement: tests that passed in the last run, a row of `make bench`, or open
	@$(BIN)/python -m tools.requirements

test-versions: $(READY) ## the store's tests on PostgreSQL 14 to 18
	@$(BIN)/python tools/test_versions.py

lock: ## renew the hash-pinned lock from pyproject.toml
	@test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv; }
	@build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --all-extras --group dev --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml

# Not part of `make check`: the tools come from the package index and ask it. Fails when a vulnerability is known, and when a
# package could not be looked up: an audit of nothing is not a good one.
check-supply: ## known vulnerabilities of all we depend on, and a bill of materials of what we ship: build/supply/sbom.cdx.json
	@test -x build/supply/bin/pip-audit || { $(PYTHON) -m venv build/supply && build/supply/bin/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom uv; }
	@build/supply/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras \
	    --constraint requirements.lock --no-emit-index-url --no-emit-find-links -o build/supply/shipped.txt pyproject.toml
	@PYTHONWARNINGS=ignore build/supply/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-format JSON \
	    --output-file build/supply/sbom.cdx.json build/supply/shipped.txt
	@build/supply/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip --requirement requirements.lock

clean: ## remove what make made
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
