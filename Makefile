# Everything sets itself up: Python 3.11 or newer and make are all that is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNELS := $(wildcard src/cordwood/kernels/*.pyx src/cordwood/kernels/*.pxd src/cordwood/kernels/*.h)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench interop docs results lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## create .venv with everything the other targets need, kernels built

# Installing is pinned to requirements.lock, hashes included. The editable install that follows
# compiles the kernels if it can, so a changed kernel is rebuilt by the same rule.
$(READY): requirements.lock pyproject.toml setup.py $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cordwood needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@cmp -s requirements.lock $(VENV)/installed.lock || { \
		echo "installing the pinned dependencies into $(VENV)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock \
		&& cp requirements.lock $(VENV)/installed.lock; }
	@echo "installing cordwood and building its kernels"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m cordwood.kernels
	@touch $(READY)

demo: $(READY) ## show what works, end to end, in the terminal
	@$(BIN)/python examples/demo.py

# Three at a time, also on two cores: a good part of it waits for a JVM, a server or a disk. What needs Spark stays
# together, so that one session serves all of it.
test: $(READY) ## run the whole suite
	@$(BIN)/python -m pytest -n 3

check: $(READY) ## ruff, mypy --strict, the architecture test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(READY) ## ratios against each peer in one run; BENCH=name runs one
	@$(BIN)/python -m benchmarks $(BENCH)

interop: $(READY) ## clients and tools that need more than PyPI; each absent one is skipped by name
	@$(BIN)/python -m pytest -q -m interop

docs: $(READY) ## build the site into build/site; a broken link fails it
	@$(BIN)/python -m sphinx -q -W --keep-going -j auto -c docs -d build/site-cache -b html . build/site
	@echo "build/site/index.html"

results: $(READY) ## run the sweeps and write what they counted into docs/results.md
	@$(BIN)/python tests/results.py

lock: ## resolve requirements.lock anew (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--upgrade --extra dev pyproject.toml -o requirements.lock

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist src/*.egg-info src/cordwood/kernels/*.so src/cordwood/kernels/*.c
