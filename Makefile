# Two commands do it all on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
# Certificates of the system, which a company proxy may have added to.
export UV_SYSTEM_CERTS := 1

VENV := .venv
BIN := $(VENV)/bin
# uv from the PATH, else one of our own in .uv.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
# pip's find-links folders (a local PyTorch CPU wheel, say), which uv does not read by itself.
FIND_LINKS := $(addprefix --find-links ,$(sort $(PIP_FIND_LINKS) $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)))

# Importing Prefect takes 4 s of CPU without bytecode and 2 s with it, in every process. uv writes none
# by itself, and where PYTHONDONTWRITEBYTECODE is set Python would never write any.
BYTECODE := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c "import flows.shard, flows.server_process, \
	flows.worker_process, prefect.engine, prefect.cli, prefect.server.api.server, uvicorn"

.PHONY: help setup dev torch demo test test-all lint fmt bench lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet uv

$(BIN)/python: $(filter .uv/bin/uv,$(UV))
	$(UV) venv --quiet --python $(PYTHON) $(VENV)

$(VENV)/.runtime: $(BIN)/python requirements.lock pyproject.toml
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(BYTECODE)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.torch: $(VENV)/.dev
	$(UV) pip install --quiet --python $(BIN)/python $(FIND_LINKS) torch==2.13.0 --group oracle
	@touch $@

setup: $(VENV)/.runtime ## Install what labeling needs into .venv

dev: $(VENV)/.dev ## Install what the tests need

torch: $(VENV)/.torch ## Add PyTorch (CPU) and the reference implementations

demo: setup ## Set up, label the demo sequences and say where to look at them
	$(BIN)/autolabel demo

test: dev ## Run the tests (PyTorch comparisons run when `make torch` has been run)
	$(BIN)/python -m pytest

test-all: torch ## Run everything, the slow tests too
	$(BIN)/python -m pytest -m 'not gpu'

lint: dev ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: dev ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## A small benchmark on this machine
	$(BIN)/autolabel bench --quick

lock: $(BIN)/python ## Resolve the dependencies anew
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml --group dev -o requirements-dev.lock

clean: ## Remove what was built
	rm -rf $(VENV) .uv build dist .pytest_cache .mypy_cache .ruff_cache
