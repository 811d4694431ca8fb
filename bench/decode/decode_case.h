#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/decode/random_model.h"

namespace syncopate::bench {

struct DecodeCase {
  int32_t rows = 0;
  int32_t context = 1024;
  int repeats = 5;
  bool float32_logits = true;
  bool add_in_products = true;
};

// Medians of the repeats, seconds a step.
struct DecodeTimes {
  double graph = 0;   // the device's, step after step without the host
  double engine = 0;  // by the clock, with each step's rows given by the host, which runs one step behind
  double host = 0;    // of `engine`, what the host spends on giving a step and taking its tokens
  double create = 0;  // seconds until the decoder was there, measuring of products included
  int64_t device_bytes = 0;
};

absl::StatusOr<DecodeTimes> TimeDecode(const NamedShape& named, const RandomModel& model,
                                       const DecodeCase& decode_case);

}  // namespace syncopate::bench
