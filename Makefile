# Two commands are enough: `make demo` shows the main job, `make test` passes everything.
SHELL := /bin/bash
DURATION ?=
GOFLAGS  := -trimpath
LDFLAGS  := -s -w
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build demo test test-go clients race lint vuln fuzz bench bench-http e2e-vllm size ci clean

help: ## Show this list.
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

build: ## Build bin/pointsman and bin/vllmsim.
	go build $(GOFLAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

demo: build ## Gateway, simulated model servers, load and a page to look at. DURATION=20s ends by itself.
	bin/pointsman demo $(if $(DURATION),--duration $(DURATION))

test: build test-go race clients ## Everything that must pass before a change lands.

test-go: ## Unit, golden, script and acceptance tests.
	go vet ./...
	go test -timeout 10m ./...

race: ## The packages with shared state, under the race detector.
	CGO_ENABLED=1 go test -race -short -timeout 10m ./internal/pool ./internal/proxy ./internal/scrape ./internal/discover ./internal/vllmsim ./internal/telemetry ./internal/app

clients: build ## The official OpenAI and Anthropic clients, unmodified, and the page in Chromium.
	test/clients/run

lint: ## golangci-lint (built from its module) with .golangci.yml.
	test/lint

vuln: ## Known vulnerabilities in what we link.
	test/vuln

fuzz: ## Every fuzz target for FUZZTIME (default 30s).
	test/fuzz $(or $(FUZZTIME),30s)

bench: build ## Benchmarks, benchstat-ready, and the process measurements (latency, CPU, memory).
	test/bench

bench-http: build ## Streams against HAProxy and a bare reverse proxy: CPU per event, added latency (installs HAProxy).
	test/bench-http

e2e-vllm: build ## The main job on real vLLM servers (CPU build from PyPI; a few GB and minutes).
	test/e2e-vllm/run

size: build ## Size of the programs.
	@ls -l bin | awk 'NR>1 {printf "%-12s %5.1f MB\n", $$9, $$5/1e6}'

ci: test lint vuln fuzz ## What the pipeline runs.

clean: ## Remove what the build made.
	rm -rf bin out
