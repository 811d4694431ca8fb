#!/usr/bin/env bash
# usage: scripts/tokenizer_fuzz.sh [COUNT=50000 [SEED=1]]
# Compares the ids and texts of COUNT random strings for every kind of tokenizer with PyPI tokenizers: trains tokenizers on
# this tree's documents, asks the reference, holds build/release/bin/tokenizer_compare against it. Minutes; needs PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/tokenizer-fuzz
python=$work/venv/bin/python3
mkdir -p "$work"
[ -x "$python" ] || python3 -m venv "$work/venv"
"$python" -m pip install --quiet --disable-pip-version-check tokenizers==0.23.3
[ -x build/release/bin/tokenizer_compare ] || scripts/build.sh release tokenizer_compare
[ -d "$work/kinds" ] || "$python" scripts/tokenizer_reference.py train "$work/kinds" README.md docs/*.md
"$python" scripts/tokenizer_reference.py fuzz "$work/kinds" "${1:-50000}" "${2:-1}"
build/release/bin/tokenizer_compare "$work"/kinds/*/
