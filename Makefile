# Two commands are enough: `make run` and `make test`. Everything they need is set up in .venv on the way.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

# The newest Python from 3.11 on. Each is asked rather than looked for: a version manager's stand-in may not run.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
BIN := .venv/bin
# Types and names are the same everywhere; only these hold Python.
CODE := $(wildcard src tests scripts bench images)

.PHONY: help run test check bench image lock format

help: ## Show this
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

run: .venv/run ## Start, with a container engine or without
	@$(BIN)/python -m scripts.build_image --if-an-engine-answers || true
	@exec $(BIN)/mcp-orchestrator

test: check ## Run everything: the checks, then the tests against a real container engine
	@exec $(BIN)/pytest --ignore=tests/unit

check: .venv/dev ## Check format, lint, types, import layers and unit tests, in seconds
	@exec $(MAKE) --no-print-directory --keep-going --jobs=4 --output-sync $(CHECKS)

bench: .venv/dev ## Measure, as ratios
	@exec $(BIN)/python -m bench

image: .venv/run ## Build the image of the sandbox, mcp-server:latest
	@exec $(BIN)/python -m scripts.build_image

format: .venv/dev ## Format, and repair what can be repaired without thought
	@$(BIN)/ruff check --quiet --fix $(CODE); exec $(BIN)/ruff format $(CODE)

lock: .venv/dev ## Pin the newest versions of all dependencies, with the hashes of their files
	@$(COMPILE) pyproject.toml --group build --output-file requirements.lock
	@$(COMPILE) pyproject.toml --group build --group dev --output-file requirements-dev.lock
	@$(COMPILE) --group node --output-file requirements-node.lock

COMPILE := $(BIN)/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate

CHECKS := check-format check-lint check-types check-layers check-units
.PHONY: $(CHECKS)
check-format:
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "make format repairs this"; exit 1; }
check-lint:
	@$(BIN)/ruff check --quiet $(CODE)
check-types:
	@$(BIN)/mypy --strict --no-error-summary $(CODE)
check-layers:
	@$(BIN)/lint-imports --no-logo > .venv/layers.log || { cat .venv/layers.log; exit 1; }
check-units:
	@$(BIN)/pytest --quiet tests/unit

# Each stamp is newer than what it was made from; a lock that changed makes it anew.
.venv/run: requirements.lock pyproject.toml | .venv/bin/pip
	@$(INSTALL) requirements.lock && $(INSTALL_US) && touch $@

.venv/dev: requirements-dev.lock pyproject.toml | .venv/bin/pip
	@$(INSTALL) requirements-dev.lock && $(INSTALL_US) && touch .venv/run $@

INSTALL := echo "Installing what the project needs" && $(BIN)/pip install --quiet --disable-pip-version-check \
	--require-hashes --requirement
# Nothing is fetched here: the build back end is in the lock as well.
INSTALL_US := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it, or say make PYTHON=..."; exit 1; }
	@PYTHON="$(PYTHON)" sh scripts/create_venv.sh
