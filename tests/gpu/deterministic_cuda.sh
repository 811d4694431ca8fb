#!/usr/bin/env bash
# usage: tests/gpu/deterministic_cuda.sh [FOLDER=build/cuda/bin [DEVICE=cuda:0 [CASE ...]]]
# train.deterministic: three runs of 50 steps of each case end with the same weights, to the bit. The trainer of the
# third is killed on its way, and the run resumed. Cases: sft and on-policy (max_staleness 0), of the demo's shape,
# whose attention is FlashAttention-2's, and of heads of 64, whose attention is cuDNN's. Prints a line a run; exits 1 if
# digests differ.
set -uo pipefail
title="determinism on a GPU"
# shellcheck source=tests/gpu/device_runs.sh
. "$(dirname "$0")/device_runs.sh"
[ "${#cases[@]}" -gt 0 ] || cases=(sft on-policy sft-64 on-policy-64)
steps=50
failed=0

fail() {  # fail LOG WHY
  failed=1
  echo "  FAILED: $2"
  tail -n 5 "$1"
}

run_case() {
  local name=$1 expected= words=(train.deterministic=true "train.device=$device" "rollout.device=$device" run.rollouters=1
    "run.steps=$steps" checkpoint.every_steps=10 eval.every_steps=0)
  local config=$root/deploy/examples/reverse.yaml
  case $name in
    sft*)
      config=$root/deploy/examples/reverse-sft.yaml
      words+=(train.objective=sft train.sft_steps=0) ;;
    on-policy*) words+=(staleness.max_staleness=0 rollout.deterministic=true) ;;
    *) echo "no such case: $name" >&2; exit 2 ;;
  esac
  if [[ $name == *-64 ]]; then
    words+=(model.learned_positions=false model.head_dim=64 model.num_attention_heads=4 model.num_key_value_heads=2
      model.hidden_size=256 model.intermediate_size=512)
  fi
  for run in 1 2 3; do
    local dir=$work/$name-$run log=$work/$name-$run.log code=0 note=
    begin "$log" "$config" "run.dir=$dir" "${words[@]}"
    if [ "$run" -eq 3 ]; then
      if await_step "$dir" 23; then
        kill -KILL "$(pgrep -f "/syncopate-trainer .*$dir( |/|\$)" | head -n 1)"
        note=", killed after step $(steps_of "$dir") and resumed"
      else
        fail "$log" "no 23 steps"
      fi
      finish
      begin "$log" --resume "$dir"
    fi
    finish || code=$?
    local found
    found=$(digest "$dir" "$steps")
    printf '%-13s run %d: %s after %s steps%s\n' "$name" "$run" "${found:-nothing}" "$(steps_of "$dir")" "$note"
    [ "$code" -eq 0 ] || fail "$log" "exit code $code"
    expected=${expected:-$found}
    [ -n "$found" ] && [ "$found" = "$expected" ] || fail "$log" "digest ${found:-none}, not $expected"
  done
}

for name in "${cases[@]}"; do run_case "$name"; done
[ "$failed" -eq 0 ] && echo "determinism on $device: ok" || echo "determinism on $device: FAILED"
exit "$failed"
