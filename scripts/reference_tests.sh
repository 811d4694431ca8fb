#!/usr/bin/env bash
# usage: scripts/reference_tests.sh [FUZZ_SECONDS=60]
# What takes too long or needs too much for every change: exports read by transformers and peft, `doctor --reference`, 50,000 random
# strings for each kind of tokenizer, random conversations for the chat templates, each fuzz target for FUZZ_SECONDS, and the
# engine's host half with libtorch under AddressSanitizer and UBSan. Wants preset release built; needs PyPI. Prints a line a
# check, with its log below one that failed; exits 1 if one did.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
fuzz_seconds=${1:-60}
work=build/reference
mkdir -p "$work"
failed=0

# check NAME COMMAND...
check() {
  local name=$1 started=$SECONDS log
  log=$work/${name// /-}.log
  shift
  if "$@" > "$log" 2>&1; then
    printf '  ok      %-40s %5d s\n' "$name" $((SECONDS - started))
  else
    printf '  FAILED  %-40s %5d s\n' "$name" $((SECONDS - started))
    tail -n 20 "$log"
    failed=1
  fi
}

# A skipped test has seen nothing.
# reads_exports TEST
reads_exports() {
  build/release/bin/model_files_test --gtest_filter="*$1" > "$work/export.log" 2>&1
  local code=$?
  cat "$work/export.log"
  [ "$code" -eq 0 ] && ! grep -q SKIPPED "$work/export.log" && grep -q 'PASSED.* 1 test' "$work/export.log"
}

doctor_asks_the_reference() {
  rm -rf "$work/model"
  python3 scripts/tiny_model.py "$work/model" --text README.md --text docs/text.md || return 1
  build/release/bin/syncopate doctor --model "$work/model" --reference --python build/golden-venv/bin/python3 \
    > "$work/doctor.log" 2>&1
  local code=$?
  cat "$work/doctor.log"
  [ "$code" -eq 0 ] && grep -q "good *reference" "$work/doctor.log"
}

engine_under_asan() {
  local tests=(engine_loop_test tensor_parallel_engine_test deterministic_test engine_test ops_test)
  scripts/build.sh asan-torch "${tests[@]}" && ctest --preset asan-torch
}

scripts/bootstrap.sh --long || exit 1
check "transformers reads exports" reads_exports TransformersReadsItAndGivesTheSameLogits
check "peft reads exports" reads_exports PeftReadsWhatWeWriteAndGivesTheSameLogits
check "doctor asks the reference" doctor_asks_the_reference
check "tokenizers" scripts/tokenizer_fuzz.sh 50000
check "chat templates" scripts/chat_template_fuzz.sh 1000
check "fuzz targets" scripts/fuzz.sh all "$fuzz_seconds"
check "engine under asan" engine_under_asan
[ "$failed" -eq 0 ] && echo "reference tests: ok" || echo "reference tests: FAILED"
exit "$failed"
