#pragma once

#include <cstdint>

namespace syncopate::synchronizer {

// The state of a receiver's weights when a version is offered to it.
struct ReceiverWeights {
  bool base_present = false;       // base weights were received since its process started
  uint64_t digest = 0;             // the version that it serves or last served; 0 before its first sync
  int sleep_level = 0;             // its latest sleep: 1 keeps the weights on the host, 2 drops them
  bool free_cache_engine = false;  // a sleep really frees memory
  bool slept = false;              // since its latest sync
};

// Payload bytes without padding, by the label `kind` of syncopate_weight_sync_bytes_total. Those that were sent, and those
// that were mapped instead.
struct PayloadBytes {
  int64_t full = 0;  // base weights
  int64_t lora = 0;
  int64_t delta = 0;  // always 0: versions are not sent as differences
  // Base weights that the receiver reads in the sender's memory; not sent, and not part of the total.
  int64_t mapped = 0;
  int64_t total() const { return full + lora + delta; }
  PayloadBytes& operator+=(const PayloadBytes& other) {
    full += other.full;
    lora += other.lora;
    delta += other.delta;
    mapped += other.mapped;
    return *this;
  }
  friend bool operator==(const PayloadBytes&, const PayloadBytes&) = default;
};

// Whether a receiver lacks the base weights: !base_present || (sleep_level == 2 && free_cache_engine && slept).
// SyncAttempt decides by it what is sent of a version:
//   the receiver serves the version already   nothing
//   the version names no adapters             all tensors
//   the version names adapters                the adapters, and the base weights to receivers that lack them, which get an
//                                             attempt of their own
bool NeedsBase(const ReceiverWeights& receiver);

// `before` after a further sleep that frees memory. The deepest sleep since the latest sync counts: weights that one of
// them dropped do not come back in a lighter one.
ReceiverWeights AfterSleep(const ReceiverWeights& before, int level);

}  // namespace syncopate::synchronizer
