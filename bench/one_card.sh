#!/usr/bin/env bash
# usage: bench/one_card.sh BUNDLE OUT [PART ...]      parts: walk turns alone split flat learn owners adapters adapters_7b resent
# full_7b; without one all are run.
# Figures of run.share_gpu: whole runs whose trainer and rollouter take turns on this host's first GPU (full_7b: ranks of both
# on its first two), what their parts take alone, and the same runs on a card that they split. By the daemons and benchmarks of
# an unpacked bundle (scripts/bundle.sh --dir). Weights are random and made here. Prints one JSON object a line as a case ends,
# also to OUT/results.jsonl; logs and metrics of all daemons go to OUT/logs.tar.gz. --seconds N: the most that each part takes
# (540); a case has a limit of its own, and its processes are ended with it. --case PATTERN: only cases whose name matches.
# Exits 1 if a case failed.
set -uo pipefail

seconds=540
cases='*'
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --case) cases=$2; shift ;;
    --*) sed -n 2,9p "$0" >&2; exit 2 ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [ "${#words[@]}" -lt 2 ]; then
  sed -n 2,9p "$0" >&2
  exit 2
fi
bundle=$(realpath "${words[0]}") || exit 2
mkdir -p "${words[1]}" && out=$(realpath "${words[1]}") || exit 2
parts=("${words[@]:2}")
[ "${#parts[@]}" -gt 0 ] || parts=(walk turns alone split flat learn owners adapters adapters_7b resent full_7b)
. "$bundle/env.sh" || exit 1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1

card=$(nvidia-smi --id=0 --query-gpu=name --format=csv,noheader 2> /dev/null)
if [ -z "$card" ]; then
  echo "one_card: no GPU here, and one is needed" >&2
  exit 1
fi
work=$(mktemp -d)
session=
watcher=
comparer=
# shellcheck disable=SC2317  # called by the trap
end_all() {
  [ -z "$watcher" ] || kill "$watcher" 2> /dev/null
  [ -z "$comparer" ] || kill "$comparer" 2> /dev/null
  [ -z "$session" ] || kill -KILL -- "-$session" 2> /dev/null
  rm -rf "$work"
}
trap end_all EXIT
failed=0
deadline=0

# The shapes of Qwen2.5 without the biases of its products, which a model from the configuration does not have. The
# vocabulary is the model's, so an answer of random weights goes on to its largest length.
qwen=(model.vocab_size=151936 model.tie_word_embeddings=true model.max_position_embeddings=2048 model.num_key_value_heads=2
  model.learned_positions=false model.qk_norm=false model.embedding_init_std=0.02)
shape_0_5b=("${qwen[@]}" model.hidden_size=896 model.intermediate_size=4864 model.num_hidden_layers=24
  model.num_attention_heads=14 model.head_dim=64)
shape_1_5b=("${qwen[@]}" model.hidden_size=1536 model.intermediate_size=8960 model.num_hidden_layers=28
  model.num_attention_heads=12 model.head_dim=128)
shape_1_7b=("${qwen[@]}" model.qk_norm=true model.hidden_size=2048 model.intermediate_size=6144 model.num_hidden_layers=28
  model.num_attention_heads=16 model.num_key_value_heads=8 model.head_dim=128)
shape_7b=("${qwen[@]}" model.vocab_size=152064 model.tie_word_embeddings=false model.num_key_value_heads=4 model.hidden_size=3584
  model.intermediate_size=18944 model.num_hidden_layers=28 model.num_attention_heads=28 model.head_dim=128)
shape_25m=(model.hidden_size=512 model.intermediate_size=1536 model.num_hidden_layers=8 model.num_attention_heads=8
  model.num_key_value_heads=8 model.head_dim=64 model.max_position_embeddings=64)
# Such an answer earns nothing, and a batch without any advantage makes no update: the term for the entropy makes one.
plain=(train.entropy_coef=0.001 eval.every_steps=0 eval.prompts=1 eval.show_samples=0 checkpoint.at_end=false
  checkpoint.every_steps=0 data.task=reverse data.length=4 data.alphabet=8 reward.name=dense)
one_card=(train.device=cuda:0 rollout.device=cuda:0 run.rollouters=1 staleness.max_staleness=1)
turns=("${one_card[@]}" run.share_gpu=true)
# 512 answers of 1024 tokens a step.
long=(rollout.max_new_tokens=1024 data.batch_groups=32 rollout.samples=16 rollout.max_sequences=512)

# emit PART CASE CODE SECONDS FIGURES: one line; FIGURES is a JSON value.
emit() {
  python3 - "$@" "$card" << 'END' | tee -a "$out/results.jsonl"
import datetime, json, sys
part, case, code, seconds, figures, card = sys.argv[1:7]
try:
    figures = json.loads(figures)
except ValueError:
    figures = {"text": figures[-400:]}
print(json.dumps({"part": part, "case": case, "exit": int(code), "seconds": int(seconds), "card": card,
                  "date": datetime.date.today().isoformat(), "figures": figures}))
END
}

# limited CASE_LIMIT: what is left of the part, at most CASE_LIMIT; 1 if less than 15 s are left.
limited() {
  local left=$((deadline - SECONDS))
  [ "$left" -ge 15 ] || return 1
  echo $((left < $1 ? left : $1))
}

# run_bench PART CASE LIMIT COMMAND...: a program that prints JSON lines.
run_bench() {
  local part=$1 case=$2 limit code begun=$SECONDS log
  log=$work/$part-$case.log
  # shellcheck disable=SC2254  # a pattern on purpose
  case $case in $cases) ;; *) return 0 ;; esac
  if ! limit=$(limited "$3"); then
    emit "$part" "$case" 75 0 '{"text": "not run: the time is up"}'
    return 0
  fi
  shift 3
  setsid timeout --kill-after=5 "$limit" "$@" > "$log" 2>&1 &
  session=$!
  wait "$session"
  code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  [ "$code" -eq 0 ] || failed=1
  emit "$part" "$case" "$code" $((SECONDS - begun)) "$(python3 - "$log" << 'END'
import json, sys
text = open(sys.argv[1], errors="replace").read()
lines = []
for line in text.splitlines():
    try:
        lines.append(json.loads(line))
    except ValueError:
        pass
print(json.dumps(lines if lines else {"text": text[-400:]}))
END
)"
  keep_logs "$(basename "$log")"
}

# keep_logs NAME: adds that file or folder of $work to OUT/logs.tar.gz, and removes it.
keep_logs() {
  tar -C "$work" -rf "$work/logs.tar" "$1" 2> /dev/null
  gzip -c "$work/logs.tar" > "$out/logs.tar.gz"
  rm -rf "${work:?}/$1"
}

# run_daemons PART CASE LIMIT WORD...: a whole run by `syncopate run`; its figures are read from what it leaves.
run_daemons() {
  local part=$1 case=$2 limit code begun=$SECONDS dir
  dir=$work/$part-$case
  # shellcheck disable=SC2254
  case $case in $cases) ;; *) return 0 ;; esac
  if ! limit=$(limited "$3"); then
    emit "$part" "$case" 75 0 '{"text": "not run: the time is up"}'
    return 0
  fi
  shift 3
  mkdir -p "$dir"
  if [ "$part" = owners ] || [ "$case" = 0_5b-mapped ]; then
    # Ends by itself with the daemons.
    python3 "$bundle/bench/card_owners.py" "$dir/run" --seconds "$limit" --before-mib \
      "$(nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits)" > "$dir/owners.json" 2> "$dir/owners.log" &
    comparer=$!
  fi
  nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 > "$work/used.txt" 2> /dev/null &
  watcher=$!
  setsid timeout --signal=INT --kill-after=15 "$limit" syncopate run "$bundle/deploy/examples/reverse.yaml" --quiet \
    "run.dir=$dir/run" "$@" > "$dir/out.log" 2>&1 &
  session=$!
  wait "$session"
  code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  kill "$watcher" 2> /dev/null
  wait "$watcher" 2> /dev/null
  watcher=
  if [ -n "$comparer" ]; then
    # It sees that the daemons are gone, unless they never were there.
    timeout 10 tail --pid="$comparer" -f /dev/null || kill "$comparer" 2> /dev/null
    wait "$comparer" || code=$((code == 0 ? 1 : code))
    comparer=
  fi
  [ "$code" -eq 0 ] || failed=1
  cp "$work/used.txt" "$dir/used.txt"
  for kind in sync install; do syncopate events "$dir/run" --kind "$kind" > "$dir/$kind.jsonl" 2> /dev/null; done
  emit "$part" "$case" "$code" $((SECONDS - begun)) "$(run_figures "$dir")"
  rm -rf "$dir/run/checkpoints" "$dir/run/state"
  keep_logs "$(basename "$dir")"
}

# run_figures FOLDER: medians over the second half of the steps; what the GPU had in use at least and at most meanwhile.
run_figures() {
  python3 - "$1" << 'END'
import json, pathlib, statistics, sys
folder = pathlib.Path(sys.argv[1])
def rows(path):
    found = []
    for line in path.open(errors="replace") if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found
steps = [row for row in rows(folder / "run/metrics.jsonl") if row.get("kind") == "step"]
later = steps[len(steps) // 2:]
figures = {"steps": len(steps)}
for key in ("step_seconds", "wait_seconds", "forward_backward_seconds", "optimizer_seconds", "proximal_seconds",
            "stage_seconds", "stage_wait_seconds", "turn_drain_seconds", "turn_load_seconds", "turn_offload_seconds",
            "turn_moved_bytes", "trained_tokens", "memory_allocated_bytes"):
    values = [row[key] for row in later if row.get(key) is not None]
    if values:
        figures[key] = statistics.median(values)
if figures.get("trained_tokens"):
    figures["wait_us_per_token"] = round(figures["wait_seconds"] / figures["trained_tokens"] * 1e6, 2)
if steps:
    figures["first_step_seconds"] = steps[0].get("step_seconds")
    reserved = [row.get("memory_reserved_bytes", 0) for row in steps]
    tenth = max(1, len(reserved) // 10)
    figures["reserved_mib"] = {"first_tenth": max(reserved[:tenth]) >> 20, "last_tenth": max(reserved[-tenth:]) >> 20}
    figures["reward_mean"] = {"first": steps[0].get("reward_mean"), "last": steps[-1].get("reward_mean")}
syncs = [row for row in rows(folder / "sync.jsonl") if row.get("result") == "ok" and not row.get("relabelled")]
results = {}
for row in rows(folder / "sync.jsonl"):
    results[row["result"]] = results.get(row["result"], 0) + 1
figures["sync_results"] = results
for phase in ("prepare", "transfer", "verify", "install", "total"):
    values = [float(row[f"{phase}_seconds"]) for row in syncs[1:] if f"{phase}_seconds" in row]
    if values:
        figures[f"sync_{phase}_ms"] = round(statistics.median(values) * 1e3, 2)
if syncs:
    figures["transport"] = syncs[-1].get("transport")
    # What each sync brought; a base that is mapped is not sent.
    for kind in ("full", "lora", "mapped"):
        figures[f"sync_mib_{kind}"] = [int(row.get(f"bytes_{kind}", 0)) >> 20 for row in (syncs[0], syncs[-1])]
owners = folder / "owners.json"
if owners.exists():
    figures["owners"] = (rows(owners) or [{"text": (folder / "owners.log").read_text(errors="replace")[-400:]}])[0]
used = [int(word) for word in (folder / "used.txt").read_text(errors="replace").split() if word.isdigit()]
if used:
    half = used[len(used) // 2:]
    tenth = max(1, len(half) // 10)
    figures["card_mib"] = {"least": min(half), "most": max(half),
                           "most_by_tenths": [max(half[at:at + tenth]) for at in range(0, len(half), tenth)]}
try:
    summary = json.load(open(folder / "run/summary.json"))
    for key in ("status", "staleness", "tokens", "wall_seconds", "eval", "idle"):
        figures[key] = summary.get(key)
except (OSError, ValueError):
    figures["text"] = (folder / "out.log").read_text(errors="replace")[-400:]
print(json.dumps(figures))
END
}

# Whether it works: a small model whose answers are swapped and computed again, then the shapes of 0.5B.
part_walk() {
  run_daemons walk 25m 60 "${turns[@]}" "${shape_25m[@]}" "${plain[@]}" data.length=16 data.alphabet=26 rollout.max_new_tokens=17 \
    data.batch_groups=16 rollout.samples=16 rollout.max_sequences=256 rollout.host_kv_memory=0.01 checkpoint.every_steps=10 run.steps=30
  run_daemons walk 0.5b 100 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=4 run.steps=4
}

# Whole runs in turns. With `ahead` answers of the next batch are under way when a turn begins.
part_turns() {
  run_daemons turns 0.5b 140 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=8 run.steps=8
  run_daemons turns 1.5b 200 "${turns[@]}" "${shape_1_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=8 run.steps=6
  # Answers of different lengths leave blocks that fit nothing, and the allocator is emptied before each micro-batch.
  run_daemons turns 0.5b-never-emptied 120 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=8 \
    train.empty_cache_after_update=never run.steps=6
  run_daemons turns 1.5b-never-emptied 150 "${turns[@]}" "${shape_1_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=8 \
    train.empty_cache_after_update=never run.steps=5
  run_daemons turns 0.5b-on-policy 120 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" staleness.max_staleness=0 \
    run.steps=6
}

# The parts of such a step alone: a decode step at the mean context of an answer, 1024 of which make a batch; a training step of
# as many tokens.
part_alone() {
  local model
  for model in qwen2.5-0.5b qwen2.5-1.5b; do
    run_bench alone "generate-$model" 60 syncopate bench generate --model "$model" --case fixed --context 528 --batch 512
    run_bench alone "train-$model" 110 syncopate bench train policy --json --model "$model" --tokens 528384 --longest 1032 \
      --micro-batch-tokens 16384 --steps 2 --warm-seconds 1
  done
}

# The same runs on a card that trainer and rollouter split.
part_split() {
  run_daemons split 0.5b 140 "${one_card[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.gpu_memory=0.5 run.steps=8
  run_daemons split 1.5b 200 "${one_card[@]}" "${shape_1_5b[@]}" "${plain[@]}" "${long[@]}" rollout.gpu_memory=0.6 run.steps=6
}

# Memory over 100 turns of 64 answers.
part_flat() {
  run_daemons flat 0.5b 220 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" rollout.max_new_tokens=24 data.batch_groups=4 \
    rollout.samples=16 rollout.max_sequences=64 rollout.host_kv_memory=1 run.steps=100
}

# The 25M model learns to reverse 16 of 26 symbols by the reward `exact`, in turns and on a split card.
part_learn() {
  local common
  common=("${shape_25m[@]}" data.length=16 data.alphabet=26 rollout.max_new_tokens=17 data.batch_groups=64 rollout.samples=16
    rollout.max_sequences=1024 reward.name=exact train.sft_steps=60 train.learning_rate=1e-4 eval.every_steps=10 run.steps=150)
  run_daemons learn turns 220 "${turns[@]}" "${common[@]}"
  run_daemons learn split 150 "${one_card[@]}" "${common[@]}" rollout.gpu_memory=0.4
}

# Who owns the card's memory, as both daemons say it, against what the driver counts: in turns, and on a card that they split.
part_owners() {
  run_daemons owners turns-0.5b 90 "${turns[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.host_kv_memory=4 run.steps=4
  run_daemons owners split-0.5b 90 "${one_card[@]}" "${shape_0_5b[@]}" "${plain[@]}" "${long[@]}" rollout.gpu_memory=0.5 run.steps=4
}

# Adapters in turns: the rollouter maps the base that the trainer computes with. The second of each pair receives it in every
# turn, as nothing is staged on the card. bench/card_owners.py counts the base once.
part_adapters() {
  local model
  for model in 0_5b 1_5b; do
    local -n shape=shape_$model
    local lora=(lora.rank=32 train.kl_coef=0.01 rollout.host_kv_memory=8 run.steps=6)
    run_daemons adapters "$model-mapped" 130 "${turns[@]}" "${shape[@]}" "${plain[@]}" "${long[@]}" "${lora[@]}"
    run_daemons adapters "$model-sent" 130 "${turns[@]}" "${shape[@]}" "${plain[@]}" "${long[@]}" "${lora[@]}" sync.transport=grpc
  done
}

# A 7B by adapters, whose trainer and rollouter have one base on the card: 256 answers of 512 tokens a step.
part_adapters_7b() {
  run_daemons adapters_7b mapped 480 "${turns[@]}" "${shape_7b[@]}" "${plain[@]}" lora.rank=32 train.kl_coef=0.01 \
    train.micro_batch_tokens=8192 rollout.max_new_tokens=512 data.batch_groups=16 rollout.samples=16 rollout.max_sequences=256 \
    rollout.host_kv_memory=8 run.steps=8
}

# A 7B in full, whose trainer and replica have a rank on each of two cards: as many tokens a step. Memory
# is measured on the first card only.
part_full_7b() {
  if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
    emit full_7b turns 75 0 '{"text": "not run: it needs two GPUs"}'
    return 0
  fi
  run_daemons full_7b turns 480 "${turns[@]}" "${shape_7b[@]}" "${plain[@]}" train.device=cuda rollout.device=cuda trainer.world=2 \
    rollout.tensor_parallel=2 train.micro_batch_tokens=8192 rollout.max_new_tokens=512 data.batch_groups=16 rollout.samples=16 \
    rollout.max_sequences=256 run.steps=8
}

# What a base that is sent with every sync costs generation: at max_staleness 0 rollouters wait for each version, with all
# weights 3.4 GB, with adapters 70 MB. wait_us_per_token is the trainer's wait for its batch, in microseconds of a trained
# token: the transfer is a part of it, and the staging before it is not (stage_seconds).
part_resent() {
  local transport
  for transport in grpc ipc; do
    local words=("${one_card[@]}" "${shape_1_7b[@]}" "${plain[@]}" rollout.gpu_memory=0.4 staleness.max_staleness=0
      sync.transport=$transport rollout.max_new_tokens=512 data.batch_groups=8 rollout.samples=16 rollout.max_sequences=128
      run.steps=6)
    run_daemons resent "1.7b-$transport-full" 90 "${words[@]}"
    run_daemons resent "1.7b-$transport-lora" 90 "${words[@]}" lora.rank=32
  done
}

for part in "${parts[@]}"; do
  case $part in
    walk | turns | alone | split | flat | learn | owners | adapters | adapters_7b | resent | full_7b) ;;
    *) echo "one_card: no part $part; there are walk turns alone split flat learn owners adapters adapters_7b resent full_7b" >&2; exit 2 ;;
  esac
  deadline=$((SECONDS + seconds))
  "part_$part"
done
exit "$failed"
