#!/usr/bin/env bash
# usage: scripts/fuzz.sh TARGET|all [SECONDS=60]       targets: tests/fuzz/*_fuzz.cc without that ending
# Searches with clang's libFuzzer, AddressSanitizer and UBSan for inputs that break a parser or a protocol, from the kept
# corpus on. What is found lies in build/fuzz/NAME; an input that broke something belongs into tests/fuzz/corpus/TARGET, with
# the fix. Prints a line a target; exits 1 if one was broken.
set -euo pipefail
cd "$(dirname "$0")/.."

all=$(cd tests/fuzz && printf '%s\n' *_fuzz.cc | sed 's/_fuzz.cc$//')
chosen=${1:?a target, or all: $(echo "$all" | tr '\n' ' ')}
seconds=${2:-60}
if [ "$chosen" = all ]; then chosen=$all; fi

mapfile -t targets <<< "$chosen"
scripts/build.sh fuzz "${targets[@]/%/_fuzz}"
failed=0
for target in "${targets[@]}"; do
  out=build/fuzz/$target
  mkdir -p "$out/found"
  code=0
  # Two minutes beside the search are for reading the corpus and for one slow input.
  timeout --kill-after=10 $((seconds + 120)) "build/fuzz/bin/${target}_fuzz" "$out/found" "tests/fuzz/corpus/$target" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -artifact_prefix="$out/" > "$out/log" 2>&1 || code=$?
  printf '%-20s %s\n' "$target" "$(grep -E '^(Done|SUMMARY|==.*ERROR)' "$out/log" | tail -n 1)"
  if [ "$code" -ne 0 ]; then
    failed=1
    echo "$target: FAILED with code $code; see $out/log"
  fi
done
exit "$failed"
