#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "rollouter/engine/generation.h"

namespace syncopate::testing {

// Keeps what a request has generated.
class RecordingSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override { finished[sample] = std::move(trajectory); }
  std::map<int32_t, Trajectory> finished;  // key: sample
};

}  // namespace syncopate::testing
