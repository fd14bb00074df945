# All targets run in .venv. A fresh machine needs only Python 3.11 and make.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
LIGHT  := $(VENV)/.light
READY  := $(VENV)/.ready

.PHONY: demo test soak check bench zoo clean

# Name torch in the same call, so that the constraints file pins its CPU build; without the pin, pip
# installs the CUDA build.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch --editable ".[plots]"
	touch $@

# Only tests and benchmarks use torchvision and timm, as a source of models; their dependencies are
# not needed.
$(READY): $(LIGHT)
	$(INSTALL) torch --editable ".[dev]"
	$(INSTALL) --no-deps torchvision timm
	touch $@

demo: $(LIGHT)  ## federated training on data that needs no download
	$(BIN)/fjord run

# Three workers for two cores, because killed runs and real fleets often wait. tests/conftest.py sets
# the order.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## tests and doctests, without the soak tests
	$(PYTEST) -m "not soak"

soak: $(READY)  ## the long tests: a real fleet with failures, Ray, whole datasets
	$(PYTEST) -m soak

check: $(READY)  ## the gate: lint, format, types, tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) -m "not soak"

bench: $(READY)  ## benchmarks: ratios within one run; takes some minutes
	$(BIN)/python -m benchmarks.plan_time
	$(BIN)/python -m benchmarks.step_cost
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.controller
	$(BIN)/python -m benchmarks.federated
	$(BIN)/python -m benchmarks.profile
	$(BIN)/python -m benchmarks.export
	@test -z "$$FJORD_DATA" || $(BIN)/python -m benchmarks.data

zoo: $(READY)  ## make every model family of benchmarks/zoo_models.txt elastic; half an hour
	$(BIN)/python -m benchmarks.zoo

clean:
	rm -rf $(VENV)
