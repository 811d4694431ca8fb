#!/usr/bin/env bash
# usage: tests/gpu/demo_cuda.sh [FOLDER=build/cuda/bin [CASE ...]]
# Runs the demo with trainer and rollouters on GPUs over each transport: it must learn its task. Cases that need two GPUs
# are skipped on a host with one. Each run has a time limit, after which all its processes are ended. Prints a line for
# each run; exits 1 if one failed to learn.
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
folder=$(realpath "${1:-$root/build/cuda/bin}") || exit 1
shift
limit_s=180
least_exact=0.95

# shellcheck source=scripts/gpu_libraries.sh
. "$root/scripts/gpu_libraries.sh" "$folder"

gpus=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
if [ "$gpus" -eq 0 ]; then
  echo "demo on GPUs: skipped, nvidia-smi lists no GPU"
  exit 0
fi

# name, number of GPUs that it needs, overrides of the demo's configuration
cases=(
  "ipc 2 rollout.device=cuda:1 sync.transport=ipc run.rollouters=2"
  "nccl 2 rollout.device=cuda:1 sync.transport=nccl run.rollouters=1"
  "grpc 2 rollout.device=cuda:1 sync.transport=grpc run.rollouters=2"
  "auto 2 rollout.device=cuda:1 run.rollouters=2"
  "ipc-float32 2 rollout.device=cuda:1 sync.transport=ipc run.rollouters=2 model.dtype=float32"
  "ipc-in-place 2 rollout.device=cuda:1 sync.transport=ipc run.rollouters=2 sync.install=in_place"
  "nccl-in-place 2 rollout.device=cuda:1 sync.transport=nccl run.rollouters=1 sync.install=in_place"
  "ranks-nccl 2 train.device=cuda trainer.world=2 rollout.device=cuda:1 sync.transport=nccl run.rollouters=1"
  "ranks-ipc 2 train.device=cuda trainer.world=2 rollout.device=cuda:1 sync.transport=ipc run.rollouters=1"
  "borrowed-nccl 2 rollout.device=cuda:1 sync.transport=nccl run.rollouters=1 sync.install=borrowed model.head_dim=64"
  "borrowed 1 rollout.device=cuda:0 sync.transport=ipc run.rollouters=1 sync.install=borrowed model.head_dim=64 rollout.gpu_memory=0.3"
  "one-gpu 1 rollout.device=cuda:0 sync.transport=ipc run.rollouters=2"
  "cpu-rollouters 1 rollout.device=cpu run.rollouters=2"
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Prints the figures of a run's summary; returns 1 if the run did not learn.
judge() {
  python3 - "$1" "$least_exact" << 'END'
import json, sys
try:
    run = json.load(open(sys.argv[1]))
    syncs, best = run["syncs"], run["eval"]["best"]
except (OSError, KeyError):
    print("has not come far enough for figures")
    sys.exit(1)
print(f'{run["status"]:<10} exact {best:5.3f}  {run["wall_seconds"]:6.1f} s  {syncs["count"]:4d} syncs, '
      f'{syncs["failed"]} failed, {syncs["total_ms"]["p50"]:7.2f} ms  pause {run["pause_ms"]["p50"]:6.3f} ms')
sys.exit(0 if run["status"] == "completed" and best >= float(sys.argv[2]) else 1)
END
}

run_case() {
  local name=$1 dir=$work/$1
  shift
  printf '%-15s ' "$name"
  # The run gets a session of its own, so that all its processes can be ended.
  setsid timeout --signal=INT --kill-after=20 "$limit_s" "$folder/syncopate" run "$root/deploy/examples/reverse.yaml" \
    "run.dir=$dir" train.device=cuda:0 "$@" --quiet > "$work/$name.log" 2>&1 &
  local session=$!
  wait "$session"
  local code=$?
  kill -KILL -- "-$session" 2> /dev/null
  judge "$dir/summary.json"
  local learned=$?
  grep -h 'W .*sync of' "$dir"/logs/synchronizer-*.log | tail -n 4 | sed 's/^/  /'
  if [ "$learned" -ne 0 ] || [ "$code" -ne 0 ]; then
    failed=1
    echo "  FAILED: exit code $code"
    tail -n 5 "$work/$name.log"
    for log in "$dir"/logs/*.log; do
      grep -E ' [WE] |syncopate-' "$log" 2> /dev/null | tail -n 8 | sed "s|^|  $(basename "$log"): |"
    done
  fi
}

for line in "${cases[@]}"; do
  read -r -a words <<< "$line"
  if [ $# -gt 0 ] && [[ " $* " != *" ${words[0]} "* ]]; then continue; fi
  if [ "$gpus" -lt "${words[1]}" ]; then
    printf '%-15s skipped: needs %d GPUs, there are %d\n' "${words[0]}" "${words[1]}" "$gpus"
    continue
  fi
  run_case "${words[0]}" "${words[@]:2}"
done
[ "$failed" -eq 0 ] && echo "demo on GPUs: ok" || echo "demo on GPUs: FAILED"
exit "$failed"
