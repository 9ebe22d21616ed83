# The commands of this project. They install into .venv, except the emulators, browser, shells and
# proxies that `make test` needs (.ci/qemu, .ci/chromium, .ci/programs) and the compiler of `make
# sanitize` (.ci/clang).

PYTHON ?= python3
PROMPT ?= Once upon a time, a very small computer
SECONDS ?= 3600
LINUX ?= 7.2

BIN := .venv/bin
C_FILES = $(shell find $(wildcard npurt dsp idl sim tests examples) -name '*.[ch]')
BUILT_FROM = $(shell find npurt/cpu tools/build/*.py \
	$(wildcard dsp idl sim npurt/hexagon/idl npurt/hexagon/fastrpc npurt/hexagon/host \
		npurt/rknpu/driver) \
	-name '*.[ch]' -o -name '*.inc' -o -name '*.idl' -o -name '*.ld' -o -name '*.py')

# The tests of C code of the host: kernels, thread pool, simulators, clients of the drivers.
# UNDER_THREAD has the tests of code that shares data between threads.
UNDER_ADDRESS = $(filter-out $(NOT_UNDER_ADDRESS), \
	$(wildcard $(patsubst %,tests/%/test_*.py, cpu rknpu sim_fastrpc sim_rknpu))) \
	$(patsubst %,tests/hexagon/test_%.py, device host_products memory native_call reference rpcmem \
	session transport) \
	--deselect tests/cpu/test_bounds.py::test_a_read_past_the_end_is_caught \
	--deselect tests/sim_rknpu/test_kernels.py::test_every_variant_gives_the_same_bits \
	--deselect \
	tests/sim_fastrpc/test_client.py::test_nothing_but_the_public_functions_and_its_own_is_exported \
	--deselect \
	tests/rknpu/test_threads.py::test_threads_that_cannot_be_started_end_in_a_clear_error_and_leave_none
# Excluded files: they test aarch64 code, run in an emulator, measure time, or test Python alone.
# Excluded tests: one runs in an emulator, one limits memory that the sanitizer needs, one checks
# exported symbols, to which the sanitizer adds some, and some expect a program to die of a signal.
NOT_UNDER_ADDRESS = $(patsubst %,tests/cpu/test_%.py, aarch64 amx pool_model topology) \
	$(patsubst %,tests/rknpu/test_%.py, cost layout long_jobs lower proof quantise regcmd regs shortage \
	tiling uapi) tests/sim_fastrpc/test_answers.py
UNDER_THREAD = $(patsubst %,tests/%.py, cpu/test_pool hexagon/test_native_call hexagon/test_transport \
	rknpu/test_threads sim_fastrpc/test_queue sim_fastrpc/test_threads sim_rknpu/test_threads)

.PHONY: help demo test coverage sanitize foreign kernel soak models wheels docs lint clean

help:
	@echo 'make demo      install npurt into .venv, fetch a small model and generate text'
	@echo 'make test      run the linters and every test'
	@echo 'make coverage  do the same, and print the lines that no test runs, in twice the time'
	@echo 'make sanitize  run the tests of C code, and fuzzers, under sanitizers'
	@echo 'make foreign   run programs of other projects on the simulators'
	@echo 'make kernel    run clients of the RK3588 on the rocket driver of Linux'
	@echo 'make soak      search for errors with random input for SECONDS=3600'
	@echo 'make models    fetch the three models that the tests and benchmarks run'
	@echo 'make wheels    build the wheels and the source archive into dist/, and test them'
	@echo 'make docs      build the documentation site into build/docs; dead links fail'
	@echo 'make lint      run the linters'
	@echo 'make clean     remove build results, but not .venv and models'

demo: .venv/installed
	$(BIN)/npurt models fetch smollm2-135m --folder models
	$(BIN)/python examples/generate.py -m models/SmolLM2-135M-Instruct.Q4_1.gguf -n 128 \
		-p "$(PROMPT)"

test: .venv/dev lint docs
	.ci/qemu
	.ci/chromium
	.ci/programs
	$(BIN)/python -m tools.build && touch .venv/installed
	$(MAKE) --no-print-directory models
	$(BIN)/python -m pytest $(COVER) -n 2 --dist loadfile

coverage: # twice the time of the tests alone
	$(MAKE) --no-print-directory test COVER=--cov

sanitize: .venv/installed .venv/dev
	.ci/qemu
	.ci/clang
	.ci/sanitized address $(BIN)/python -m pytest -n 2 --dist loadfile $(UNDER_ADDRESS)
	.ci/sanitized address $(BIN)/python -m tests.fuzz --native --runs 20
	.ci/sanitized thread $(BIN)/python -m pytest $(UNDER_THREAD)

soak: .venv/installed .venv/dev
	.ci/qemu
	.ci/clang
	$(BIN)/python tests/soak.py --seconds $(SECONDS)

# These programs are packages of Debian and PyPI, in pinned versions, which apt and pip download
# (tests/foreign/debian.py). If one is missing, one line says so.
foreign: .venv/dev
	.ci/qemu
	$(BIN)/python -m tools.build && touch .venv/installed
	$(BIN)/python -m pytest -m foreign -n 2 --dist loadgroup tests/foreign

# Linux's rocket driver, in a kernel that is built once and runs as a program (tests/kernel). If the
# kernel's sources are missing, one line says so. LINUX=7.3 selects that series.
kernel: .venv/dev
	$(BIN)/python -m tools.build && touch .venv/installed
	$(BIN)/python -m tests.kernel --linux $(LINUX)

models: .venv/installed
	$(BIN)/npurt models fetch --yes --folder models

# Build the released files into dist/ and test them: wheels for x86_64 and aarch64, a wheel without
# libraries for all other machines, and the source archive. The build is reproducible: the same
# sources give the same bytes in any folder. Python's build tools read _PYTHON_HOST_PLATFORM as the
# target platform.
wheels: .venv/dev
	rm -f dist/npurt-*
	@set -e; for platform in linux-x86_64 linux-aarch64 any; do \
		_PYTHON_HOST_PLATFORM=$$platform $(BIN)/python -m hatchling build -t wheel -d dist; \
	done
	$(BIN)/python -m hatchling build -t sdist -d dist
	@cd dist && sha256sum npurt-*
	$(BIN)/python -m pytest -m release tests/release

# NO_MKDOCS_2_WARNING=1 suppresses the theme's advertisement for a successor of mkdocs.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

clean:
	rm -rf .venv/installed .venv/dev build dist npurt/*/*.so npurt/*/*/*.so
	rm -rf npurt/hexagon/skel npurt/hexagon/sim npurt/rknpu/sim
	rm -rf .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard npurt tests examples bench sim) -name __pycache__ -prune -exec rm -rf {} +

# --- the virtual environment -----------------------------------------------------------------

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'npurt needs Python 3.11 or newer: make PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'this Python has no venv; on Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# Installed in place, so that a change to a Python file needs no new install.
.venv/installed: .venv/made pyproject.toml $(BUILT_FROM)
	$(BIN)/pip install --editable .
	@touch $@

.venv/dev: .venv/made pyproject.toml
	$(BIN)/python -m pip install --upgrade 'pip>=25'  # older ones find no compatible versions
	$(BIN)/pip install --editable '.[dev]'
	@touch $@ .venv/installed
