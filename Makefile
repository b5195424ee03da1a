# Needs make, python3 >= 3.11 with venv, and a package index that pip can reach. Everything else goes into .venv.

PYTHON ?= python3
UV ?= uv
PYTEST_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.complete
UV_COMPILE := $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate
IMAGE := containers/onnxruntime/cpu

.PHONY: help venv demo test check format locks clean
.DEFAULT_GOAL := help

help: ## Show what can be made.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

venv: $(STAMP) ## Install mlbundle and its tools, hash-locked, into .venv.

demo: $(STAMP) ## Run a small network on 360 digits: latency, accuracy, trace.
	@$(BIN)/mlbundle run digits-cnn

test: $(STAMP) ## Run the tests; PYTEST_ARGS selects.
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP) ## Lint, formatting, types, layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code.
	$(BIN)/ruff format .

locks: ## Resolve all hash-locked requirements anew (needs uv).
	$(UV_COMPILE) --universal --python-version 3.11 --extra dev --extra onnxruntime \
	    pyproject.toml requirements/dev.in --output-file requirements/dev.lock
	$(UV_COMPILE) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    $(IMAGE)/requirements.in --output-file $(IMAGE)/requirements-amd64.lock
	$(UV_COMPILE) --python-version 3.11 --python-platform aarch64-manylinux_2_28 \
	    $(IMAGE)/requirements.in --output-file $(IMAGE)/requirements-arm64.lock

clean: ## Remove .venv, caches and built files.
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find mlbundle tui tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Made last, so that an installation that was interrupted starts again.
$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "mlbundle needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo 'not there')." >&2; \
	    echo "Name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$$($(PYTHON) --version) can't make virtual environments: install python3-venv." >&2; exit 1; }
	@echo "installing into .venv (once)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	    --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
