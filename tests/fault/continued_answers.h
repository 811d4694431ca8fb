#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/trajectory.h"
#include "tests/support/run_harness.h"

// Runs whose answers take seconds, so that a rollouter that is killed has half-made ones. Nothing is ever learned in
// them, because no random answer is exact: a group has the same tokens and log-probabilities on every rollouter, unless
// a kept token is lost, made twice or put at another place.
namespace syncopate::testing {

std::vector<std::string> OverridesOfLongAnswers();

// All samples of every group that the trainer's log has accepted.
std::map<GroupId, std::vector<Trajectory>> AcceptedAnswers(const RunHarness& run);

// Expects that the groups which both runs answered are bit-identical. Returns how many these are.
int64_t ExpectSameAnswers(const RunHarness& run, const RunHarness& undisturbed);

// A counter or gauge without labels on the trainer's metrics page; 0 if the trainer does not answer or has none.
int64_t ReadTrainerMetric(const RunHarness& run, const std::string& name);

}  // namespace syncopate::testing
