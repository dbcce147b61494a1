# Every target does its own set-up in .venv; a fresh machine needs Python 3.11 (or later) and make only.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help setup demo test real faults browser check format bench quality clean

help:  ## What can be made
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 10

setup: .venv/dev.done  ## Install everything for development, and the commit hook
	@git rev-parse --git-dir >/dev/null 2>&1 && $(BIN)/pre-commit install || true

demo: .venv/qkv.done  ## The main job, on this machine, now
	@$(BIN)/qkv demo

test: .venv/dev.done  ## The tests (under 6 minutes on 2 cores)
	$(BIN)/pytest -n 2 -m "not real and not slow and not faults and not browser"

real: .venv/dev.done  ## The proofs with real weights and data (package index, QKV_DATA), and the slow ones
	$(BIN)/pytest -m "real or slow"

faults: .venv/dev.done  ## Processes killed at every place, and runs that end alike (under 8 minutes on 2 cores)
	$(BIN)/pytest -m faults

browser: .venv/dev.done  ## Pages in a real browser (Debian's package chromium)
	$(BIN)/pytest -m browser

check: .venv/dev.done  ## Style, types and the law of imports
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.done  ## Put the code into the house style
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

bench: .venv/dev.done  ## Speed against others, interleaved; let nothing else run meanwhile
	$(BIN)/python benchmarks/encoder_speed.py
	$(BIN)/python benchmarks/dropout_speed.py
	$(BIN)/python benchmarks/load_speed.py
	$(BIN)/python benchmarks/training_speed.py

quality: .venv/dev.done  ## Accuracy of runs/reviews and runs/reviews-quick beside simpler models, and on made-up sentences
	$(BIN)/python benchmarks/review_quality.py runs/reviews runs/reviews-quick
	$(BIN)/python benchmarks/template_sentences.py runs/reviews runs/reviews-quick

clean:  ## Remove what make made
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
