#pragma once

#include <cstdint>

namespace syncopate::synchronizer {

// What a receiver has when a version is offered to it.
struct ReceiverWeights {
  bool base_present = false;       // received since its process started
  uint64_t digest = 0;             // of what it serves or last served; 0 before its first sync
  int sleep_level = 0;             // of its latest sleep: 1 keeps the weights on the host, 2 drops them
  bool free_cache_engine = false;  // a sleep really frees memory
  bool slept = false;              // since its latest sync
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

// Whether a receiver lacks the base weights: !base_present || (sleep_level == 2 && free_cache_engine && slept). What is
// sent of a version (SyncAttempt):
//   the receiver serves it already    nothing
//   the version names no adapters     everything
//   it names adapters                 the adapters, and the base to whom lacks it; in a group to all if one does
bool NeedsBase(const ReceiverWeights& receiver);

}  // namespace syncopate::synchronizer
