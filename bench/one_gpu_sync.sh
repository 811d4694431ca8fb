#!/usr/bin/env bash
# usage: bench/one_gpu_sync.sh FOLDER OUT [--seconds N=530] [--cpu] [CASE ...]
# Weight syncs of the daemons with two trainer ranks and two rollouter ranks that share one GPU, over ipc and nccl, and
# with one of each: publish to commit against the transfer alone, what a step waits for staging, and, where the case is
# not --calm, the rate of steps beside a publication. FOLDER is an unpacked bundle (scripts/bundle.sh --dir), or a
# build's folder of programs. Prints one JSON object a line as a case ends, also to OUT/results.jsonl; the logs of a
# case that failed are in OUT. --cpu: the same cases with a tiny model in host memory, as a trial of the script. CASE
# may be a pattern. Exits 1 if a case failed. NCCL takes two processes on one GPU only as processes of two hosts
# (NCCL_HOSTID, which `syncopate bench sync` sets) and connects them by sockets: what nccl shows here is the protocol's
# share, not a link's rate. NVLink multicast stays off.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

seconds=530
cpu=0
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --cpu) cpu=1 ;;
    --*) sed -n 2,10p "$0" >&2; exit 2 ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [ "${#words[@]}" -lt 2 ]; then
  sed -n 2,10p "$0" >&2
  exit 2
fi
folder=$(realpath "${words[0]}") || exit 2
mkdir -p "${words[1]}" && out=$(realpath "${words[1]}") || exit 2
patterns=("${words[@]:2}")
if [ -f "$folder/env.sh" ]; then
  # shellcheck source=/dev/null
  . "$folder/env.sh" || exit 1
  programs=$folder/bin
else
  # shellcheck source=scripts/gpu_libraries.sh
  . "$here/../scripts/gpu_libraries.sh" "$folder"
  programs=$folder
fi
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1

card="host memory" mib=0
if [ "$cpu" -eq 0 ]; then
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1)
  mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2> /dev/null | head -n 1)
  if ! [ "${mib:-0}" -gt 0 ] 2> /dev/null; then
    echo "one_gpu_sync: nvidia-smi lists no GPU; --cpu tries the script without one" >&2
    exit 1
  fi
fi
# Layers of a 7B that fit beside each other: a trainer holds 16 bytes a parameter and what it computes with. Two ranks
# exchange weights and gradients by sockets in each step, so that they have few layers, one micro-batch and few syncs.
few=3 many=6
if [ "$mib" -gt 120000 ]; then few=4 many=14; fi
one="--calm --answers 56"
two="--sources 2 --answers 28 --warmup 1 --syncs 6"

# name | limit, s | arguments
cases="
0.5b-2-tp2-ipc         | 120 | --model qwen2.5-0.5b $two --tp 2 --transport ipc --calm
0.5b-2-tp2-nccl        | 120 | --model qwen2.5-0.5b $two --tp 2 --transport nccl --calm
7b-1-1-ipc             | 140 | --model qwen2.5-7b --layers $many $one --transport ipc
0.5b-1-1-nccl          | 60  | --model qwen2.5-0.5b $one --transport nccl
7b-2-tp2-ipc           | 120 | --model qwen2.5-7b --layers $few $two --tp 2 --transport ipc --calm
0.5b-2-replicas-2-ipc  | 120 | --model qwen2.5-0.5b $two --replicas 2 --transport ipc --calm
0.5b-2-replicas-2-nccl | 120 | --model qwen2.5-0.5b $two --replicas 2 --transport nccl --calm
0.5b-1-1-ipc-decode    | 60  | --model qwen2.5-0.5b --answers 56 --transport ipc
0.5b-2-tp2-nccl-decode | 120 | --model qwen2.5-0.5b $two --tp 2 --transport nccl
"

wanted() {
  local pattern
  [ "${#patterns[@]}" -gt 0 ] || return 0
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053  # a pattern on purpose
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

# emit CASE CODE SECONDS FILE: FILE's last JSON object, with the figures that the aims are about first.
emit() {
  python3 - "$@" "$card" << 'END' | tee -a "$out/results.jsonl"
import datetime, json, sys
case, code, seconds, path, card = sys.argv[1:6]
result = {"error": "no result"}
for line in open(path, errors="replace"):
    try:
        value = json.loads(line)
    except ValueError:
        continue
    if isinstance(value, dict):
        result = value
def ms(*keys):
    value = result
    for key in keys:
        value = (value or {}).get(key) if isinstance(value, dict) else None
    return None if value is None else round(1e3 * value, 4)
print(json.dumps({
    "case": case, "exit": int(code), "seconds": int(seconds), "card": card, "date": datetime.date.today().isoformat(),
    "transport": result.get("transport"),
    "publish_to_commit_ms": ms("publish_to_commit_seconds", "median"),
    "transfer_ms": ms("seconds", "transfer", "median"),
    "publish_to_commit_ratio": result.get("publish_to_commit_ratio"),
    "step_wait_ms": ms("steps", "wait_seconds", "median"), "step_wait_most_ms": ms("steps", "wait_seconds", "max"),
    "stage_ms": ms("steps", "stage_seconds", "median"),
    "step_beside_ms": ms("steps", "beside_publication_seconds", "median"), "step_calm_ms": ms("steps", "calm_seconds", "median"),
    "step_rate_share": (result.get("steps") or {}).get("rate_share"), "pause_ms": ms("pause_seconds", "median"),
    "result": result}))
END
}

session=
# Where benchmarks keep what their processes log, short, as sockets lie there too.
TMPDIR=$(mktemp -d /tmp/one-gpu-XXXXXX)
export TMPDIR
trap '[ -z "$session" ] || kill -KILL -- "-$session" 2> /dev/null; rm -rf "$TMPDIR"' EXIT
failed=0
deadline=$((SECONDS + seconds))
: > "$out/results.jsonl"
while IFS='|' read -r name limit arguments; do
  name=$(echo $name) limit=$(echo $limit)
  [ -n "$name" ] || continue
  wanted "$name" || continue
  left=$((deadline - SECONDS))
  if [ "$left" -lt 30 ]; then
    echo "$name: not run, the time is up" >&2
    continue
  fi
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$cpu" -eq 1 ]; then
    arguments=$(echo "$arguments" |
      sed -E 's/--model [^ ]+/--model tiny/; s/--layers [0-9]+//; s/--transport [a-z]+/--transport grpc/; s/--answers [0-9]+/--answers 4/')
    arguments="$arguments --cpu"
  fi
  begun=$SECONDS
  # shellcheck disable=SC2086  # words on purpose
  setsid timeout --kill-after=5 "$limit" "$programs/syncopate" bench sync --json --no-ceiling --seconds-limit $((limit - 10)) $arguments \
    > "$out/$name.out" 2> "$out/$name.err" &
  session=$!
  wait "$session"
  code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  emit "$name" "$code" $((SECONDS - begun)) "$out/$name.out"
  [ "$code" -eq 0 ] && continue
  failed=1
  tail -n 5 "$out/$name.err" | cut -c 1-600 >&2
  # What a benchmark that failed has left: the logs of its processes.
  for kept in "$TMPDIR"/*; do
    [ -d "$kept" ] || continue
    mkdir -p "$out/$name.logs"
    cp "$kept"/*.log "$out/$name.logs/"
    rm -rf "$kept"
  done
done <<< "$cases"
exit "$failed"
