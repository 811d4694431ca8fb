#!/usr/bin/env bash
# usage: scripts/fuzz.sh TARGET [SECONDS=60]       targets: tests/fuzz/*_fuzz.cc without that ending
# Searches with clang's libFuzzer, AddressSanitizer and UBSan for inputs that break a parser, from the kept corpus on. What
# is found lies in build/fuzz; an input that broke something belongs into tests/fuzz/corpus/TARGET, with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:?a target: $(cd tests/fuzz && ls ./*_fuzz.cc | sed 's/^\.\///; s/_fuzz.cc//' | tr '\n' ' ')}
seconds=${2:-60}
out=build/fuzz/$target
mkdir -p "$out/found"
sources=(tests/fuzz/"$target"_fuzz.cc base/{file_system,log,posix_file_system,status,strict_json,utf8,uuid}.cc)
case $target in
  tokenizer*) sources+=(text/tokenizer/*.cc) ;;
  data_row) sources+=(trainer/data/prompt_row.cc) ;;
  *) sources+=(text/template/*.cc) ;;
esac
clang++ -std=c++20 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. "${sources[@]}" -o "$out/fuzzer" \
  $(pkg-config --libs --cflags absl_status absl_statusor absl_flat_hash_map absl_str_format absl_synchronization libcrypto spdlog)
exec "$out/fuzzer" "$out/found" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
  -max_len=65536 -artifact_prefix="$out/"
