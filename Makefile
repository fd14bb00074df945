# Everything runs in .venv; on a fresh machine Python 3.11 and make are enough.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
LIGHT  := $(VENV)/.light
READY  := $(VENV)/.ready

.PHONY: demo test soak check bench zoo clean

# torch is pinned to the exact version of the constraints file in the same call: an unpinned torch brings CUDA.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch --editable ".[plots]"
	touch $@

# torchvision and timm serve the tests only, as models no one here wrote: without their own dependencies.
$(READY): $(LIGHT)
	$(INSTALL) torch --editable ".[dev]"
	$(INSTALL) --no-deps torchvision timm
	touch $@

demo: $(LIGHT)  ## the main job, on data that needs no download
	$(BIN)/fjord run

# Three workers for two cores, as killed runs and real fleets often wait; in the order that tests/conftest.py gives.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## tests and doctests, all but the long ones
	$(PYTEST) -m "not soak"

soak: $(READY)  ## the long ones: a real fleet in which everything fails, Ray, whole datasets
	$(PYTEST) -m soak

check: $(READY)  ## what must pass before a commit
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) -m "not soak"

bench: $(READY)  ## ratios within one run; takes some minutes
	$(BIN)/python -m benchmarks.plan_time
	$(BIN)/python -m benchmarks.step_cost
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.controller
	$(BIN)/python -m benchmarks.federated
	$(BIN)/python -m benchmarks.profile
	$(BIN)/python -m benchmarks.export
	@test -z "$$FJORD_DATA" || $(BIN)/python -m benchmarks.data

zoo: $(READY)  ## every family of the list; takes about half an hour
	$(BIN)/python -m benchmarks.zoo

clean:
	rm -rf $(VENV)
