# make demo   set everything up in .venv and run the demo study (about 3 minutes on 2 cores)
# make test   set everything up in .venv, then formatting, types and tests
PYTHON ?= python3
PIP_FLAGS ?= -q
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable

.PHONY: setup demo test clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[torch]'
	touch $(READY)

$(TESTABLE): $(READY)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[torch,jax,tensorflow,dev]'
	touch $(TESTABLE)

demo: $(READY)
	$(BIN)/corewise doctor
	$(BIN)/corewise run quick --store demo/store --report -o demo/report.html
	$(BIN)/corewise show --store demo/store
	$(BIN)/corewise export --store demo/store --format csv -o demo/records.csv
	@echo "Open demo/report.html. Records: demo/store. Table: demo/records.csv."
	@echo "Run 'make demo' again: nothing is measured twice."

test: $(TESTABLE)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3

clean:
	rm -rf $(VENV) demo
