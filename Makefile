# Every target sets up what it needs: a fresh clone with Python 3.11+ and git is enough.
PLATFORM ?= aarch64
# The line of releases, and a patchset of another name; empty: the default series, and its own patchset.
SERIES   ?= $(SPARKWRIGHT_SERIES)
PATCHSET ?=
SOURCE   ?= index
# Where kernels come from: upstream, native (compiled for ARCH), or auto: native on the card itself.
KERNELS  ?= auto
ARCH     ?=
PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
ARGS     ?=
# Where wheels and their index go; empty: the default of sparkwright/publish/index.py, dist/.
DIST     ?= $(SPARKWRIGHT_DIST)
export SPARKWRIGHT_DIST := $(DIST)
LINE     := $(if $(SERIES),--series $(SERIES)) $(if $(PATCHSET),--patchset $(PATCHSET))
JOB      := $(LINE) --platform $(PLATFORM) --source $(SOURCE) \
            --kernels $(KERNELS) $(if $(ARCH),--arch $(ARCH))

.PHONY: help wheel plan serve verify verify-demo rehearse bisect triton test test-all test-unit test-integration test-slow test-prefixes test-long test-native test-systemd test-image test-verify test-verify-real test-upstream lint format prove nightly companion release-rehearsal publish status doctor fuzz mutations releases bench bench-native docs clean distclean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ ·/' | sort

# By uv where it is installed: it downloads in parallel and links files from its cache.
UV       := $(shell command -v uv 2>/dev/null)
MAKE_VENV := $(if $(UV),$(UV) venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV))
INSTALL  := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/pip install --disable-pip-version-check)

# The environments, remade when pyproject.toml changes.
$(VENV)/.ready: pyproject.toml
	$(MAKE_VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.ready-serve: $(VENV)/.ready
	$(INSTALL) --editable '.[serve]'
	@touch $@

$(VENV)/.ready-verify: $(VENV)/.ready
	$(INSTALL) --editable '.[verify]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(INSTALL) --editable '.[test]'
	@touch $@

# What a shared store needs, where other machines or one are named.
$(VENV)/.ready-far: $(VENV)/.ready
	$(INSTALL) --editable '.[remote]'
	@touch $@

FAR      := $(if $(findstring --cluster,$(ARGS))$(findstring --store,$(ARGS))$(SPARKWRIGHT_CLUSTER)$(SPARKWRIGHT_STORE_URL),$(VENV)/.ready-far)

wheel: $(VENV)/.ready $(FAR) ## Build the wheel for PLATFORM (aarch64 or x86_64) into DIST
	@$(BIN)/sparkwright wheel $(JOB) $(ARGS)

plan: $(VENV)/.ready ## Show what `make wheel` would do
	@$(BIN)/sparkwright wheel --plan $(JOB) $(ARGS)

# The recipe of `make serve` and `make verify`, and the simulator's fault in `make verify-demo`.
RECIPE   ?= qwen3.6-27b-dflash
FAULT    ?=

serve: $(VENV)/.ready-serve ## Serve by RECIPE with the present build spec's wheel in DIST, made if there is none; RECIPE=rehearsal-smollm2 needs no GPU
	@$(BIN)/sparkwright serve $(RECIPE) $(if $(SERIES),--series $(SERIES)) $(ARGS)

verify: $(VENV)/.ready-verify $(FAR) ## Serve the same wheel by RECIPE, verify it and report, in 20 minutes; ARGS="--profile full" takes hours
	@$(BIN)/sparkwright verify --recipe $(RECIPE) $(ARGS)

verify-demo: $(VENV)/.ready-verify ## The same against a simulated server, in about two minutes; FAULT=NAME breaks it
	@$(BIN)/sparkwright verify --demo $(FAULT:%=--fault %) $(ARGS)

rehearse: $(VENV)/.ready-verify $(FAR) ## Serve the merged Python on the CPU with a real model, and verify it
	@$(BIN)/sparkwright rehearse $(LINE) --platform $(PLATFORM) --source $(SOURCE) $(ARGS)

bisect: $(VENV)/.ready-verify $(FAR) ## Name the change between a good and a bad build spec: ARGS='GOOD BAD --judge …'
	@$(BIN)/sparkwright bisect $(LINE) $(ARGS)

prove: $(VENV)/.ready $(FAR) ## Run every carry's probe and upstream's tests on both trees, and record what they show
	@$(BIN)/sparkwright carry prove $(JOB) $(ARGS)
	@$(BIN)/sparkwright carry prove --upstream-tests $(LINE) --source $(SOURCE)

# Of the tree without carries of kernels, which upstream's Python tests do not see.
test-upstream: $(VENV)/.ready ## Run upstream's own tests on the pristine and on the merged tree; ARGS='tests/v1/core/test_x.py'
	@$(BIN)/sparkwright carry prove --upstream-tests $(LINE) --source $(SOURCE) $(ARGS)

triton: $(VENV)/.ready ## Compile vLLM's Triton kernels for a GB10, without one, and write dist/triton-kernels.md
	@$(BIN)/python scripts/triton_kernels.py $(ARGS)

nightly: $(VENV)/.ready-verify ## Follow upstream: merge and judge every carry on what is new, and build it
	@$(BIN)/sparkwright nightly $(JOB) $(ARGS)

# The recipes whose kernels `make companion` compiles; empty: those of all.
companion: $(VENV)/.ready ## Compile FlashInfer's kernels for PLATFORM and ARCH into a wheel in DIST, for RECIPES
	@$(BIN)/sparkwright companion $(if $(SERIES),--series $(SERIES)) --platform $(PLATFORM) $(if $(ARCH),--arch $(ARCH)) $(RECIPES:%=--recipe %) $(ARGS)

# As root, with podman, buildah, crun, mmdebstrap and docker-registry; ARGS=FOLDER keeps what it makes there.
release-rehearsal: ## Go from a tag in a fresh clone to a wheel and an image, on stand-ins of forge, pages and registry
	@env -u ARGS -u MAKEFLAGS ci/release-rehearsal.sh $(ARGS) # the makes that it starts have words of their own

publish: $(VENV)/.ready ## Write the package index over the wheels in DIST
	@$(BIN)/sparkwright publish $(ARGS)

status: $(VENV)/.ready ## Show the pin, the carries and the wheels in DIST
	@$(BIN)/sparkwright status $(JOB) $(ARGS)

doctor: $(VENV)/.ready ## Check that this machine has what is needed
	@$(BIN)/sparkwright doctor $(ARGS)

lint: $(VENV)/.ready-test ## Format check, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready-test ## Format and fix what can be fixed
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

FILE     ?= tests/unit
# Five on two cores: many wait for processes that they started, one for the fault matrix. Which goes where: tests/conftest.py.
PARALLEL := --numprocesses 5 --dist loadscope

test-unit: $(VENV)/.ready-test ## Run FILE's tests (a file, folder or file::test), or all unit tests that are not slow
	$(BIN)/pytest --quiet $(if $(filter tests/unit,$(FILE)),$(PARALLEL) -m 'not slow and not walk') $(FILE) $(ARGS)

test-integration: $(VENV)/.ready-test ## Run the integration tests that are not slow
	$(BIN)/pytest --quiet $(PARALLEL) -m 'not slow and not walk' tests/integration $(ARGS)

test-slow: $(VENV)/.ready-test ## Run the slow tests, unit and integration: real wheels, a few probes, the fault matrix
	$(BIN)/pytest --quiet $(PARALLEL) -m 'slow and not walk' $(ARGS)

# Types are checked on one core and documents built while tests begin; tests do not begin where either fails at once.
test: $(VENV)/.ready-test $(VENV)/.ready-docs ## Lint, build the documents, and all tests but the longest: units, slow ones, real sdists and wheels, probes
	@$(MAKE) --no-print-directory --jobs 2 lint docs test-all

# Modules are compiled, and asserts in tests rewritten, once: not by each of the processes that run tests.
$(VENV)/.compiled: $(VENV)/.ready-test
	@$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 || true # what cannot be collected fails below
	@touch $@

# Tests start servers, machines and compilers, five at a time on two cores, beside whatever else a machine runs. What fails
# there is run once more, alone, and has failed if it fails again. Both runs are in the output. A test that hangs ends with
# its stacks.
test-all: $(VENV)/.compiled
	$(BIN)/pytest $(PARALLEL) --timeout 1200 $(ARGS) || { test $$? -eq 1 && $(BIN)/pytest --last-failed --last-failed-no-failures none --exitfirst; }

test-prefixes: $(VENV)/.ready-test ## Prove every carry again, alone and on each prefix of the patchset, with native kernels compiled again
	$(BIN)/pytest $(PARALLEL) -m walk tests/integration/carries/test_spark_patchset.py $(ARGS)

test-long: $(VENV)/.ready-test ## Run the tests that take longest: pruning in every order of steps, real engines that end, more seeds, and others
	$(BIN)/pytest $(PARALLEL) -m walk --ignore tests/integration/carries/test_spark_patchset.py $(ARGS)

test-native: $(VENV)/.ready-test ## Compile every kernel, audit and load the wheel, and see what changes cost (hours on two cores, minutes once compiled)
	$(BIN)/pytest tests/native $(ARGS)

# Needs root, systemd-nspawn and mmdebstrap; skipped with the reason elsewhere.
test-systemd: $(VENV)/.ready-test ## Install, kill, wedge, upgrade and boot services under a real systemd in a container (a quarter of an hour)
	$(BIN)/pytest --quiet tests/systemd $(ARGS)

# Needs root, podman, buildah, crun, mmdebstrap and docker-registry; skipped with the reason elsewhere.
test-image: $(VENV)/.ready-test ## Build ci/Containerfile on a base made by mmdebstrap, with a simulated engine, push and pull it, and run it
	$(BIN)/pytest --quiet tests/image $(ARGS)

test-verify: $(VENV)/.ready-test ## The fault matrix with twenty healthy servers, and what it found in dist/verify-faults.md
	$(BIN)/python scripts/verify_faults.py --seeds 20

test-verify-real: $(VENV)/.ready-test ## Verify a real vLLM on the CPU: with and without n-gram drafts, and with faults in its code
	$(BIN)/pytest --quiet -rP --numprocesses 2 --dist loadscope -m walk tests/integration/verify/test_verify_real.py $(ARGS)

fuzz: $(VENV)/.ready-test ## Damage what others may send, 10,000 times a parser: each parses or is refused; ARGS='--only patch --seed 2'
	$(BIN)/python scripts/fuzz.py $(ARGS)

mutations: $(VENV)/.ready ## Break every carry as its mutations.toml says, and see that its probe notices: ARGS='--carry NAME --series 0.24'
	$(BIN)/python scripts/mutations.py $(ARGS)

releases: $(VENV)/.ready ## Merge onto upstream's later releases, and record the outcomes that docs/adding-a-carry.md shows
	$(BIN)/python scripts/upstream_releases.py $(ARGS)

bench: $(VENV)/.ready-test ## Time merging and assembling against the obvious alternatives
	$(BIN)/python scripts/bench/merge.py
	$(BIN)/python scripts/bench/assemble.py
	$(BIN)/python scripts/bench/bisection.py
	$(BIN)/python scripts/bench/repeat.py

bench-native: $(VENV)/.ready-test ## Time a native build, and what a change costs afterwards
	$(BIN)/python scripts/bench/native.py --platform $(PLATFORM) $(if $(ARCH),--arch $(ARCH))

$(VENV)/.ready-docs: $(VENV)/.ready
	$(INSTALL) --editable '.[docs]'
	@touch $@

docs: $(VENV)/.ready-docs ## Build the documents as a site in dist/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Another DIST may hold published wheels, so only the default folder is removed.
clean: ## Remove dist/ and logs in this clone; the store and another DIST stay
	rm -rf dist .sparkwright

distclean: clean ## Remove the environment too
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
