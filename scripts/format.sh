#!/usr/bin/env bash
# usage: scripts/format.sh [--check]
# Formats every C++ and CUDA source of the tree by .clang-format; --check changes nothing, names what differs and exits 1.
# Generated tables are left out. Drawings in comments are safe, as comments are never reflowed.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
[ "${1:-}" != --check ] || mode=(--dry-run -Werror)
git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' ':!text/tokenizer/unicode_tables.h' |
  xargs -0 -n 200 -P "$(nproc)" clang-format-14 "${mode[@]}"
