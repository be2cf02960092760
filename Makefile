# Every target makes its own .venv first and needs nothing but Python 3.11+ and make; a second run starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without restarts: a process that crashes ends the run and names its test; with them the run may wait for ever.
XDIST  := -n 5 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
READY  := $(VENV)/.ready
COMPILED := $(VENV)/.compiled

.DEFAULT_GOAL := help
# Without bytecode every process compiles all it imports again: servers and workers of tests are processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo dev test test-record test-tools model test-e2e test-versions check check-supply check-pyright format screens configuration wire lock clean browser screenshots requirements explain job-path catalogue fuzz faults \
        mutants openapi api-check failover overload soak pages bench bench-record bench-overhead bench-long bench-peers bench-docs

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headgate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11 (or newer).")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/install.py
	@touch $@

# Once for a clone: each of the processes of `make test` would compile the same modules and tests.
$(COMPILED): $(READY)
	@$(BIN)/python -m compileall -q -j 2 src
	@$(BIN)/python -m pytest --collect-only -qq tests/integration > /dev/null & \
	 $(BIN)/python -m pytest --collect-only -qq --ignore tests/integration > /dev/null; wait
	@touch $@

demo: $(READY) ## a few thousand jobs while a worker, the server and PostgreSQL are killed, with a dashboard; KEEP=1 leaves it open
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

dev: $(READY) ## run an embedded PostgreSQL and a server until Ctrl-C
	@$(BIN)/headgate dev

test: $(COMPILED) ## run all tests: rules, store, dispatch, SDK, CLI, real servers and workers, kill -9, outages, drains
	@$(BIN)/python -m pytest $(XDIST)

test-record: $(COMPILED) ## the same, and record the duration of each file for the order of later runs: tests/seconds.json
	@RECORD_SECONDS=1 $(BIN)/python -m pytest $(XDIST)

model: $(READY) ## search for a sequence of verbs in which the store and its model differ: EXAMPLES=2000
	@HEADGATE_MODEL_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -q tests/property/test_store_model.py

test-tools: $(COMPILED) ## the tests of the tools of development: lanes of the benchmark, recorded screens
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/tools

test-e2e: $(COMPILED) ## only the tests with real server and worker processes
	@$(BIN)/python -m pytest $(XDIST) tests/e2e tests/fault

failover: $(READY) ## Patroni, PgBouncer and backups under load, with a verdict; as root, installs Debian packages
	@$(BIN)/python -m tests.failover $(PARTS)

check: $(READY) ## format, lint, types, import direction
	@$(BIN)/ruff format --check --quiet . || { echo "format: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tools/generate_wire.py --check

fuzz: $(READY) ## send invalid bytes for MINUTES=5 from SEED=1 to every call of a real server and every parser
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1)

catalogue: $(READY) ## list the cases of invalid input, by tested interface
	@$(BIN)/python -m tests.catalogue

openapi: $(READY) ## write docs/reference/openapi.json from the routes of the REST API
	@$(BIN)/python -m tools.openapi

api-check: $(READY) ## generated requests for every operation of the OpenAPI document, against a real server; about five minutes
	@$(BIN)/python -m tests.api_check

browser: $(READY) ## the dashboard in a real browser: accessible, silent, all journeys; installs chromium if it is missing
	@$(BIN)/python -m tools.chromium
	@$(BIN)/python -m pytest -q -n0 tests/browser

screenshots: $(READY) ## write pictures of all pages to docs/images
	@$(BIN)/python -m tools.chromium
	@$(BIN)/python -m pytest -q -n0 tests/browser/write_screenshots.py

screens: $(READY) ## write the terminal screens of docs/reference/cli.md, docs/howto/terminal.md and docs/screens
	@$(BIN)/python -m tests.support.cli_screens
	@$(BIN)/python -m tests.support.recorded_screens

configuration: $(READY) ## write the tables of docs/reference/configuration.md
	@$(BIN)/python -m tests.support.configuration_page

wire: $(READY) ## generate src/headgate/wire from proto/
	@$(BIN)/python tools/generate_wire.py

format: $(READY) ## format, and fix lint errors where possible
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

bench: $(READY) ## measure speed; nothing else may run on the machine
	@$(BIN)/python -m bench

bench-record: $(READY) ## record the cost limits per job for `make test`: tests/bench/recorded.json
	@BENCH_RECORD=1 $(BIN)/python -m pytest -q tests/bench
	@cat tests/bench/recorded.json

bench-overhead: $(READY) ## cost of API keys, tenants and metrics against none of it, in one interleaved run; nothing else may run
	@$(BIN)/python -m bench.overhead

pages: $(READY) ## every page of the dashboard with 5 million stored jobs and 200,000 due: at most 300 ms each; about four minutes
	@$(BIN)/python -m bench.pages

overload: $(READY) ## three times the capacity of this machine, for SECONDS: goodput, refusals, memory, recovery
	@$(BIN)/python -m bench.overload --seconds $(or $(SECONDS),120)

soak: $(READY) ## mixed load at 60 % of the maximum with small faults, for MINUTES: no growth, no drift
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),30)

bench-long: $(READY) ## hold a snapshot for ten minutes under load, then soak
	@$(BIN)/python -m bench.long --soak-minutes $(or $(MINUTES),30)
bench-peers: $(READY) ## the same jobs through other queues; ONLY=saq,rq for some of them, RESUME=1 for the rest, SWEEP=1 for other settings, QUICK=1 or BRIEF=1 to try
	@$(BIN)/python -m bench.peers $(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume) $(if $(SWEEP),--sweep) $(if $(QUICK),--quick) $(if $(BRIEF),--brief)

bench-docs: $(READY) ## docs/benchmarks.md, its plots and the figures of README.md, from the last results
	@$(BIN)/python -m bench.peers.report

job-path: $(READY) ## list the functions and files that one job passes, from submit to its result
	@$(BIN)/python -m tools.job_path

explain: $(READY) ## pages read by a claim of 100 in every hard case
	@$(BIN)/python -m pytest -q -s tests/integration/claim_pages

# ONLY=F31,F32: some of them. LONG=1: each fault for as long as the catalogue says. SECONDS=60 SEED=1: a random mix
# instead. (SECONDS is also a variable of bash, not of make.)
faults: $(READY) ## inject faults one by one and check the invariants; ONLY=, LONG=1, SECONDS=, SEED=
	@$(BIN)/python -m tests.fault.lab $(if $(ONLY),--only $(ONLY)) $(if $(LONG),--long) $(if $(SECONDS),--seconds $(SECONDS)) --seed $(or $(SEED),1)

mutants: $(READY) ## inject bugs; each must violate its invariant; ONLY=name
	@$(BIN)/python -m tests.fault.lab.mutants $(if $(ONLY),--only $(ONLY))

hostile: $(READY) ## attacks with and without tokens beside a second tenant, with verdicts; about six minutes; ONLY=text
	@$(BIN)/python -m tests.hostile.lane $(if $(ONLY),--only "$(ONLY)")

requirements: $(READY) ## list each requirement with its passed tests, its row of `make bench`, or as open
	@$(BIN)/python -m tools.requirements

test-versions: $(READY) ## run the tests of the store on PostgreSQL 14 to 18
	@$(BIN)/python tools/test_versions.py

lock: ## renew the hash-pinned lock from pyproject.toml
	@test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv; }
	@build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --all-extras --group dev --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml

# Not part of `make check`: the tools come from the package index and ask it. Fails when a vulnerability is known, and when a
# package could not be looked up: an audit of nothing is not a good one.
check-supply: ## known vulnerabilities of dependencies, and the bill of materials: build/supply/sbom.cdx.json
	@test -x build/supply/bin/pip-audit || { $(PYTHON) -m venv build/supply && build/supply/bin/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom uv; }
	@build/supply/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras \
	    --constraint requirements.lock --no-emit-index-url --no-emit-find-links -o build/supply/shipped.txt pyproject.toml
	@PYTHONWARNINGS=ignore build/supply/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-format JSON \
	    --output-file build/supply/sbom.cdx.json build/supply/shipped.txt
	@build/supply/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip --requirement requirements.lock

# Not part of `make check`: pyright runs on node, which its package brings, and downloads itself at the first run.
check-pyright: $(READY) ## the types of the SDK in all documentation, by pyright; needs a network at its first run
	@test -x build/pyright/bin/pyright || { $(PYTHON) -m venv build/pyright && build/pyright/bin/pip install --quiet --disable-pip-version-check "pyright[nodejs]"; }
	@$(BIN)/python -m tools.check_pyright

clean: ## remove generated files
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
