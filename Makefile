# make demo       set everything up in .venv, look at this machine and tune a small model (about 4 minutes)
# make test       set everything up in .venv, then formatting, types and the fast tests (under 10 minutes)
# make test-slow  the exhaustive tests that `make test` leaves out
# make docs       build the documentation site in site/
# make dist       build the wheel and the source archive, and try the wheel in an empty environment
PYTHON ?= python3
PIP_FLAGS ?= -q
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable
DOCUMENTABLE := $(VENV)/.documentable

.PHONY: setup demo test test-slow docs dist clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[torch]'
	touch $(READY)

$(TESTABLE): $(READY)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[torch,jax,tensorflow,mpi,dev,docs]'
	touch $(TESTABLE)

$(DOCUMENTABLE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[docs]'
	touch $(DOCUMENTABLE)

# The budget bounds the search. A machine so busy that 3 minutes do not suffice for two settings gets 6.
DEMO := $(BIN)/corewise tune resnet18 --args image_size=64 --batch 8 \
  --store demo/store --output demo/tuned.yaml --report demo/report.html

demo: $(READY)
	mkdir -p demo
	$(BIN)/corewise doctor | sed '/^Software/,$$d'
	@echo "Tuning ResNet-18 inference on small images: about 3 minutes. If a busy machine needs more, 6."
	$(DEMO) --budget 3m || $(DEMO) --budget 6m
	@echo
	@echo "Open demo/report.html. Run 'make demo' again to search further: nothing is measured twice."

test: $(TESTABLE)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 -m 'not slow'

test-slow: $(TESTABLE)
	$(BIN)/python -m pytest -n 3 -m slow

dist: $(READY)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt build
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build
	$(BIN)/python tests/wheel/smoke_test_wheel.py dist/*.whl

docs: $(DOCUMENTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html. For the search, run: $(BIN)/python -m http.server -d site"

clean:
	rm -rf $(VENV) demo dist site
