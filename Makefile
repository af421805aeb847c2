# popgeo: `make demo` trains SchNet on real molecules, `make test` passes the tests; both set up what they need, once, the demo no more than that.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
RUN := $(VENV)/bin/python
RUNS := $(VENV)/.installed-to-run
DONE := $(VENV)/.installed
SOURCES := requirements-run.txt pyproject.toml setup.py $(wildcard popgeo/native/csrc/*)
# What tests depend on without running it as Python: if such a file changes, `test-changed` runs every test.
DATA := $(sort $(shell find popgeo -type f ! -name '*.py' ! -name '*.pyc' ! -name '*.so' ! -name '.*'))
# Tests that read the source files instead of running them, so that no record shows what they depend on.
READERS := tests/contracts/test_imports.py tests/contracts/test_budget.py
PYTEST = $(RUN) -m pytest -q
WORKERS := -n 2 --dist worksteal
PIP = $(RUN) -m pip install --disable-pip-version-check $(PIP_FLAGS)

# Tests that are compiled once stay so: without it each worker rewrites every file of tests in every run.
test test-changed check: export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-changed check format bench coverage docs release fuzz fuzz-aarch64 sanitize threads clean

help: ## list what can be made
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '%-20s %s\n' "$$target" "$$text"; done

demo: $(RUNS) ## train SchNet on the bundled molecules and show how it went
	$(RUN) -m popgeo

test: $(DONE) ## run every test
	@echo "popgeo: running the tests (5 to 15 minutes on 2 cores)"
	$(PYTEST) $(WORKERS)

test-changed: $(DONE) ## run the tests that run changed code; the first time every test, to record which code each one runs
	@$(PYTEST) --noconftest $(READERS); readers=$$?; \
	  $(PYTEST) $(WORKERS) --testmon --testmon-env="$$(cat $(DATA) | cksum)" && exit $$readers

check: $(DONE) ## formatting, lint, types, tests
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(PYTEST) $(WORKERS)

format: $(DONE) ## rewrite the source in the project's format
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: $(DONE) ## print every figure that the documents claim, as ratios against peers
	@for script in benchmarks/[a-z]*.py; do \
	  grep -q '__main__' $$script || continue; echo "popgeo: $$script"; $(RUN) $$script || exit 1; done

coverage: $(DONE) ## run every test in one process, and write which lines and branches they reach to build/coverage.md
	@mkdir -p build
	$(RUN) -m coverage run --branch --source popgeo --data-file build/.coverage -m pytest -q
	$(RUN) -m coverage report --data-file build/.coverage --format markdown --skip-covered --sort cover > build/coverage.md
	@grep TOTAL build/coverage.md

docs: $(DONE) ## build the documentation in build/docs; a warning is an error
	@echo "popgeo: building the documentation: guides, notebooks as they were run, reference (2 to 5 minutes on 2 cores)"
	$(RUN) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "popgeo: open build/docs/index.html"

release: $(DONE) ## build the wheel and the sdist of the last commit in dist/, twice, and try them; nothing is uploaded
	$(RUN) scripts/release.py

fuzz: $(DONE) ## random calls of the compiled kernels under AddressSanitizer, for a minute
	$(RUN) tests/native/fuzz.py --seconds 60

sanitize: $(DONE) ## the tests of ops, data, loader, sampling and packing under the address and undefined-behaviour sanitizers
	$(RUN) tests/native/sanitize.py

threads: $(DONE) ## the kernels called from several threads at once under the thread sanitizer; with Clang their own threads too
	$(RUN) -m tests.native.check_threads

fuzz-aarch64: $(DONE) ## random calls of the compiled kernels on an emulated ARM processor: the same bits as here
	$(RUN) -m tests.native.fuzz_aarch64

$(RUNS): $(SOURCES)
	@echo "popgeo: setting up $(VENV), once: torch, PyG and what they need are downloaded, then the kernels are compiled (a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "popgeo needs Python 3.10 or later; $(PYTHON) is $$($(PYTHON) --version). Run make PYTHON=/path/to/python3.10"; exit 1; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "popgeo: installing the pinned packages of requirements-run.txt"
	@$(PIP) -r requirements-run.txt
	@echo "popgeo: compiling the kernels and installing popgeo itself"
	@$(PIP) --quiet --no-build-isolation --no-deps --editable .
	@$(RUN) -c 'from popgeo.native import library; print("popgeo: compiled kernels in use" if library.is_available() else "popgeo: pure-torch fallbacks in use. " + library.reason())'
	@touch $@

$(DONE): $(RUNS) requirements.txt
	@echo "popgeo: adding what the tests, the linter and the documentation need (requirements.txt)"
	@$(PIP) -r requirements.txt
	@touch $@

clean: ## remove what the targets above made
	rm -rf $(VENV) build dist docs/notebooks docs/api/*/ *.egg-info popgeo/native/*.so popgeo-run
