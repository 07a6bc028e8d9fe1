# Two commands: `make demo` and `make test`. Each makes its own virtual environment and installs what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
comma  := ,
empty  :=
# What decides, names and folds: pure, so every line can be tested and is.
PURE   := $(subst $(empty) $(empty),$(comma),$(strip shared/events/* shared/devices/* shared/deciders/protocol.py \
	shared/bus/permissions.py shared/bus/names.py services/*/decide.py \
	$(addprefix services/remediation/,case.py device.py follow.py strikes.py budget.py routing.py context.py) \
	$(addprefix services/guardian/,ladder.py case.py budget.py attribution.py annotation.py readings.py) \
	$(addprefix services/bridge/,share.py ledger.py standing.py reconcile.py identity.py) \
	services/manager/fleet.py services/manager/conditions.py services/console/why.py services/simulator/load.py))

.PHONY: help demo test test-lab lint bench lab lab-down protos docs lock clean
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.demo ## a cluster in a process, a failing device, an SLA breach: watched live (ARGS="--seed 7 --keep")
	@$(BIN)/mediafleet demo $(ARGS)

test: $(VENV)/.dev lint ## everything: lint, types, layers, tests, coverage
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m pytest -n 3 --dist loadgroup --cov --cov-report= $(ARGS)
	@$(BIN)/coverage report
	@$(BIN)/coverage report --include="$(PURE)" --fail-under=100 >/dev/null \
		|| { $(BIN)/coverage report --include="$(PURE)"; echo "pure modules are covered wholly"; exit 1; }

test-lab: $(VENV)/.dev ## the Kubernetes suites on a real control plane and kubelets (root; see `make lab`)
	@MEDIAFLEET_LAB=1 $(BIN)/python -m pytest tests/lab tests/contract/kube tests/contract/kubelet $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy, import layers, generated documents up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m shared.events.schemas --check
	@$(BIN)/python -m deploy.crds --check
	@$(BIN)/python -m deploy.dashboards --check

bench: $(VENV)/.dev ## figures with their spread, ours against the raw library
	@$(BIN)/python -m tests.bench $(ARGS)

lab: $(VENV)/.dev ## a real Kubernetes on this machine: control plane and two nodes (root; first time compiles for 17 min)
	@$(BIN)/python -m tests.lab up

lab-down: $(VENV)/.dev ## stop it and leave nothing behind
	@$(BIN)/python -m tests.lab down

protos: $(VENV)/.dev ## generate the gRPC code beside protos/*.proto
	@$(BIN)/python protos/generate.py

docs: $(VENV)/.dev ## regenerate docs/events.md, docs/asyncapi.yaml, docs/schemas
	@$(BIN)/python -m shared.events.schemas --write

lock: ## compile requirements*.txt with hashes (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra node --extra cluster --extra callout --extra embedded --extra build pyproject.toml -o requirements.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--all-extras pyproject.toml -o requirements-dev.txt

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

# An environment is up to date while its lock and the project file are older than its stamp.
$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "mediafleet needs Python 3.11 or newer: install python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mediafleet needs Python 3.11 or newer: set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "Python lacks the venv module: install python3-venv"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: requirements.txt pyproject.toml protos/generate.py $(wildcard protos/*.proto) | $(VENV)/bin/python
	@[ -e $(VENV)/.dev ] || { echo "installing what the demo needs"; \
		$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.txt; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.txt pyproject.toml protos/generate.py $(wildcard protos/*.proto) | $(VENV)/bin/python
	@echo "installing what the tests need"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo
