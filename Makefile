PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: demo test check coverage bench bench-peers soak format help

demo: $(STAMP)  ## run the demo program, offline
	$(BIN)/python -m examples.demo

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -q tests

check: $(STAMP)  ## format, lint, layers, types, then the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(MAKE) coverage
	$(MAKE) test

PURE := weft/_machine.py,weft/_limits.py,weft/_repair.py

coverage: $(STAMP)  ## every branch of the pure machine is taken by its tables alone
	$(BIN)/coverage run --data-file=.coverage.pure -m pytest -q -m 'not hypothesis' \
		tests/test_machine.py tests/test_limits.py tests/test_repair.py
	$(BIN)/coverage report --data-file=.coverage.pure --include=$(PURE) --skip-covered --fail-under=100

bench: $(STAMP)  ## run the benchmarks; one JSON line for each
	$(BIN)/python -m compileall -q weft
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)  ## run the same work on other libraries, each in an environment of its own, made here
	$(BIN)/python -m compileall -q weft
	$(BIN)/python -m benchmarks.peers

soak: $(STAMP)  ## run the soak tests in their long form
	WEFT_SOAK=1 $(BIN)/python -m pytest -q -m soak tests

format: $(STAMP)  ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-11s %s\n", $$1, $$2 }'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "weft needs Python 3.11 or newer as $(PYTHON); try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[dev]' -c constraints.txt
	@touch $@
