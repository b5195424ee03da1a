# Needs make, python3 >= 3.11 with venv, and a package index that pip can reach. Everything else goes into .venv.

PYTHON ?= python3
UV ?= uv
PYTEST_ARGS ?=
# Processes that take tests, a file at a time; 0: all in one, in which a debugger works.
TEST_PROCESSES ?= 3
BIN := .venv/bin
STAMP := .venv/.complete
UV_COMPILE := $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate
# framework/accelerator/architecture of every lock of an image.
IMAGE_LOCKS := \
    onnxruntime/cpu/amd64 onnxruntime/cpu/arm64 onnxruntime/gpu/amd64 \
    torch/cpu/amd64 torch/gpu/amd64 \
    tensorflow/cpu/amd64 tensorflow/cpu/arm64 tensorflow/gpu/amd64
# torch's builds without CUDA are not on PyPI: a page or a folder that has them.
TORCH_CPU_WHEELS ?= https://download.pytorch.org/whl/cpu/torch/
MACHINE_amd64 := x86_64
MACHINE_arm64 := aarch64
LINKS_torch_cpu = --find-links $(TORCH_CPU_WHEELS)

CHECKS := check-lint check-format check-types check-layers

.PHONY: help venv demo test check $(CHECKS) format locks clean
.DEFAULT_GOAL := help

help: ## Show what can be made.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

venv: $(STAMP) ## Install mlbundle and its tools, hash-locked, into .venv.

demo: $(STAMP) ## Run a small network on 360 digits: latency, accuracy, trace.
	@$(BIN)/mlbundle run digits-cnn

test: $(STAMP) ## Run the tests; PYTEST_ARGS selects.
	@$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) $(PYTEST_ARGS)

check: $(CHECKS) ## Lint, formatting, types, layers.

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-types: $(STAMP)
	$(BIN)/mypy

check-layers: $(STAMP)
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code.
	$(BIN)/ruff format .

locks: ## Resolve all hash-locked requirements anew (needs uv).
	$(UV_COMPILE) --universal --python-version 3.11 --extra dev --extra onnxruntime \
	    pyproject.toml requirements/dev.in --output-file requirements/dev.lock
	$(foreach lock,$(IMAGE_LOCKS),$(call lock_image,$(subst /, ,$(lock))))

# Called with the three words of one of IMAGE_LOCKS; the empty line ends each command.
define lock_image
$(UV_COMPILE) --python-version 3.11 --python-platform $(MACHINE_$(word 3,$1))-manylinux_2_28 \
	    $(LINKS_$(word 1,$1)_$(word 2,$1)) containers/$(word 1,$1)/$(word 2,$1)/requirements.in \
	    --output-file containers/$(word 1,$1)/$(word 2,$1)/requirements-$(word 3,$1).lock
	
endef

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
