# Everything runs inside .venv, which `make setup` creates and keeps up to date.

PYTHON ?= python3
TORCH  ?= 2.13.0

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
SITE_STAMP := $(VENV)/.stamp-site
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-federation attack coverage lint format types docs reproduction-report site picture lock clean test-kill

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create or refresh .venv with the pinned development environment

# torch comes first and alone: with the other requirements in the same request,
# pip may pick a different build of it.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup: installing torch $(TORCH)"
	@$(PIP) install -q torch==$(TORCH) -c constraints.txt
	@echo "setup: installing undrift and its development tools"
	@$(PIP) install -q -e '.[dev]' -c constraints.txt
	@touch $(STAMP)
	@echo "setup: done"

demo: setup ## Run the default experiment
	$(BIN)/undrift run

test: setup ## Lint, type-check and test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile # tests of a file share runs

test-all: setup ## Test, with what takes long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --all

test-federation: setup ## Train on a SuperLink and three SuperNodes with TLS and node keys, on this machine
	PYTHONPATH=tests/support $(BIN)/python tests/federation/loopback.py

SEED ?= 0
attack: setup ## Attack with 28 000 random cases (25 minutes on two cores); SEED=1 makes other ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/attack --long --attack-seed $(SEED)

KILLS ?= 100
KINDS ?= driver,actor,serverapp,supernode,superlink
test-kill: setup ## Kill processes of runs at random moments and compare the ends; KILLS=10 are ten
	OMP_NUM_THREADS=1 PYTHONPATH=tests/support $(BIN)/python tests/kill/kill.py --kills $(KILLS) --kinds $(KINDS) --seed $(SEED)

coverage: setup ## Test, and show the files of which tests run less than 90 %
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=
	@$(BIN)/coverage report | awk 'NR <= 2 || /^TOTAL/ || $$NF + 0 < 90'

lint: setup ## Check style, formatting and which package imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

format: setup ## Fix what ruff can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Type-check the library, its tests and the scripts of the reproduction
	$(BIN)/mypy

reproduction-report: setup ## Write the pages of the papers' experiments from stored results
	$(BIN)/python docs/reproduction/report.py

docs: setup ## Write the pages of all algorithms and settings
	$(BIN)/python docs/pages.py

site: $(SITE_STAMP) ## Build the documentation as a site, in site/; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site: $(BIN)/python -m http.server -d site shows it"

$(SITE_STAMP): $(STAMP)
	@echo "setup: installing what builds the site"
	@$(PIP) install -q -e '.[docs]' -c constraints.txt
	@touch $(SITE_STAMP)

picture: setup ## Draw the pictures of the README, one of them from a fresh run of the example
	$(BIN)/undrift show drift --out docs/images/client-drift.svg
	@rm -rf runs/picture
	$(BIN)/undrift run --out runs/picture
	$(BIN)/python docs/picture.py runs/picture

lock: ## Rewrite constraints.txt from a fresh environment
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	echo "lock: resolving in a fresh environment"; \
	$(PYTHON) -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip --disable-pip-version-check install -q torch==$(TORCH); \
	echo "torch==$(TORCH)" > "$$tmp/torch.txt"; \
	"$$tmp/venv/bin/python" -m pip --disable-pip-version-check install -q -e '.[dev,docs]' -c "$$tmp/torch.txt"; \
	{ echo "# Exact versions of everything that \`pip install -e '.[dev,docs]'\` installs."; \
	  echo "# Regenerate with: make lock"; \
	  "$$tmp/venv/bin/python" -m pip --disable-pip-version-check list --format=freeze --exclude-editable \
	    | grep -v -i -E '^(pip|wheel|undrift)==' | sed -E 's/\+[A-Za-z0-9.]+$$//'; \
	} > "$$tmp/constraints.txt"; \
	mv "$$tmp/constraints.txt" constraints.txt; \
	echo "lock: wrote constraints.txt"

clean: ## Remove the environment, caches and build outputs
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
