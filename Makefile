# Two commands: `make demo` and `make test`. Each makes the environment first; the second time that is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint types unit extras bench clean help

help:
	@echo "make demo    train on the embedded digits, show a table, write report.html"
	@echo "make test    lint, types and tests"
	@echo "make extras  install transformers, MONAI, foolbox and other peers, and run the tests that need them"

# torch first and by itself: the constraint keeps pip from drawing several GB of GPU packages.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "leanbayes needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	@test -x $(BIN)/python || (echo "[1/3] making $(VENV)" && $(PYTHON) -m venv $(VENV))
	@echo "[2/3] installing torch (pinned in constraints.txt)"
	@$(BIN)/pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@echo "[3/3] installing leanbayes and its tools"
	@$(BIN)/pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/leanbayes demo

test: lint types unit

lint: $(STAMP)
	@echo "ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "imports"; $(BIN)/lint-imports && $(BIN)/python tools/house.py --check

types: $(STAMP)
	@echo "mypy"; $(BIN)/mypy

unit: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

extras: $(STAMP)
	@$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,models]'
	@$(BIN)/pip install --disable-pip-version-check -q --no-deps -r peers.txt
	@LEANBAYES_REQUIRE_EXTRAS=1 $(BIN)/pytest -m extra

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
