#!/usr/bin/env bash
# usage: tests/report/run.sh TEST.py NEED [ARGUMENT ...]
# Runs one of these tests with the Python of scripts/bootstrap.sh; exits 77, which is "skipped", if a tool is
# missing: NEED is "browser", "tensorboard" or "python".
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
python=$folder/../../.venv/bin/python3

skip() {
  echo "skipped: $1; scripts/bootstrap.sh --tests installs it"
  exit 77
}

[ -x "$python" ] || skip "no Python environment in .venv"
case $2 in
  browser) (cd "$folder" && "$python" -B -c 'import chromium, sys; sys.exit(chromium.find() is None)') || skip "no Chromium" ;;
  tensorboard) "$python" -c 'from tensorboard.backend.event_processing import event_accumulator' 2> /dev/null || skip "no tensorboard in .venv" ;;
esac
exec "$python" -B "$folder/$1" "${@:3}"
