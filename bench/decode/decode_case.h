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

// Seconds a step; medians of the repeats.
struct DecodeTimes {
  double graph = 0;   // on the device, step after step without the host
  double engine = 0;  // wall clock, the host passes each step's rows and runs one step behind
  double host = 0;    // the part of `engine` in which the host passes a step and takes its tokens
  double create = 0;  // time until the decoder was made, including measurements of products
  int64_t device_bytes = 0;
};

absl::StatusOr<DecodeTimes> TimeDecode(const NamedShape& named, const RandomModel& model,
                                       const DecodeCase& decode_case);

}  // namespace syncopate::bench
