#!/usr/bin/env bash
# usage: scripts/gpu_tests.sh [FOLDER=build/cuda/bin [PATTERN]]
# Runs the GPU tests (programs named *_gpu_test) of a build folder or of the bin folder of an unpacked bundle, those whose
# names contain PATTERN if one is given. Needs no compiler and no CMake: only a GPU, its driver, and a Python with torch
# 2.11. Each program has a time limit, so it ends whatever hangs. Prints a line a program, and below it the tables that it has
# made (no_actor_gpu_test: what a rollouter holds of a GPU); exits 1 if one failed.
set -uo pipefail
folder=$(realpath "${1:-$(dirname "$0")/../build/cuda/bin}") || exit 1
pattern=${2:-}
limit_s=300

# shellcheck source=scripts/gpu_libraries.sh
. "$(dirname "$0")/gpu_libraries.sh" "$folder"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0
ran=0
for test in "$folder"/*_gpu_test; do
  name=$(basename "$test")
  [[ -x $test && $name == *"$pattern"* ]] || continue
  ran=$((ran + 1))
  log=$logs/$name
  started=$SECONDS
  timeout --kill-after=10 "$limit_s" "$test" > "$log" 2>&1
  code=$?
  passed=$(grep -c '^\[       OK \]' "$log")
  skipped=$(grep -c '^\[  SKIPPED \] .* ms)' "$log")
  printf '%-28s %3d passed %3d skipped %4d s' "$name" "$passed" "$skipped" $((SECONDS - started))
  # Where there is no GPU, the libraries that libtorch's CUDA half needs are not expected either.
  if [ "$code" -eq 127 ] && [ ! -e /dev/nvidiactl ]; then
    printf '  not started: %s\n' "$(grep -o 'lib[^ :]*: cannot open' "$log" | head -n 1)"
    continue
  fi
  case $code in
    0) echo ;;
    124 | 137) echo "  FAILED: not done after $limit_s s" ;;
    *) echo "  FAILED: exit code $code" ;;
  esac
  grep '^| ' "$log"
  if [ "$code" -ne 0 ]; then
    failed=1
    grep -E '^\[  FAILED  \]|Failure|error while loading|Check failed|broken invariant' -A 6 "$log" | head -n 60
    tail -n 5 "$log"
  elif [ "$skipped" -gt 0 ]; then
    grep -m 1 'needs .* GPU' "$log" | sed 's/^ */    /'
  fi
done
if [ "$ran" -eq 0 ]; then
  echo "gpu tests: none in $folder${pattern:+ with '$pattern' in its name}; scripts/build.sh cuda builds them" >&2
  exit 1
fi
[ "$failed" -eq 0 ] && echo "gpu tests: ok" || echo "gpu tests: FAILED"
exit "$failed"
