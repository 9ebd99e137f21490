# The two commands of the README are `make demo` and `make test`; everything else is a part of them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

CACHE ?= $(or $(BATON_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/baton)
export BATON_CACHE := $(CACHE)
PROMPT ?= What is the capital of France? Answer in one sentence.
LISTEN ?= 127.0.0.1:7070
SEEDS ?= 1000
FROM ?= 0
MINUTES ?= 3
export PROMPT
RELEASE := target/release/baton

.PHONY: help demo serve test test-ui check unit sim soak long-tests release setup bench-peers bench-engine bench-vllm bench-router bench-clients instructions

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:
	@scripts/setup.sh build

release: setup ## build the optimised binary
	cargo build --locked --release --bin baton

demo: release ## build, start router + prefill + decode, answer one chat prompt, stop
	@scripts/demo.sh $(RELEASE) "$$(scripts/fetch-model.sh)" "$$PROMPT"

serve: release ## the same, but keep serving on LISTEN until Ctrl-C
	@model=$$(scripts/fetch-model.sh) && exec $(RELEASE) up --model "$$model" --listen $(LISTEN)

check: ## formatting, lints, licences, wire format
	cargo fetch --locked
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	PATH="$(CACHE)/venv/bin:$$PATH" cargo deny --all-features --offline check licenses bans sources
	"$(CACHE)/venv/bin/buf" lint proto

unit: ## every test, once the set-up is done
	BATON_MODEL_DIR="$(CACHE)" BATON_VENV="$(CACHE)/venv" cargo test --locked --workspace

test: ## set up, then every check and test
	@scripts/setup.sh test
	@scripts/fetch-model.sh >/dev/null
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory unit

test-ui: ## the live page in a headless browser (installs Chromium)
	@scripts/setup.sh ui
	@# With a test beside it, the binary has the features that it has in the workspace's tests: neither compiles twice.
	cargo build --locked --workspace --bin baton --test system
	@scripts/test-ui.sh "$${CARGO_TARGET_DIR:-target}/debug/baton" "$$(scripts/fetch-model.sh)"

sim: ## run SEEDS simulated clusters (from FROM), or replay one: SEED=n
	cargo run --locked --quiet --package baton-simulation -- \
		$(if $(SEED),one $(SEED) --log,seeds --from $(FROM) --count $(SEEDS))

soak: ## load on a fleet under a seeded killer for MINUTES, repeatable by SEED=n
	@scripts/setup.sh test
	BATON_CHAOS_MINUTES="$(MINUTES)" BATON_CHAOS_SEED="$(SEED)" cargo test --locked --test system chaos_ -- --nocapture

long-tests: ## every test with its loops in full
	@scripts/setup.sh test
	@scripts/fetch-model.sh >/dev/null
	BATON_SOAK=1 BATON_MODEL_DIR="$(CACHE)" BATON_VENV="$(CACHE)/venv" cargo test --workspace

bench-peers: setup ## compile llama.cpp, for bench-engine to compare with
	@scripts/bench-peers.sh

bench-engine: release bench-peers ## measure the engine and llama.cpp in turn
	$(RELEASE) bench engine --model "$$(scripts/fetch-model.sh)" --peer llama.cpp

bench-vllm: release ## install vLLM for CPUs (some gigabytes) and measure it and the engine in turn
	@scripts/bench-vllm.sh
	$(RELEASE) bench engine --model "$$(scripts/fetch-model.sh)" --peer vllm

bench-router: release ## what the router adds and takes, beside smg (installs it)
	@scripts/bench-router.sh $(RELEASE) "$$(scripts/fetch-model.sh)"

bench-clients: release ## OpenAI's client, aiperf and vLLM's benchmark client over HTTP (installs them)
	@scripts/bench-clients.sh $(RELEASE) "$$(scripts/fetch-model.sh)"

instructions: setup ## count the instructions of the engine's kernels (needs valgrind)
	@scripts/instructions.sh "$$(scripts/fetch-model.sh)"
