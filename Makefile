# Every target says what it does: `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
RUN := PYTHONPATH=operator:. $(BIN)/python
ENGINE ?= standin
FLEETS ?= 10 100 1000
MINUTES ?= 60
TIERS := unit chart monitoring engine node apiserver plugin argocd demo

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

.venv/.done: requirements/dev.txt
	@echo "[setup] Python environment in .venv (hash-pinned, from requirements/dev.txt)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

.PHONY: setup
setup: .venv/.done ## make the Python environment

.PHONY: demo
demo: setup ## the whole story on a real cluster: install, apply, load, scale, report (ENGINE=vllm: real vLLM on CPU; KEEP=1: leave it up)
	@$(RUN) -m tools.demo --engine $(ENGINE) $(if $(KEEP),--keep)

.PHONY: demo-down
demo-down: setup ## end what `make demo` may have left
	@$(RUN) -m tools.demo down

.PHONY: test
test: setup ## all tests, fast tiers first, two at a time, with each tier's time
	@$(RUN) -m tools.tiers $(TIERS)

.PHONY: test-%
test-%: setup ## one tier: test-unit test-chart test-monitoring test-apiserver test-node test-argocd test-engine test-plugin test-demo
	@$(RUN) -m tools.tiers $*

.PHONY: lint
lint: setup ## ruff, formatting, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file images/engine/pyproject.toml images/engine/gemma_engine images/engine/install.py images/engine/sbom.py
	@PYTHONPATH=operator $(BIN)/lint-imports

.PHONY: format
format: setup ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: generate
generate: setup ## renew what is generated: CRD, rules, dashboard, charts' READMEs and schema, references of API and commands, golden files
	@$(RUN) -m gemma_operator crd > charts/gemma-operator/crd/gemmaservings.yaml
	@$(RUN) -m tools.monitoring
	@$(RUN) tools/chart_docs.py
	@$(RUN) -m tools.serving_chart
	@$(RUN) -m tools.api_docs
	@$(RUN) -m tools.fault_docs
	@$(RUN) -m tools.dependency_docs
	@$(RUN) -m tools.cli_docs
	@$(RUN) -m pytest -q tests/unit --update-golden -k golden

.PHONY: verify
verify: lint generate ## lint, and no difference after renewing what is generated
	@git diff --exit-code -- charts tests/golden docs

.PHONY: site
site: setup ## the documentation as pages in site/, which open without network (REPOSITORY=URL: links to files that are no pages)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

.PHONY: flags
flags: setup ## renew the table of vLLM's flags from the wheels of every version (downloads 3 GB once)
	@$(RUN) -m tools.flag_table

.PHONY: pod-schema
pod-schema: setup ## renew Kubernetes' schema of Pod fields from a real API server
	@$(RUN) -m tools.pod_schema

.PHONY: compare
compare: setup ## the autoscaler against others on public traces, request by request (TRACES=folder)
	@$(RUN) -m tools.compare --traces "$(TRACES)"

.PHONY: calibrate
calibrate: setup ## the step model against a real vLLM on this machine's CPU, as data (six minutes, on a machine that does nothing else)
	@nice -n -5 env PYTHONPATH=operator:. $(BIN)/python -m tools.calibrate --write

.PHONY: fuzz
fuzz: setup ## 10,000 generated specs before the real API server and vLLM's own argument parser
	@GEMMA_FUZZ_EXAMPLES=10000 $(RUN) -m pytest -q tests/engine/test_fuzz.py

.PHONY: gpu-check
gpu-check: ## the vision encoder on this machine's GPU (needs torch and transformers)
	@python3 tools/gpu_check.py --out gpu-check.json

.PHONY: encoder-proof
encoder-proof: setup ## the batched encoder against vLLM's own on real vLLM, as data (an hour on 2 cores)
	@$(RUN) -m tools.encoder_proof --write

.PHONY: engine-bench
engine-bench: setup ## the engine's self-check, and a running answer's wait while videos arrive, on real vLLM, as data (a quarter of an hour on 2 cores)
	@$(RUN) -m tools.engine_bench --write

.PHONY: bench
bench: setup ## speeds as data: apply to Deployments, render, CRD size; what fleets of servings cost (FLEETS="10 100 1000")
	@$(RUN) -m tools.bench
	@$(RUN) -m tools.fleet.bench $(FLEETS) --out docs/data/fleet.json --picture docs/pictures/fleet.svg
	@$(RUN) -m tools.fleet.floor $(lastword $(FLEETS))

.PHONY: soak
soak: setup ## an hour of ordinary life with 50 servings: does the operator's memory grow? (MINUTES=60)
	@$(RUN) -m tools.fleet.soak --minutes $(MINUTES)

.PHONY: requirements
requirements: ## renew the hash-pinned requirements from pyproject.toml (needs uv)
	@uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes --no-emit-index-url -q -o requirements/operator.txt
	@uv pip compile pyproject.toml --group dev --python-version 3.11 --universal --generate-hashes --no-emit-index-url -q -o requirements/dev.txt
