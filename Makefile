# The face of the project. Meson and ninja do the work; `make help` lists the targets.
BUILD   ?= build
PREFIX  ?= /usr/local
LIBDIR  ?= lib
SECONDS ?= 60
SEEDS   ?= 10000
MINUTES ?= 5
T       ?=
export PATH := $(CURDIR)/build/root/bin:$(PATH)# see packaging/local
TESTS_IN = $(BUILD)/$(1) -Dwerror=true -Db_lundef=false

.PHONY: all help deps setup check test trials trials-gpu lint demo demo-torch bench asan tsan clang fuzz \
    sim soak format install uninstall static static-aarch64 deb wheel wheel-aarch64 clean

all: setup ## build the product: build/muster and build/libmuster.so (half a minute)
	@ninja -C $(BUILD) product

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):[^#]*## /\1\t/p' Makefile | expand -t 15

deps: ## install what building and testing need (apt, with sudo if you are not root)
	@scripts/deps test

# Configures without installing anything; says what is missing.
setup:
	@test -f $(BUILD)/build.ninja || { scripts/deps --check build && \
	    meson setup $(BUILD) --prefix $(PREFIX) $(MESON_FLAGS); }

check: ## the quick look at a change: unit tests of core, simulator cases, documents, format, lint; T=NAME for one
	@scripts/deps check
	@scripts/check $(T)

test: ## every test: sanitizers, then real PyTorch, etcd, Slurm, several hosts (up to 30 minutes)
	@scripts/deps test
	@$(MAKE) -s setup
	@ninja -C $(BUILD)
	@tests/run

trials: setup ## the long trials: hundreds of kills, seeds and faults (hours); T=NAME for one
	@scripts/deps test
	@ninja -C $(BUILD)
	@tests/trials/run $(T)

trials-gpu: setup ## for machines with GPUs: NCCL jobs, kills, hangs, warm workers; makes a report to send back
	@ninja -C $(BUILD) product
	@tests/gpu/run

lint: setup ## the linter on every source
	@scripts/deps check
	@scripts/check lint-all

demo: ## two nodes with two workers each, here; one worker is killed while you watch
	@scripts/deps build
	@$(MAKE) -s setup
	@ninja -C $(BUILD) product
	@scripts/demo

demo-torch: ## the same with real DDP training; fetches PyTorch for it
	@scripts/deps torch
	@$(MAKE) -s setup
	@ninja -C $(BUILD) product
	@scripts/demo --torch

asan: ## build/asan: everything with ASan and UBSan
	@scripts/deps --check build
	@test -f $(BUILD)/asan/build.ninja || \
	    meson setup $(call TESTS_IN,asan) -Db_sanitize=address,undefined
	@ninja -C $(BUILD)/asan

tsan: ## build/tsan: everything with the thread sanitizer
	@scripts/deps --check build
	@test -f $(BUILD)/tsan/build.ninja || meson setup $(call TESTS_IN,tsan) -Db_sanitize=thread
	@ninja -C $(BUILD)/tsan

clang: ## build/clang: everything by clang, warnings are errors
	@scripts/deps clang
	@test -f $(BUILD)/clang/build.ninja || CC=clang meson setup $(call TESTS_IN,clang)
	@ninja -C $(BUILD)/clang

bench: setup ## us beside the peers; a table, and JSON lines in build/bench
	@scripts/deps bench
	@ninja -C $(BUILD)
	@bench/run

fuzz: ## each parser under libFuzzer, SECONDS=60 each
	@scripts/deps clang
	@tests/fuzz/run $(SECONDS)

sim: setup ## SEEDS=10000 random runs of the simulator
	@ninja -C $(BUILD) muster-sim
	@$(BUILD)/muster-sim --seeds $(SEEDS) --keep-going

soak: setup ## MINUTES=5 of kills, stops and cut cables
	@scripts/deps test
	@ninja -C $(BUILD)
	@tests/soak/run $(MINUTES)

format: ## format every source with the pinned clang-format
	@scripts/deps check
	@$(BUILD)/tools/bin/clang-format -i $$(git ls-files '*.c' '*.h')

install: all ## install below PREFIX=/usr/local
	@meson configure $(BUILD) -Dprefix=$(abspath $(PREFIX)) -Dlibdir=$(LIBDIR)
	@ninja -C $(BUILD) installed
	@meson install -C $(BUILD) --no-rebuild
	@test -n "$(DESTDIR)" || ! test -w /etc/ld.so.cache || ldconfig

uninstall: ## remove what `make install` installed last
	@ninja -C $(BUILD) uninstall

static: ## one file, nothing else needed: build/static/muster
	@scripts/deps bundle
	@test -f $(BUILD)/static/build.ninja || meson setup $(BUILD)/static \
	    -Dbundle=all -Dtests=false -Dbuildtype=release
	@ninja -C $(BUILD)/static muster

static-aarch64: ## the same for 64-bit Arm, built on this machine: build/static-aarch64/muster
	@scripts/deps cross
	@packaging/sysroot
	@test -f $(BUILD)/static-aarch64/build.ninja || meson setup $(BUILD)/static-aarch64 \
	    --cross-file $(BUILD)/aarch64/cross.ini -Dbundle=all -Dtests=false -Dbuildtype=release
	@ninja -C $(BUILD)/static-aarch64 muster

deb: ## a Debian package
	@scripts/deps deb
	@packaging/deb

wheel: ## the Python wheel
	@scripts/deps wheel
	@packaging/wheel

wheel-aarch64: ## the same for 64-bit Arm, built on this machine
	@scripts/deps cross
	@packaging/wheel aarch64

clean: ## remove build/
	@rm -rf $(BUILD)
