# SPDX-License-Identifier: MIT
#
#   make                everything, into build/release
#   make demo           installs what is missing, builds, runs the main job
#   make check          installs what is missing, builds, runs every test
#   make check-sanitize the tests that matter there, under ASan+UBSan and under TSan
#   make bench bench-sim bench-policies bench-eval bench-week fuzz install uninstall clean
#
# VARIANT=release|asan|tsan|debug choose flags and an object directory of their own.
# Sources are found by folder: a new file needs no line here.

VARIANT	?= release
B	?= build/$(VARIANT)
CC	?= gcc
PREFIX	?= /usr/local
LIBDIR	?= $(PREFIX)/lib
BINDIR	?= $(PREFIX)/bin
INCDIR	?= $(PREFIX)/include
SYSCONFDIR ?= /etc
MANDIR	?= $(PREFIX)/share/man
UNITDIR	?= $(PREFIX)/lib/systemd/system
COMPDIR	?= $(PREFIX)/share/bash-completion/completions
VERSION	:= 0.1.0
SOVER	:= 0

WARN	 = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
WERROR	?=
FLAGS_release = -O2 -g
FLAGS_debug   = -O0 -g
FLAGS_asan    = -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FLAGS_tsan    = -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT	 = $(FLAGS_$(VARIANT))
# programs are compiled as programs are
AS_PROGRAM = -fPIE
# what the daemon does for each CPU in each interval
HOT	 = $(if $(filter release,$(VARIANT)),-O3)
CPPFLAGS += -I. -Iinclude -D_GNU_SOURCE -DPCPTUNE_LIBDIR='"$(LIBDIR)"' -DPCPTUNE_SYSCONFDIR='"$(SYSCONFDIR)"'
CFLAGS	+= -std=gnu17 $(OPT) $(WARN) $(WERROR) -fPIC -pthread -fvisibility=hidden
LDFLAGS	+= $(OPT) -pthread

# V=1 shows every command
Q	 = $(if $(V),,@)
say	 = $(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),@:,@printf '  %-4s %s\n' $(1) $@)

# asked when used, since `make deps` may install them first
EVENT	= $(shell pkg-config --libs libevent)
CONFIG	= $(shell pkg-config --libs libconfig)
SQLITE	= $(shell pkg-config --libs sqlite3)
JSON	= $(shell pkg-config --libs jansson)
ZSTD	= $(shell pkg-config --libs libzstd)
CMOCKA	= $(shell pkg-config --libs cmocka)
NCURSES	= $(shell pkg-config --libs ncursesw)
LIBS	= $(CONFIG) $(SQLITE) $(JSON) $(ZSTD) -ldl -lm

# ---- what is built ----
ALLOC_SRC   := $(filter-out allocator/preload%.c,$(wildcard allocator/*.c))
PRELOAD_SRC := $(wildcard allocator/preload*.c)
LIB_SRC	    := $(wildcard lib/*.c)
HOST_SRC    := $(wildcard policies/host*.c)
POLICY_SRC  := $(filter-out $(HOST_SRC),$(wildcard policies/*.c))
BUNDLED	    := $(patsubst policies/%.c,%,$(POLICY_SRC))
EVAL_SRC    := $(wildcard eval/*.c eval/sim/*.c)
DAEMON_SRC  := $(wildcard daemon/*.c)
CLI_SRC	    := $(wildcard cli/*.c)
BENCH_SRC   := $(wildcard bench/*.c)
UNIT_SRC    := $(wildcard tests/unit/test_*.c)
TOOL_SRC    := $(wildcard tests/tools/*.c)
FUZZ_SRC    := $(wildcard tests/fuzz/*.c)

# Where the C library of this machine keeps what it shares with the kernel for restartable sequences,
# if that is the same in every program; else, and when not built for this machine: as in the header.
HOT_AREA_C = \#include <stdio.h>\n\#include <sys/rseq.h>\nint main(void)\n{\n\treturn __rseq_offset > 0 && printf("-DPCPA_HOT_AREA=%%td", __rseq_offset) < 0;\n}\n
HOT_AREA = $(eval HOT_AREA := $(shell t=$$(mktemp -d) && printf '$(HOT_AREA_C)' > $$t/x.c && \
	$(CC) $$t/x.c -o $$t/x 2>/dev/null && $$t/x 2>/dev/null; rm -rf "$$t"))$(HOT_AREA)

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
$(call obj,$(LIB_SRC) $(HOST_SRC) $(POLICY_SRC) $(DAEMON_SRC)): CFLAGS += $(HOT)
$(call obj,$(BENCH_SRC)): CFLAGS += $(AS_PROGRAM)
$(call obj,$(ALLOC_SRC) $(PRELOAD_SRC) $(UNIT_SRC)): CPPFLAGS += $(HOT_AREA)

POLICIES := $(patsubst policies/%.c,$(B)/lib/pcptune/policies/%.so,$(POLICY_SRC))
UNITS	 := $(patsubst tests/unit/%.c,$(B)/tests/%,$(UNIT_SRC))
TOOLS	 := $(patsubst tests/tools/%.c,$(B)/tests/tools/%,$(TOOL_SRC))
BENCHES	 := $(patsubst bench/%.c,$(B)/bench/%,$(BENCH_SRC)) $(B)/bench/lists-archive
FUZZERS	 := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
ALLOC	 := $(B)/lib/libpcpalloc.so $(B)/lib/libpcpalloc.a
PRELOAD	 := $(if $(PRELOAD_SRC),$(B)/lib/libpcpalloc-preload.so)
INTERNAL := $(B)/lib-internal/libeval.a $(B)/lib-internal/libhost.a $(B)/lib-internal/libpcptune.a

all: allocator policies daemon cli benches $(B)/lib/pkgconfig/pcptune.pc
allocator: $(ALLOC) $(PRELOAD)
policies: $(POLICIES) $(B)/lib-internal/libhost.a
lib: $(B)/lib-internal/libpcptune.a
eval: $(B)/lib-internal/libeval.a
daemon: $(B)/bin/pcptuned
cli: $(B)/bin/pcptune
benches: $(BENCHES)
tests: $(UNITS) $(TOOLS)
fuzzers: $(FUZZERS)
.PHONY: all allocator policies lib eval daemon cli benches tests fuzzers

# Places that are compiled in; unusual ones build anew. PREFIX alone needs nothing: what lies in
# ../lib of the programs is found from where they are.
PATHS := $(if $(filter $(PREFIX)/lib,$(LIBDIR)),,$(LIBDIR)) $(SYSCONFDIR)
$(B)/paths: FORCE
	@mkdir -p $(@D)
	@echo '$(PATHS)' | cmp -s - $@ || echo '$(PATHS)' > $@
# Policies that are ours: the host has their names.
$(B)/bundled: FORCE
	@mkdir -p $(@D)
	@echo '$(BUNDLED)' | cmp -s - $@ || echo '$(BUNDLED)' > $@
$(call obj,policies/host_find.c): $(B)/bundled
$(call obj,policies/host_find.c): CPPFLAGS += -DPCPTUNE_BUNDLED='"$(BUNDLED)"'
FORCE:
.PHONY: FORCE

$(B)/obj/%.o: %.c $(B)/paths
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/lib/libpcpalloc.so.$(SOVER): $(call obj,$(ALLOC_SRC))
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libpcpalloc.so.$(SOVER) -Wl,-z,nodelete $^ -o $@
$(B)/lib/libpcpalloc.so: $(B)/lib/libpcpalloc.so.$(SOVER)
	$(call say,LN)
	$(Q)ln -sf $(<F) $@
$(B)/lib/libpcpalloc.a: $(call obj,$(ALLOC_SRC))
	@mkdir -p $(@D)
	$(call say,AR)
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/lib/libpcpalloc-preload.so: $(call obj,$(PRELOAD_SRC) $(ALLOC_SRC))
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libpcpalloc-preload.so -Wl,-z,nodelete $^ -o $@ -ldl

$(B)/lib-internal/libpcptune.a: $(call obj,$(LIB_SRC))
$(B)/lib-internal/libhost.a: $(call obj,$(HOST_SRC))
$(B)/lib-internal/libeval.a: $(call obj,$(EVAL_SRC))
$(B)/lib-internal/%.a:
	@mkdir -p $(@D)
	$(call say,AR)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/lib/pcptune/policies/%.so: $(B)/obj/policies/%.o
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -shared $^ -o $@

$(B)/bin/pcptuned: $(call obj,$(DAEMON_SRC)) $(INTERNAL)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(EVENT) $(LIBS)
$(B)/bin/pcptune: $(call obj,$(CLI_SRC)) $(INTERNAL)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(NCURSES) $(LIBS)

# a library that does next to nothing
$(B)/bench/libstack.so: $(B)/obj/bench/shared/stack.o
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,-z,nodelete $^ -o $@
# the same with the functions near by
$(B)/bench/lists-archive: $(B)/obj/bench/lists.o $(B)/lib/libpcpalloc.a $(B)/bench/libstack.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ -Wl,-rpath,'$$ORIGIN'
$(B)/bench/lists $(B)/bench/peers: $(B)/bench/%: $(B)/obj/bench/%.o $(INTERNAL) $(ALLOC) $(B)/bench/libstack.so
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $< $(INTERNAL) $(B)/bench/libstack.so -o $@ -L$(B)/lib -lpcpalloc -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' $(LIBS)
$(B)/bench/%: $(B)/obj/bench/%.o $(INTERNAL) $(ALLOC)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $< $(INTERNAL) -o $@ -L$(B)/lib -lpcpalloc -Wl,-rpath,'$$ORIGIN/../lib' $(LIBS)

# examples/policy as C, one string a line, for `pcptune policy new`
SKELETON := examples/policy/hello.c examples/policy/Makefile
$(B)/gen/policy_skeleton.h: $(SKELETON)
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)for f in source:hello.c makefile:Makefile; do \
		echo "static const char *const skeleton_$${f%:*}[] = {"; \
		sed '/in-tree/d; s/[\\"]/\\&/g; s/^/"/; s/$$/\\n",/' examples/policy/$${f#*:}; \
		echo "(const char *)0};"; done > $@
$(B)/obj/cli/policy_new.o: $(B)/gen/policy_skeleton.h
$(B)/obj/cli/policy_new.o: CPPFLAGS += -I$(B)/gen

# for policies that are built against the source tree, as if it were installed
$(B)/lib/pkgconfig/pcptune.pc: configs/pcptune.pc.in
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)sed -e 's|@PREFIX@|$(abspath $(B))|; s|@LIBDIR@|$(abspath $(B))/lib|; s|@INCDIR@|$(CURDIR)/include|; s|@VERSION@|$(VERSION)|' $< > $@

# unit tests see every internal function: they link the archives
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(INTERNAL) $(B)/lib/libpcpalloc.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $< $(INTERNAL) $(B)/lib/libpcpalloc.a -o $@ $(CMOCKA) $(EVENT) $(LIBS)
$(B)/tests/tools/%: $(B)/obj/tests/tools/%.o $(INTERNAL) $(ALLOC)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $< $(INTERNAL) -o $@ -L$(B)/lib -lpcpalloc -Wl,-rpath,'$$ORIGIN/../../lib' $(LIBS)
$(B)/fuzz/%: tests/fuzz/%.c $(LIB_SRC) $(HOST_SRC)
	@mkdir -p $(@D)
	$(call say,FUZZ)
	$(Q)clang $(CPPFLAGS) -std=gnu17 -g -O1 -fsanitize=fuzzer,address,undefined $^ -o $@ $(LIBS)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
.SECONDARY:

# ---- installing what is missing ----
DEPS := gcc make pkg-config libevent-dev libconfig-dev libsqlite3-dev libjansson-dev libzstd-dev \
	libcmocka-dev libncurses-dev sqlite3 python3
DEPS_SANITIZE := clang libclang-rt-14-dev
DEPS_TEST := redis-server redis-tools spin g++ mandoc groff-base
DEPS_BENCH := libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libtbbmalloc2
deps:
	@configs/install-deps $(DEPS)
deps-check: deps
	@configs/install-deps $(DEPS_TEST)
# peers that can not be had are left out of the comparison, and named
deps-bench: deps
	@configs/install-deps $(DEPS_BENCH) || for p in $(DEPS_BENCH); do \
		configs/install-deps $$p || echo "bench: goes on without $$p" >&2; done
deps-sanitize: deps-check
	@configs/install-deps $(DEPS_SANITIZE)

# ---- running ----
demo: deps
	@$(MAKE) --no-print-directory all
	@B=$(B) bench/demo
check: deps-check
	@$(MAKE) --no-print-directory all tests
	@B=$(B) VARIANT=$(VARIANT) python3 tests/run.py
check-sanitize: deps-sanitize
	@$(MAKE) --no-print-directory VARIANT=asan all tests
	@B=build/asan VARIANT=asan python3 tests/run.py
	@$(MAKE) --no-print-directory VARIANT=tsan all tests
	@B=build/tsan VARIANT=tsan python3 tests/run.py
bench: deps-bench
	@$(MAKE) --no-print-directory all
	@B=$(B) bench/run
# the simulator beside the live allocator
bench-sim: deps
	@$(MAKE) --no-print-directory all
	@B=$(B) bench/rows_run
# every policy over the same walks with the same memory
bench-policies: deps
	@$(MAKE) --no-print-directory all
	@B=$(B) bench/policies_run
# what other limits would have done, told from one run, beside what they then did
bench-eval: deps-check
	@$(MAKE) --no-print-directory all
	@B=$(B) bench/eval_run
# how long eval takes over the log of a week
bench-week: deps
	@$(MAKE) --no-print-directory all $(B)/tests/tools/record_log
	@B=$(B) bench/week_run
fuzz: deps-sanitize
	@$(MAKE) --no-print-directory fuzzers
	@B=$(B) tests/fuzz/run
.PHONY: deps deps-check deps-bench deps-sanitize demo check check-sanitize bench bench-sim bench-policies bench-eval bench-week fuzz

# ---- installing ----
D = $(DESTDIR)
install: all
	install -d $(D)$(BINDIR) $(D)$(LIBDIR)/pcptune/policies $(D)$(LIBDIR)/pkgconfig \
		$(D)$(INCDIR)/pcptune $(D)$(SYSCONFDIR)/pcptune $(D)$(UNITDIR) $(D)$(COMPDIR) \
		$(D)$(MANDIR)/man1 $(D)$(MANDIR)/man3 $(D)$(MANDIR)/man5 $(D)$(MANDIR)/man8
	install -m 755 $(B)/bin/pcptune $(B)/bin/pcptuned $(D)$(BINDIR)
	install -m 755 $(B)/lib/libpcpalloc.so.$(SOVER) $(D)$(LIBDIR)/libpcpalloc.so.$(VERSION)
	ln -sf libpcpalloc.so.$(VERSION) $(D)$(LIBDIR)/libpcpalloc.so.$(SOVER)
	ln -sf libpcpalloc.so.$(SOVER) $(D)$(LIBDIR)/libpcpalloc.so
	install -m 755 $(PRELOAD) $(D)$(LIBDIR)
	install -m 644 $(B)/lib/libpcpalloc.a $(D)$(LIBDIR)
	install -m 755 $(POLICIES) $(D)$(LIBDIR)/pcptune/policies
	install -d $(D)$(LIBDIR)/pcptune/workloads
	install -m 644 configs/workloads/* $(D)$(LIBDIR)/pcptune/workloads
	install -m 644 include/pcpalloc.h include/pcpalloc_inline.h $(D)$(INCDIR)
	install -m 644 include/pcptune/* $(D)$(INCDIR)/pcptune
	for f in pcpalloc pcptune; do sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCDIR@|$(INCDIR)|; s|@VERSION@|$(VERSION)|' \
		configs/$$f.pc.in > $(D)$(LIBDIR)/pkgconfig/$$f.pc; done
	test -e $(D)$(SYSCONFDIR)/pcptune/pcptuned.conf || \
		install -m 644 configs/pcptuned.conf $(D)$(SYSCONFDIR)/pcptune/pcptuned.conf
	sed 's|@BINDIR@|$(BINDIR)|' configs/pcptuned.service.in > $(D)$(UNITDIR)/pcptuned.service
	install -m 644 configs/completion.bash $(D)$(COMPDIR)/pcptune
	for s in 1 3 5 8; do for f in docs/*.$$s; do if test -e "$$f"; then install -m 644 "$$f" $(D)$(MANDIR)/man$$s; fi; done; done
	@# the dynamic linker finds the library by its cache; a staged tree has none
	if test -z "$(DESTDIR)" && test "$$(id -u)" = 0; then ldconfig $(LIBDIR); fi
uninstall:
	rm -f $(D)$(BINDIR)/pcptune $(D)$(BINDIR)/pcptuned $(D)$(LIBDIR)/libpcpalloc* \
		$(D)$(INCDIR)/pcpalloc.h $(D)$(INCDIR)/pcpalloc_inline.h $(D)$(LIBDIR)/pkgconfig/pcpalloc.pc \
		$(D)$(LIBDIR)/pkgconfig/pcptune.pc $(D)$(UNITDIR)/pcptuned.service $(D)$(COMPDIR)/pcptune
	rm -f $(patsubst docs/%,$(D)$(MANDIR)/man1/%,$(wildcard docs/*.1)) \
		$(patsubst docs/%,$(D)$(MANDIR)/man3/%,$(wildcard docs/*.3)) \
		$(patsubst docs/%,$(D)$(MANDIR)/man5/%,$(wildcard docs/*.5)) \
		$(patsubst docs/%,$(D)$(MANDIR)/man8/%,$(wildcard docs/*.8))
	rm -rf $(D)$(LIBDIR)/pcptune $(D)$(INCDIR)/pcptune
clean:
	rm -rf build
format:
	clang-format -i $$(git ls-files '*.c' '*.h')
.PHONY: install uninstall clean format
