#!/usr/bin/env bash
# usage: tests/gpu/mapped_base_cuda.sh [FOLDER=build/cuda/bin [DEVICE=cuda:0 [CASE ...]]]
# Whole runs of adapters whose trainer and rollouters take turns on one device, so that a rollouter maps the trainer's base
# weights in place of receiving them. Cases: sent (no turns: the base is received once), mapped (one rollouter), two (two
# rollouters: on a GPU one of them maps the base and the other is sent it), killed (the rollouter is killed on its way, and
# its successor maps the base). All end with the same adapters, to the bit. By the events of the syncs no byte of the base is
# sent to who maps it, and what is mapped after each turn is the base's size as it is sent. Prints a line a run; exits 1 if a
# check failed.
set -uo pipefail
title="mapped base"
# shellcheck source=tests/gpu/device_runs.sh
. "$(dirname "$0")/device_runs.sh"
[ "${#cases[@]}" -gt 0 ] || cases=(sent mapped two killed)
steps=30
expected=

# judge CASE DIR: what the syncs of the run brought to its rollouters.
judge() {
  "$folder/syncopate" events "$2" --kind sync > "$2/sync.jsonl" && python3 - "$1" "$2/sync.jsonl" "$work/base" "$device" << 'END'
import json, pathlib, sys
case, path, base, device = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
rows = [row.get("fields", row) for row in map(json.loads, path.open())]
done = [row for row in rows if row["result"] == "ok" and int(row["bytes"]) > 0]
full = [int(row.get("bytes_full", 0)) for row in done]
mapped = [int(row.get("bytes_mapped", 0)) for row in done]
results = {result: sum(row["result"] == result for row in rows) for result in {row["result"] for row in rows}}
print(f"  {len(done)} syncs with bytes, {sum(m > 0 for m in mapped)} of them mapped {max(mapped, default=0)} bytes, "
      f"{sum(f > 0 for f in full)} were sent {max(full, default=0)} bytes of the base; results {results}")
wrong = []
if not done:
    wrong.append("no sync has brought a byte")
elif case == "sent":
    if any(mapped) or not full[0]:
        wrong.append("the base is sent without turns")
    base.write_text(str(full[0]))
else:
    once = {m for m in mapped if m > 0}
    if len(once) != 1:
        wrong.append(f"the sizes of what was mapped are {sorted(once)}, not one")
    elif base.exists():
        # Gaps between adapters count with what is sent.
        sent = int(base.read_text())
        if not max(once) <= sent <= max(once) + 65536:
            wrong.append(f"{max(once)} bytes are mapped, and {sent} are sent where the base is received")
    if any(f > 0 and m > 0 for f, m in zip(full, mapped)):
        wrong.append("a base was mapped and sent")
    if case == "two" and device != "cpu":
        if not any(full):
            wrong.append("two rollouters have mapped one base")
    elif any(full):
        wrong.append("bytes of the base were sent")
    elif not all(mapped):
        wrong.append("a turn ended without a base")
for line in wrong:
    print("  FAILED:", line)
sys.exit(1 if wrong else 0)
END
}

# Every tensor of the model ends at a multiple of 256 bytes, so that a base has the same alignment where it is lent as in memory
# of the trainer's own, and products choose the same kernels.
run_case() {
  local name=$1 dir=$work/$1 code=0 note=
  local words=(run.share_gpu=true run.rollouters=1 lora.rank=8 train.kl_coef=0.01 staleness.max_staleness=0 run.seed=3
    train.deterministic=true rollout.deterministic=true "train.device=$device" "rollout.device=$device" "run.steps=$steps"
    checkpoint.every_steps=10 eval.every_steps=0 model.learned_positions=false model.qk_norm=false model.head_dim=64
    model.num_attention_heads=4 model.num_key_value_heads=2 model.hidden_size=256 model.intermediate_size=512)
  case $name in
    sent) words+=(run.share_gpu=false rollout.gpu_memory=0.4) ;;
    mapped | killed) ;;
    two) words+=(run.rollouters=2 rollout.gpu_memory=0.4) ;;
    *) echo "no such case: $name" >&2; exit 2 ;;
  esac
  begin "$dir.log" "$root/deploy/examples/reverse.yaml" "run.dir=$dir" "${words[@]}"
  if [ "$name" = killed ]; then
    if await_step "$dir" 10; then
      kill -KILL "$(pgrep -f "/syncopate-rollouter .*$dir( |/|\$)" | head -n 1)"
      note=", its rollouter killed after step $(steps_of "$dir")"
    else
      fail "$dir" "no 10 steps"
    fi
  fi
  finish || code=$?
  local found
  found=$(digest "$dir" "$steps")
  printf '%-8s %s after %s steps%s\n' "$name" "${found:-nothing}" "$(steps_of "$dir")" "$note"
  [ "$code" -eq 0 ] || fail "$dir" "exit code $code"
  judge "$name" "$dir" || fail "$dir" "the syncs"
  expected=${expected:-$found}
  [ -n "$found" ] && [ "$found" = "$expected" ] || fail "$dir" "digest ${found:-none}, not $expected"
  grep -h 'the base weights are sent' "$dir"/logs/*.log 2> /dev/null | tail -n 1 | sed 's/^/  /'
}

for name in "${cases[@]}"; do run_case "$name"; done
[ "$failed" -eq 0 ] && echo "mapped base on $device: ok" || echo "mapped base on $device: FAILED"
exit "$failed"
