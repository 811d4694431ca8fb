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
  int64_t bytes = 0;    // to all ranks of the replica
  double ended = 0;     // the commit by the synchronizer's clock, in Unix seconds
  double recorded = 0;  // when the record arrived, seconds of the machine's clock
  // Weights arrived and are served.
  bool ok() const { return result == "ok"; }
  // The attempt began with the publication, and not later because the replica was busy.
  bool from_publication() const;
};

// The tokens that a client of one replica was sent, one after the other.
struct DecodeRates {
  std::string receiver;   // the replica
  double calm_steps = 0;  // steps, and the seconds in which they ran
  double calm_seconds = 0;
  double transfer_steps = 0;
  double transfer_seconds = 0;
  double longest_gap_seconds = 0;  // between two steps, in all measured syncs
};

struct MemoryUse {
  std::string process;       // or "gpu-0": all that is in use of that GPU
  int64_t before_bytes = 0;  // after the warm-up
  int64_t after_bytes = 0;   // after the measured syncs
};

// What publishing versions costs the trainer's steps. A step is its forward and backward passes and its optimizer,
// without waiting for answers.
struct StepCosts {
  Spread wait_seconds;    // how long a step waited for the staging of a version
  Spread stage_seconds;   // of a version, whether or not a step waited for it
  Spread beside_seconds;  // of steps right after a publication
  Spread calm_seconds;    // of the others
  // The rate of steps beside a publication, of the rate of the others; 0 if either was not measured.
  double rate_share() const;
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
  bool healthy = false;              // every survivor took part in one more sync after that
};

struct SyncResult {
  SyncCase sync_case;
  int64_t weight_bytes = 0;
  int64_t messages = 0;             // of the plan
  std::string machine;              // "2 x NVIDIA H200", "host memory"
  std::vector<SyncSample> first;    // the cost of the first sync of all
  std::vector<SyncSample> samples;  // of the measured syncs
  StepCosts steps;
  Ceiling ceiling;
  std::vector<DecodeRates> decode;
  std::vector<MemoryUse> memory;
  bool digests_equal = false;  // every replica serves the newest version with the digest that the trainer published
  LateJoin late;
  FaultOutcome fault;
};

// The phases in the order in which they happen; "total" last.
const std::vector<std::string>& SyncPhases();
// The spread of each phase over the successful syncs of `samples`.
std::map<std::string, Spread> PhaseSpreads(const std::vector<SyncSample>& samples);
// The largest share of a total that its phases do not explain.
double WorstPhaseGap(const std::vector<SyncSample>& samples);
// From the publication to the commit, of the attempts that began with a publication. With `staged` from the beginning
// of the staging, which the slowest rank took.
Spread CommitTimes(const std::vector<SyncSample>& samples, bool staged);
// Bytes per second into each receiving rank during the transfer.
Spread ReceiverRates(const SyncResult& result);
// Tokens per second during transfers, divided by those in between; 0 if no token was counted.
double DecodeShare(const SyncResult& result);

nlohmann::json ToJson(const SyncResult& result);
// The result for people, several lines.
std::string ToText(const SyncResult& result);

}  // namespace syncopate::bench
