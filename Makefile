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
# Official clients of the OpenAI and Anthropic APIs, which the conformance tests run as programs of their own.
SDKS := .venv-sdks
SDK_LOCKS := tests/conformance/llm/python/requirements.lock tests/conformance/llm/python/old-anthropic.lock
PYTEST := $(BIN)/python -m pytest
# More for pytest, e.g. make unit ARGS="-k stop -x"
ARGS ?=
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

.PHONY: setup-sdks
setup-sdks: $(SDKS)/.installed ## Create .venv-sdks with the official OpenAI and Anthropic clients

$(SDKS)/.installed: $(SDK_LOCKS)
	@echo "Setting up $(SDKS): $$(grep -c '^[a-z].*==' $(word 1,$(SDK_LOCKS))) packages, a minute the first time ..."
	@test -x $(SDKS)/bin/python || $(PYTHON) -m venv $(SDKS)
	@$(SDKS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(word 1,$(SDK_LOCKS))
	@$(SDKS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--upgrade --target $(SDKS)/old-anthropic -r $(word 2,$(SDK_LOCKS))
	@touch $@

.PHONY: lock
lock: ## Resolve requirements.lock anew from pyproject.toml (takes minutes; review the difference)
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --no-config \
		--all-extras --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --output-file requirements.lock pyproject.toml
	@touch requirements.lock

.PHONY: lock-sdks
lock-sdks: ## Resolve the lock of .venv-sdks anew
	@test -x $(BIN)/pip-compile || { echo "run 'make setup' first"; exit 1; }
	cd tests/conformance/llm/python && PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock-sdks" \
		../../../../$(BIN)/pip-compile --quiet --upgrade --no-config --strip-extras --allow-unsafe \
		--generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file requirements.lock requirements.in

.PHONY: clean
clean: ## Remove .venv, caches and builds; var/ (models, predictions, logs) stays
	rm -rf $(VENV) $(SDKS) build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------- running

.PHONY: run
run: $(STAMP) ## Run service and edge on a real model and stream a first prediction (PROMPT=, MODEL=, ONCE=1)
	@exec $(BIN)/python -m clients.first_run

.PHONY: run-service
run-service: $(STAMP) ## Run the gRPC service alone, in the foreground
	@exec $(BIN)/python -m service

.PHONY: run-edge
run-edge: $(STAMP) ## Run the HTTP edge alone, in the foreground
	@exec $(BIN)/python -m edge

.PHONY: bench
bench: $(STAMP) ## Measure the bridge and the engine on this machine
	@exec $(BIN)/python -m benchmarks $(ARGS)

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
conformance: $(STAMP) $(SDKS)/.installed ## Official clients of the three APIs, Python and npm, unchanged
	@$(PYTEST) tests/conformance $(ARGS)

.PHONY: conformance-sdks
conformance-sdks: $(STAMP) $(SDKS)/.installed ## Of these, the official OpenAI and Anthropic clients (Python and npm)
	@$(PYTEST) tests/conformance/llm $(ARGS)

.PHONY: test
test: $(STAMP) $(SDKS)/.installed ## Every test that needs no extra toolchain (npm clients too, where Node.js is there)
	$(call say,test: unit + contract + integration + e2e + conformance)
	@$(PYTEST) tests/unit tests/contract tests/integration tests/e2e tests/conformance $(ARGS)

.PHONY: static
static: lint type arch check-generated breaking ## Every check that runs no product code

.PHONY: check
check: static test ## Exactly what CI runs

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
