# Everything a developer or CI types. The environment is .venv, made from constraints.txt (every package by its hash);
# the tests run against the wheel that is built from this tree and installed there.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# The first Python of 3.11 or later that really runs; `make PYTHON=…` names another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& command -v "$$python" && break; done)

# For `make test-313`: one that runs, and is 3.13; pyenv has a `python3.13` on PATH that may not.
PYTHON313 ?= $(shell for python in python3.13 "$$HOME"/.pyenv/versions/3.13.*/bin/python; do \
	"$$python" -c 'import sys; raise SystemExit(sys.version_info[:2] != (3, 13))' 2>/dev/null \
	&& command -v "$$python" && break; done)

VENV := .venv
BIN := $(VENV)/bin
DEPENDENCIES := $(VENV)/.dependencies
WHEEL := $(VENV)/.wheel
# Folders as well: a file that is gone shows in its folder's time only.
SOURCES := pyproject.toml README.md LICENSE $(shell find storage concurrent_loader -name __pycache__ -prune -o \( -type d -o -name '*.py' -o -name '*.[ch]' -o -name '*.pyi' -o -name py.typed \) -print)
ARGS ?=
# Test processes at once. Many tests wait for a server or for a child process, so one more than there are cores.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# What needs no server, no worker processes and no other program.
NOT_FAST := stores/* testing/* commands/* test_worker* test_drop_in* test_process* test_ranks* test_ends* test_cli* \
	test_ingest* test_never_hang* test_forking* test_private_cache* test_head_start* test_in_place* test_kernel* \
	test_fused* test_killed* test_model* test_sharing*
FAST := tests/storage tests/concurrent_loader $(NOT_FAST:%=--ignore-glob='*/%')

.PHONY: help demo test test-fast test-313 test-gpu check bench bench-smoke soak lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*##/\t/' | expand -t 14

demo: $(WHEEL)  ## train from a bucket and from the local drive, side by side (ARGS="--latency 0" …)
	$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(WHEEL)  ## all tests, against the wheel (ARGS="-k cache" JOBS=1 …)
	$(BIN)/pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

test-fast: $(WHEEL)  ## the tests that need no server and no worker processes, against the wheel
	$(BIN)/pytest --numprocesses $(JOBS) --dist worksteal -m 'not s3' $(FAST) $(ARGS)

test-313:  ## the same on Python 3.13, in an environment of its own; skipped where there is none (PYTHON313=…)
	@if [[ -n "$(PYTHON313)" ]]; then $(MAKE) VENV=.venv/python3.13 PYTHON="$(PYTHON313)" test-fast; \
	else echo "make test-313: skipped, for no Python 3.13 that runs was found; PYTHON313=… names one"; fi

# Where there is no GPU that is an error and no success: somebody wanted to know whether the device stage works.
test-gpu: $(WHEEL)  ## the tests that need a GPU, against the wheel
	@$(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
	|| { echo "make test-gpu: no CUDA device can be used here; nothing was tested" >&2; exit 2; }
	$(BIN)/pytest -m gpu $(ARGS)

check: $(DEPENDENCIES)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(WHEEL)  ## half an hour of benchmarks, and the report (ARGS="--only tail cache" …)
	$(BIN)/python -m benchmarks.suite $(ARGS)

bench-smoke: $(WHEEL)  ## every benchmark with tiny sizes: does it still run? (ARGS="--only tail cache" …)
	$(BIN)/python -m benchmarks.smoke $(ARGS)

soak: $(WHEEL)  ## half an hour of bad weather, every sample compared (ARGS="--minutes 5 --json out.json" …)
	$(BIN)/python -m benchmarks.soak $(ARGS)

# -- the environment ---------------------------------------------------------------------------------------------------

$(BIN)/python:
	@[[ -n "$(PYTHON)" ]] || { echo "no Python from 3.11 to 3.13 found: install one, or name it with make PYTHON=…" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu, install python3-venv" >&2; exit 1; }

# Wheels only: building a source distribution would fetch build tools that nobody pinned.
$(DEPENDENCIES): constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=off --quiet \
		--require-hashes --only-binary :all: -r constraints.txt
	@touch $@

# Built with the pinned setuptools, in a clean folder: setuptools would put what is left of an old build into the wheel.
$(WHEEL): $(SOURCES) $(DEPENDENCIES)
	@rm -rf build dist *.egg-info
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --force-reinstall dist/*.whl
	@rm -rf build *.egg-info
	@# The benchmarks run from this folder, and find the package here first: native modules, if there are any, as well.
	@rm -f concurrent_loader/*/*.so storage/*/*.so
	@cp $(VENV)/lib/python*/site-packages/concurrent_loader/decode/*.so concurrent_loader/decode/ 2>/dev/null || true
	@cp $(VENV)/lib/python*/site-packages/storage/lossless/*.so storage/lossless/ 2>/dev/null || true
	@touch $@

lock:  ## constraints.txt anew from pyproject.toml, newest versions (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	@locked=$$(mktemp); trap 'rm -f "$$locked"' EXIT; \
	echo 'setuptools>=77' | uv pip compile pyproject.toml - --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-build-options --no-header --quiet >"$$locked"; \
	sed -E -e '/^ *# +via -r /d' -e '/^ *# +-r /d' "$$locked" >constraints.txt

clean:  ## what can be made again, .venv included; built servers stay in the user's cache
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f concurrent_loader/*/*.so storage/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
