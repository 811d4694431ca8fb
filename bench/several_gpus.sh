#!/usr/bin/env bash
# usage: bench/several_gpus.sh BUNDLE OUT [PART ...]        parts: sync faults train generate loop learn tests; none: all
# Figures that need two or more GPUs of one host, by the daemons and benchmarks of an unpacked bundle (scripts/bundle.sh
# --dir; the part tests wants one made --with-tests). Finds out how many GPUs there are, leaves out the cases that need
# more, and prints one JSON object a line as a case ends, also to OUT/results.jsonl. Weights are random and made here. A
# part takes 9 minutes at most (--seconds N: each part's limit), a case has a limit of its own, and its processes are
# ended with it. NVLink multicast stays off. Exits 1 if a case failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

seconds=540
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --*) sed -n 2,7p "$0" >&2; exit 2 ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [ "${#words[@]}" -lt 2 ]; then
  sed -n 2,7p "$0" >&2
  exit 2
fi
bundle=$(realpath "${words[0]}") || exit 2
mkdir -p "${words[1]}" && out=$(realpath "${words[1]}") || exit 2
parts=("${words[@]:2}")
[ "${#parts[@]}" -gt 0 ] || parts=(sync faults train generate loop learn tests)
. "$bundle/env.sh" || exit 1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1

gpus=$(nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU')
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1)
if [ "$gpus" -lt 2 ]; then
  echo "several_gpus: $gpus GPUs here, and at least 2 are needed" >&2
  exit 1
fi
work=$(mktemp -d)
session=
trap '[ -z "$session" ] || kill -KILL -- "-$session" 2> /dev/null; rm -rf "$work"' EXIT
failed=0
deadline=0

# The shapes of Qwen2.5 without the biases of its products, which a model from the configuration does not have. The
# vocabulary is the model's, so an answer of random weights goes on to its largest length.
shape_0_5b=(model.vocab_size=151936 model.hidden_size=896 model.intermediate_size=4864 model.num_hidden_layers=24
  model.num_attention_heads=14 model.num_key_value_heads=2 model.head_dim=64 model.tie_word_embeddings=true)
shape_25m=(model.hidden_size=512 model.intermediate_size=1536 model.num_hidden_layers=8 model.num_attention_heads=8
  model.num_key_value_heads=8 model.head_dim=64 model.max_position_embeddings=64)
# Such an answer earns nothing, and a batch without any advantage makes no update: the term for the entropy makes one.
plain=(train.entropy_coef=0.001 model.learned_positions=false model.qk_norm=false model.embedding_init_std=0.02 eval.every_steps=0
  eval.prompts=1 eval.show_samples=0 checkpoint.at_end=false checkpoint.every_steps=0 data.task=reverse data.length=4
  data.alphabet=8 reward.name=dense)

# emit PART CASE CODE SECONDS FIGURES: one line; FIGURES is a JSON value.
emit() {
  python3 - "$@" "$gpus" "$card" << 'END' | tee -a "$out/results.jsonl"
import datetime, json, sys
part, case, code, seconds, figures, gpus, card = sys.argv[1:8]
try:
    figures = json.loads(figures)
except ValueError:
    figures = {"text": figures[-400:]}
print(json.dumps({"part": part, "case": case, "exit": int(code), "seconds": int(seconds), "gpus": int(gpus), "card": card,
                  "date": datetime.date.today().isoformat(), "figures": figures}))
END
}

# limited CASE_LIMIT: what is left of the part, at most CASE_LIMIT; 1 if less than 15 s are left.
limited() {
  local left=$((deadline - SECONDS))
  [ "$left" -ge 15 ] || return 1
  echo $((left < $1 ? left : $1))
}

# run_case PART CASE GPUS LIMIT COMMAND...: a program that prints JSON lines.
run_case() {
  local part=$1 case=$2 needs=$3 limit code begun=$SECONDS log
  log=$out/$part-$case.log
  [ "$needs" -le "$gpus" ] || return 0
  if ! limit=$(limited "$4"); then
    emit "$part" "$case" 75 0 '{"text": "not run: the time is up"}'
    return 0
  fi
  shift 4
  setsid timeout --kill-after=5 "$limit" "$@" > "$log" 2>&1 &
  session=$!
  wait "$session"
  code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  [ "$code" -eq 0 ] || failed=1
  emit "$part" "$case" "$code" $((SECONDS - begun)) "$(python3 - "$log" << 'END'
import json, sys
lines = []
for line in open(sys.argv[1], errors="replace"):
    try:
        lines.append(json.loads(line))
    except ValueError:
        pass
print(json.dumps(lines if lines else {"text": open(sys.argv[1], errors="replace").read()[-400:]}))
END
)"
}

# run_daemons PART CASE GPUS LIMIT WORD...: a whole run by `syncopate run`; its figures are read from what it leaves.
run_daemons() {
  local part=$1 case=$2 needs=$3 limit code begun=$SECONDS dir
  dir=$work/$case
  [ "$needs" -le "$gpus" ] || return 0
  if ! limit=$(limited "$4"); then
    emit "$part" "$case" 75 0 '{"text": "not run: the time is up"}'
    return 0
  fi
  shift 4
  setsid timeout --signal=INT --kill-after=15 "$limit" syncopate run "$bundle/deploy/examples/reverse.yaml" --quiet \
    "run.dir=$dir" "$@" > "$out/$part-$case.log" 2>&1 &
  session=$!
  wait "$session"
  code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  [ "$code" -eq 0 ] || failed=1
  emit "$part" "$case" "$code" $((SECONDS - begun)) "$(run_figures "$dir")"
  if [ "$code" -ne 0 ]; then tail -n 3 "$dir"/logs/*.log 2> /dev/null | cut -c 1-300 >> "$out/$part-$case.log"; fi
  rm -rf "$dir"
}

# run_figures RUN_DIR: medians over the second half of the steps, and of the syncs without the first one of each
# replica.
run_figures() {
  syncopate events "$1" --kind sync > "$work/syncs.jsonl" 2> /dev/null
  syncopate events "$1" --kind install > "$work/installs.jsonl" 2> /dev/null
  python3 - "$1" "$work/syncs.jsonl" "$work/installs.jsonl" << 'END'
import json, pathlib, statistics, sys
run_dir, syncs, installs = (pathlib.Path(word) for word in sys.argv[1:4])
def rows(path):
    return [json.loads(line) for line in path.open()] if path.exists() else []
steps = [row for row in rows(run_dir / "metrics.jsonl") if row.get("kind") == "step"]
later = steps[len(steps) // 2:]
figures = {"steps": len(steps)}
for key in ("step_seconds", "wait_seconds", "forward_backward_seconds", "optimizer_seconds", "stage_seconds",
            "stage_wait_seconds", "publish_wait_seconds", "trained_tokens", "rollouters_idle_ratio", "gather_seconds"):
    values = [row[key] for row in later if key in row]
    if values:
        figures[key] = statistics.median(values)
good, seen = [], set()
results = {}
for row in rows(syncs):
    results[row["result"]] = results.get(row["result"], 0) + 1
    if row["result"] != "ok" or row.get("relabelled"):
        continue
    if row["replica"] in seen and float(row["transfer_seconds"]) > 0:
        good.append(row)
    seen.add(row["replica"])
figures["sync_results"] = results
if good:
    figures["syncs"] = len(good)
    figures["transport"] = good[-1]["transport"]
    figures["sync_bytes"] = statistics.median(int(row["bytes"]) for row in good)
    for phase in ("stage", "prepare", "transfer", "verify", "install", "total"):
        figures[f"sync_{phase}_ms"] = statistics.median(float(row[f"{phase}_seconds"]) for row in good) * 1e3
    figures["transfer_gb_per_s"] = figures["sync_bytes"] / figures["sync_transfer_ms"] / 1e6 if figures["sync_transfer_ms"] else None
pauses = [float(row["pause_seconds"]) * 1e3 for row in rows(installs)]
if pauses:
    figures["pause_ms"] = {"median": statistics.median(pauses), "most": max(pauses)}
try:
    summary = json.load(open(run_dir / "summary.json"))
    for key in ("status", "idle", "staleness", "tokens", "wall_seconds", "eval"):
        figures[key] = summary.get(key)
except (OSError, ValueError):
    pass
print(json.dumps(figures))
END
}

# Weight syncs of the daemons: 2 trainer ranks to a rollouter of two and to two of one, which share the cards with the
# trainer where there are two. 8 of 28 layers, so that trainer and rollouters fit.
part_sync() {
  local transport name shape
  for transport in ipc nccl; do
    while read -r name shape; do
      # shellcheck disable=SC2086  # words on purpose
      run_case sync "$name-$transport" "$(case $name in *ranks-3* | *replicas-3) echo 4 ;; *) echo 2 ;; esac)" 110 \
        syncopate bench sync --json --no-ceiling --model qwen2.5-7b --layers 8 --answers 28 --warmup 1 --syncs 6 \
        --seconds-limit 100 --transport "$transport" $shape
    done << 'END'
ranks-2-tp2 --sources 2 --tp 2
ranks-2-replicas-2 --sources 2 --replicas 2
ranks-3-replica-1 --sources 3 --replicas 1
rank-1-replicas-3 --sources 1 --replicas 3
END
  done
}

# A rank of the trainer or of a receiver is killed or stopped at a stage of a sync.
part_faults() {
  "$bundle/bench/gpu_sync.sh" --bundle "$bundle" --out "$out/faults" --seconds $((deadline - SECONDS - 20)) 'shared-*' '1x1-kill-*' \
    > "$out/faults.log" 2>&1
  local code=$?
  [ "$code" -eq 0 ] || failed=1
  emit faults gpu_sync "$code" 0 "$(python3 -c 'import json, sys; print(json.dumps([json.loads(line) for line in open(sys.argv[1])]))' \
    "$out/faults/results.jsonl" 2> /dev/null || echo '{"text": "no results"}')"
}

# A step of 1, 2 and 4 ranks, 16,384 tokens a rank.
part_train() {
  local model ranks
  for model in qwen2.5-0.5b qwen2.5-1.5b; do
    for ranks in 1 2 4; do
      run_case train "$model-$ranks" "$ranks" 90 syncopate bench train policy --json --model "$model" --ranks "$ranks"
    done
  done
  run_case train qwen2.5-7b-4 4 150 syncopate bench train policy --json --model qwen2.5-7b --ranks 4
  for model in qwen2.5-0.5b qwen2.5-1.5b; do
    run_case train "$model-compiled-peer" 1 120 python3 "$here/peers/train_compiled.py" --model "$model"
  done
}

part_generate() {
  local ranks
  for ranks in 1 2 4; do
    run_case generate "qwen2.5-7b-tp$ranks" "$ranks" 120 syncopate bench generate --model qwen2.5-7b --case fixed --context 1024 \
      --batch 64,256 --tensor-parallel "$ranks"
  done
}

# The whole loop: each side's share of a step, and what it waits for.
part_loop() {
  local common
  common=("${shape_0_5b[@]}" "${plain[@]}" model.max_position_embeddings=2048 rollout.max_new_tokens=1024 data.batch_groups=16
    rollout.samples=16 rollout.max_sequences=512 train.device=cuda rollout.device=cuda sync.transport=ipc run.steps=12)
  run_daemons loop 0.5b-1-trainer-1-rollouter 2 150 "${common[@]}" run.rollouters=1 train.device=cuda:0 rollout.device=cuda:1
  run_daemons loop 0.5b-1-trainer-3-rollouters 4 150 "${common[@]}" run.rollouters=3 train.device=cuda:0
  run_daemons loop 0.5b-2-ranks-2-rollouters 4 150 "${common[@]}" run.rollouters=2 trainer.world=2
  run_daemons loop 25m-graphs 2 100 "${shape_25m[@]}" eval.every_steps=0 data.length=16 data.alphabet=26 rollout.max_new_tokens=17 data.batch_groups=128 \
    rollout.samples=8 rollout.max_sequences=1024 train.device=cuda:0 rollout.device=cuda:1 run.rollouters=1 sync.transport=ipc \
    run.steps=150 train.learning_rate=1e-4
}

# The 25M model learns to reverse 16 of 26 symbols by the reward `exact`, with 1, 2 and 4 ranks.
part_learn() {
  local ranks device
  for ranks in 1 2 4; do
    device=cuda:1
    [ "$ranks" -eq 1 ] || device=cuda
    run_daemons learn "25m-$ranks" $((ranks > 2 ? ranks : 2)) 150 "${shape_25m[@]}" data.length=16 data.alphabet=26 rollout.max_new_tokens=17 \
      data.batch_groups=64 rollout.samples=16 rollout.max_sequences=1024 train.device=cuda "rollout.device=$device" "trainer.world=$ranks" \
      run.rollouters=1 reward.name=exact train.sft_steps=60 train.learning_rate=1e-4 eval.every_steps=10 run.steps=150
  done
}

part_tests() {
  local script
  if [ ! -d "$bundle/tests/gpu" ]; then
    emit tests all 1 0 '{"text": "the bundle has no tests: scripts/bundle.sh --with-tests"}'
    failed=1
    return
  fi
  run_case tests gpu_tests 2 300 "$bundle/scripts/gpu_tests.sh" "$bundle/bin"
  run_case tests ranks_cuda 2 400 "$bundle/tests/gpu/ranks_cuda.sh" "$bundle/bin"
  run_case tests turns_ranks_cuda 2 300 "$bundle/tests/gpu/turns_ranks_cuda.sh" "$bundle/bin"
  run_case tests demo_cuda 2 300 "$bundle/tests/gpu/demo_cuda.sh" "$bundle/bin"
}

for part in "${parts[@]}"; do
  case $part in
    sync | faults | train | generate | loop | learn | tests) ;;
    *) echo "several_gpus: no part $part; there are sync faults train generate loop learn tests" >&2; exit 2 ;;
  esac
  deadline=$((SECONDS + seconds))
  "part_$part"
done
exit "$failed"
