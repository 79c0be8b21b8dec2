# Every target sets up what it needs: a fresh clone with Python 3.11+ and git is enough.
PLATFORM ?= aarch64
PATCHSET ?= spark
SOURCE   ?= index
# Where kernels come from: upstream, native (compiled for ARCH), or auto: native on the card itself.
KERNELS  ?= auto
ARCH     ?=
PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
ARGS     ?=
JOB      := --patchset $(PATCHSET) --platform $(PLATFORM) --source $(SOURCE) \
            --kernels $(KERNELS) $(if $(ARCH),--arch $(ARCH))

.PHONY: help wheel plan verify verify-demo test test-unit test-prefixes test-native test-verify lint format prove publish status doctor releases bench bench-native docs clean distclean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ ·/' | sort

# The environments, remade when what they are made of changes.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.ready-verify: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[verify]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

wheel: $(VENV)/.ready ## Build the wheel for PLATFORM (aarch64 or x86_64) into dist/
	@$(BIN)/sparkwright wheel $(JOB) $(ARGS)

plan: $(VENV)/.ready ## Show what `make wheel` would do
	@$(BIN)/sparkwright plan $(JOB) $(ARGS)

# What `make verify` serves, and what is wrong with the simulator that `make verify-demo` looks at.
RECIPE   ?= qwen3.6-27b-dflash
FAULT    ?=

verify: $(VENV)/.ready-verify ## Serve the newest wheel in dist/ for this machine by RECIPE, verify it and report
	@$(BIN)/sparkwright verify --recipe $(RECIPE) $(ARGS)

verify-demo: $(VENV)/.ready-verify ## The same against a simulated server, in less than two minutes; FAULT=NAME breaks it
	@$(BIN)/sparkwright verify --demo $(FAULT:%=--fault %) $(ARGS)

prove: $(VENV)/.ready ## Run every carry's probe anew and record the proofs
	@$(BIN)/sparkwright carry prove $(JOB) $(ARGS)

publish: $(VENV)/.ready ## Write the package index over dist/
	@$(BIN)/sparkwright publish $(ARGS)

status: $(VENV)/.ready ## Show the pin, the carries and what is in dist/
	@$(BIN)/sparkwright status $(JOB) $(ARGS)

doctor: $(VENV)/.ready ## Check that this machine has what is needed
	@$(BIN)/sparkwright doctor $(ARGS)

lint: $(VENV)/.ready-test ## Format check, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy scripts/bench/*.py
	MYPYPATH=build:tests/support $(BIN)/mypy scripts/upstream_releases.py scripts/verify_faults.py
	$(BIN)/lint-imports

format: $(VENV)/.ready-test ## Format and fix what can be fixed
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

FILE     ?= tests/unit

test-unit: $(VENV)/.ready-test ## Run FILE's tests (a file, folder or file::test), or all unit tests
	$(BIN)/pytest --quiet $(if $(filter tests/unit,$(FILE)),--numprocesses 2 --dist worksteal) $(FILE) $(ARGS)

# Two at a time: what takes long are processes that wait for each other, and probes of some gigabytes each.
test: lint ## Lint, then every test: units, real sdists and wheels, every probe anew
	$(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)

test-prefixes: $(VENV)/.ready-test ## Every carry proved alone and on each prefix of the patchset, and those with native kernels anew
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m walk tests/integration/test_spark_patchset.py $(ARGS)

test-native: $(VENV)/.ready-test ## Compile every kernel, audit and load the wheel, and see what changes cost (hours on two cores, minutes once compiled)
	$(BIN)/pytest tests/native $(ARGS)

test-verify: $(VENV)/.ready-test ## The fault matrix with twenty healthy servers, and its table in docs/verify-faults.md
	$(BIN)/python scripts/verify_faults.py --seeds 20

releases: $(VENV)/.ready ## Merge onto upstream's later releases, and write docs/upstream-releases.md
	$(BIN)/python scripts/upstream_releases.py $(ARGS)

bench: $(VENV)/.ready-test ## Time merging and assembling against the obvious alternatives
	$(BIN)/python scripts/bench/merge.py
	$(BIN)/python scripts/bench/assemble.py
	$(BIN)/python scripts/bench/repeat.py

bench-native: $(VENV)/.ready-test ## Time a native build, and what a change costs afterwards
	$(BIN)/python scripts/bench/native.py --platform $(PLATFORM) $(if $(ARCH),--arch $(ARCH))

$(VENV)/.ready-docs: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(VENV)/.ready-docs ## Build the documents as a site in dist/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove what was built here; the store stays
	rm -rf dist .sparkwright

distclean: clean ## Remove the environment too
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
