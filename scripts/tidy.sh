#!/usr/bin/env bash
# usage: scripts/tidy.sh [BASE=origin/main]
# Runs clang-tidy-14 with the checks of .clang-tidy over the C++ sources that differ from the commit BASE, and over the source of
# each header that differs. Units are off, as a finding in a unit of six files names the wrong one. Precompiled headers stay, as
# libtorch's saves 20 s a source. CUDA sources and what needs the CUDA toolkit are left out. A source takes 2 to 20 s. Prints
# findings; exits 1 if there are any.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${1:-origin/main}
folder=build/tidy
mkdir -p "$folder"
cmake --preset clang -B "$folder" -DSYNCOPATE_UNITY=OFF -DSYNCOPATE_SYNTAX_ONLY=OFF -DBUILD_TESTING=ON \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > "$folder/configure.log" 2>&1 || { cat "$folder/configure.log" >&2; exit 1; }
# Sources include what protoc and our own generators make, and precompiled headers.
mapfile -t made < <(ninja -C "$folder" -t targets all | grep -oE '^[^/:][^:]*([.]inc|hxx[.]pch):' | tr -d : | sort -u)
cmake --build "$folder" --target syncopate_grpc "${made[@]}" --parallel "$(nproc)" > "$folder/protos.log" 2>&1 ||
  { tail -n 20 "$folder/protos.log" >&2; exit 1; }

files=()
while IFS= read -r changed; do
  source=${changed%.h}
  source=${source%.cc}.cc
  if grep -qF "\"$PWD/$source\"" "$folder/compile_commands.json"; then files+=("$source"); fi
done < <(git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h')
if [ "${#files[@]}" -eq 0 ]; then
  echo "tidy: no source differs from $base"
  exit 0
fi

failed=0
printf '%s\n' "${files[@]}" | sort -u |
  xargs -P "$(nproc)" -n 4 clang-tidy-14 -p "$folder" --quiet --warnings-as-errors='*' 2> "$folder/notes.log" || failed=1
echo "tidy: ${#files[@]} sources, $([ "$failed" -eq 0 ] && echo "no findings" || echo "findings above")"
exit "$failed"
