# Set-up and checks in one command each. ARGS goes to the program: make compare ARGS="torch:tuned jax:tuned --quick".
# SAMESTEP_BUILD=cpu|cuda chooses the frameworks' builds. SAMESTEP_PYTHON chooses the Python that makes .venv.

ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help prerequisites venv compare quick test attack cases check docs clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-15s %s\n", $$1, $$2}' Makefile

prerequisites: ## check for Python with venv and headers, and a C++ compiler
	@found=$$(scripts/prerequisites.sh) && echo "samestep: prerequisites found: $$found" >&2

# The stamp is out of date if SAMESTEP_BUILD names another build than the installed one.
ifneq ($(SAMESTEP_BUILD),)
ifneq ($(SAMESTEP_BUILD),$(shell cat .venv/.stamp 2>/dev/null))
.PHONY: .venv/.stamp
endif
endif

.venv/.stamp: pyproject.toml constraints/cpu.txt constraints/cuda.txt scripts/install.sh | prerequisites
	@scripts/install.sh

venv: .venv/.stamp ## make .venv with samestep and both frameworks (once)

compare: .venv/.stamp ## compare contenders (ARGS: see samestep compare --help)
	@.venv/bin/samestep compare $(ARGS)

quick: .venv/.stamp ## run the tests of pure code and of the fake backend (ARGS: for pytest)
	@scripts/test.sh --quick $(ARGS)

test: .venv/.stamp ## run all tests (ARGS: for pytest)
	@scripts/test.sh $(ARGS)

attack: .venv/.stamp ## kill 100 runs, read 1,000 hostile files and use up resources (SEED=N)
	@scripts/attack.sh

cases: .venv/.stamp ## run pairs of many kinds, each with its right answer (ARGS: for pytest)
	@OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/pairs -m "thorough or not thorough" --numprocesses=2 \
		--benchmark-disable $(ARGS)

check: .venv/.stamp ## run the linters, the type checker and the import contracts
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/pyright
	.venv/bin/lint-imports

docs: .venv/.stamp ## build the documentation in docs/_build/html
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean: ## remove .venv and everything else that is made
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks samestep-out docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
