#!/usr/bin/env bash
# usage: deploy/image/compile.sh cpu|cuda OUT
# Compiles the variant's programs where install.sh has run, and collects what the image holds in folder OUT (see
# assemble.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."

variant=${1:-}
out=${2:-}
case $variant:$# in
  cpu:2) preset=release ;;
  cuda:2) preset=cuda ;;
  *) sed -n 2p "$0" >&2; exit 2 ;;
esac
scripts/build.sh "$preset" syncopate syncopate-synchronizer syncopate-trainer syncopate-rollouter
exec deploy/image/assemble.sh "build/$preset" "$variant" "$out"
