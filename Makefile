# Tailrace's commands. `make` lists them. None needs root, a GPU or a compiler, and the only network they
# use is the package index.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Programs that call the edge from outside and cannot be installed beside it; the conformance tests use it.
CALLERS := .venv-callers
CALLERS_LOCK := tests/conformance/callers/requirements.lock
# Official clients of the OpenAI and Anthropic APIs, which the conformance tests run as programs of their own.
SDKS := .venv-sdks
SDK_LOCKS := tests/conformance/llm/python/requirements.lock tests/conformance/llm/python/old-anthropic.lock
# A load tool made for OpenAI's API, which `make load-test` and one conformance test run.
LOAD := .venv-load
LOAD_LOCK := benchmarks/load_test/requirements.lock
# CI runs the tests in one order, so that what it saw can be seen again; elsewhere every run has its own.
PYTEST := $(BIN)/python -m pytest $(if $(CI),--randomly-seed=20261130)
EXLLAMAV2_STAMP := $(VENV)/.exllamav2
TORCH := torch==2.13.0
# Where else to look for torch, e.g. PyTorch's own index of CPU or CUDA builds; empty: where pip looks anyway.
TORCH_INDEX ?=
# More for pytest, e.g. make unit ARGS="-k stop -x"
ARGS ?=
# Whose predictions a token of `make token` makes and sees.
OWNER ?= default
# What `make breaking` compares with.
BASE ?= main

say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------- setting up

.PHONY: setup
setup: $(STAMP) ## Create .venv with the locked packages (at once when it is there)
	@echo "$(VENV) is ready"

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Tailrace needs Python 3.11 or newer, this is {v[0]}.{v[1]}. Name another: make setup PYTHON=python3.12")'
	@echo "Setting up $(VENV): $$(grep -c '^[a-z].*==' requirements.lock) packages, a minute or two the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

.PHONY: setup-callers
setup-callers: $(CALLERS)/.installed ## Create .venv-callers with the clients that have a .venv of their own

$(CALLERS)/.installed: $(CALLERS_LOCK)
	@echo "Setting up $(CALLERS): $$(grep -c '^[a-z].*==' $(CALLERS_LOCK)) packages, a minute the first time ..."
	@test -x $(CALLERS)/bin/python || $(PYTHON) -m venv $(CALLERS)
	@$(CALLERS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(CALLERS_LOCK)
	@touch $@

.PHONY: setup-sdks
setup-sdks: $(SDKS)/.installed ## Create .venv-sdks with the official OpenAI and Anthropic clients

$(SDKS)/.installed: $(SDK_LOCKS)
	@echo "Setting up $(SDKS): $$(grep -c '^[a-z].*==' $(word 1,$(SDK_LOCKS))) packages, a minute the first time ..."
	@test -x $(SDKS)/bin/python || $(PYTHON) -m venv $(SDKS)
	@$(SDKS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(word 1,$(SDK_LOCKS))
	@$(SDKS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--upgrade --target $(SDKS)/old-anthropic -r $(word 2,$(SDK_LOCKS))
	@touch $@

.PHONY: setup-load
setup-load: $(LOAD)/.installed ## Create .venv-load with the load tool of `make load-test`

$(LOAD)/.installed: $(LOAD_LOCK)
	@echo "Setting up $(LOAD): $$(grep -c '^[a-z].*==' $(LOAD_LOCK)) packages, a minute the first time ..."
	@test -x $(LOAD)/bin/python || $(PYTHON) -m venv $(LOAD)
	@$(LOAD)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOAD_LOCK)
	@touch $@

.PHONY: setup-exllamav2
setup-exllamav2: $(EXLLAMAV2_STAMP) ## Add torch and exllamav2 to .venv (TORCH_INDEX=: a build of torch for your CUDA, or for the CPU)
	@echo "exllamav2 is in $(VENV); its kernels are compiled when it is first loaded on a GPU"

# torch first: PyPI's own brings CUDA with it, as packages that no lock file of ours could name for every machine.
$(EXLLAMAV2_STAMP): $(STAMP) requirements-exllamav2.lock requirements-exllamav2-nodeps.lock
	@echo "Adding torch and exllamav2 to $(VENV), some minutes the first time ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-exllamav2.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-exllamav2-nodeps.lock
	@touch $@

# All but exllamav2's, whose torch is another on every kind of machine.
LOCKED_EXTRAS := --extra dev --extra edge --extra llama-cpp --extra run

.PHONY: lock
lock: ## Resolve requirements.lock anew from pyproject.toml (takes minutes; review the difference)
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --no-config \
		$(LOCKED_EXTRAS) --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --output-file requirements.lock pyproject.toml
	PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --no-config \
		--constraint requirements.lock --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --output-file requirements-exllamav2.lock requirements-exllamav2.in
	@touch requirements.lock

.PHONY: lock-callers
lock-callers: ## Resolve the lock of .venv-callers anew
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock-callers" $(BIN)/pip-compile --quiet --upgrade \
		--no-config --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --output-file $(CALLERS_LOCK) tests/conformance/callers/requirements.in

.PHONY: lock-sdks
lock-sdks: ## Resolve the lock of .venv-sdks anew
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	cd tests/conformance/llm/python && PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock-sdks" \
		../../../../$(BIN)/pip-compile --quiet --upgrade --no-config --strip-extras --allow-unsafe \
		--generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file requirements.lock requirements.in

.PHONY: lock-load
lock-load: ## Resolve the lock of .venv-load anew
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	cd benchmarks/load_test && PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock-load" \
		../../$(BIN)/pip-compile --quiet --upgrade --no-config --strip-extras --allow-unsafe \
		--generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file requirements.lock requirements.in

.PHONY: clean
clean: ## Remove .venv, caches and builds; var/ (models, predictions, logs) stays
	rm -rf $(VENV) $(CALLERS) $(SDKS) $(LOAD) build dist clients/typescript/node_modules clients/typescript/dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------- running

.PHONY: run
run: $(STAMP) ## Run service and edge on a real model and stream a first prediction (PROMPT=, MODEL=, ENGINE=, ONCE=1)
	@exec $(BIN)/python -m clients.first_run

.PHONY: token
token: $(STAMP) ## Make an API token and print it once (OWNER=, ARGS="--expires 90d --scopes predictions:read")
	@exec $(BIN)/python -m edge.tokens create --owner "$(OWNER)" $(ARGS)

.PHONY: run-service
run-service: $(STAMP) ## Run the gRPC service alone, in the foreground
	@exec $(BIN)/python -m service

.PHONY: run-edge
run-edge: $(STAMP) ## Run the HTTP edge alone, in the foreground
	@exec $(BIN)/python -m edge

.PHONY: bench
bench: $(STAMP) ## Measure the bridge and the engine on this machine
	@exec $(BIN)/python -m benchmarks $(ARGS)

.PHONY: load-test
load-test: $(STAMP) $(LOAD)/.installed ## Load service and edge by a tool made for OpenAI's API; every answer must be whole
	@exec $(BIN)/python -m benchmarks.load_test $(ARGS)

# --------------------------------------------------------------------------------------- checking

.PHONY: fmt
fmt: $(STAMP) ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

.PHONY: lint
lint: $(STAMP) ## Ruff and buf lint
	$(call say,lint)
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet --output-format concise . || { echo "not formatted: run 'make fmt'"; exit 1; }
	@cd protos && ../$(BIN)/buf lint

.PHONY: type
type: $(STAMP) ## mypy, strict
	$(call say,type)
	@$(BIN)/mypy

.PHONY: arch
arch: $(STAMP) ## Import contracts and the rules no linter knows
	$(call say,arch)
	@PYTHONPATH=. $(BIN)/lint-imports
	@$(PYTEST) -q tests/architecture $(ARGS)

.PHONY: unit
unit: $(STAMP) ## Tests of pure code: no I/O, a few seconds
	@$(PYTEST) tests/unit $(ARGS)

.PHONY: contract
contract: $(STAMP) ## One suite a port, run on each adapter
	@$(PYTEST) tests/contract $(ARGS)

.PHONY: integration
integration: $(STAMP) ## Real servers and sockets in one process
	@$(PYTEST) tests/integration $(ARGS)

.PHONY: e2e
e2e: $(STAMP) ## Service and edge as processes, as users start them
	@$(PYTEST) tests/e2e $(ARGS)

.PHONY: conformance
conformance: $(STAMP) $(CALLERS)/.installed $(SDKS)/.installed $(LOAD)/.installed ## Official clients of the three APIs, Python and npm, unchanged
	@$(PYTEST) tests/conformance $(ARGS)

.PHONY: conformance-py2
conformance-py2: $(STAMP) $(CALLERS)/.installed ## Of these, Replicate's generated Python client (2.0 beta) alone
	@$(PYTEST) tests/conformance/callers/test_replicate_py2.py $(ARGS)

.PHONY: conformance-sdks
conformance-sdks: $(STAMP) $(SDKS)/.installed ## Of these, the official OpenAI and Anthropic clients (Python and npm)
	@$(PYTEST) tests/conformance/llm $(ARGS)

.PHONY: test-typescript
test-typescript: $(STAMP) ## Of these, the TypeScript client alone: npm ci, tsc, vitest, build
	@$(PYTEST) tests/conformance/typescript $(ARGS)

.PHONY: test-exllamav2
test-exllamav2: $(EXLLAMAV2_STAMP) ## The GPU engine on the real library and the CPU; needs g++, compiles half a minute once
	$(call say,test-exllamav2)
	@command -v "$${CXX:-g++}" >/dev/null || { echo "the library's host code needs a C++ compiler: install g++ (apt-get install g++), or name one in CXX"; exit 1; }
	@$(PYTEST) tests/exllamav2 $(ARGS)

.PHONY: gpu-check
gpu-check: $(EXLLAMAV2_STAMP) ## The GPU engine on a CUDA machine, in under 5 minutes: kernels, caches, contract, speed (CPU: a dry run)
	@exec $(BIN)/python -m benchmarks.gpu_check $(ARGS)

.PHONY: browser
browser: $(STAMP) ## The web pages in Chromium; pictures of them in build/screenshots
	$(call say,browser)
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		echo "Chromium is missing: on Debian 'apt-get install chromium', on Ubuntu 'snap install chromium'"; exit 1; }
	@$(PYTEST) tests/browser $(ARGS)

.PHONY: test
test: $(STAMP) $(CALLERS)/.installed $(SDKS)/.installed $(LOAD)/.installed ## Every test that needs no extra toolchain (npm clients too, where Node.js is there)
	$(call say,test: unit + contract + integration + e2e + conformance)
	@$(PYTEST) tests/unit tests/contract tests/integration tests/e2e tests/conformance $(ARGS)

.PHONY: static
static: lint type arch check-generated breaking ## Every check that runs no product code

.PHONY: check
check: static test browser ## Exactly what CI runs

# ----------------------------------------------------------------------------- generated and docs

.PHONY: proto
proto: $(STAMP) ## Generate the Python beside the .proto files
	@$(BIN)/python -m protos.generate

.PHONY: check-generated
check-generated: $(STAMP) ## The generated Python and docs are fresh
	$(call say,check-generated)
	@$(BIN)/python -m protos.generate --check
	@$(BIN)/python -m docs.generate --check

.PHONY: breaking
breaking: $(STAMP) ## buf breaking: the contract against BASE (main); a note where there is no base
	$(call say,breaking)
	@base=$$( (git rev-parse --verify --quiet "$(BASE)^{commit}" || git rev-parse --verify --quiet "origin/$(BASE)^{commit}") 2>/dev/null || true); \
	if [ -z "$$base" ] || [ -z "$$(git ls-tree --name-only "$$base" protos/buf.yaml)" ]; then \
		echo "no protos at $(BASE) to compare with: nothing checked"; exit 0; \
	fi; \
	old=$$(mktemp -d); trap 'rm -rf "$$old"' EXIT; \
	git archive "$$base" protos | tar -x -C "$$old"; \
	$(BIN)/buf breaking protos --against "$$old/protos" && echo "the contract is compatible with $(BASE) ($${base:0:12})"

.PHONY: docs
docs: $(STAMP) ## Write docs/configuration.md and docs/errors.md from the code
	@$(BIN)/python -m docs.generate
