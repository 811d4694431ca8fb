#pragma once

#include <cstddef>
#include <cstdint>

// A fuzz target in libFuzzer's form: built with clang it is a fuzzer (scripts/fuzz.sh); linked with corpus_replay.cc it
// is a test that goes through the kept corpus.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
