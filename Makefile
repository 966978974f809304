# Why it exists: the two commands a newcomer types (`make demo`, `make test`), and the only rules that compile the C
# parts (setup.py calls `make native` for `pip install .`). Everything is incremental: a second `make build` does
# nothing.
#
#   PYTHON  the Python (3.11 or later) that .venv is made from
#   TORCH   the torch that .venv gets: the first one in versions.toml, such as torch==2.15.0; another one needs a VENV of
#           its own: make smoke TORCH=torch==2.9.1 VENV=.venv-2.9
#   CC/CXX  the compilers; without a C++ compiler the values library is left out, with a notice
#   WERROR=1  a compiler's warning is an error: for our own builds only, because a newer compiler may warn of more
#   V=1     prints every command in full

PYTHON ?= python3
TORCH ?= torch==$(shell sed -n 's/^\[torch\."\(.*\)"\]$$/\1/p' phantora_ns/data/versions.toml | head -n 1)
VENV ?= .venv
LIB ?= phantora_ns/lib
OBJ ?= build/obj
# for whose torch `make values` compiles the values library; those for other versions stay
TORCH_PYTHON ?= $(abspath $(VENV))/bin/python
CXX ?= c++
# where ruff, mypy and clang-format are, in the versions of the extra `lint` (pyproject.toml)
LINTERS ?= $(VENV)/bin

CFLAGS ?= -O2 -g
CXXFLAGS ?= -O2
WERROR ?=
WARN = -Wall -Wextra $(if $(WERROR),-Werror)
C_WARN = $(WARN) -Wmissing-prototypes -Wstrict-prototypes
SANITIZE =

V ?=
Q := $(if $(filter 1,$(V)),,@)
# of short lines only those that take minutes
BRIEF ?=
say = $(if $(Q),@$(if $(BRIEF),$(if $(filter CC LINK,$1),:,printf),printf) '  %-7s %s\n' '$1' '$2')

# Two libraries share the core: one answers for a GPU that is not there, the other is the leader's.
CORE_SOURCES := $(foreach layer,base warm link time work cudagraph nccl trace,$(wildcard libintercept/$(layer)/*.c))
INTERCEPT_SOURCES := $(CORE_SOURCES) $(wildcard libintercept/simulated/*.c libintercept/simulated/*/*.c)
LEADER_SOURCES := $(CORE_SOURCES) $(wildcard libintercept/leader/*.c libintercept/leader/*/*.c)
LAUNCHER_SOURCES := $(wildcard launcher/*.c)
FLOWS_SOURCES := $(wildcard libflows/*.c)
INTERCEPT_OBJECTS := $(INTERCEPT_SOURCES:%.c=$(OBJ)/%.o)
LEADER_OBJECTS := $(LEADER_SOURCES:%.c=$(OBJ)/%.o)
LAUNCHER_OBJECTS := $(LAUNCHER_SOURCES:%.c=$(OBJ)/%.o)
FLOWS_OBJECTS := $(FLOWS_SOURCES:%.c=$(OBJ)/%.o)
C_FILES := '*.c' '*.h' '*.cpp'

.PHONY: build demo frameworks transformer-engine smoke versions truth test test-all bench bench-micro accuracy accuracy-nightly conformance nightly sanitize sanitize-all \
	docs lint lint-python lint-c format clean wheel native native-alone native-c native-c-alone venv values values-alone
.DELETE_ON_ERROR:

build: venv
	@$(MAKE) --no-print-directory native

# What only tests need. Every target that runs pytest calls this in its recipe: among its prerequisites, make -j could
# run two pips in one environment.
PYTEST_TOO = $(MAKE) --no-print-directory $(VENV)/.stamp-tests

DEMO = torchrun --nnodes 2 --nproc-per-node 4 examples/train_llama.py --mode fsdp
demo:
	@$(MAKE) --no-print-directory build BRIEF=1
	@echo 'A 1B Llama on 2 emulated servers with 4 H200 each; on two CPU cores it takes a few minutes:'
	@echo '  phantora-ns --html build/demo.html $(DEMO)'
	@$(VENV)/bin/phantora-ns --html build/demo.html $(DEMO)
	@echo 'What next:'
	@echo '  open build/demo.html in a browser: where the step goes, a timeline, and why it is not faster'
	@echo '  the same on other GPUs: $(VENV)/bin/phantora-ns --set gpu=b200 $(DEMO)'
	@echo '  your own script: docs/tutorial.md; all options: $(VENV)/bin/phantora-ns --help-all'

# TorchTitan, Megatron-Core, DeepSpeed, Hugging Face: released versions, pinned by the torch that .venv has
# FRAMEWORK: one of them alone, such as FRAMEWORK=torchtitan
FRAMEWORK ?=
frameworks: $(VENV)/.stamp-frameworks$(FRAMEWORK:%=-%)
	@$(MAKE) --no-print-directory native
	$(if $(filter frameworks,$(MAKECMDGOALS)),@echo 'What next: source $(VENV)/bin/activate; docs/frameworks.md has a command for each framework')

# Transformer Engine: Megatron-Core needs it for most of its features. NVIDIA publishes its PyTorch part as source only,
# so this compiles it against the headers of torch's own CUDA, from wheels. That takes 15 minutes of CPU time, and 1.7 to
# 2.4 GB of memory per job (MAX_JOBS=2). pip keeps the wheel and installs it into the next environment in seconds, whatever
# torch that has; for another TORCH run `pip cache remove transformer_engine_torch` first. Most of the time goes into
# reading torch's headers: without optimisation a file takes 25 s instead of 30.
transformer-engine: $(VENV)/.stamp-transformer-engine

# Whether TORCH works at all, in five minutes on two cores; `make test-all` holds these tests too
smoke: build
	@+$(PYTEST_TOO)
	$(VENV)/bin/python -m pytest -m smoke tests/smoke

# Runs the demo and the smoke tests under every supported torch, and writes the table of docs/versions.md.
# VERSIONS: options of tools/versions.py, for example VERSIONS='--python python3.13 2.15.0'
versions:
	$(PYTHON) tools/versions.py $(VERSIONS)

# What was measured under torch 2.11.0, such as peak memory: other releases skip it
truth: build
	@+$(PYTEST_TOO)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'truth and not nightly' \
		tests/truth tests/accuracy tests/intercept tests/fit

# WORKERS: tests at once. Many of them wait, and most jobs that they start keep one core busy
WORKERS = 2
test: build frameworks
	@+$(PYTEST_TOO)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal

test-all: build frameworks
	@+$(PYTEST_TOO)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m ""

BENCHES = flows.run overhead.run values.run
bench: build
	@for name in $(BENCHES); do echo "== bench.$$name"; $(VENV)/bin/python -m bench.$$name || exit 1; done

# MICRO: options of pytest and pytest-benchmark (bench/micro/README.md)
bench-micro: build
	@+$(PYTEST_TOO)
	$(VENV)/bin/python -m pytest bench/micro --benchmark-columns min,median,rounds $(MICRO)

# Compares simulated with measured runs, our own scripts and the frameworks; needs no GPU. Goes on where it was stopped.
# ACCURACY: options of bench.accuracy.compare, for example ACCURACY='--gpus 1,2 --host-time none'
accuracy: build
	$(VENV)/bin/python -m bench.accuracy.compare --steps 10 --no-traces --docs $(ACCURACY)

# The same without touching docs/: bench/accuracy/results/DATE.json, and what moved since the last one and why
accuracy-nightly: build
	$(VENV)/bin/python -m bench.accuracy.compare --steps 10 --no-traces --nightly $(ACCURACY)

# PyTorch's own DistributedTest on two emulated GPUs: 20 minutes. CONFORMANCE: patterns of tests' names, and options.
# Its tests were written for PyTorch's first NCCL backend.
conformance: build
	@+$(PYTEST_TOO)
	TORCH_DIST_USE_NCCL2=0 $(VENV)/bin/python -m bench.conformance.run $(CONFORMANCE)

# What takes a night: every test, other releases of torch, sanitizers, the conformance tests, the accuracy table
nightly: build frameworks
	$(MAKE) test-all
	$(MAKE) versions
	$(MAKE) sanitize-all
	$(MAKE) conformance
	$(MAKE) accuracy-nightly

# What CI checks before the tests. It changes nothing; `make format` does.
lint: lint-python lint-c

lint-python: $(VENV)/.stamp-lint
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo 'a merge is not finished' >&2; exit 1; }
	$(LINTERS)/ruff check .
	$(LINTERS)/ruff format --check .
	$(LINTERS)/mypy

# Formatting, and the C parts compiled with every warning an error.
lint-c: $(VENV)/.stamp-lint
	git ls-files $(C_FILES) | xargs $(LINTERS)/clang-format --dry-run --Werror
	$(Q)$(MAKE) --no-print-directory native-c LIB=build/lint/lib OBJ=build/lint/obj WERROR=1

format: $(VENV)/.stamp-lint
	$(LINTERS)/ruff check --fix-only --quiet .
	$(LINTERS)/ruff format --quiet .
	git ls-files $(C_FILES) | xargs $(LINTERS)/clang-format -i

clean:
	rm -rf build dist $(LIB) *.egg-info

# ---- the documents ----------------------------------------------------------------------------------------------------
# The site of the documents, in build/docs: docs/conf.py says how. It needs neither torch nor a compiler. A warning, such
# as a link that leads nowhere, is an error.
DOCS_TOOLS ?= build/docs-tools
DOCS ?= build/docs

docs: $(DOCS_TOOLS)/.stamp
	$(call say,DOCS,$(DOCS)/index.html)
	@rm -rf $(DOCS)
	$(Q)$(DOCS_TOOLS)/bin/python -m sphinx -q -E -W --keep-going -d build/docs-read -c docs . $(DOCS)

$(DOCS_TOOLS)/.stamp: pyproject.toml
	$(call say,PIP,what makes the site of the documents; 230 MB of disk)
	$(Q)test -x $(DOCS_TOOLS)/bin/pip || $(PYTHON) -m venv --clear $(DOCS_TOOLS)
	$(Q)PHANTORA_SKIP_NATIVE=1 $(DOCS_TOOLS)/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# ---- the wheel --------------------------------------------------------------------------------------------------------
# One file for every Python and every supported torch, and the sdist, in dist/. The C parts are compiled for the glibc
# that torch's own wheels need, whatever this machine has: zig's C compiler (clang) brings the symbol lists of every
# glibc. `build` makes the wheel from the sdist, so nothing can be in the wheel that is not in the sdist. auditwheel
# checks the result and gives it its tag.
WHEEL_GLIBC = 2.28
WHEEL_TOOLS ?= build/wheel-tools
WHEEL_CC = python -m ziglang cc -target x86_64-linux-gnu.$(WHEEL_GLIBC)
WHEEL_LOG = $(if $(Q),>>build/wheel/log 2>&1 || { cat build/wheel/log >&2; exit 1; })
WHEEL_FILES = $(shell find phantora_ns topologies protocol libintercept libflows launcher -type f \
	! -path 'phantora_ns/lib/*' ! -name '*.pyc') $(wildcard *.md) Makefile MANIFEST.in LICENSE setup.py pyproject.toml

wheel: build/wheel/.stamp

ifneq ($(filter wheel,$(MAKECMDGOALS)),)
build/wheel/.stamp: $(WHEEL_FILES) $(WHEEL_TOOLS)/.stamp
	@rm -rf build/wheel dist/phantora_ns-* && mkdir -p build/wheel dist
	$(call say,WHEEL,for glibc $(WHEEL_GLIBC))
	$(Q)PATH='$(abspath $(WHEEL_TOOLS))/bin':"$$PATH" CC='$(WHEEL_CC)' CFLAGS=-O2 LDFLAGS='-s -Wl,-z,defs' \
		ZIG_LOCAL_CACHE_DIR='$(abspath build/zig)' ZIG_GLOBAL_CACHE_DIR='$(abspath build/zig)' \
		python -m build --no-isolation --outdir build/wheel $(WHEEL_LOG)
	$(Q)PATH='$(abspath $(WHEEL_TOOLS))/bin':"$$PATH" auditwheel repair --only-plat \
		--plat manylinux_$(subst .,_,$(WHEEL_GLIBC))_x86_64 --wheel-dir dist build/wheel/*.whl $(WHEEL_LOG)
	@mv build/wheel/*.tar.gz dist
	@du -h dist/phantora_ns-*
	@touch $@
endif

$(WHEEL_TOOLS)/.stamp: pyproject.toml
	$(call say,PIP,what makes wheels; 400 MB of disk)
	$(Q)test -x $(WHEEL_TOOLS)/bin/pip || $(PYTHON) -m venv --clear $(WHEEL_TOOLS)
	$(Q)$(WHEEL_TOOLS)/bin/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["wheel"], sep="\n")' \
		>$(WHEEL_TOOLS)/requirements.txt
	$(Q)$(WHEEL_TOOLS)/bin/python -m pip install --quiet -r $(WHEEL_TOOLS)/requirements.txt
	@touch $@

# ---- the virtual environment ------------------------------------------------------------------------------------------
# pip compiles nothing here: the project is installed without build isolation (so setuptools comes first) and the C
# parts are compiled by `native`, once torch is there to compile the values library against.
venv: $(VENV)/.stamp-project

$(VENV)/.stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "phantora-ns needs Python 3.11 or later; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.11" \
			>&2; exit 1; }
	$(call say,VENV,$(VENV))
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-torch: | $(VENV)/.stamp-python
	$(call say,PIP,$(TORCH) and the CUDA libraries it brings: 4.5 GB of disk; a few minutes without a word)
	$(Q)$(VENV)/bin/python -m pip install --quiet '$(TORCH)'
	@touch $@

$(VENV)/.stamp-project: pyproject.toml setup.py | $(VENV)/.stamp-torch
	$(call say,PIP,phantora-ns)
	$(Q)$(VENV)/bin/python -m pip install --quiet 'setuptools>=64' wheel
	$(Q)PHANTORA_SKIP_NATIVE=1 $(VENV)/bin/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

$(VENV)/.stamp-tests: pyproject.toml tests/traces/hta-requirements.txt | $(VENV)/.stamp-project
	$(call say,PIP,what the tests need: half a minute)
	$(Q)PHANTORA_SKIP_NATIVE=1 $(VENV)/bin/python -m pip install --quiet --no-build-isolation --editable '.[test]'
	$(Q)$(VENV)/bin/python -m pip install --quiet --no-deps -r tests/traces/hta-requirements.txt
	@touch $@

$(VENV)/.stamp-lint: pyproject.toml | $(VENV)/.stamp-project
	$(call say,PIP,ruff mypy clang-format)
	$(Q)PHANTORA_SKIP_NATIVE=1 $(VENV)/bin/python -m pip install --quiet --no-build-isolation --editable '.[lint]'
	@touch $@

PINS = $(addprefix examples/frameworks/,pins.py requirements.txt torch-2.11.txt torch-2.15.txt)
$(VENV)/.stamp-frameworks-$(FRAMEWORK): $(PINS) | $(VENV)/.stamp-project
	$(call say,PIP,$(FRAMEWORK))
	$(Q)pins=$$($(VENV)/bin/python $< $(FRAMEWORK)) && \
		DS_BUILD_OPS=0 $(VENV)/bin/python -m pip install --quiet --no-build-isolation $$pins
	@touch $@

$(VENV)/.stamp-frameworks: $(PINS) | $(VENV)/.stamp-project
	$(call say,PIP,the frameworks that examples/frameworks/$(<F) chooses: a few minutes)
	$(Q)pins=$$($(VENV)/bin/python $<) && \
		DS_BUILD_OPS=0 $(VENV)/bin/python -m pip install --quiet --no-build-isolation $$pins
	@touch $@

$(VENV)/.stamp-transformer-engine: examples/frameworks/megatron/transformer-engine.txt | $(VENV)/.stamp-frameworks
	@$(VENV)/bin/python -c 'import importlib.metadata; importlib.metadata.version("cuda-toolkit")' 2>/dev/null || \
		{ echo "Transformer Engine is compiled here beside a torch with CUDA 13 (2.11 and later); the torch in $(VENV) has none" \
			>&2; exit 1; }
	$(call say,PIP,$<: it is compiled here)
	$(Q)$(VENV)/bin/python -m pip install --quiet -r examples/frameworks/megatron/transformer-engine-build.txt
	$(Q)wheels=$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia && \
		CUDA_HOME=$$wheels/cu13 CPATH=$$wheels/cudnn/include:$$wheels/nccl/include:$$wheels/cu13/include/cccl \
		$(VENV)/bin/python -m pip install --quiet --no-build-isolation -r examples/frameworks/megatron/transformer-engine.txt
	@touch $@

# ---- the C parts ------------------------------------------------------------------------------------------------------
# The shell holds a lock while it waits for the second make, so that two builds never write the same objects at once.
native native-c values:
	@mkdir -p $(OBJ)
	@if command -v flock >/dev/null; then exec 9>$(OBJ)/lock; \
		flock -n 9 || { echo 'phantora-ns: waiting for another build in $(OBJ)' >&2; flock 9; }; fi; \
	$(MAKE) --no-print-directory $@-alone 9>&- || exit

native-alone: native-c-alone values-alone
	@:

native-c-alone: $(addprefix $(LIB)/,libphantora.so libphantora-leader.so phantora-sandbox libphantora-flows.so libphantora-score.so)
	@:

# Libraries are written under another name and then moved, so that a job that starts meanwhile finds a whole one.
# SONAME libcuda.so.1: a process that opens the driver by that name must find this library already loaded.
$(LIB)/libphantora.so: $(INTERCEPT_OBJECTS) libintercept/simulated/exports.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -pthread $(SANITIZE) $(LDFLAGS) -Wl,-soname,libcuda.so.1 \
		-Wl,--version-script=libintercept/simulated/exports.map $(if $(SANITIZE),,-Wl,-z,defs) -o $@.new \
		$(INTERCEPT_OBJECTS) -ldl
	@mv $@.new $@

$(LIB)/libphantora-leader.so: $(LEADER_OBJECTS) libintercept/leader/exports.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -pthread $(SANITIZE) $(LDFLAGS) -Wl,-soname,libphantora-leader.so \
		-Wl,--version-script=libintercept/leader/exports.map $(if $(SANITIZE),,-Wl,-z,defs) -o $@.new $(LEADER_OBJECTS) -ldl -lm
	@mv $@.new $@

$(OBJ)/libintercept/%.o: libintercept/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -std=gnu11 -iquote libintercept $(CFLAGS) $(C_WARN) -fPIC -fvisibility=hidden -pthread $(SANITIZE) \
		-MMD -MP -c -o $@ $<

# A sanitizer that starts looks functions up, through here and before its own checks can work.
$(OBJ)/libintercept/base/lookup.o: override SANITIZE =

$(LIB)/phantora-sandbox: $(LAUNCHER_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SANITIZE) $(LDFLAGS) -o $@.new $(LAUNCHER_OBJECTS)
	@mv $@.new $@

$(OBJ)/launcher/%.o: launcher/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(C_WARN) $(SANITIZE) -MMD -MP -c -o $@ $<

$(LIB)/libphantora-flows.so: $(FLOWS_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(SANITIZE) $(LDFLAGS) -o $@.new $(FLOWS_OBJECTS) -lm
	@mv $@.new $@

# The CPU workload alone, as it is in libphantora.so, to be measured where nothing else of ours is.
$(LIB)/libphantora-score.so: $(OBJ)/libintercept/time/cpu_score.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(SANITIZE) $(LDFLAGS) -Wl,-s -o $@.new $<
	@mv $@.new $@

# No contraction: the compiled and the Python engine must round equally.
$(OBJ)/libflows/%.o: libflows/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -std=c11 $(CFLAGS) $(C_WARN) -ffp-contract=off -fPIC -fvisibility=hidden $(SANITIZE) -MMD -MP -c -o $@ $<

# Only the values library needs a C++ compiler and torch's headers, so their absence is a notice. If both are there, a
# compilation error is an error. The recipe is in Python because installed packages compile the library too, without
# make. It does nothing when the library is newer than all that it is made of.
VALUES_RECIPE = phantora_ns/launch/machine/values_recipe.py
values-alone:
	@mkdir -p $(LIB)
	@if command -v $(TORCH_PYTHON) >/dev/null; then \
		$(TORCH_PYTHON) $(VALUES_RECIPE) --into $(LIB) --work $(OBJ) --cxx '$(CXX)' --flags '$(CXXFLAGS) $(WARN) $(SANITIZE)' \
			--link-flags '$(SANITIZE) $(LDFLAGS)' --shown $(if $(Q),1,2); \
	else echo 'phantora-ns: the values library is left out (no torch in the environment of $(TORCH_PYTHON)).' >&2; fi

OBJECTS := $(INTERCEPT_OBJECTS) $(LEADER_OBJECTS) $(LAUNCHER_OBJECTS) $(FLOWS_OBJECTS)
-include $(OBJECTS:.o=.d)

# ---- sanitizers -------------------------------------------------------------------------------------------------------
# The tests of the interceptor and of the leader's library that need no PyTorch, against C parts built with
# AddressSanitizer and UndefinedBehaviorSanitizer. Tests that measure time are left out.
SANITIZED = tests/intercept $(addprefix tests/leader/test_,calls.py gpu_load.py map_and_random.py measure.py samples.py)
SANITIZERS = -fsanitize=address,undefined -fno-omit-frame-pointer
AS_SANITIZED = UBSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0
INTO_SANITIZED = LIB=$(abspath build/sanitize/lib) OBJ=$(abspath build/sanitize/obj) SANITIZE='$(SANITIZERS)'
sanitize: venv
	@+$(PYTEST_TOO)
	$(Q)$(MAKE) --no-print-directory native-c $(INTO_SANITIZED)
	PHANTORA_TEST_LIB=$(abspath build/sanitize/lib) $(AS_SANITIZED) $(VENV)/bin/python -m pytest $(SANITIZED)

# Also the flow engine, into a Python that has the sanitizer preloaded, and the values library, in jobs of PyTorch: a copy
# of the package whose C parts are the sanitized ones. Ten minutes.
TREE = build/sanitize/tree
sanitize-all: sanitize
	$(Q)$(MAKE) --no-print-directory values-alone $(INTO_SANITIZED) TORCH_PYTHON=$(VENV)/bin/python
	PHANTORA_TEST_LIB=$(abspath build/sanitize/lib) LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) $(AS_SANITIZED) \
		$(VENV)/bin/python -m pytest $(wildcard tests/sim/test_flows*.py)
	$(Q)rm -rf $(TREE) && mkdir -p $(TREE) && git ls-files -z | xargs -0 cp --parents -t $(TREE)
	$(Q)ln -s $(abspath build/sanitize/lib) $(TREE)/phantora_ns/lib
	cd $(TREE) && PYTHONPATH=$(abspath $(TREE)) $(AS_SANITIZED) $(abspath $(VENV))/bin/python -m pytest tests/values
