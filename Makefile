# The verbs of Threadkeep. Each brings .venv up to date by itself, from the hashed lock in requirements/.
#   PYTHON=python3.13     the Python to use            ARGS="tests/store -k tail"   what `make test` runs
#   VENV=.venv-3.13       another environment          UPGRADE=1                    with `make lock`: newest versions

VENV ?= .venv
ARGS ?=
UPGRADE ?=
export VENV
PYTHON_HERE := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup run test slow suites browser chaos fuzz lint type docs bench fmt lock foreign sbom audit with-sbom with-server with-dev with-bench

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: with-dev ## make .venv ready to work in
	@echo "$(VENV) is ready."

run: with-server ## start the service on this machine, with a demo model
	@exec $(VENV)/bin/threadkeep serve

# Processes of the tests keep what they compile, whatever the environment says: each would compile 2,000 modules anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PYTHON_HERE) -m pytest -n 2 --dist loadgroup

# A process of two waits for a database a third of the time. To keep groups together, the scheduler searches all tests.
test: with-dev ## run the tests, on SQLite and on a PostgreSQL of their own
	$(PYTEST) -n 3 --dist worksteal $(ARGS)

slow: with-dev ## run the tests that take long: processes that are killed, random requests and sessions, benches
	$(PYTEST) -m slow $(ARGS)

suites: with-dev ## run the suites of the stores once more, on encrypted files and on partitioned tables
	$(PYTEST) -m suites $(ARGS)

# Beside the set `dev`, and only where there is a browser: the driver alone is 130 MB.
browser: with-dev ## test the console in Chromium, where it is installed: live pages, keys, and no violation that axe finds
	@if command -v chromium >/dev/null; then sh scripts/browser.sh && $(PYTEST) -m browser $(ARGS) tests/web/console; \
		else echo "no Chromium on this machine (apt-get install chromium): the tests in a browser are skipped."; fi

chaos: with-dev ## run services beside faults for a minute on each database
	$(PYTEST) -m chaos $(ARGS) tests/bench

fuzz: with-dev ## run the tests of properties on many random examples; every other verb takes the same few
	HYPOTHESIS_PROFILE=fuzz $(PYTEST) -m hypothesis $(ARGS)

lint: with-dev ## check style, format, layers, spelling, pyproject, lock and prose
	$(PYTHON_HERE) -m ruff check .
	$(PYTHON_HERE) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/codespell
	VALIDATE_PYPROJECT_NO_NETWORK=1 $(PYTHON_HERE) -m validate_pyproject pyproject.toml
	$(PYTHON_HERE) scripts/check_lock.py
	$(PYTHON_HERE) scripts/check_prose.py

type: with-dev ## check types, tests included
	$(PYTHON_HERE) -m mypy

docs: with-dev ## check that the docs are complete and their code runs; build their site
	$(PYTHON_HERE) -m pytest tests/docs $(ARGS)
	NO_COLOR=1 $(VENV)/bin/zensical build --strict --clean

bench: with-bench ## measure against raw SQL and other memories; writes into docs/
	$(PYTHON_HERE) -m bench $(ARGS)

fmt: with-dev ## put the code in format and mend what ruff can mend
	$(PYTHON_HERE) -m ruff check --fix .
	$(PYTHON_HERE) -m ruff format .

lock: with-dev ## compile requirements/ anew from pyproject.toml
	@sh scripts/lock.sh $(if $(UPGRADE),--upgrade)

# deepagents, LangGraph's server and Graphiti pin what does not resolve beside the set `dev`, so they have environments of
# their own.
# There are no wheels of Graphiti's database for every machine: where it cannot be set up, its tests are skipped and say so.
foreign: with-dev ## test beside what needs an environment of its own (deepagents, LangGraph's server, Google ADK, LlamaIndex, Pydantic AI, JavaScript, a Graphiti server)
	@VENV=.venv-deepagents sh scripts/setup.sh deepagents
	@VENV=.venv-adapters sh scripts/setup.sh adapters
	@VENV=.venv-graphiti sh scripts/setup.sh graphiti && sh scripts/graphiti_source.sh .venv-graphiti || true
	@sh scripts/javascript.sh
	@sh scripts/published_tests.sh
	@sh scripts/agent_chat_ui.sh
	$(PYTEST:loadgroup=loadfile) -m foreign tests/foreign $(ARGS)

sbom: with-sbom ## write the list of what the service installs (CycloneDX) into sbom.json
	@.venv-sbom/bin/cyclonedx-py requirements requirements/server.txt --output-reproducible --output-file sbom.json
	@echo "sbom.json lists what requirements/server.txt installs."

# No gate: it asks an advisory service (pypi.org, or osv.dev with ARGS="-s osv"), which not every machine can reach.
audit: with-sbom ## look for known weaknesses of what the service installs, where advisories can be reached
	@.venv-sbom/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements/server.txt $(ARGS) || \
		{ echo "Weaknesses were found, or no advisory service could be reached: the lines above say which."; exit 1; }

with-sbom: with-dev
	@[ -x .venv-sbom/bin/python ] || $(PYTHON_HERE) -m venv .venv-sbom
	@.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/sbom.txt

with-server with-dev with-bench:
	@sh scripts/setup.sh $(@:with-%=%)
