# shellcheck shell=bash
# Whole runs by the daemons on one device, for the scripts of this folder that compare them. A script sets `title`, then
# sources this with its own arguments [FOLDER=build/cuda/bin [DEVICE=cuda:0 [CASE ...]]], which become folder, device and
# cases. Where the device is a GPU and there is none, this says so and ends the script with 0. Runs write to $work, which is
# removed in the end together with the processes of the run under way.
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
folder=$(realpath "${1:-$root/build/cuda/bin}") || exit 1
device=${2:-cuda:0}
cases=("${@:3}")
limit_s=150  # of one run

if [ "$device" != cpu ]; then
  # shellcheck source=scripts/gpu_libraries.sh
  . "$root/scripts/gpu_libraries.sh" "$folder"
  if [ "$(nvidia-smi --list-gpus 2> /dev/null | wc -l)" -eq 0 ]; then
    echo "${title:?}: skipped, nvidia-smi lists no GPU"
    exit 0
  fi
fi

work=$(mktemp -d)
session=
trap '[ -z "$session" ] || kill -KILL -- "-$session" 2> /dev/null; rm -rf "$work"' EXIT

begin() {  # begin LOG WORD...: in the background, in a session of its own
  local log=$1
  shift
  setsid timeout --signal=INT --kill-after=20 "$limit_s" "$folder/syncopate" run "$@" --quiet >> "$log" 2>&1 &
  session=$!
}

finish() {  # the exit code of the run; nothing is left of it
  wait "$session"
  local code=$?
  kill -KILL -- "-$session" 2> /dev/null
  session=
  return "$code"
}

steps_of() { grep -s -c '"kind":"step"' "$1/metrics.jsonl" || true; }

await_step() {  # await_step DIR STEP
  local until=$((SECONDS + limit_s))
  while ! [ "$(steps_of "$1")" -ge "$2" ] 2> /dev/null; do
    if [ "$SECONDS" -ge "$until" ] || ! kill -0 "$session" 2> /dev/null; then return 1; fi
    sleep 0.05
  done
}

# The digest of the weights that are trained, and of their moments, after the last of $2 steps.
digest() {  # digest DIR STEPS
  local last
  last=$(find "$1/checkpoints" -maxdepth 1 -name "e*-s$2" | head -n 1)
  [ -n "$last" ] && cat "$last"/*.safetensors | sha256sum | cut -c1-16
}

failed=0
fail() {  # fail DIR WHY: with the ends of the logs of the run
  failed=1
  echo "  FAILED: $2"
  tail -n 5 "$1.log"
  for log in "$1"/logs/*.log; do
    grep -E ' [WE] ' "$log" 2> /dev/null | tail -n 6 | sed "s|^|  $(basename "$log"): |"
  done
}
