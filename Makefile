# The face of the project. Meson and ninja do the work; see docs/ARCHITECTURE.md.
BUILD   ?= build
PREFIX  ?= /usr/local
SECONDS ?= 60
SEEDS   ?= 10000

.PHONY: all deps setup test demo bench asan fuzz sim format install clean

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

asan: deps
	@test -f $(BUILD)/asan/build.ninja || meson setup $(BUILD)/asan \
	    -Db_sanitize=address,undefined -Db_lundef=false -Dwerror=true
	@ninja -C $(BUILD)/asan

bench: all
	@scripts/deps bench
	@bench/run

fuzz: deps
	@tests/fuzz/run $(SECONDS)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

install: all
	@meson install -C $(BUILD) --no-rebuild

clean:
	@rm -rf $(BUILD)
