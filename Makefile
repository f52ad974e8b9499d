# `make` alone lists what there is. Every target makes the environment it needs first:
# .venv-site holds the press without torch, .venv-labs the book with Jupyter, .venv everything.
#
#   PYTHON=python3.12     the Python that makes the environments, or that runs `make gpu`
#   TORCH=2.11.0          another PyTorch than the pinned one, in an environment of its own, for `make test`
#   PIP_ARGS="…"          more arguments for pip, such as an index with CPU builds of torch
#   ARGS="…"              arguments for the book, the tests (pytest), the mutants, the soak, the benchmarks, the recordings, the kit for GPUs
#   JOBS=2                how many processes share the tests; left out: one for each core

PYTHON ?= python3
PIP_ARGS ?=
TORCH ?=
ARGS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

SITE := .venv-site
ALL := $(if $(TORCH),.venv-torch-$(TORCH),.venv)
LABS := .venv-labs
SLOWEST := --durations 30
PINS := pyproject.toml constraints.txt tools/environment.py

# Every start of Python would compile again what it imports, and a test run starts thousands.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help site pack book slides serve labs test test-all gpu mutants soak lint bench bench-press record clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

site: $(SITE)/.ready ## build the site into build/site/, every warning an error
	@$(SITE)/bin/python tools/without_torch.py
	@$(SITE)/bin/mkdocs build --strict
	@echo "The site is in build/site/: open build/site/index.html, or run \`make serve\`."

pack: $(SITE)/.ready ## the site as one folder and one archive in build/pack/ that open from a disk
	@$(SITE)/bin/sidelit pack

book: $(SITE)/.ready ## the site as one PDF in each language in build/book/; needs Chromium; ARGS="--lang en"
	@$(SITE)/bin/sidelit book $(ARGS)

slides: $(SITE)/.ready ## slides of a lesson or a lab in build/slides/, for a browser; ARGS="one_step --lang en"
	@$(SITE)/bin/sidelit slides $(ARGS)

serve: $(SITE)/.ready ## show the site on this machine and rebuild it on every save
	@$(SITE)/bin/sidelit serve

labs: $(LABS)/.ready ## open the labs in JupyterLab, in the language of LANG; ARGS="--lang ja" names one
	@$(LABS)/bin/python tools/open_labs.py $(ARGS)

test: $(ALL)/.ready ## prove it, in minutes
	@$(ALL)/bin/python tools/chromium.py
	@$(ALL)/bin/python -m pytest -n $(JOBS) $(SLOWEST) $(ARGS)

test-all: $(ALL)/.ready ## every test but those that need a GPU: each page of the site in each language, too
	@$(ALL)/bin/python tools/chromium.py
	@$(ALL)/bin/python -m pytest -n $(JOBS) $(SLOWEST) -m "not gpu" $(ARGS)

gpu: ## is the library right and fast on the GPUs here? runs on PYTHON as it is; ARGS="--part speed --minutes 4"
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; name one with \`make gpu PYTHON=…\`" >&2; exit 1; }
	@PYTHONPATH=src:tests:.:$$PYTHONPATH $(PYTHON) -m tools.gpu $(ARGS)

mutants: $(ALL)/.ready ## break the training core in small ways: does a test fail each time?
	@$(ALL)/bin/python tools/mutants.py $(ARGS)

soak: $(ALL)/.ready ## kill ranks at random moments: are the losses those of a run left alone? ARGS="--kills 9 --seed 1"
	@$(ALL)/bin/python tests/soak.py $(ARGS)

lint: $(ALL)/.ready ## check style, types, sources and translations
	@$(ALL)/bin/ruff check .
	@$(ALL)/bin/ruff format --check .
	@$(ALL)/bin/mypy
	@$(ALL)/bin/sidelit lint

bench: $(ALL)/.ready ## measure against PyTorch's own FSDP2; ARGS="--json FILE" writes the figures
	@$(ALL)/bin/python -m benchmarks $(ARGS)

bench-press: $(ALL)/.ready ## measure the press: against Pycco, in three languages, after one edit; ARGS="--json FILE"
	@$(ALL)/bin/python tools/chromium.py
	@$(ALL)/bin/python -m benchmarks.press $(ARGS)

record: $(ALL)/.ready ## run what the figures show and write it into site/recorded/; ARGS="stages ring" picks some
	@$(ALL)/bin/python -m tools.record $(ARGS)

clean: ## remove what was built; the environments stay
	rm -rf build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(SITE)/.ready: $(PINS)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; name one with \`make PYTHON=…\`" >&2; exit 1; }
	@$(PYTHON) tools/environment.py $(SITE) site,labs,book $(PIP_ARGS)
	@touch $@

$(LABS)/.ready: $(PINS)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; name one with \`make PYTHON=…\`" >&2; exit 1; }
	@$(PYTHON) tools/environment.py $(LABS) jupyter $(PIP_ARGS)
	@touch $@

$(ALL)/.ready: $(PINS)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; name one with \`make PYTHON=…\`" >&2; exit 1; }
	@$(PYTHON) tools/environment.py $(ALL) dev $(if $(TORCH),--torch $(TORCH)) $(PIP_ARGS)
	@touch $@
