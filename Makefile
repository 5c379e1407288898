# From a checkout to results: makes its own environment, builds, runs. `make help` lists the targets.

PYTHON := python3
TORCH :=
CUDA := AUTO
ARCHS :=
WERROR := OFF
CMAKE_FLAGS :=
BENCH := --output out/bench

# One environment and one build folder a torch version: the compiled code fits no other.
VENV := .venv$(TORCH:%=-%)
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready
BUILD = build/$(shell cat $(READY)-torch)
SITE = $(shell "$(BIN)/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
RUN := PATH="$(BIN):$$PATH"
PIP := $(VENV)/bin/python -m pip

# Starts over where the folder was configured by another environment or in another place.
FRESH = $(shell grep -qs 'Python_EXECUTABLE:.*=$(BIN)/python$$' $(BUILD)/CMakeCache.txt || echo --fresh)
define configure
$(RUN) cmake $(FRESH) -S . -B $(BUILD) -G Ninja \
  -DPython_EXECUTABLE="$(BIN)/python" -DTORCHAMP_PYTHON=ON \
  -DTORCHAMP_TESTS=ON -DTORCHAMP_EXAMPLES=ON -DTORCHAMP_CUDA=$(CUDA) -DTORCHAMP_WERROR=$(WERROR) \
  $(if $(ARCHS),-DCMAKE_CUDA_ARCHITECTURES="$(ARCHS)",-UCMAKE_CUDA_ARCHITECTURES) \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON $(CMAKE_FLAGS)
endef
define install
$(RUN) cmake --install $(BUILD) --prefix "$(SITE)" --component python
$(RUN) cmake --install $(BUILD) --prefix "$(SITE)" --component python_sources
endef

.PHONY: help demo test build bench callers lint sanitize packaging cubins clean distclean
.DELETE_ON_ERROR:

help:
	@echo 'make demo       train both examples in C++ and in Python, print a table, draw a plot'
	@echo 'make test       build everything, run the C++ and the Python tests'
	@echo 'make bench      measure torchamp beside PyTorch, print a table'
	@echo 'make build      build everything, install the Python package into the environment'
	@echo 'make callers    the loops of Lightning and Accelerate, on torchamp as on PyTorch'
	@echo 'make lint       formatting and static analysis'
	@echo 'make sanitize   the C++ tests under AddressSanitizer and UBSan'
	@echo 'make packaging  install in every supported way, and use it from there'
	@echo 'make cubins     check the machine code of the CUDA kernels (needs a CUDA build)'
	@echo 'make clean      remove what was built; make distclean: also environments and data'
	@echo
	@echo 'PYTHON=python3  the interpreter that the environment is made from'
	@echo 'TORCH=2.11.0    a torch version, in an environment of its own (default: the newest, in .venv)'
	@echo 'CUDA=AUTO       build the CUDA kernels: AUTO (if there is a toolkit), ON or OFF'
	@echo 'ARCHS=90        CUDA architectures, CMake syntax (default: all that are supported)'
	@echo 'WERROR=ON       treat compiler warnings as errors'
	@echo 'CMAKE_FLAGS=    more arguments for cmake'
	@echo 'BENCH=--quick   arguments of python -m torchamp bench'

demo: $(READY)-torch $(READY)-build $(READY)-demo
	$(configure)
	$(RUN) cmake --build $(BUILD) --target src/all python/all examples/all
	$(install)
	$(RUN) python examples/demo.py --build-dir $(BUILD)

test: build $(READY)-test
	$(RUN) python scripts/run_tests.py $(BUILD)

build: $(READY)-torch $(READY)-build
	$(configure)
	$(RUN) cmake --build $(BUILD)
	$(install)

# The limit that the C++ rows are measured against is compiled for this very processor.
bench: $(READY)-torch $(READY)-build $(READY)-demo
	scripts/system_packages.sh $(PYTHON) benchmark
	$(configure) -DTORCHAMP_BENCHMARKS=ON
	$(RUN) cmake --build $(BUILD) --target src/all python/all benchmarks/all
	$(install)
	$(RUN) python -m torchamp bench --cpp $(BUILD)/benchmarks/torchamp_benchmarks \
	  --targets benchmarks/targets.json $(BENCH)

callers: build $(READY)-test $(READY)-callers
	$(RUN) pytest -rs tests/python/test_callers.py

lint: $(READY)-torch $(READY)-build $(READY)-lint
	$(configure)
	$(RUN) scripts/lint.sh $(BUILD)

sanitize: $(READY)-torch $(READY)-build
	$(RUN) cmake -S . -B $(BUILD)-sanitize -G Ninja -DPython_EXECUTABLE="$(BIN)/python" \
	  -DTORCHAMP_SANITIZE=ON -DTORCHAMP_CUDA=OFF -DTORCHAMP_EXAMPLES=OFF \
	  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1
	$(RUN) cmake --build $(BUILD)-sanitize --target src/all tests/cpp/all
	$(RUN) python scripts/run_tests.py --label cpp $(BUILD)-sanitize

packaging: build
	$(RUN) scripts/check_packaging.sh $(BUILD)

cubins: build
	$(RUN) python scripts/check_cubins.py $(BUILD)/src/libtorchamp.so

clean:
	rm -rf build out dist python/*.egg-info

distclean: clean
	rm -rf .venv .venv-* data

# --- the environment -------------------------------------------------------------------------------
$(READY)-python: scripts/system_packages.sh
	scripts/system_packages.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	touch $@

# Holds the version, without the +cu130 that some sources of torch add.
$(READY)-torch: $(READY)-python
	$(PIP) install torch$(TORCH:%===%)
	$(RUN) python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' > $@

$(READY)-%: pyproject.toml $(READY)-python
	$(PIP) install --quiet --group $*
	touch $@
