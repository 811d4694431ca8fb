#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

// A fuzz target: a function that must return for any bytes.
//
//   SYNCOPATE_FUZZ_TARGET(record_log) { ...data, size...; return 0; }
//
// In a build by scripts/fuzz.sh, libFuzzer searches with the target; in other builds the target is one of
// FuzzTargets(), for which corpus_replay.cc runs the inputs in corpus/record_log.
namespace syncopate::testing {

using FuzzTarget = int (*)(const uint8_t* data, size_t size);

// All targets by name.
inline std::map<std::string, FuzzTarget>& FuzzTargets() {
  static auto* const targets = new std::map<std::string, FuzzTarget>();
  return *targets;
}

inline bool RegisterFuzzTarget(const char* name, FuzzTarget target) {
  return FuzzTargets().emplace(name, target).second;
}

}  // namespace syncopate::testing

#ifdef SYNCOPATE_LIBFUZZER
#define SYNCOPATE_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define SYNCOPATE_FUZZ_TARGET(name)                                 \
  static int Fuzz_##name(const uint8_t* data, size_t size);         \
  [[maybe_unused]] static const bool fuzz_##name##_is_registered =  \
      ::syncopate::testing::RegisterFuzzTarget(#name, Fuzz_##name); \
  static int Fuzz_##name(const uint8_t* data, size_t size)
#endif
