# make demo   trains across a cut on this machine       make test   runs every check that CI runs
# make setup  only makes .venv, for developers          make lint   the checks that need no running
# make protos generates shared/wire from protos/        make bench  the measurements
# make lock   pins the dependencies anew
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint protos bench lock clean
setup: .venv/dev

.venv/runtime: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/dev: .venv/runtime requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	touch $@

demo: .venv/runtime
	@$(BIN)/python deploy/demo/demo.py

# Each file of integration tests has a process of its own: gRPC's asyncio has one poller a process, and event loops that
# came and went before are none of a test's business.
test: .venv/dev lint
	$(BIN)/pytest tests/unit
	set -e; for file in tests/integration/test_*.py; do echo "== $$file"; $(BIN)/pytest $$file; done

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	$(BIN)/python protos/generate.py --check

protos: .venv/dev
	cd protos && ../$(BIN)/buf format --write
	$(BIN)/python protos/generate.py

bench: .venv/dev
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.codec

# torch is held at one version: a looser pin would bring gigabytes of GPU libraries to a machine without a GPU.
COMPILE := $(BIN)/pip-compile --quiet --no-header --no-annotate --strip-extras --allow-unsafe \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -c deploy/constraints.txt
lock: .venv/dev
	$(COMPILE) -o requirements.lock pyproject.toml
	sed -i 's/+cpu$$//' requirements.lock
	$(COMPILE) --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml
	sed -i 's/+cpu$$//' requirements-dev.lock

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis run
