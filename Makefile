# Two commands: `make demo` and `make test`. Each makes the environment first; the second time that is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Some machines forbid Python to keep what it has compiled; hundreds of processes of the tests would compile it all anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit extras docs build wheel-test sanitize soak clean help

help:
	@echo "make demo    a network that is sure and wrong, three Bayesian ones that doubt; writes report.html"
	@echo "make test    lint, types and tests"
	@echo "make docs    build the documentation into site/"
	@echo "make build   build the sdist and the wheel into dist/; wheel-test installs and runs the wheel"
	@echo "make extras  install transformers, MONAI, foolbox and other peers, and run the tests that need them"
	@echo "make sanitize  build the C kernels with ASan and UBSan and run thousands of random cases"
	@echo "make soak    thousands of random cases, up to an hour; each failure says how to repeat it"

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
	@$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,models,trainers,trackers,hub,cluster,tables]'
	@$(BIN)/pip install --disable-pip-version-check -q --no-deps -r peers.txt
	@LEANBAYES_REQUIRE_EXTRAS=1 $(BIN)/pytest -m extra $$(grep -rl 'mark\.extra' tests)  # not all 8,000 tests are read

sanitize: $(STAMP)
	@PYTHONPATH=src:. $(BIN)/python tools/sanitize.py

soak: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m long
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

# The kernels need nothing but libc and libm (they take the thread pool of torch at run time), so that auditwheel has
# nothing to copy: it checks this and writes the manylinux tag. Elsewhere the wheel is pure Python.
build: $(STAMP)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@for wheel in dist/*-linux_*.whl; do if [ -e "$$wheel" ]; then \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist "$$wheel" && rm "$$wheel"; fi; done
	@ls dist

# The wheel in an empty environment, without a compiler on the path: the example of README, and a compiled sparse step.
wheel-test: build
	@rm -rf build/wheel-test && $(PYTHON) -m venv build/wheel-test
	@build/wheel-test/bin/pip install --disable-pip-version-check -q -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@build/wheel-test/bin/pip install --disable-pip-version-check -q -c constraints.txt dist/*.whl
	@cd build && env -i HOME="$$HOME" PATH="$(CURDIR)/build/wheel-test/bin" OMP_NUM_THREADS=1 \
	  wheel-test/bin/python -I ../tests/wheel/check.py ../README.md

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
