#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/data/prompts.h"
#include "trainer/data/rollout_sessions.h"
#include "trainer/data/sample_choice.h"
#include "trainer/data/staleness_gate.h"

namespace syncopate::trainer {

// What GroupLedger leases, and how much of it.
struct LedgerOptions {
  StalenessGate::Options gate;
  int64_t max_groups = 0;        // prompts of the whole run; 0: endless. The last batch may be smaller
  int32_t vocab_size = 0;        // of the model, which may be larger than that of the prompts; 0: theirs
  int64_t max_total_tokens = 0;  // of an answer of several turns, given ones counted; 0: answers have one turn
  int64_t context = 0;           // tokens that prompt and answer may have together; 0: not known
  int32_t samples = 16;          // of a group
  std::string reward = "dense";
  SamplingParams sampling;
  uint64_t run_seed = 0;
  // The first steps of the run, which train the data's own answers: no lease goes out before they are made.
  int64_t supervised_steps = 0;
  bool refill_zero_variance = false;  // drop groups whose rewards are all equal
  int32_t max_failures = 8;           // attempts at one prompt that fail before it may be given up
  int64_t max_reward_failures = 64;   // of groups, before any was judged, that end the run; 0: none do
  LeaseLimits lease_limits = {};
  SampleChoice recorded = {};  // groups whose prompt's origin is passed on with the take or the drop
  int64_t partial_bytes = 0;   // of unfinished answers that are kept in all; 0: a lease that is lost begins anew

  // INVALID_ARGUMENT (reason BAD_OPTIONS). Training leases take no top-k or top-p.
  absl::Status Validate() const;
};

// Returns the lease of `prompt` for a rollouter that serves `version`. Attempts at one group draw the same numbers.
Lease MakeLease(const LedgerOptions& options, const LeaseId& id, const PolicyVersion& version, Prompt prompt);

}  // namespace syncopate::trainer
