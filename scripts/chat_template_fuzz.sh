#!/usr/bin/env bash
# usage: scripts/chat_template_fuzz.sh [COUNT=1000 [SEED=1 [TEMPLATE.jinja ...]]]
# Compares COUNT random conversations for each template, of one's own or of this tree, with PyPI jinja2. Needs PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/chat-template-fuzz
python=$work/venv/bin/python3
mkdir -p "$work"
[ -x "$python" ] || python3 -m venv "$work/venv"
"$python" -m pip install --quiet --disable-pip-version-check jinja2==3.1.6
[ -x build/release/bin/chat_template_compare ] || scripts/build.sh release chat_template_compare
"$python" scripts/chat_template_reference.py fuzz "$work/cases.jsonl" "${1:-1000}" "${2:-1}" "${@:3}"
build/release/bin/chat_template_compare "$work/cases.jsonl"
