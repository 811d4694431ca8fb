#!/usr/bin/env bash
# usage: tests/tree/skipped_tests_test.sh SCRIPT
# scripts/skipped_tests.sh reads the files that ctest writes after a run in which every kind of test was skipped.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/Testing/Temporary"
cat > "$folder/Testing/Temporary/LastTest.log" << 'END'
1/4 Testing: page_test
1/4 Test: page_test
Output:
----------------------------------------------------------
skipped: no Chromium; scripts/bootstrap.sh --tests installs it
<end of output>
2/4 Test: gpu_test
Output:
----------------------------------------------------------
[ RUN      ] Gpu.One
tests/gpu/one.cc:12: Skipped
needs 2 GPU(s):
there is none

[  SKIPPED ] Gpu.One (0 ms)
[ RUN      ] Gpu.Two
tests/gpu/one.cc:12: Skipped
needs 2 GPU(s):
there is none

[  SKIPPED ] Gpu.Two (0 ms)
[ RUN      ] Gpu.Three
log: a line with skipped in it
[       OK ] Gpu.Three (0 ms)
[ RUN      ] Gpu.Four
tests/gpu/one.cc:20: Skipped

[  SKIPPED ] Gpu.Four (0 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 3 tests, listed below:
[  SKIPPED ] Gpu.One
[  SKIPPED ] Gpu.Two
[  SKIPPED ] Gpu.Four
<end of output>
3/4 Test: live_page_test
Output:
----------------------------------------------------------
test_browser (__main__.Live) ... skipped 'no Chromium'
test_other (__main__.Live) ... ok
OK (skipped=1)
<end of output>
END
expected='5 tests skipped
  1: no Chromium; scripts/bootstrap.sh --tests installs it (page_test)
  2: needs 2 GPU(s): there is none (Gpu.One, Gpu.Two)
  1: no reason given (Gpu.Four)
  1: no Chromium (test_browser)'
diff <("$1" "$folder") <(echo "$expected")
# Without a run, and without a skipped test, the script prints nothing.
[ -z "$("$1" "$folder/none")" ]
printf '1/1 Test: a_test\n[       OK ] A.B (0 ms)\n' > "$folder/Testing/Temporary/LastTest.log"
[ -z "$("$1" "$folder")" ]
