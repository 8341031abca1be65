# Every target works from a fresh clone: it makes the environment that it needs first.
#
#   make demo        notebooks of several users train at once on one shared device
#   make test        the everyday tests          make test-slow   the slow ones
#   make test-plain  what the accelerator does, without it; ARGS=tests/parity adds those
#   make test-long   the longest, by hand         make test-anywhere   the everyday ones, everywhere
#   make test-versions   beside each torch        make test-cuda-build   beside the newest CUDA build
#   make test-gpu    on the first day with a GPU; PYTHON names an interpreter that has everything
#   make lab         JupyterLab, ready to use    make lint        style, types and the documentation
#   make env         the environment alone       make coverage    the floor for the pure parts
#   make docs        the documentation as a site, in docs/_build/html
#
# Variables: PYTHON (makes the environment), VENV (where), ARGS (passed on to the command), PROCESSES
# (that run tests side by side, each whole files; 0: one after the other). pip's own settings
# (PIP_INDEX_URL, PIP_FIND_LINKS, ...) say where packages come from.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PROCESSES ?= logical

BIN := $(abspath $(VENV))/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q
NODE := $(addsuffix /node_modules/.package-lock.json,tests/hub tests/lab)
ACCELERATOR := $(wildcard jgpu/accelerator/source/*)
SIDE_BY_SIDE := --numprocesses $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: env test test-plain test-slow test-long test-anywhere test-versions test-cuda-build test-gpu coverage lint docs demo lab clean

env: $(STAMP)

# Where the accelerator cannot be built, that is said in a line, and everything works without it.
$(STAMP): pyproject.toml constraints.txt labextension/built/package.json $(ACCELERATOR)
	@$(PYTHON) -c 'import sys; sys.exit("jgpu needs Python 3.11 or newer; name one: make env PYTHON=...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || { echo "Making the environment in $(VENV) (about a minute)."; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[broker,docs,hub,notebooks,test]'
	@$(BIN)/jgpu accelerate || true
	@$(BIN)/jgpu kernelspec install --sys-prefix > /dev/null
	@touch $@

test: $(STAMP)
	$(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not long" $(ARGS)

# As on a host without a C++ compiler: every op is recorded and done by Python.
test-plain: $(STAMP)
	JGPU_ACCELERATOR=0 $(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not long" \
		tests/device/test_on_device.py tests/broker/programs tests/broker/executor/test_shortway.py $(ARGS)

test-slow: $(STAMP) $(NODE)
	$(PYTEST) $(SIDE_BY_SIDE) -m "slow and not long" $(ARGS)

# JupyterHub's proxy and a page's rules. Without npm, the tests that need them are skipped, and say so.
$(NODE): %/node_modules/.package-lock.json: %/package-lock.json
	@if command -v npm > /dev/null; then npm ci --prefix $* --silent --no-fund --no-audit && touch $@; fi

# What takes hours: whole databases, full-length fuzzers, soaks. By hand, before a change to its
# subject is called done; what it measures goes to bench/results.
test-long: $(STAMP) $(NODE)
	$(PYTEST) -m long $(ARGS)
	$(if $(ARGS),,$(MAKE) test-versions test-cuda-build)

# The suites that lean on torch's private parts, beside each release that jgpu is said to fit: half an
# hour and 7 GB each, one after the other. ARGS="2.14 2.15" names releases.
test-versions: $(STAMP)
	$(BIN)/python tests/versions.py $(ARGS) --suites device parity programs

# Beside the newest CUDA build (5 GB to fetch), as every kernel of a GPU host has one, no GPU in sight:
# the device's tests, the parity suite, and the lessons from real kernels, beside a broker on the CPU
# and beside one whose CUDA is computed on the host: an hour and a half on two cores.
test-cuda-build: $(STAMP)
	$(BIN)/python tests/versions.py newest --suites device parity lessons "on a CUDA without a GPU" $(ARGS)

# What a person runs on the day they first have a GPU: eight minutes at most, JSON lines, a file in
# bench/results. With a PYTHON that has torch and the broker's packages nothing is installed or
# fetched: jgpu is taken from here. ARGS="--only indices asserted" names cases.
ifeq ($(origin PYTHON),file)
test-gpu: $(STAMP)
	$(BIN)/python -m jgpu.gpucheck $(ARGS)
else
test-gpu:
	$(PYTHON) -m jgpu.gpucheck $(ARGS)
endif

# The everyday tests on a loaded machine, beside a private broker, in the background, and as another
# user: what a person's or a CI's machine may be like. By hand, some hours.
test-anywhere: $(STAMP)
	$(BIN)/python tests/anywhere.py $(ARGS)

coverage: $(STAMP)
	$(PYTEST) $(SIDE_BY_SIDE) tests/sched tests/wire -m "not slow and not long" --cov=jgpu.sched --cov=jgpu.wire --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered $(ARGS)

lint: $(STAMP) docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors. Nothing is fetched, neither now nor by whoever reads the pages.
docs: $(STAMP)
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html

demo: $(STAMP)
	@$(BIN)/jgpu demo $(ARGS)

# Every kernel of this JupyterLab shares the device, the ordinary "Python 3" as well, which is the one
# that the lessons name. The first of them starts the user's broker, which ends when it is unused.
# (Jupyter refuses to run as root, in a container mostly, unless told.)
lab: $(STAMP)
	@PATH="$(BIN):$$PATH" JUPYTER_DEFAULT_PROVISIONER_NAME=jgpu-provisioner $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) notebooks

clean:
	rm -rf $(VENV) docs/_build docs/_made jgpu/accelerator/built .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage
