#!/usr/bin/env bash
# usage: tests/monitoring/run.sh TEST.py [ARGUMENT ...]
# Runs one of these tests with the Python of scripts/bootstrap.sh; exits 77, which is "skipped", if a tool is missing.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
python=$folder/../../.venv/bin/python3

skip() {
  echo "skipped: $1; scripts/bootstrap.sh --tests installs it"
  exit 77
}

command -v promtool > /dev/null || skip "no promtool on PATH"
command -v prometheus > /dev/null || skip "no prometheus on PATH"
[ -x "$python" ] || skip "no Python environment in .venv"
"$python" -c 'import yaml, matplotlib' 2> /dev/null || skip "no pyyaml or matplotlib in .venv"
exec "$python" -B "$folder/$1" "${@:2}"
