# `make help` lists the targets. Everything runs on this machine only, without Docker.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

SERVERS := python3 deploy/servers/servers.py
# The tests and the demo look for the servers where the script says it puts them.
export TRELLARA_SERVERS_DIR := $(shell $(SERVERS) --where 2>/dev/null)
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Each of the six fuzz targets: a minute of CPU in all.
export TRELLARA_FUZZ_SECONDS ?= 10
# A lock file that does not fit the manifests is a mistake, not something to mend on the way.
LOCKED ?= --locked

# Prints how long a ring of tests took.
define RING
ring() {
  local name=$$1 started=$$SECONDS; shift
  "$$@"
  printf '%-10s %4d s\n' "$$name" $$((SECONDS - started)) >>"$$rings"
}
rings=$$(mktemp)
trap 'echo; echo "seconds per ring:"; cat "$$rings"; rm -f "$$rings"' EXIT
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' Makefile

.PHONY: servers
servers: ## bring PostgreSQL and nats-server into the cache
	@$(SERVERS)

.PHONY: build
build: ## build the program, optimised
	@cargo build $(LOCKED) --release -p trellara

.PHONY: test
test: ## every ring of tests against real servers (nextest where installed, else cargo test)
	@$(SERVERS) test
	$(RING)
	beside=("$(TARGET)/debug/with-servers" --postgres 15,18 --)
	# One build of everything that is run: the tests start the program and the servers' wrapper.
	ring build cargo build $(LOCKED) --workspace --bins --tests
	ring doc cargo test $(LOCKED) --workspace --doc --quiet
	if cargo nextest --version >/dev/null 2>&1; then
	  run=(cargo nextest run $(LOCKED) --workspace)
	  words='package(trellara-dedup) + package(trellara-envelope) + package(trellara-pgoutput)'
	  ring pure "$${run[@]}" -E "kind(lib) + kind(bin) + $$words"
	  ring real "$${beside[@]}" "$${run[@]}" -E "kind(test) - ($$words) - package(trellara-e2e)"
	  ring blackbox "$${beside[@]}" "$${run[@]}" -E 'kind(test) & package(trellara-e2e)'
	else
	  ring pure cargo test $(LOCKED) --workspace --lib --bins
	  ring real "$${beside[@]}" cargo test $(LOCKED) --workspace --exclude trellara-e2e --test '*'
	  ring blackbox "$${beside[@]}" cargo test $(LOCKED) -p trellara-e2e --test '*' -- --test-threads 4
	fi

.PHONY: demo
demo: servers build ## the whole thing on this machine, with kills, ending in a comparison
	@"$(TARGET)/release/trellara" demo

.PHONY: soak
soak: ## load, kills and stops on each supported server, then one huge transaction (MINUTES=1 or SECONDS_EACH=60 SEED=random PAIRS="18/2.15.1" ROWS=5000000)
	@$(SERVERS) soak >/dev/null
	cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	for pair in $(or $(PAIRS),15/2.10.26 16/2.12.8 17/2.14.6 18/2.15.1); do
	  echo "== PostgreSQL $${pair%/*}, nats-server $${pair#*/}"
	  "$(TARGET)/release/soak" "$(or $(SECONDS_EACH),$$(( $(or $(MINUTES),1) * 60 )))" "$(or $(SEED),random)" "$${pair%/*}" "$${pair#*/}"
	done
	echo "== one transaction of $(or $(ROWS),5000000) rows, relay and applier killed in its middle"
	"$(TARGET)/release/large" "$(or $(ROWS),5000000)"

.PHONY: soak-verify
soak-verify: servers ## the judge under load and kills of the applier: each planted difference found, nothing else (RUNS=200 SEED=random VERSION=18 RATE=400)
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/judge" "$(or $(RUNS),200)" "$(or $(SEED),random)" "$(or $(VERSION),18)" "$(or $(RATE),400)"

.PHONY: soak-quarantine
soak-quarantine: servers ## a backlog with and without poisoned transactions, held with their dependents, then replayed; and the same of one huge transaction (TRANSACTIONS=200000 SEED=random VERSION=18 PER_MILLE=10 MEGABYTES=512)
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/poison" "$(or $(TRANSACTIONS),200000)" "$(or $(SEED),random)" "$(or $(VERSION),18)" "$(or $(PER_MILLE),10)"
	"$(TARGET)/release/heavy" "$(or $(MEGABYTES),512)" "$(or $(VERSION),18)"

.PHONY: soak-handover
soak-handover: servers ## first copies under sixteen writing sessions on each supported server: without kills of the daemons, with some at random, with one behind every part (REPEATS=50 SEED=random VERSIONS="15 16 17 18" KILLS=20)
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	for version in $(or $(VERSIONS),15 16 17 18); do
	  "$(TARGET)/release/handover" "$(or $(REPEATS),50)" "$(or $(SEED),random)" "$$version" 0
	  "$(TARGET)/release/handover" 3 "$(or $(SEED),random)" "$$version" "$(or $(KILLS),20)"
	  "$(TARGET)/release/handover" 9 "$(or $(SEED),random)" "$$version" boundaries
	done

.PHONY: rewind
rewind: servers ## a million transactions applied, then delivered again and skipped (TRANSACTIONS=1000000)
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/rewind" "$(or $(TRANSACTIONS),1000000)"

.PHONY: sim
sim: ## a flow's life by seed, faults and all, against simulated servers (SEEDS=0..20000); then the machines' own properties (CASES=20000)
	@cargo build $(LOCKED) --release -p trellara-testkit --bin sim
	"$(TARGET)/release/sim" "$(or $(SEEDS),0..20000)"
	PROPTEST_CASES=$(or $(CASES),20000) cargo test $(LOCKED) --release -p trellara-relay -p trellara-applier machine

.PHONY: matrix
matrix: ## every fault of docs/reference/faults.md once more, noted down in tests/it/matrix/run.txt and on the page
	@$(SERVERS) test >/dev/null
	cargo build $(LOCKED) --workspace --bins --tests
	"$(TARGET)/debug/with-servers" --postgres 15,18 -- python3 tests/matrix.py
	TRELLARA_WRITE_PAGES=1 cargo test $(LOCKED) --workspace --test it matrix_the_page

.PHONY: bench
bench: servers ## side by side with native logical replication, with bars and verdicts (BENCH="--quick --only W1 --output json")
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/bench" $(BENCH)

.PHONY: bench-verify
bench-verify: servers ## the judge beside MD5 sums, ordered SHA-256 and COPY, with bars and verdicts (ROWS=2000000 BENCH="--output json")
	@cargo build $(LOCKED) --release -p trellara-testkit --bins
	"$(TARGET)/release/bench-verify" --rows "$(or $(ROWS),2000000)" $(BENCH)

.PHONY: soak-narrow
soak-narrow: servers ## a first copy of 2 GB through streams of 64 MiB, 128 MB written beside it (SEED=random)
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/handover" 1 "$(or $(SEED),random)" 18 narrow

.PHONY: bench-backfill
bench-backfill: servers ## a first copy beside psql's COPY OUT piped into COPY IN, with bars and verdicts (ROWS=10000000 BENCH="--workers 2 --output json")
	@cargo build $(LOCKED) --release -p trellara -p trellara-testkit --bins
	"$(TARGET)/release/bench-backfill" --rows "$(or $(ROWS),10000000)" $(BENCH)

.PHONY: bench-dedup
bench-dedup: ## what remembering and asking cost, then instructions (SIZES="1m 10m 100m", 6 GB of memory for 100m)
	@cargo bench $(LOCKED) -p trellara-dedup --bench dedup -- $(SIZES)
	cargo bench $(LOCKED) -p trellara-dedup --bench counts

.PHONY: lint
lint: ## formatting, lints, and the absences of docs/architecture.md
	@cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	# Over the whole workspace, so that `make test` finds the same build.
	cargo test $(LOCKED) --quiet --workspace --test it absences
	if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check bans licenses sources; fi

.PHONY: clean
clean: ## delete what was built here (the servers' cache stays)
	@cargo clean
	rm -rf .bench
