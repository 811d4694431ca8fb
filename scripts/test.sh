#!/usr/bin/env bash
# usage: scripts/test.sh [--long] [PRESET ...]       default: release asan tsan clang, and cuda where nvcc is
# Installs what is missing, checks the format of the sources, builds each preset and runs its tests. Says which tests were
# skipped and why, and ends with one line; exits 1 if anything failed.
# asan builds and tests what does not need libtorch, tsan what has threads and needs neither libtorch nor gRPC.
# clang looks at the code of the daemons, with every annotated lock proved to be held; it makes and runs nothing.
# cuda builds the programs and the GPU tests, and runs those that need no libtorch, which skip where there is no GPU; the
# others need the vendor's libraries that torch brings to a GPU host: scripts/gpu_tests.sh runs all.
# --long: then the tests with the label `long`, one after the other: runs of hundreds and thousands of steps, an hour and a half on
# two cores; and scripts/reference_tests.sh: packages that our results are held against, and searches for inputs that break us.
set -uo pipefail
cd "$(dirname "$0")/.."

long=0
if [ "${1:-}" = --long ]; then
  long=1
  shift
fi

scripts/bootstrap.sh --tests || exit 1
daemons=(syncopate-synchronizer syncopate-trainer syncopate-rollouter)
presets=("$@")
if [ "${#presets[@]}" -eq 0 ]; then
  presets=(release asan tsan clang)
  if command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then presets+=(cuda); fi
fi

summary=()
failed=0
if ! scripts/format.sh --check; then
  summary+=("format: scripts/format.sh mends it")
  failed=1
fi

# counted LOG FOLDER: the result of a run of ctest, with the number of tests that it has skipped.
counted() {
  local result skipped
  result=$(grep -E 'tests? passed|No tests were found' "$1" | tail -n 1)
  skipped=$(scripts/skipped_tests.sh "$2" | head -n 1)
  echo "${result:-no result}${skipped:+, $skipped}"
}

# show_skipped NAME FOLDER
show_skipped() { scripts/skipped_tests.sh "$2" | sed "1s/^/$1: /"; }

# build PRESET: says in build/PRESET.built how it ended: ok or failed.
build() {
  local targets=()
  if [ "$1" = clang ]; then targets=("${daemons[@]}"); fi
  if [ "$1" = cuda ]; then
    targets=("${daemons[@]}" syncopate syncopate-bench-ceiling syncopate-bench-decode syncopate-bench-generate syncopate-bench-train
      syncopate_gpu_tests)
  fi
  if scripts/build.sh "$1" "${targets[@]}"; then echo ok > "build/$1.built"; else echo failed > "build/$1.built"; fi
}

# Tests wait for daemons, deadlines and each other for nearly half of their time. The builds of the later presets run in that
# time: their processes have the class SCHED_IDLE, which gets what no other process wants.
build_later_presets() {
  local preset
  for preset in "${presets[@]:1}"; do build "$preset"; done
}

mkdir -p build
rm -f build/*.built
later=
trap '[ -z "$later" ] || kill -- "-$later" 2> /dev/null' EXIT
for preset in "${presets[@]}"; do
  started=$SECONDS
  if [ "$preset" = "${presets[0]}" ]; then
    build "$preset"
    set -m  # a process group of its own, which the trap ends as one
    build_later_presets &
    later=$!
    set +m
    chrt --idle --all-tasks --pid 0 "$later" || true
  fi
  while [ ! -s "build/$preset.built" ] && kill -0 "$later" 2> /dev/null; do sleep 1; done
  if [ "$(cat "build/$preset.built" 2> /dev/null)" != ok ]; then
    summary+=("$preset: build failed")
    failed=1
    continue
  fi
  if [ "$preset" = clang ]; then
    summary+=("clang: locks proved")
    continue
  fi
  log=build/$preset.tests.log
  if ! ctest --preset "$preset" --parallel "$(nproc)" > "$log" 2>&1; then
    failed=1
    cat "$log"
  fi
  show_skipped "$preset" "build/$preset"
  summary+=("$preset: $(counted "$log" "build/$preset") in $((SECONDS - started)) s")
done

if [ "$long" -eq 1 ]; then
  started=$SECONDS
  log=build/long.tests.log
  if ! scripts/build.sh release || ! ctest --preset long > "$log" 2>&1; then
    failed=1
    cat "$log"
  fi
  show_skipped long build/release
  summary+=("long: $(counted "$log" build/release) in $((SECONDS - started)) s")
  if scripts/reference_tests.sh; then
    summary+=("references: ok")
  else
    summary+=("references: FAILED")
    failed=1
  fi
fi

result=ok
[ "$failed" -eq 0 ] || result=FAILED
printf '%s' "$result"
printf ' | %s' "${summary[@]}"
printf '\n'
exit "$failed"
