# The face of the project. Meson and ninja do the work; see docs/ARCHITECTURE.md.
BUILD   ?= build
PREFIX  ?= /usr/local
SECONDS ?= 60
SEEDS   ?= 10000
MINUTES ?= 5
TESTS_IN = $(BUILD)/$(1) -Dwerror=true -Db_lundef=false

.PHONY: all deps setup test demo demo-torch bench asan tsan clang fuzz sim soak format \
    install static deb wheel clean

all: setup
	@ninja -C $(BUILD)

deps:
	@scripts/deps build

setup: deps
	@test -f $(BUILD)/build.ninja || meson setup $(BUILD) --prefix $(PREFIX) $(MESON_FLAGS)

# Everything: unit, golden and fuzz corpora under sanitizers, then the real peers.
test: all
	@scripts/deps test
	@tests/run

# Two nodes with two workers each, here; one worker is killed while you watch.
demo: setup
	@ninja -C $(BUILD) product
	@scripts/demo

demo-torch: setup
	@ninja -C $(BUILD) product
	@scripts/deps torch
	@scripts/demo --torch

asan: deps
	@test -f $(BUILD)/asan/build.ninja || \
	    meson setup $(call TESTS_IN,asan) -Db_sanitize=address,undefined
	@ninja -C $(BUILD)/asan

tsan: deps
	@test -f $(BUILD)/tsan/build.ninja || meson setup $(call TESTS_IN,tsan) -Db_sanitize=thread
	@ninja -C $(BUILD)/tsan

clang: deps
	@scripts/deps clang
	@test -f $(BUILD)/clang/build.ninja || CC=clang meson setup $(call TESTS_IN,clang)
	@ninja -C $(BUILD)/clang

bench: all
	@scripts/deps bench
	@bench/run

fuzz: deps
	@tests/fuzz/run $(SECONDS)

sim: all
	@$(BUILD)/muster-sim --seeds $(SEEDS)

soak: all
	@scripts/deps test
	@tests/soak/run $(MINUTES)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

install: all
	@meson configure $(BUILD) -Dprefix=$(PREFIX)
	@meson install -C $(BUILD) --no-rebuild

# One file, nothing else needed: build/static/muster.
static:
	@scripts/deps bundle
	@test -f $(BUILD)/static/build.ninja || meson setup $(BUILD)/static \
	    -Dbundle=all -Dtests=false -Dbuildtype=release
	@ninja -C $(BUILD)/static muster

deb:
	@scripts/deps deb
	@packaging/deb

wheel:
	@scripts/deps wheel
	@packaging/wheel

clean:
	@rm -rf $(BUILD)
