#!/usr/bin/env bash
# usage: scripts/build.sh [PRESET=release [TARGET ...]]       presets: CMakePresets.json; targets: all of the preset's
# Configures if needed and builds. Prints one line, or the errors.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
shift || true
log=build/$preset.log
mkdir -p build

# A unit of libtorch takes about 1.5 GB to compile.
jobs=$(nproc)
by_memory=$(($(awk '/^MemAvailable/ {print $2}' /proc/meminfo) / 1500000))
[ "$by_memory" -ge "$jobs" ] || jobs=$((by_memory > 1 ? by_memory : 1))

started=$SECONDS
targets=()
for target in "$@"; do targets+=(--target "$target"); done
if ! cmake --preset "$preset" > "$log" 2>&1 ||
  ! cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}" >> "$log" 2>&1; then
  grep -E 'error|Error|FAILED|fatal|undefined reference' "$log" | head -n 40 >&2 || true
  echo "build $preset: failed, see $log" >&2
  exit 1
fi
echo "build $preset: done in $((SECONDS - started)) s"
