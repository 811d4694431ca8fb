#!/usr/bin/env bash
# usage: scripts/skipped_tests.sh BUILD_FOLDER
# Says how many tests the last run of ctest in BUILD_FOLDER has skipped, and why, with the names of three for each reason;
# nothing if none. A skipped test counts as passed for ctest, which sees programs and none of the tests in them.
set -euo pipefail
log=$1/Testing/Temporary/LastTest.log
[ -f "$log" ] || exit 0
# A GoogleTest says "FILE:LINE: Skipped", the reason, and "[  SKIPPED ] NAME (0 ms)". A program that exits 77 says
# "skipped: REASON", and unittest says "NAME (CLASS) ... skipped 'REASON'".
awk '
  function add(name, why) {
    sub(/^[ \t]+/, "", why)
    if (why == "") why = "no reason given"
    if (!(why in count)) order[++reasons] = why
    if (++count[why] <= 3) names[why] = names[why] (names[why] == "" ? "" : ", ") name
    ++total
  }
  /^[0-9]+\/[0-9]+ Test: / { program = $3; reading = 0; next }
  /: Skipped$/ { reading = 1; why = ""; next }
  /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { add($4, why); reading = 0; why = ""; next }
  /^\[/ { reading = 0; next }
  reading && NF > 0 { why = why (why == "" ? "" : " ") $0; next }
  /^skipped: / { add(program, substr($0, 10)); next }
  match($0, / \.\.\. skipped ./) { add($1, substr($0, RSTART + RLENGTH, length($0) - RSTART - RLENGTH)); next }
  END {
    if (total == 0) exit
    printf "%d %s skipped\n", total, total == 1 ? "test" : "tests"
    for (i = 1; i <= reasons; ++i) {
      why = order[i]
      printf("  %d: %s (%s%s)\n", count[why], why, names[why], (count[why] > 3 ? ", ..." : ""))
    }
  }' "$log"
