# The commands of Threadkeep. Each first updates .venv from the lock in requirements/, which has hashes.
#   PYTHON=python3.13     the Python to use            ARGS="tests/store -k tail"   what `make test` runs
#   VENV=.venv-3.13       another environment          UPGRADE=1                    with `make lock`: newest versions

VENV ?= .venv
ARGS ?=
UPGRADE ?=
export VENV
PYTHON_HERE := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup run test slow suites lowest browser chaos fuzz lint type docs bench peers fmt lock foreign sbom audit with-sbom with-server with-dev with-bench with-deepagents with-adapters with-graphiti with-javascript

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: with-dev ## create or update .venv for development
	@echo "$(VENV) is ready."

run: with-server ## start the service on this machine with the demo model
	@exec $(VENV)/bin/threadkeep serve

# Let the processes of the tests write bytecode in any environment; otherwise each of them compiles 2,000 modules.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PYTHON_HERE) -m pytest -n 2 --dist loadgroup

# With two workers, each waits for databases or processes a third of the time or more. `loadgroup` takes long here,
# because it searches all tests for each group.
test: with-dev ## run the tests on SQLite and on a PostgreSQL server that they start
	$(PYTEST) -n 3 --dist worksteal $(ARGS)

slow: with-dev ## run the slow tests: killed processes, random requests and sessions, benches
	$(PYTEST) -n 3 -m slow $(ARGS)

suites: with-dev ## run the test suites of the stores again, on encrypted files and on partitioned tables
	$(PYTEST) -m suites $(ARGS)

lowest: with-dev ## run the tests with the oldest versions of the packages that pyproject.toml allows
	@VENV=.venv-lowest sh scripts/setup.sh lowest
	PYTHONDONTWRITEBYTECODE= .venv-lowest/bin/python -m pytest -n 3 --dist worksteal $(ARGS)

# Not part of `dev`, and only if a browser is installed: the driver alone has 130 MB.
browser: with-dev ## test the console in Chromium, if it is installed: live pages, keys, accessibility with axe
	@if command -v chromium >/dev/null; then sh scripts/browser.sh && $(PYTEST) -m browser $(ARGS) tests/web/console; \
		else echo "no Chromium on this machine (apt-get install chromium): the tests in a browser are skipped."; fi

chaos: with-dev ## run services under faults for a minute on each database
	$(PYTEST) -m chaos $(ARGS) tests/bench

fuzz: with-dev ## run the property tests with many random examples; other commands use a few fixed ones
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

docs: with-dev ## check that the docs are complete and that their code runs; build their site
	$(PYTHON_HERE) -m pytest tests/docs $(ARGS)
	NO_COLOR=1 $(VENV)/bin/zensical build --strict --clean
	$(PYTHON_HERE) -m scripts.draw_diagrams site

bench: with-bench ## compare the speed with raw SQL and other memories; writes into docs/
	$(PYTHON_HERE) -m bench $(ARGS)

peers: with-dev with-adapters ## compare with the memories of other frameworks, in the environment of the adapters; writes into docs/
	.venv-adapters/bin/python -m bench.peers $(ARGS)

fmt: with-dev ## format the code, and fix what ruff can fix
	$(PYTHON_HERE) -m ruff check --fix .
	$(PYTHON_HERE) -m ruff format .

lock: with-dev ## compile requirements/ again from pyproject.toml
	@sh scripts/lock.sh $(if $(UPGRADE),--upgrade)

# deepagents, LangGraph's server and Graphiti pin packages that conflict with `dev`, so they have separate environments.
# Graphiti's database has no wheel for some machines: its tests are skipped there, with the reason. The environments are
# created beside each other, because each mostly waits for downloads and the disk. Most tests wait for other processes.
foreign: with-dev ## run the tests with packages in separate environments (deepagents, LangGraph's server, Google ADK, LlamaIndex, Pydantic AI, JavaScript, a Graphiti server)
	@$(MAKE) --no-print-directory --output-sync -j 3 with-deepagents with-adapters with-graphiti with-javascript
	$(PYTEST:loadgroup=loadfile) -n 3 -m foreign tests/foreign $(ARGS)

with-deepagents with-adapters:
	@VENV=.$(@:with-%=venv-%) sh scripts/setup.sh $(@:with-%=%)

with-graphiti:
	@VENV=.venv-graphiti sh scripts/setup.sh graphiti && sh scripts/graphiti_source.sh .venv-graphiti || true

with-javascript:
	@sh scripts/javascript.sh
	@sh scripts/published_tests.sh
	@sh scripts/agent_chat_ui.sh

sbom: with-sbom ## write the packages of the service to sbom.json (CycloneDX)
	@.venv-sbom/bin/cyclonedx-py requirements requirements/server.txt --output-reproducible --output-file sbom.json
	@echo "sbom.json lists what requirements/server.txt installs."

# Not part of CI, because some machines cannot reach the advisory service (pypi.org, or osv.dev with ARGS="-s osv").
audit: with-sbom ## check the packages of the service for known vulnerabilities, if an advisory service can be reached
	@.venv-sbom/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements/server.txt $(ARGS) || \
		{ echo "Weaknesses were found, or no advisory service could be reached: the lines above say which."; exit 1; }

with-sbom: with-dev
	@[ -x .venv-sbom/bin/python ] || $(PYTHON_HERE) -m venv .venv-sbom
	@.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/sbom.txt

with-server with-dev with-bench:
	@sh scripts/setup.sh $(@:with-%=%)
