#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/sync/sync_case.h"

namespace syncopate::bench {

// Median, minimum and maximum of repeated measurements.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
  int64_t count = 0;  // 0: never measured, and the others have no meaning
};
Spread ComputeSpread(std::vector<double> values);

// One replica's part in one sync of the benchmark, as the synchronizer recorded it.
struct SyncSample {
  int64_t attempt = 0;
  int64_t step = 0;
  std::string replica;
  std::string transport;
  std::string transport_reason;
  std::string result;
  std::string detail;
  std::map<std::string, double> seconds;  // SyncRecord.seconds
  double pause_seconds = 0;
  int64_t bytes = 0;           // to all ranks of the replica
  double stage_to_commit = 0;  // from the beginning of staging to the last rank's install, by the machine's clock
  double recorded = 0;         // when the record arrived, seconds of the machine's clock
  bool ok() const { return result == "ok" || result == "relabelled"; }
};

// The steps of one receiver's decode-like loop.
struct DecodeRates {
  std::string receiver;
  double calm_steps = 0;  // steps, and the seconds in which they ran
  double calm_seconds = 0;
  double transfer_steps = 0;
  double transfer_seconds = 0;
  double longest_gap_seconds = 0;  // between two steps, in all measured syncs
};

struct MemoryUse {
  std::string process;
  int64_t before_bytes = 0;  // after the warm-up
  int64_t after_bytes = 0;   // after the measured syncs
};

struct Ceiling {
  std::string name;             // "copy engine, rounds of matchings"; "": not measured
  double bytes_per_second = 0;  // into each receiver
};

struct LateJoin {
  bool ran = false;
  double start_to_serving_seconds = 0;
  Spread others_total_seconds;  // of the syncs of the other replicas while it joined
};

struct FaultOutcome {
  bool ran = false;
  double declared_seconds = 0;       // from the signal to the first part that ended because of it; 0: none did
  double mended_seconds = 0;         // from the signal until the restarted process was ready; 0: nothing restarted
  double recovered_seconds = 0;      // from the signal to the commit of the last survivor
  std::vector<std::string> reasons;  // of the failed parts
  bool healthy = false;              // every survivor's device computes a right product
};

struct SyncResult {
  SyncCase sync_case;
  int64_t weight_bytes = 0;
  int64_t messages = 0;               // of the plan
  std::string machine;                // "2 x NVIDIA H200", "host memory"
  std::vector<SyncSample> first;      // the cost of the first sync of all
  std::vector<SyncSample> samples;    // of the measured syncs
  std::vector<double> stage_seconds;  // of each source and measured sync: the cost of publishing for its step loop
  Ceiling ceiling;
  std::vector<DecodeRates> decode;
  std::vector<MemoryUse> memory;
  int64_t values_checked = 0;  // weights that were compared with the sources'
  bool digests_equal = false;  // every receiver serves the published digest
  LateJoin late;
  FaultOutcome fault;
};

// The phases in the order in which they happen; "total" last.
const std::vector<std::string>& SyncPhases();
// The spread of each phase over the successful syncs of `samples`.
std::map<std::string, Spread> PhaseSpreads(const std::vector<SyncSample>& samples);
// The largest share of a total that its phases do not explain.
double WorstPhaseGap(const std::vector<SyncSample>& samples);
// Bytes per second into each receiving rank during the transfer.
Spread ReceiverRates(const SyncResult& result);
// Steps per second during transfers, divided by those in between; 0 if no step was counted.
double DecodeShare(const SyncResult& result);

nlohmann::json ToJson(const SyncResult& result);
// The result for people, several lines.
std::string ToText(const SyncResult& result);

}  // namespace syncopate::bench
