# make demo   trains across a cut on this machine       make test   runs the checks, or FILE=tests/... alone
# make demo-chain  trains on a chain of three workers   (profile, plan, run; one of them becomes slow)
# make demo-groups  trains on three members of a group  (one of them is killed and comes back)
# make demo-engine  trains beside every deployment that is kept, while the link drops and the device becomes slow
# make demo-tiers   divides layers and samples among three workers, of which one is killed
# make demo-move    trains on a path among three trainers, of which the run chooses one after another
# make setup  only makes .venv, for developers          make lint   the checks that need no running
# make protos generates shared/wire from protos/        make bench  the measurements
# make lock   pins the dependencies again               make dashboards  generates deploy/grafana/dashboards
# make docs   builds the documentation into site/       make watch  runs the unit tests of what changed, at every save
# make clean  removes what these made                   make pictures  draws docs/assets
# make test-deploy  tries what deploy/ ships with the real servers (Prometheus, systemd, containers), and the quickstart from
#                   an empty folder; minutes, partly as root
# make test-slow    runs the tests that make test leaves out because they take long; CI runs both
# make test-full    runs the combinations and seeds that both leave out, and all examples of all properties
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo demo-chain demo-groups demo-engine demo-move demo-tiers test watch test-slow test-full test-deploy lint protos dashboards pictures docs chaos fuzz bench lock clean
setup: .venv/dev

# Without warnings: setuptools has one for every package whose folder bears its name.
.venv/runtime: requirements.lock pyproject.toml benchmarks/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e benchmarks
	touch $@

.venv/dev: .venv/runtime requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	touch $@

demo: .venv/runtime
	@$(BIN)/edge-agent demo

demo-chain: .venv/runtime
	@$(BIN)/python deploy/demo/demo_chain.py

demo-groups: .venv/runtime
	@$(BIN)/python deploy/demo/demo_groups.py

demo-engine: .venv/runtime
	@$(BIN)/python -m deploy.demo.demo_engine

demo-tiers: .venv/runtime
	@$(BIN)/python deploy/demo/demo_tiers.py

demo-move: .venv/runtime
	@$(BIN)/python -m deploy.demo.demo_move

# tests/suites.py says which suites there are and which run alone; FILE names some of them instead, which run whole.
test: .venv/dev lint
	$(BIN)/python -m tests.suites $(FILE)

watch: .venv/dev
	@$(BIN)/python -m tests.watch

test-slow: .venv/dev
	$(BIN)/python -m tests.suites --slow

test-full: .venv/dev
	$(BIN)/python -m tests.suites --full

# What a test of these needs and does not find, it names and skips.
test-deploy: .venv/dev
	set -e; for file in tests/deploy/test_*.py; do echo "== $$file"; $(BIN)/pytest -rs $$file; done

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	cd protos && ../$(BIN)/buf breaking --against contract.binpb
	$(BIN)/python protos/generate.py --check

protos: .venv/dev
	cd protos && ../$(BIN)/buf format --write
	$(BIN)/python protos/generate.py

dashboards: .venv/dev
	$(BIN)/python -m deploy.grafana.generate

# All but docs/assets/dashboard.png, which needs Prometheus: python -m deploy.site.pictures dashboard.
pictures: .venv/dev
	$(BIN)/python -m deploy.site.pictures

# Part of make test, too: tests/unit/docs/test_site.py.
docs: .venv/dev
	$(BIN)/mkdocs build
	@echo site/index.html

chaos: .venv/dev
	$(BIN)/python -m tests.chaos --faults 2000
	$(BIN)/python -m tests.chaos tiers --faults 600

# 100,000 messages on every RPC of a trainer, 20,000 files, and 5,000 placements: about ten minutes.
fuzz: .venv/dev
	$(BIN)/python -m tests.fuzz --messages 100000

bench: .venv/dev
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.tls

# torch is held at one version: a looser pin would bring gigabytes of GPU libraries to a machine without a GPU.
COMPILE := $(BIN)/pip-compile --quiet --no-header --no-annotate --strip-extras --allow-unsafe \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -c deploy/constraints.txt
lock: .venv/dev
	$(COMPILE) -o requirements.lock pyproject.toml
	sed -i 's/+cpu$$//' requirements.lock
	$(COMPILE) --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml
	sed -i 's/+cpu$$//' requirements-dev.lock

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis run site
