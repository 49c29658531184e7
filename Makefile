# Two commands do it all on a fresh machine: `make demo` and `make test`.
# They need Python and make, and no other program: recipes use what /bin/sh has built in.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# `make PYTHON=...` chooses; else python3 where it is 3.11 to 3.13, else one of those beside it.
FITS := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'
ifndef PYTHON
PYTHON := $(shell for one in python3 python3.13 python3.12 python3.11; do \
	if $$one $(FITS) 2>/dev/null; then command -v $$one; break; fi; done)
endif
# One line where no Python fits.
NEEDS_PYTHON = @$(or $(PYTHON),false) $(FITS) 2>/dev/null || { echo "sam2-autolabel needs Python 3.11," \
	"3.12 or 3.13 and found $$($(or $(PYTHON),python3) -c \
	'import sys; print(sys.version.split()[0])' 2>/dev/null || echo none):" \
	"install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
# Certificates of the system, which a company proxy may have added to.
export UV_SYSTEM_CERTS := 1

VENV := .venv
BIN := $(VENV)/bin
# uv from the PATH, else one of our own in .uv.
UV := $(shell command -v uv || echo .uv/bin/uv)
OWN_UV := $(filter .uv/bin/uv,$(UV))
# pip's find-links folders (a local PyTorch CPU wheel, say), which uv does not read by itself.
FIND_LINKS = $(addprefix --find-links ,$(sort $(PIP_FIND_LINKS) $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)))

# Its own Python code wants NumPy 1 and is not used.
TRITON_SERVER := nvidia-pytriton==0.7.0

# Three workers for two cores, as tests often wait; each with a Prefect server, a database and an S3
# server of its own. tests/conftest.py says which tests stay together. Files keep their order: no
# long one is left for the end.
TESTS := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup dev docs demo test test-all test-lab lint fmt lock clean

help: ## Show this list
	@while IFS= read -r line; do case "$$line" in [a-z]*:*'## '*) \
	printf '  make %-10s %s\n' "$${line%%:*}" "$${line#*## }";; esac; done < $(firstword $(MAKEFILE_LIST))

.uv/bin/uv:
	$(NEEDS_PYTHON)
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual" \
	"environments: install its package for that (python3-venv on Debian and Ubuntu), or uv" >&2; exit 1; }
	@echo "installing uv, which installs the rest, into .uv"
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

# A link to an interpreter that is older than anything here, so nothing may be newer than it: only
# its absence, or its interpreter's, makes it anew.
$(BIN)/python: | $(OWN_UV)
	$(NEEDS_PYTHON)
	$(UV) venv --quiet --clear --python $(PYTHON) $(VENV)

# Importing Prefect takes 4 s of CPU without bytecode and 2 s with it, in every process.
$(VENV)/.runtime: $(BIN)/python requirements.lock pyproject.toml
	@echo "installing what labeling needs into $(VENV) (some 200 packages, 0.8 GB to download, 1.7 GB on disk): a minute or two"
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	@: > $@

$(VENV)/.dev: $(VENV)/.runtime tests/requirements-dev.lock
	@echo "installing what the tests need into $(VENV)"
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r tests/requirements-dev.lock
	@: > $@

$(VENV)/.all: $(VENV)/.dev pyproject.toml
	@echo "installing PyTorch (CPU), TensorRT-RTX, a Triton server and what else tests and lab need into $(VENV): about a minute"
	$(UV) pip install --quiet --python $(BIN)/python $(FIND_LINKS) -e '.[tensorrt,triton]' --group all
	$(UV) pip install --quiet --python $(BIN)/python --no-deps $(TRITON_SERVER)
	@: > $@

setup: $(VENV)/.runtime ## Install what labeling needs into .venv; EXTRAS=gpu,mcap adds extras
	$(if $(EXTRAS),$(UV) pip install --quiet --python $(BIN)/python $(FIND_LINKS) -e '.[$(EXTRAS)]')
	$(if $(findstring triton,$(EXTRAS)),$(UV) pip install --quiet --python $(BIN)/python --no-deps $(TRITON_SERVER))

dev: $(VENV)/.all ## Install everything: PyTorch (CPU), TensorRT-RTX, a Triton server, what tests and lab need

docs: setup ## Build the pages as a site, which `autolabel docs` opens
	$(UV) pip install --quiet --python $(BIN)/python --group docs
	$(BIN)/python docs/build.py

demo: setup ## Set up, label the demo sequences and say where to look at them
	$(BIN)/autolabel demo

test: $(VENV)/.dev ## Run the tests (those of PyTorch and TensorRT too, after `make dev`)
	$(TESTS)

test-all: dev ## Run everything, the slow tests too
	$(TESTS) -m 'not gpu' tests lab/tests

test-lab: dev ## Run the tests of the lab
	$(TESTS) -m 'not slow and not gpu' lab/tests

lint: $(VENV)/.dev ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev ## Format, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: | $(OWN_UV) ## Resolve the dependencies again
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml --group dev -o tests/requirements-dev.lock
	@# What the extra gpu adds to requirements.lock, for its image.
	$(UV) pip compile --quiet --python-platform x86_64-unknown-linux-gnu --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11 pyproject.toml --extra gpu -c requirements.lock -o deploy/docker/requirements-gpu.lock \
		$$(while IFS='=[ ' read -r name rest; do case $$name in [a-z]*) printf ' --no-emit-package %s' "$$name";; esac; done < requirements.lock)

clean: ## Remove what was built
	@# The folders last: where .venv is active, this Python is the one in it.
	@$(or $(PYTHON),python3) -c 'import os; from os.path import expanduser, isdir, join; \
		base = os.environ.get("XDG_CACHE_HOME") or expanduser("~/.cache"); \
		cache = expanduser(os.environ.get("AUTOLABEL_CACHE") or join(base, "autolabel")); \
		isdir(cache) and print("the cache stays, datasets in it: " + cache)'
	@$(or $(PYTHON),python3) -c 'import pathlib, shutil, sys; \
		caches = list(pathlib.Path().rglob("__pycache__")); \
		[shutil.rmtree(one, True) for one in [*caches, *sys.argv[1:]]]' \
		$(VENV) .uv build dist flows/site \
		.cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
