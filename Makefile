# Every target does its own set-up in .venv; a fresh machine needs Python 3.11 (or later) and make only.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
CODE := src tests benchmarks examples
FAST := $(BIN)/pytest -n 2 -m "not real and not slow and not faults and not browser"
CPUS ?= default avx2

.PHONY: help setup demo test portable real faults browser check format docs bench quality clean

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 10

setup: .venv/dev.done  ## Install everything for development, and the commit hook
	@git rev-parse --git-dir >/dev/null 2>&1 && $(BIN)/pre-commit install || true

demo: .venv/qkv.done  ## Train a review classifier on this machine and try it
	@$(BIN)/qkv demo

test: .venv/dev.done  ## The fast tests (under 6 minutes on 2 cores)
	$(FAST)

portable: .venv/dev.done  ## The fast tests as on other CPUs (CPUS="default avx2"), with 1 and 2 threads
	for cpu in $(CPUS); do \
	  ATEN_CPU_CAPABILITY=$$cpu QKV_TEST_THREADS=$$( [ $$cpu = default ] && echo 1 || echo 2 ) $(FAST) || exit 1; done

real: .venv/dev.done  ## Tests with real weights and data (package index, QKV_DATA), and slow ones
	$(BIN)/pytest -m "real or slow"

faults: .venv/dev.done  ## Kill trainings everywhere and compare the results (under 8 minutes on 2 cores)
	$(BIN)/pytest -m faults

browser: .venv/dev.done  ## Pages in a real browser (Debian: apt install chromium)
	$(BIN)/pytest -m browser

check: .venv/dev.done  ## Lint, types and the law of imports
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.done  ## Format the code
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

docs: .venv/dev.done  ## Regenerate docs/cli.md, docs/api.md, docs/questions.md and the picture of the README
	$(BIN)/python docs/generate.py
	$(BIN)/python examples/attention.py -o docs/pictures/attention.png

bench: .venv/dev.done  ## Speed against other libraries, interleaved; run nothing else meanwhile
	$(BIN)/python benchmarks/encoder_speed.py
	$(BIN)/python benchmarks/dropout_speed.py
	$(BIN)/python benchmarks/load_speed.py
	$(BIN)/python benchmarks/training_speed.py

quality: .venv/dev.done  ## Accuracy of runs/reviews and runs/reviews-quick against simpler models
	$(BIN)/python benchmarks/review_quality.py runs/reviews runs/reviews-quick
	$(BIN)/python benchmarks/template_sentences.py runs/reviews runs/reviews-quick

clean:  ## Remove everything that make made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist

.venv/bin/pip:
	$(if $(PYTHON),,$(error Python 3.11 or later is needed and neither python3.11 nor python3 was found))
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv

.venv/qkv.done: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev.done: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/qkv.done
