#!/usr/bin/env bash
# usage: tests/gpu/borrowed_cuda.sh [FOLDER=build/cuda/bin [MODEL=qwen2.5-7b [CASE ...]]]
# What a second weight set that keys and values lend (sync.install: borrowed) costs and gives back on this host's first
# GPU. Prints the lines of syncopate-bench-generate, each case by its name before them:
#   capacity   the tokens that have room with two sets and between syncs (`kv_tokens` of the line `engine`)
#   decode     decode steps without a sync, with two sets and with parts of the storage
#   half       a pool of 880,000 tokens half used, a sync each second: `kept`, and `exchange_ms`, the pause
#   swap       a pool of 700,000 tokens full, 40 GiB for preempted sequences, a sync each 30 s
#   recompute  the same without host memory
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
folder=$(realpath "${1:-$root/build/cuda/bin}") || exit 1
model=${2:-qwen2.5-7b}
shift $(($# < 2 ? $# : 2))
[ "$#" -gt 0 ] || set -- capacity decode half swap recompute

# shellcheck source=scripts/gpu_libraries.sh
. "$root/scripts/gpu_libraries.sh" "$folder"

failed=0
bench() {
  echo "== $*"
  "$folder/syncopate-bench-generate" --model "$model" "$@" || failed=1
}

for case in "$@"; do
  echo "= $case"
  case $case in
    capacity)
      for install in remap borrowed; do bench --install "$install" --case short --batch 1024 --repeats 1; done
      ;;
    decode)
      for install in remap borrowed; do bench --install "$install" --case fixed --batch 256 --context 1024 --repeats 3; done
      ;;
    # The rate without syncs is measured before and after those with them, by the same engine.
    half) bench --install borrowed --case sync --kv-tokens 880000 --batch 576 --sync-every 1 --sync-seconds 40 ;;
    swap)
      bench --install borrowed --case sync --kv-tokens 700000 --batch 1024 --sync-every 30 --sync-seconds 95 \
        --host-kv-memory 40
      ;;
    recompute) bench --install borrowed --case sync --kv-tokens 700000 --batch 1024 --sync-every 30 --sync-seconds 95 ;;
    *)
      echo "borrowed: no case $case" >&2
      exit 2
      ;;
  esac
done
exit "$failed"
