#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/policy_version.h"
#include "trainer/data/evaluation.h"
#include "trainer/data/evaluation_figures.h"
#include "trainer/data/records.h"
#include "trainer/data/sampled_figures.h"
#include "trainer/data/staleness_tally.h"
#include "trainer/memory/memory_figures.h"
#include "trainer/step/step_figures.h"

namespace syncopate::trainer {

// The phases of the step thread. The times of all phases add up to the thread's whole time.
enum class LoopPhase : uint8_t { kIdle, kStep, kStage, kEvaluate, kCheckpoint, kTurn, kPaused, kOther };
const char* LoopPhaseName(LoopPhase phase);  // "idle" (waiting for groups), "step", "stage", ... "other"

// Everything that one training step reports to people.
struct StepReport {
  PolicyVersion version;  // that the step made
  bool is_replay = false;
  bool supervised = false;  // there were no rewards and no staleness
  StepFigures figures;
  StalenessTally staleness;               // of this batch
  int64_t groups = 0;                     // in it
  std::vector<int64_t> sample_staleness;  // of each sample, by its oldest token
  uint64_t weights_digest = 0;            // of the policy's own weights after the step, whatever they travel as
  // Digest of the weights as they are sent; none if the step was not published.
  std::optional<uint64_t> published_digest = std::nullopt;
  std::vector<std::string> alarms;  // active now: trainer/data/learning_alarms.h
  // Of the version that a supervised step made, where it was measured.
  std::optional<HeldOutLoss> held_out = std::nullopt;
  std::vector<SharedGroup> batch = {};           // what was trained
  std::map<GroupId, PromptOrigin> origins = {};  // TrainingData::Batch
};

struct EvaluationReport {
  struct Sample {
    std::string prompt;
    std::string answer;
    std::string expected;  // "" where none is known
    double reward = 0;
    // For a terminal: the user's last message, and the answer without special tokens.
    std::string question = {};
    std::string reply = {};
  };
  PolicyVersion version;  // evaluated
  double reward_mean = 0;
  // Share of prompts answered wholly right, greedily; none where right answers are unknown.
  std::optional<double> exact = std::nullopt;
  double best_reward_mean = 0;  // of all evaluations so far, this one included
  int64_t prompts = 0;          // that were judged, at least one
  int64_t asked = 0;            // prompts of the evaluation; more than `prompts` if the reward of some failed
  EvaluationFigures figures = {};
  std::vector<SampledFigures> sets = {};
  std::vector<Sample> samples;
  std::vector<std::string> alarms;                                         // that stand now
  std::shared_ptr<const std::vector<EvaluatedAnswer>> recorded = nullptr;  // EvaluationResult's; null: none
};

// A version whose weights are staged for receivers.
struct Publication {
  PolicyVersion version;
  std::vector<uint64_t> bucket_digests = {};
  uint64_t manifest_fingerprint = 0;
  double stage_seconds = 0;
  // For a policy of adapters: the index of the first of their tensors in the manifest of what is sent, which are the
  // last, and the digest of their base; 0 and 0 if every version is new in all tensors.
  size_t first_adapter = 0;
  size_t tensors = 0;  // of that manifest
  uint64_t base_digest = 0;
};

// What a run tells the outside: those who watch it, write it down or plot it. Steps, evaluations and publications are
// recorded by one thread, one call at a time, in their order; AddPhase() and RecordMemory() are called by the step
// thread, RecordCheckpoint() by that one and by the thread that writes checkpoints, each beside the others. Must not
// block on the network, and what it cannot do (a full disk) it says itself: nothing here can fail a run.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void RecordStep(const StepReport& report) = 0;
  virtual void RecordEvaluation(const EvaluationReport& report) = 0;
  // An evaluation was due and was not made: no rollouter served its version long enough.
  virtual void RecordLostEvaluation(const PolicyVersion& version) = 0;
  // `digest` is that of the staged weights: two versions that share it have the same bits.
  virtual void RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) = 0;
  // A checkpoint was saved, or why not; the run goes on unless the error is said to end it.
  virtual void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) = 0;
  virtual void AddPhase(LoopPhase phase, double seconds) = 0;
  // The memory of the policy has changed outside a step.
  virtual void RecordMemory(const PolicyMemory& memory) = 0;
};

}  // namespace syncopate::trainer
