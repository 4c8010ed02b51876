# Everything a developer or CI types. The environment is .venv, made from constraints.txt (every package by its hash);
# the tests run against the wheel that is built from this tree and installed there.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Where it is set, each process compiles each module that it imports, and pytest rewrites each test module: half of the
# time of many tests.
unexport PYTHONDONTWRITEBYTECODE

# The first Python of 3.11 or later that really runs; `make PYTHON=…` names another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
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
SOURCES := pyproject.toml setup.py README.md LICENSE $(shell find storage concurrent_loader -name __pycache__ -prune -o \( -type d -o -name '*.py' -o -name '*.[ch]' -o -name '*.pyi' -o -path '*/preview/page.*' -o -name py.typed \) -print)
ARGS ?=
# Test processes at once. Many tests wait for a server or for a child process, so one more than there are cores.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PYTEST = $(BIN)/pytest --numprocesses $(JOBS) --dist worksteal

.PHONY: help demo servers test test-fast test-long test-all test-313 test-gpu check docs bench bench-smoke soak dist lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*##/\t/' | expand -t 14

demo: $(BIN)/python  ## train from a bucket and from the local drive, side by side (ARGS="--latency 0" …)
	@$(MAKE) --no-print-directory --jobs=2 $(WHEEL) servers
	$(BIN)/python -m benchmarks.demo $(ARGS)

# Takes minutes the first time, needs no package, and so runs while the packages are installed. What fails here fails
# again, with a message, where a server is needed; an S3 server of one's own on PATH needs nothing to be built.
servers: $(BIN)/python
	@$(BIN)/python -m concurrent_loader.storage.testing.servers.build_tools || true

test: $(WHEEL)  ## the whole behaviour, with servers and worker processes, against the wheel (ARGS="-k cache" JOBS=1 …)
	$(PYTEST) -m 'not long' $(ARGS)

# Fast tests do not wait, and each process more imports everything once more.
test-fast: JOBS := $(shell getconf _NPROCESSORS_ONLN)
test-fast: $(WHEEL)  ## the tests in one process without a server, with few examples of each property: two minutes
	$(PYTEST) -m fast --hypothesis-profile=fast $(ARGS)

test-long: $(WHEEL)  ## the tests that take very long, or need root, an emulator or terraform
	$(PYTEST) -m long $(ARGS)

test-all: test test-long test-313 bench-smoke  ## all of these, and every benchmark with tiny sizes

test-313:  ## the fast tests on Python 3.13, in an environment of its own; skipped where there is none (PYTHON313=…)
	@if [[ -n "$(PYTHON313)" ]]; then $(MAKE) VENV=.venv/python3.13 PYTHON="$(PYTHON313)" test-fast; \
	else echo "make test-313: skipped, for no Python 3.13 that runs was found; PYTHON313=… names one"; fi

# Where there is no GPU that is an error and no success: somebody wanted to know whether the device stage works.
test-gpu: $(WHEEL)  ## the tests that need a GPU, against the wheel
	@$(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
	|| { echo "make test-gpu: no CUDA device can be used here; nothing was tested" >&2; exit 2; }
	$(BIN)/pytest -m gpu $(ARGS)

check: $(DEPENDENCIES)  ## format, lint, types, layers, and the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) docs

docs: $(DEPENDENCIES)  ## the documentation, in docs/_build/html/index.html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going --quiet -b html docs docs/_build/html

bench: $(WHEEL)  ## half an hour of benchmarks, and the report (ARGS="--only tail cache" …)
	$(BIN)/python -m benchmarks.suite $(ARGS)

bench-smoke: $(WHEEL)  ## every benchmark with tiny sizes: does it still run? (ARGS="--only tail cache" …)
	$(BIN)/python -m benchmarks.smoke $(ARGS)

soak: $(WHEEL)  ## half an hour of bad weather, every sample compared (ARGS="--minutes 5 --json out.json" …)
	$(BIN)/python -m benchmarks.soak $(ARGS)

# The wheel is built from the source distribution, which so is tried as well; on Linux auditwheel puts libjpeg-turbo in.
dist: $(DEPENDENCIES)  ## a source distribution and a wheel for publishing, in dist/, checked
	rm -rf build dist *.egg-info
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	if [[ "$$(uname)" == Linux ]]; then \
		PATH="$$PWD/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist/repaired dist/*.whl \
		&& rm dist/*.whl && mv dist/repaired/*.whl dist/ && rmdir dist/repaired; fi
	rm -rf build *.egg-info
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist

# -- the environment ---------------------------------------------------------------------------------------------------

$(BIN)/python:
	@[[ -n "$(PYTHON)" ]] || { echo "no Python from 3.11 to 3.14 found: install one, or name it with make PYTHON=…" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu, install python3-venv" >&2; exit 1; }

PIP = --disable-pip-version-check --progress-bar=off --quiet --require-hashes --only-binary :all:

# Wheels only: building a source distribution would fetch build tools that nobody pinned.
$(DEPENDENCIES): constraints.txt | $(BIN)/python
	@# uv takes a third of pip's time. It does not read pip's settings: where it cannot reach the registry, pip does it.
	@awk '/^uv==/ {found = 1} found {print} found && !/\\$$/ {exit}' constraints.txt >$(VENV)/uv.txt
	$(BIN)/python -m pip install $(PIP) --no-deps -r $(VENV)/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --only-binary :all: -r constraints.txt \
	|| $(BIN)/python -m pip install $(PIP) -r constraints.txt
	@# uv leaves it to the first process that imports a module; some packages bring templates that are no Python.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib/python*/site-packages >/dev/null 2>&1 || true
	@touch $@

# Built with the pinned setuptools, in a clean folder: setuptools would put what is left of an old build into the wheel.
$(WHEEL): $(SOURCES) $(DEPENDENCIES)
	@rm -rf build $(VENV)/wheels *.egg-info
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation \
		--wheel-dir $(VENV)/wheels .
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --force-reinstall \
		$(VENV)/wheels/*.whl
	@rm -rf build *.egg-info
	@# The benchmarks run from this folder, and find the package here first: native modules, if there are any, as well.
	@# Not those of another Python, which `make test-313` builds in an environment of its own.
	@if [[ "$(VENV)" == .venv ]]; then \
		rm -f concurrent_loader/*/*.so storage/*/*.so; \
		for folder in batch decode storage/cache storage/lossless; do \
			cp $(VENV)/lib/python*/site-packages/concurrent_loader/$$folder/*.so concurrent_loader/$$folder/ 2>/dev/null || true; \
		done; fi
	@touch $@

lock:  ## constraints.txt anew from pyproject.toml, newest versions (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	@locked=$$(mktemp); trap 'rm -f "$$locked"' EXIT; \
	echo 'setuptools>=77' | uv pip compile pyproject.toml - --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-build-options --no-header --quiet >"$$locked"; \
	sed -E -e '/^ *# +via -r /d' -e '/^ *# +-r /d' "$$locked" >constraints.txt

clean:  ## what can be made again, .venv included; built servers stay in the user's cache
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f concurrent_loader/*/*.so storage/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
