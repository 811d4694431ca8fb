#!/usr/bin/env bash
# usage: tests/gpu/ranks_cuda.sh [FOLDER=build/cuda/bin [CASE ...]]
# Whole runs whose trainer or rollouter is two processes on GPUs: a rank is killed and the run goes on from what was
# saved (save), replicas of two ranks serve, install and lose one (replica, replica-in-place, replica-graphs), replicas
# of two ranks get adapters by each transport and end with the same ones (adapters), and a rank of a trainer or replica
# is stopped, which the others must notice and end for within 10 s (stop). With two GPUs each of the ranks has one; a
# replica shares them with a trainer of two. Where NCCL would connect two ranks on one GPU, which it refuses on one
# host, NCCL_HOSTID tells each process that it is on a host of its own, and NCCL connects them by sockets: with one GPU,
# and for weights that travel by NCCL. That shows everything but the rate. Each run has a time limit and is ended whole.
# Prints a line a check; exits 1 if one failed.
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
folder=$(realpath "${1:-$root/build/cuda/bin}") || exit 1
shift
limit_s=100

# shellcheck source=scripts/gpu_libraries.sh
. "$root/scripts/gpu_libraries.sh" "$folder"

gpus=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
if [ "$gpus" -eq 0 ]; then
  echo "ranks on GPUs: skipped, nvidia-smi lists no GPU"
  exit 0
fi

work=$(mktemp -d)
session=
trap '[ -z "$session" ] || kill -KILL -- "-$session" 2> /dev/null; rm -rf "$work"' EXIT
failed=0

# The programs as `syncopate run` finds them: beside itself.
mkdir "$work/bin"
cp "$folder/syncopate" "$work/bin/"
ln -s "$folder/syncopate-synchronizer" "$work/bin/"
# With HOST_EACH each process of these daemons is on a host of its own, as NCCL sees it.
for daemon in trainer rollouter; do
  printf '#!/bin/bash\n[ -z "$HOST_EACH" ] || export NCCL_HOSTID=%s-$$\nexec %q "$@"\n' \
    "$daemon" "$folder/syncopate-$daemon" > "$work/bin/syncopate-$daemon"
  chmod +x "$work/bin/syncopate-$daemon"
done
export HOST_EACH=
[ "$gpus" -gt 1 ] || HOST_EACH=1

check() {  # check WHAT CONDITION...
  local what=$1
  shift
  if "$@"; then
    printf '  ok      %s\n' "$what"
  else
    printf '  FAILED  %s\n' "$what"
    failed=1
  fi
}

begin() {  # begin NAME WORD...: in the background, in a session of its own
  local name=$1
  shift
  setsid timeout --signal=INT --kill-after=20 "$limit_s" "$work/bin/syncopate" run "$@" --quiet >> "$work/$name.log" 2>&1 &
  session=$!
}

finish() {  # the exit code of the run; nothing is left of it
  wait "$session"
  local code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  return "$code"
}

show() {  # show NAME: why it failed
  tail -n 5 "$work/$1.log"
  for log in "$work/$1"/logs/*.log; do grep -E ' [WE] ' "$log" 2> /dev/null | tail -n 6 | sed "s|^|  $(basename "$log"): |"; done
}

# The steps that have been recorded; a resume takes back those after its checkpoint.
steps_of() { grep -s -c '"kind":"step"' "$work/$1/metrics.jsonl" || true; }

await_step() {  # await_step NAME STEP
  local until=$((SECONDS + limit_s))
  while ! [ "$(steps_of "$1")" -ge "$2" ] 2> /dev/null; do
    if [ "$SECONDS" -ge "$until" ] || ! kill -0 "$session" 2> /dev/null; then return 1; fi
    sleep 0.1
  done
}

pid_of_rank() { pgrep -f "/syncopate-$2 $work/$1/.*$2\.rank=$3( |\$)" | head -n 1; }

summary() {  # summary NAME EXPRESSION of `run`
  python3 -c 'import json, sys; run = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$work/$1/summary.json" "$2" 2> /dev/null
}

saved_by() {  # saved_by NAME WORLD: some checkpoint has a file of each rank
  local at
  at=$(find "$work/$1/checkpoints" -name "model-1-of-$2.safetensors" | head -n 1)
  [ -n "$at" ] && [ "$(find "$(dirname "$at")" -name "model-*-of-$2.safetensors" | wc -l)" -eq "$2" ]
}

signal_rank() {  # signal_rank SIGNAL NAME DAEMON RANK
  local pid
  pid=$(pid_of_rank "${@:2}")
  [ -n "$pid" ] && kill "-$1" "$pid"
}

milliseconds() { echo $((${EPOCHREALTIME/./} / 1000)); }

await_end() {  # await_end PID SECONDS: it is gone within them
  local until=$(($(milliseconds) + $2 * 1000))
  while kill -0 "$1" 2> /dev/null; do
    if [ "$(milliseconds)" -ge "$until" ]; then return 1; fi
    sleep 0.02
  done
}

is() { [ "$1" = "$2" ]; }

run_save() {
  local name=save dir=$work/save code
  local words=("run.dir=$dir" train.device=cuda trainer.world=2 rollout.device=cuda run.rollouters=1 checkpoint.every_steps=20)
  begin "$name" "$root/deploy/examples/reverse.yaml" "${words[@]}" run.steps=400
  check "trains on two ranks" await_step "$name" 30
  check "rank 1 is killed" signal_rank KILL "$name" trainer 1
  finish
  code=$?
  check "a killed rank ends the run with exit code 4 (was $code)" is "$code" 4
  check "both ranks had written their part" saved_by "$name" 2
  local before
  before=$(steps_of "$name")
  begin "$name" --resume "$dir" run.steps=100
  finish
  code=$?
  check "the two go on from it (exit code $code, from step $before)" is "$code" 0
  check "and learn: exact $(summary "$name" 'run["eval"]["best"]')" is "$(summary "$name" 'run["eval"]["best"] >= .95')" True
  check "nothing trained beyond its staleness" is "$(summary "$name" 'run["staleness"]["violations"]')" 0
  begin "$name" --resume "$dir" run.steps=120 trainer.world=1
  finish
  code=$?
  check "one rank goes on from the two's checkpoint (exit code $code)" is "$code" 0
  begin "$name" --resume "$dir" run.steps=140 trainer.world=2 train.device=cpu
  finish
  code=$?
  check "two on CPUs go on from the GPU's (exit code $code)" is "$code" 0
  [ "$failed" -eq 0 ] || show "$name"
}

run_replica() {  # run_replica NAME WORD...
  local name=$1 dir=$work/$1 code
  shift
  begin "$name" "$root/deploy/examples/reverse.yaml" "run.dir=$dir" train.device=cuda "trainer.world=$((gpus == 2 ? 2 : 1))" \
    rollout.device=cuda run.rollouters=1 rollout.tensor_parallel=2 run.steps=60 "$@"
  check "a replica of two generates" await_step "$name" 20
  check "rank 1 is killed" signal_rank KILL "$name" rollouter 1
  finish
  code=$?
  check "the run goes on to its end (exit code $code)" is "$code" 0
  check "with the ranks started again" is "$(summary "$name" 'run["run"]["restarts"]["rollouter-0"] >= 1')" True
  check "all steps were made" is "$(steps_of "$name")" 60
  # The step in which the rank was killed.
  check "of $(summary "$name" 'run["syncs"]["count"]') syncs at most one failed" is "$(summary "$name" 'run["syncs"]["failed"] <= 1')" True
  grep -h -o 'sums over .*' "$dir"/logs/rollouter-*.log | sort | uniq -c | sed 's/^/  /'
  summary "$name" '"  exact " + str(run["eval"]["best"]) + ", sync ms " + str(run["syncs"]["total_ms"]["p50"]) + ", pause ms " + str(run["pause_ms"]["p50"])'
  [ "$failed" -eq 0 ] || show "$name"
}

# A stopped rank keeps its connections and its GPU, and answers nothing: only its silence shows the fault. It stays
# stopped, so its group can restart only after the rank is killed.
run_stop() {  # run_stop DAEMON RANK
  local daemon=$1 rank=$2 name=stop-$1-$2 pid began code words=()
  local dir=$work/$name
  if [ "$daemon" = trainer ]; then words=(trainer.world=2); else words=(rollout.tensor_parallel=2); fi
  begin "$name" "$root/deploy/examples/reverse.yaml" "run.dir=$dir" train.device=cuda rollout.device=cuda run.rollouters=1 \
    run.steps=100000 "${words[@]}"
  check "two ranks of a $daemon work" await_step "$name" 20
  pid=$(pid_of_rank "$name" "$daemon" $((1 - rank)))
  check "rank $rank is stopped" signal_rank STOP "$name" "$daemon" "$rank"
  began=$(milliseconds)
  check "the other one (process $pid) is gone within 10 s" await_end "$pid" 10
  printf '  rank %s of the %s stopped: rank %s gone after %s ms\n' "$rank" "$daemon" $((1 - rank)) $(($(milliseconds) - began))
  if [ "$daemon" = trainer ]; then
    check "and so is the run" await_end "$session" $(((began + 10000 - $(milliseconds) + 999) / 1000))
    printf '  the run is over after %s ms\n' $(($(milliseconds) - began))
    finish
    code=$?
    check "with exit code 4 (was $code)" is "$code" 4
  else
    local before
    before=$(steps_of "$name")
    check "and the run goes on with a new replica" await_step "$name" $((before + 20))
    printf '  20 steps more after %s ms\n' $(($(milliseconds) - began))
    kill -INT "$session"
    finish
  fi
  [ "$failed" -eq 0 ] || show "$name"
}

# base_syncs NAME TRANSPORT: how many syncs of the run brought bytes of the base; nothing if one came by another transport or
# brought no adapters.
base_syncs() {
  "$folder/syncopate" events "$work/$1" --kind sync | python3 -c '
import json, sys
rows = [row.get("fields", row) for row in map(json.loads, sys.stdin)]
brought = [row for row in rows if row["result"] == "ok" and int(row["bytes"]) > 0]
if brought and all(row["transport"] == sys.argv[1] and int(row.get("bytes_lora", 0)) > 0 for row in brought):
    print(sum(int(row.get("bytes_full", 0)) > 0 for row in brought))' "$2"
}

adapters_of() {  # adapters_of NAME STEP: the digest of what its checkpoint has of them; nothing if there is none
  local files=("$work/$1/checkpoints"/*-s"$2"/adapter_model*.safetensors)
  [ -f "${files[0]}" ] && cat "${files[@]}" | sha256sum | cut -c1-16
}

# Strictly on-policy and with deterministic kernels, what was trained says whether all ranks had the same adapters.
run_adapters() {
  local transport name code found steps=12 expected='' host_each=$HOST_EACH
  for transport in ipc grpc nccl; do
    name=adapters-$transport
    [ "$transport" != nccl ] || HOST_EACH=1
    begin "$name" "$root/deploy/examples/reverse.yaml" "run.dir=$work/$name" train.device=cuda rollout.device=cuda \
      "trainer.world=$((gpus == 2 ? 2 : 1))" run.rollouters=1 rollout.tensor_parallel=2 "sync.transport=$transport" \
      lora.rank=8 train.kl_coef=0.01 staleness.max_staleness=0 train.deterministic=true rollout.deterministic=true run.seed=3 \
      "run.steps=$steps" "checkpoint.every_steps=$steps" eval.every_steps=0 model.learned_positions=false \
      model.qk_norm=false model.head_dim=64 model.num_attention_heads=4 model.num_key_value_heads=2 model.hidden_size=256 \
      model.intermediate_size=512
    finish
    code=$?
    HOST_EACH=$host_each
    check "adapters by $transport: the run ends (exit code $code)" is "$code" 0
    check "no sync failed" is "$(summary "$name" 'run["syncs"]["failed"]')" 0
    check "all came by $transport with adapters, and one brought the base" is "$(base_syncs "$name" "$transport")" 1
    found=$(adapters_of "$name" "$steps")
    expected=${expected:-$found}
    check "the adapters of step $steps are ${expected:=none} (were $found)" is "$found" "$expected"
    grep -h -o 'sums over .*' "$work/$name"/logs/rollouter-*.log | sort | uniq -c | sed 's/^/  /'
    [ "$failed" -eq 0 ] || show "$name"
  done
}

cases=("$@")
[ "${#cases[@]}" -gt 0 ] || cases=(save replica replica-in-place replica-graphs adapters stop)
for name in "${cases[@]}"; do
  echo "$name"
  case $name in
    save) run_save ;;
    replica) run_replica replica ;;
    replica-in-place) run_replica replica-in-place sync.install=in_place ;;
    # A shape that the CUDA graphs accept: heads of 64, bfloat16, no table of positions.
    replica-graphs)
      run_replica replica-graphs model.learned_positions=false model.head_dim=64 model.num_attention_heads=4 \
        model.num_key_value_heads=2 model.hidden_size=256 model.intermediate_size=512 ;;
    adapters) run_adapters ;;
    stop)
      for who in 'trainer 1' 'trainer 0' 'rollouter 1' 'rollouter 0'; do
        # shellcheck disable=SC2086
        run_stop $who
      done ;;
    *) echo "no such case: $name" >&2; exit 2 ;;
  esac
done
[ "$failed" -eq 0 ] && echo "ranks on GPUs: ok" || echo "ranks on GPUs: FAILED"
exit "$failed"
