#!/usr/bin/env bash
# usage: tests/gpu/borrowed_cuda.sh [FOLDER=build/cuda/bin [MODEL=qwen2.5-7b [CASE ...]]]
# What a second weight set that keys and values lend (sync.install: borrowed) costs and gives back on this host's first
# GPU. Prints the lines of syncopate-bench-generate, each case by its name before them:
#   decode    decode steps without a sync, with two sets and with parts of the storage: at most 2 % apart
#   half      the pool half used, a sync each second: `kept`, `exchange_ms` (the pause), `kv_tokens` of both
#   swap      the pool full, 40 GiB for preempted sequences, a sync each 30 s
#   recompute the same without host memory
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
folder=$(realpath "${1:-$root/build/cuda/bin}") || exit 1
model=${2:-qwen2.5-7b}
shift $(($# < 2 ? $# : 2))
[ "$#" -gt 0 ] || set -- decode half swap recompute

# shellcheck source=scripts/gpu_libraries.sh
. "$root/scripts/gpu_libraries.sh" "$folder"

failed=0
bench() {
  echo "== $*"
  "$folder/syncopate-bench-generate" --model "$model" "$@" || failed=1
}

for case in "$@"; do
  echo "= $case"
  for install in remap borrowed; do
    case $case in
      decode) bench --install "$install" --case fixed --batch 256 --context 1024 ;;
      half) bench --install "$install" --case sync --batch 576 --sync-every 1 --sync-seconds 24 ;;
      swap)
        bench --install "$install" --case sync --batch 1024 --answer-tokens 1024 --sync-every 30 --sync-seconds 92 \
          --host-kv-memory 40
        ;;
      recompute)
        bench --install "$install" --case sync --batch 1024 --answer-tokens 1024 --sync-every 30 --sync-seconds 92
        ;;
      *)
        echo "borrowed: no case $case" >&2
        exit 2
        ;;
    esac
  done
done
exit "$failed"
