# Two commands are enough: `make demo` shows the main job, `make test` passes everything.
SHELL := /bin/bash
DURATION ?=
GOFLAGS  := -trimpath
LDFLAGS  := -s -w
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build demo tools test test-go fidelity mooncake clients race lint vuln fuzz bench bench-http bench-replicas e2e-vllm size ci clean

help: ## Show this list.
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

build: ## Build bin/pointsman and bin/vllmsim.
	go build $(GOFLAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

demo: build ## Gateway, simulated model servers, load and a page to look at. DURATION=20s ends by itself.
	@mkdir -p out
	bin/pointsman demo --access-log out/demo-access.jsonl $(if $(DURATION),--duration $(DURATION))

tools: ## The real programs that tests run when they are there: kube-apiserver, etcd, Envoy, Prometheus, Helm, kustomize (15 minutes once).
	test/tools

test: build test-go race clients ## Everything that must pass before a change lands.

test-go: ## Unit, golden, script and acceptance tests.
	go vet ./...
	go test -timeout 20m ./...

fidelity: ## The engine model against recordings of real vLLM and against measured H100 and H200 points.
	@set -o pipefail; go test -count=1 -v -run 'TestRecorded|TestFidelity' ./internal/engine | sed -n 's/^fidelity: //p; /FAIL/p; /at most/p; /^ok/p'

mooncake: build ## Every policy on Mooncake's traces, TRACES=DIR: who is first in goodput.
	test/mooncake $(TRACES)

race: ## The packages with shared state, under the race detector.
	CGO_ENABLED=1 go test -race -short -timeout 10m ./internal/pool ./internal/peers ./internal/proxy ./internal/scrape ./internal/discover ./internal/discover/kube ./internal/vllmsim ./internal/telemetry ./internal/app ./internal/extproc

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

bench-replicas: ## Three gateways that exchange their picks against one, and against three that do not, over 8 runs (14 minutes).
	POINTSMAN_REPLICAS=$(or $(SECONDS_EACH),90) POINTSMAN_SEEDS=$(or $(SEEDS),8) go test -count=1 -timeout 40m -parallel 3 -run TestReplicasRouteAsOne -v ./internal/acceptance

e2e-vllm: build ## The main job on real vLLM servers (CPU build from PyPI; a few GB and minutes).
	test/e2e-vllm/run

size: build ## Size of the programs.
	@ls -l bin | awk 'NR>1 {printf "%-12s %5.1f MB\n", $$9, $$5/1e6}'

ci: test lint vuln fuzz ## What the pipeline runs.

clean: ## Remove what the build made.
	rm -rf bin out
