#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// What a receiver has when a version is offered to it.
struct ReceiverWeights {
  bool base_present = false;       // received since its process started
  uint64_t digest = 0;             // of what it serves or last served; 0 before its first sync
  int sleep_level = 0;             // of its latest sleep: 1 keeps the weights on the host, 2 drops them
  bool free_cache_engine = false;  // a sleep really frees memory
  bool slept = false;              // since its latest sync
};

// What a sender offers.
struct OfferedWeights {
  uint64_t digest = 0;
  // Names of the tensors that change from version to version (adapters), where the others (base weights) never do.
  // Empty: all change.
  std::vector<std::string> adapters;
};

// Bytes without padding, by the label `kind` of syncopate_weight_sync_bytes_total.
struct PayloadBytes {
  int64_t full = 0;  // base weights are counted here
  int64_t lora = 0;
  int64_t delta = 0;  // versions are not sent as differences: 0
  int64_t total() const { return full + lora + delta; }
  PayloadBytes& operator+=(const PayloadBytes& other) {
    full += other.full;
    lora += other.lora;
    delta += other.delta;
    return *this;
  }
  friend bool operator==(const PayloadBytes&, const PayloadBytes&) = default;
};

struct Payload {
  bool base = false;  // weights that are no adapters
  bool adapters = false;
  std::vector<int32_t> tensors;  // what is sent, as indices in the manifest, ascending: see Layout::Only
  PayloadBytes bytes;
  std::string reason;  // for people: why just these
};

// Whether a receiver lacks the base weights: !base_present || (sleep_level == 2 && free_cache_engine && slept).
bool NeedsBase(const ReceiverWeights& receiver);

// What of `manifest` to send to one receiver:
//   needs base | adapters named | digest served | sent
//   yes        | -              | -             | everything
//   no         | -              | yes           | nothing
//   no         | no             | no            | everything
//   no         | yes            | no            | the adapters
// INVALID_ARGUMENT reason UNKNOWN_TENSOR if an adapter's name is not in the manifest.
absl::StatusOr<Payload> DecidePayload(const Manifest& manifest, const OfferedWeights& offered,
                                      const ReceiverWeights& receiver);

}  // namespace syncopate::synchronizer
