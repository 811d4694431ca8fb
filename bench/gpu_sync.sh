#!/usr/bin/env bash
# usage: bench/gpu_sync.sh [--bundle FOLDER] [--out FOLDER=sync-results] [--seconds N=540] [--list] [CASE ...]
# Weight syncs on this host's GPUs: ours (`syncopate bench sync`, the daemons with random weights) and the Python peers, one
# after the other, each with a time limit; ends with one table. A trainer holds 16 bytes a parameter, so our 7B has as many
# layers as fit a card of 80 GB beside a rollouter: 14 over two ranks, 8 on one. Peers send all 28. Without CASEs: all that fit
# this host's number of GPUs, in the order of the list below, until the time is up. CASE may be a pattern ('7b-*').
# FOLDER is an unpacked bundle (scripts/bundle.sh); without one, build/cuda and the libraries of python3's torch are used.
# Leaves in the out folder results.jsonl (grows case by case), table.md and logs.tar.gz.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

bundle=
out=sync-results
seconds=540
list=0
patterns=()
while [ $# -gt 0 ]; do
  case $1 in
    --bundle) bundle=$2; shift ;;
    --out) out=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --list) list=1 ;;
    --*) sed -n 2,7p "$0" >&2; exit 2 ;;
    *) patterns+=("$1") ;;
  esac
  shift
done

# 'shared': more processes than GPUs, so no figures of links: over `nccl` they are connected by sockets. Their models are small,
# because every process starts and steps on a card that it shares.
# name | GPUs that it needs | time limit, s | what runs: ours, peers or ceilings | its arguments
cases='
7b-2x2-ipc        | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc
7b-2x2-nccl       | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl
7b-2x2-ipc-calm   | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --calm
7b-2x2-nccl-calm  | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --calm
7b-2x2-peers      | 4 | 90 | peers    | --model qwen2.5-7b --sources 2 --replicas 2
7b-1x3-ipc        | 4 | 100| ours     | --model qwen2.5-7b --layers 8 --sources 1 --replicas 3 --transport ipc
7b-1x3-ipc-calm   | 4 | 100| ours     | --model qwen2.5-7b --layers 8 --sources 1 --replicas 3 --transport ipc --calm
7b-1x3-nccl       | 4 | 100| ours     | --model qwen2.5-7b --layers 8 --sources 1 --replicas 3 --transport nccl
7b-1x3-nccl-calm  | 4 | 100| ours     | --model qwen2.5-7b --layers 8 --sources 1 --replicas 3 --transport nccl --calm
7b-2xtp2-ipc      | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --tp 2 --transport ipc
7b-2xtp2-ipc-calm | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --tp 2 --transport ipc --calm
7b-2xtp2-nccl     | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --tp 2 --transport nccl
7b-2xtp2-nccl-calm| 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --tp 2 --transport nccl --calm
0.5b-2x2-ipc      | 4 | 45 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport ipc
0.5b-2x2-ipc-calm | 4 | 45 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport ipc --calm
0.5b-2x2-nccl     | 4 | 45 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl
0.5b-2x2-nccl-calm| 4 | 45 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --calm
7b-inplace-ipc    | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --install in_place
7b-inplace-nccl   | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --install in_place
7b-late-ipc       | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 1 --transport ipc --syncs 5 --late-joiner --no-ceiling
7b-late-nccl      | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 1 --transport nccl --syncs 5 --late-joiner --no-ceiling
7b-auto           | 4 | 100| ours     | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport auto --syncs 5
200-syncs-ipc     | 4 | 120| ours     | --model qwen2.5-1.5b --sources 2 --replicas 2 --transport ipc --syncs 200 --answers 4 --answer-tokens 16 --no-ceiling
200-syncs-nccl    | 4 | 120| ours     | --model qwen2.5-1.5b --sources 2 --replicas 2 --transport nccl --syncs 200 --answers 4 --answer-tokens 16 --no-ceiling
kill-receiver-ipc-transfer  | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --syncs 3 --no-ceiling --kill receiver --at transfer
kill-receiver-nccl-prepare  | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --kill receiver --at prepare
kill-receiver-nccl-transfer | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --kill receiver --at transfer
kill-receiver-nccl-install  | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --kill receiver --at install
stop-receiver-ipc-transfer  | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --syncs 3 --no-ceiling --stop receiver --at transfer
stop-receiver-nccl-transfer | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --stop receiver --at transfer
kill-source-ipc-transfer    | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --syncs 3 --no-ceiling --kill source --at transfer
kill-source-nccl-transfer   | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --kill source --at transfer
stop-source-nccl-transfer   | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --stop source --at transfer
kill-synchronizer-ipc-transfer  | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport ipc --syncs 3 --no-ceiling --kill synchronizer --at transfer
kill-synchronizer-nccl-transfer | 4 | 60 | ours | --model qwen2.5-7b --layers 14 --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling --kill synchronizer --at transfer
sockets-nccl      | 4 | 60 | sockets  | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --syncs 3 --no-ceiling
2x2-ceilings      | 4 | 60 | ceilings | --sources 2 --receivers 2
1x3-ceilings      | 4 | 60 | ceilings | --sources 1 --receivers 3
7b-2xtp2-peers    | 4 | 90 | peers    | --model qwen2.5-7b --sources 2 --replicas 1 --tp 2
7b-1x3-peers      | 4 | 90 | peers    | --model qwen2.5-7b --sources 1 --replicas 3
7b-1x1-ipc        | 2 | 60 | ours     | --model qwen2.5-7b --layers 8 --transport ipc
7b-1x1-nccl       | 2 | 60 | ours     | --model qwen2.5-7b --layers 8 --transport nccl
7b-1x1-ipc-calm   | 2 | 60 | ours     | --model qwen2.5-7b --layers 8 --transport ipc --calm
7b-1x1-nccl-calm  | 2 | 60 | ours     | --model qwen2.5-7b --layers 8 --transport nccl --calm
7b-1x1-inplace-ipc  | 2 | 60 | ours   | --model qwen2.5-7b --layers 8 --transport ipc --install in_place
7b-1x1-inplace-nccl | 2 | 60 | ours   | --model qwen2.5-7b --layers 8 --transport nccl --install in_place
7b-1x1-peers      | 2 | 60 | peers    | --model qwen2.5-7b --sources 1 --replicas 1
0.5b-1x1-ipc      | 2 | 45 | ours     | --model qwen2.5-0.5b --transport ipc
0.5b-1x1-nccl     | 2 | 45 | ours     | --model qwen2.5-0.5b --transport nccl
1x1-sockets-nccl  | 2 | 60 | sockets  | --model qwen2.5-0.5b --transport nccl --syncs 3 --no-ceiling
200-syncs-1x1-ipc  | 2 | 120 | ours    | --model qwen2.5-1.5b --transport ipc --syncs 200 --answers 4 --answer-tokens 16 --no-ceiling
200-syncs-1x1-nccl | 2 | 120 | ours    | --model qwen2.5-1.5b --transport nccl --syncs 200 --answers 4 --answer-tokens 16 --no-ceiling
shared-2x2-ipc    | 2 | 90 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport ipc --no-decode --no-ceiling
shared-2xtp2-ipc  | 2 | 90 | ours     | --model qwen2.5-0.5b --sources 2 --tp 2 --transport ipc --no-decode --no-ceiling
shared-late-ipc   | 2 | 90 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 1 --transport ipc --syncs 5 --late-joiner --no-ceiling
shared-late-nccl  | 2 | 90 | ours     | --model qwen2.5-0.5b --sources 2 --replicas 1 --transport nccl --syncs 5 --late-joiner --no-decode --no-ceiling
shared-kill-receiver-ipc      | 2 | 90 | ours | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport ipc --syncs 3 --no-ceiling --kill receiver --at transfer
shared-kill-receiver-nccl     | 2 | 90 | ours | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --syncs 3 --no-decode --no-ceiling --kill receiver --at transfer
shared-stop-receiver-nccl     | 2 | 90 | ours | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --syncs 3 --no-decode --no-ceiling --stop receiver --at transfer
shared-kill-source-nccl       | 2 | 90 | ours | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --syncs 3 --no-decode --no-ceiling --kill source --at transfer
shared-kill-synchronizer-nccl | 2 | 90 | ours | --model qwen2.5-0.5b --sources 2 --replicas 2 --transport nccl --syncs 3 --no-decode --no-ceiling --kill synchronizer --at transfer
1x1-kill-source-nccl      | 2 | 90 | ours | --model qwen2.5-7b --layers 8 --transport nccl --syncs 3 --no-ceiling --kill source --at transfer
1x1-kill-synchronizer-ipc | 2 | 90 | ours | --model qwen2.5-7b --layers 8 --transport ipc --syncs 3 --no-ceiling --kill synchronizer --at transfer
'

if [ "$list" -eq 1 ]; then
  echo "$cases" | sed '/^$/d'
  exit 0
fi
if [ -n "$bundle" ]; then
  . "$bundle/env.sh" || exit 1
  programs=$bundle/bin
else
  programs=$here/../build/cuda/bin
  torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")')
  for folder in "$torch/lib" "$(dirname "$torch")"/nvidia/*/lib; do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
  done
  export LD_LIBRARY_PATH
fi
# NVLink multicast can put the GPUs of a shared host out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1

gpus=$(nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU')
if [ "$gpus" -lt 2 ]; then
  echo "gpu_sync: $gpus GPUs here, and at least 2 are needed; skipped" >&2
  exit 1
fi
mkdir -p "$out"
results=$out/results.jsonl
: > "$results"
logs=$(mktemp -d)
finish() {
  tar -C "$logs" -czf "$out/logs.tar.gz" . 2> /dev/null
  rm -rf "$logs"
  python3 "$here/sync_table.py" "$results" | tee "$out/table.md"
}
trap finish EXIT
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader > "$logs/machine"
python3 "$here/sync_table.py" --machine "$gpus x $(head -n 1 "$logs/machine"), $(date --utc +%Y-%m-%d)" >> "$results"

wanted() {
  local pattern
  [ "${#patterns[@]}" -gt 0 ] || return 0
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053  # a pattern on purpose
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

run_case() {
  local name=$1 limit=$2 kind=$3 arguments=$4
  local command
  case $kind in
    ours) command="$programs/syncopate bench sync --json --seconds-limit $((limit - 10)) $arguments" ;;
    # As between hosts: neither NVLink nor shared memory.
    sockets) command="env NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 $programs/syncopate bench sync --json --seconds-limit $((limit - 10)) $arguments" ;;
    peers) command="python3 $here/peers/sync_peers.py --seconds-limit $((limit - 10)) $arguments" ;;
    ceilings) command="python3 $here/peers/ceilings.py --seconds-limit $((limit - 10)) $arguments" ;;
  esac
  local begun=$SECONDS code
  # shellcheck disable=SC2086  # words on purpose
  timeout --kill-after=5 "$limit" $command > "$logs/$name.out" 2> "$logs/$name.err"
  code=$?
  python3 "$here/sync_table.py" --collect "$name" "$code" "$logs/$name.out" >> "$results"
  printf '%-32s %4d s  exit code %d\n' "$name" $((SECONDS - begun)) "$code"
  [ "$code" -eq 0 ] || tail -n 4 "$logs/$name.err" | cut -c 1-400 | sed 's/^/    /'
  # What a benchmark that failed has left: the logs of its processes.
  local left
  for left in /tmp/syncopate-bench-*; do
    [ -d "$left" ] || continue
    mkdir -p "$logs/$name.logs"
    cp "$left"/*.log "$logs/$name.logs/"
    rm -rf "$left"
  done
}

deadline=$((SECONDS + seconds))
while IFS='|' read -r name needs limit kind arguments; do
  name=$(echo $name) needs=$(echo $needs) limit=$(echo $limit) kind=$(echo $kind)
  [ -n "$name" ] || continue
  wanted "$name" || continue
  # On a host of four the cases of two are left out, unless they are asked for.
  if [ "$needs" -gt "$gpus" ] || { [ "$needs" -lt 4 ] && [ "$gpus" -ge 4 ] && [ "${#patterns[@]}" -eq 0 ]; }; then continue; fi
  if [ "$SECONDS" -ge "$deadline" ]; then
    printf '%-32s not run: the time is up\n' "$name"
    continue
  fi
  left=$((deadline - SECONDS))
  run_case "$name" $((limit < left + 15 ? limit : left + 15)) "$kind" "$arguments"
done <<< "$cases"
