#!/usr/bin/env bash
# usage: tests/gpu/turns_ranks_cuda.sh [FOLDER=build/cuda/bin [DEVICE=cuda [CASE ...]]]
# Whole runs of a trainer of two ranks and a replica of two ranks (rollout.tensor_parallel) on two GPUs, or on the CPU. Cases:
# apart (the GPUs are split: no turns), turns (run.share_gpu: rank N of both takes turns on GPU N), killed (the same, and rank
# 1 of the replica is killed on its way), swapped (turns, off-policy by one step, with answers under way that are swapped).
# The first three, strictly on-policy, end with the same weights, to the bit; the last one ends. In turns every step moves
# state, no sync fails and nobody is evicted, except where a rank is killed. Prints a line a run; exits 1 if a check failed.
# With fewer than two GPUs it says so and ends with 0.
set -uo pipefail
title="turns of ranks"
[ "$#" -ge 2 ] || set -- "${1:-$(dirname "$0")/../../build/cuda/bin}" cuda
# shellcheck source=tests/gpu/device_runs.sh
. "$(dirname "$0")/device_runs.sh"
[ "${#cases[@]}" -gt 0 ] || cases=(apart turns killed swapped)
if [ "$device" != cpu ] && [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
  echo "$title: skipped, this machine has fewer than two GPUs"
  exit 0
fi
steps=20
expected=

# judge CASE DIR: what the steps and syncs of the run say.
judge() {
  python3 - "$1" "$2" << 'END'
import json, pathlib, sys
case, path = sys.argv[1], pathlib.Path(sys.argv[2])
steps = [row for row in map(json.loads, (path / "metrics.jsonl").open()) if row["kind"] == "step"]
summary = json.load((path / "summary.json").open())
seconds = sorted(row["turn_drain_seconds"] for row in steps)[len(steps) // 2]
moved = [row["turn_moved_bytes"] for row in steps]
print(f"  {len(steps)} steps, {max(moved) >> 20} MiB moved a turn, rollouters left in {seconds:.3f} s, syncs {summary['syncs']}")
wrong = []
if case != "apart" and not all(moved):
    wrong.append("a step moved no state")
if case == "apart" and any(moved):
    wrong.append("state is moved without turns")
if case != "killed" and summary["syncs"]["failed"]:
    wrong.append("a sync has failed")
if case != "killed" and "it is evicted" in (path / "logs" / "trainer-0.log").read_text():
    wrong.append("the replica was evicted")
if summary["staleness"]["violations"]:
    wrong.append("staleness was violated")
for line in wrong:
    print("  FAILED:", line)
sys.exit(1 if wrong else 0)
END
}

run_case() {
  local name=$1 dir=$work/$1 code=0 note=
  local words=(run.share_gpu=true run.rollouters=1 trainer.world=2 rollout.tensor_parallel=2 staleness.max_staleness=0
    run.seed=3 train.deterministic=true rollout.deterministic=true rollout.host_kv_memory=0.01 "train.device=$device"
    "rollout.device=$device" "run.steps=$steps" checkpoint.every_steps=10 eval.every_steps=0 model.learned_positions=false
    model.qk_norm=false model.head_dim=64 model.num_attention_heads=4 model.num_key_value_heads=2 model.hidden_size=256
    model.intermediate_size=512)
  case $name in
    apart) words+=(run.share_gpu=false rollout.gpu_memory=0.4 sync.install=in_place) ;;
    turns | killed) ;;
    swapped) words+=(staleness.max_staleness=1) ;;
    *) echo "no such case: $name" >&2; exit 2 ;;
  esac
  begin "$dir.log" "$root/deploy/examples/reverse.yaml" "run.dir=$dir" "${words[@]}"
  if [ "$name" = killed ]; then
    if await_step "$dir" 5; then
      kill -KILL "$(pgrep -f "/syncopate-rollouter .*rollouter.rank=1( |\$)" | while read -r pid; do
        grep -qzF -- "$dir" "/proc/$pid/cmdline" && echo "$pid"
      done | head -n 1)"
      note=", rank 1 of its replica killed after step $(steps_of "$dir")"
    else
      fail "$dir" "no 5 steps"
    fi
  fi
  finish || code=$?
  local found
  found=$(digest "$dir" "$steps")
  printf '%-8s %s after %s steps%s\n' "$name" "${found:-nothing}" "$(steps_of "$dir")" "$note"
  [ "$code" -eq 0 ] || fail "$dir" "exit code $code"
  judge "$name" "$dir" || fail "$dir" "the run"
  [ "$name" = swapped ] && return
  expected=${expected:-$found}
  [ -n "$found" ] && [ "$found" = "$expected" ] || fail "$dir" "digest ${found:-none}, not $expected"
}

for name in "${cases[@]}"; do run_case "$name"; done
[ "$failed" -eq 0 ] && echo "$title on $device: ok" || echo "$title on $device: FAILED"
exit "$failed"
