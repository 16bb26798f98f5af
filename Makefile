# The two commands of the README are `make demo` and `make test`; each does all its own set-up.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fedmon-installed
DEMO_STAMP := $(VENV)/.fedmon-demo-installed
COMMA := ,
PATH := $(PATH):/usr/sbin:/usr/local/sbin
export PATH
# What Python compiled is kept: to make it anew for each process would take a tenth of the time of the tests.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait more than they compute, so four times as many as this project's two cores is fastest.
JOBS ?= 8

.PHONY: demo test test-batch check bench soak venv format clean

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	@$(BIN)/fedmon demo $(ARGS)

test: venv
	@$(BIN)/python -m pytest -n $(JOBS) --no-loadscope-reorder -m "not soak and not batch$(SKIP:%= and not %)" $(ARGS)

# Real batch systems; as root, on a machine or in a container that may be changed. Skips aloud what is not installed.
test-batch: venv
	@$(BIN)/python -m pytest -m "batch and not soak" --timeout 300 $(ARGS) tests/batch

soak: venv
	@$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

check: venv
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/docs tests/architecture -m check

# bench.cluster and bench.store run by themselves: they need rabbitmq-server and the extra bench, and victoria-metrics.
# So does bench.scale, which takes half an hour.
bench: venv
	@for name in requests router ingest replies footprint watch recovery collect agent recording outage export report job runs experiment flood; do $(BIN)/python -m bench.$$name || exit 1; done

format: venv
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

venv: $(STAMP)

# In compat mode the checkout is on the path by name, so that another folder called fedmon next to a script hides nothing.
define install
	@test -n "$(PYTHON)" || { echo "fedmon needs Python 3.11 or newer; install it, or run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing fedmon and its pinned packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c envs/constraints.txt --config-settings editable_mode=compat -e '.[$(1)]'
	@touch $@
endef

$(STAMP): setup.py envs/constraints.txt
	$(call install,broker$(COMMA)report$(COMMA)runs$(COMMA)test)

# What the demo and the README need.
$(DEMO_STAMP): setup.py envs/constraints.txt
	$(call install,broker$(COMMA)report$(COMMA)runs)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
