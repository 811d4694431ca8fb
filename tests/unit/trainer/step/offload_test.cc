// The placement of a policy's state: the parts that leave the device, the time and memory of their moves, and that no
// bit of the trained weights changes.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/state_residency.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::OnRanks;
using testing::Pointers;
using testing::PolicyCopy;

std::vector<TrajectoryGroup> RandomGroups(uint64_t seed) {
  return testing::RandomGroups(static_cast<int32_t>(testing::GroupedQueryModel().vocab_size), 6, 4, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

// The log-prob passes of a step.
enum class Passes { kNone, kProximal, kReferenceOfRewards, kReferenceOfLoss, kAll };

PolicyTrainer::Options OptionsFor(const MemoryOptions& memory, Passes passes, Communicator* ranks = nullptr) {
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.seed = 3;
  options.step.micro_batch_tokens = 40;  // several micro-batches in each update
  options.step.loss.correction = loss::Correction::kTis;
  options.memory = memory;
  if (ranks != nullptr) options.mesh = *ranks;
  if (passes == Passes::kProximal || passes == Passes::kAll) options.step.updates_per_batch = 2;
  if (passes == Passes::kReferenceOfRewards || passes == Passes::kAll) {
    options.step.loss.kl_in_reward = true;
    options.step.loss.kl_coefficient = 0.1;
    options.step.loss.kl_estimator = loss::KlEstimator::kK1;
  }
  if (passes == Passes::kReferenceOfLoss) options.step.loss.kl_coefficient = 0.1;
  return options;
}

// The figures and the state of a policy on one rank.
struct Story {
  struct Step {
    PolicyMoves moves;
    double wall = 0;
    PolicyMemory after;  // after the step and its sync
  };
  std::vector<Step> steps;
  PolicyMemory at_rest;  // before the first step
  int64_t parameter_bytes = 0, optimizer_bytes = 0, reference_bytes = 0;
  std::vector<float> parameters, moments;  // at the end, on rank 0
};

// Reads the tensors as a sync does: all reads are one use.
absl::Status ReadWeights(const PolicyTrainer& policy) {
  for (size_t i = 0; i < policy.manifest().tensors().size(); ++i) {
    SYNCOPATE_RETURN_IF_ERROR(
        policy.WriteTensor(PolicyPart::kParameters, i, [](absl::string_view) { return absl::OkStatus(); }));
  }
  return absl::OkStatus();
}

constexpr int kSteps = 3;

Story Train(const MemoryOptions& memory, Passes passes, Communicator* ranks) {
  at::set_num_threads(1);
  auto policy = PolicyTrainer::Create(OptionsFor(memory, passes, ranks)).value();
  Story story;
  story.at_rest = policy->memory();
  for (int i = 0; i < kSteps; ++i) {
    const auto groups = RandomGroups(static_cast<uint64_t>(i));
    const absl::Time begin = Clock::Real()->Now();
    // Uses the policy like the step loop: one use for the step and its sync.
    const absl::Status made = InUse(*policy, [&]() -> absl::Status {
      SYNCOPATE_RETURN_IF_ERROR(policy->Step(Pointers(groups), i).status());
      if (i == 0) {
        const PolicyMemory there = policy->memory();
        story.parameter_bytes = there.parameter_bytes;
        story.optimizer_bytes = there.optimizer_bytes;
        story.reference_bytes = there.reference_bytes;
      }
      return ReadWeights(*policy);
    });
    EXPECT_TRUE(made.ok()) << made;
    Story::Step step;
    step.wall = absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
    step.moves = policy->TakeMoves();
    step.after = policy->memory();
    story.steps.push_back(step);
  }
  PolicyCopy copy(*policy);
  story.parameters = copy.parameters();
  story.moments = copy.arena_of(PolicyPart::kSecondMoment);
  return story;
}

std::vector<Story> TrainOnRanks(int32_t world, const MemoryOptions& memory, Passes passes) {
  if (world == 1) return {Train(memory, passes, nullptr)};
  return OnRanks<Story>(world, [&](Communicator& ranks) { return Train(memory, passes, &ranks); });
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectNothingMoved(const StateMoves& moves) {
  EXPECT_EQ(moves.load_seconds, 0.0);
  EXPECT_EQ(moves.offload_seconds, 0.0);
  EXPECT_EQ(moves.bytes, 0);
}

// Parameters are offloaded and loaded, with one and two ranks, and with every kind of pass between.
TEST(OffloadTest, WeightsThatAreAwayBetweenStepsGiveTheSameBitsAndDurationsAreExactlyZeroOrWithinTheWall) {
  for (int32_t world : {1, 2}) {
    for (Passes passes : {Passes::kNone, Passes::kAll, Passes::kReferenceOfLoss}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, passes ", static_cast<int>(passes)));
      const auto stay = TrainOnRanks(world, {}, passes);
      const auto leave = TrainOnRanks(world, {.offload_params = true}, passes);
      EXPECT_TRUE(SameBits(stay[0].parameters, leave[0].parameters));
      EXPECT_TRUE(SameBits(stay[0].moments, leave[0].moments));
      for (int32_t rank = 0; rank < world; ++rank) {
        const Story &a = stay[static_cast<size_t>(rank)], &b = leave[static_cast<size_t>(rank)];
        EXPECT_EQ(a.at_rest.parameter_bytes, a.parameter_bytes);
        EXPECT_EQ(b.at_rest.parameter_bytes, 0);
        EXPECT_EQ(b.parameter_bytes, a.parameter_bytes);
        for (int i = 0; i < kSteps; ++i) {
          const Story::Step& on = b.steps[static_cast<size_t>(i)];
          ExpectNothingMoved(a.steps[static_cast<size_t>(i)].moves.parameters);
          EXPECT_GT(on.moves.parameters.load_seconds, 0.0);
          EXPECT_GT(on.moves.parameters.offload_seconds, 0.0);
          EXPECT_LT(on.moves.parameters.load_seconds + on.moves.parameters.offload_seconds, on.wall);
          EXPECT_EQ(on.moves.parameters.bytes, 2 * b.parameter_bytes);
          ExpectNothingMoved(on.moves.optimizer);
          ExpectNothingMoved(on.moves.reference);
          EXPECT_EQ(on.after.parameter_bytes, 0);
          EXPECT_EQ(on.after.optimizer_bytes, b.optimizer_bytes);
        }
      }
    }
  }
}

TEST(OffloadTest, MomentsMoveExactlyTwiceTheirSizeInAStepWithAPassAndNotAtAllElse) {
  for (int32_t world : {1, 2}) {
    for (Passes passes : {Passes::kProximal, Passes::kReferenceOfRewards, Passes::kReferenceOfLoss, Passes::kAll}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, passes ", static_cast<int>(passes)));
      const auto stay = TrainOnRanks(world, {}, passes);
      const auto leave = TrainOnRanks(world, {.offload_optimizer_for_logprob = true}, passes);
      EXPECT_TRUE(SameBits(stay[0].parameters, leave[0].parameters));
      EXPECT_TRUE(SameBits(stay[0].moments, leave[0].moments));
      for (int32_t rank = 0; rank < world; ++rank) {
        for (const Story::Step& off : stay[static_cast<size_t>(rank)].steps) ExpectNothingMoved(off.moves.optimizer);
        const Story& on = leave[static_cast<size_t>(rank)];
        for (const Story::Step& step : on.steps) {
          EXPECT_EQ(step.moves.optimizer.bytes, 2 * on.optimizer_bytes);
          EXPECT_GT(step.moves.optimizer.load_seconds, 0.0);
          EXPECT_GT(step.moves.optimizer.offload_seconds, 0.0);
          EXPECT_LT(step.moves.optimizer.load_seconds + step.moves.optimizer.offload_seconds, step.wall);
          ExpectNothingMoved(step.moves.parameters);
          EXPECT_EQ(step.after.optimizer_bytes, on.optimizer_bytes);
        }
      }
    }
  }
  for (const Story::Step& step : Train({.offload_optimizer_for_logprob = true}, Passes::kNone, nullptr).steps) {
    ExpectNothingMoved(step.moves.optimizer);
  }
}

TEST(OffloadTest, TheReferencePolicyIsThereForItsPassesAloneAndIsCopiedToTheHostOnce) {
  for (int32_t world : {1, 2}) {
    for (Passes passes : {Passes::kReferenceOfRewards, Passes::kReferenceOfLoss}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, passes ", static_cast<int>(passes)));
      const auto stay = TrainOnRanks(world, {}, passes);
      const auto leave = TrainOnRanks(world, {.offload_reference = true}, passes);
      EXPECT_TRUE(SameBits(stay[0].parameters, leave[0].parameters));
      EXPECT_GT(stay[0].reference_bytes, 0);
      EXPECT_EQ(leave[0].at_rest.reference_bytes, 0);
      for (const Story::Step& off : stay[0].steps) ExpectNothingMoved(off.moves.reference);
      for (const Story::Step& step : leave[0].steps) {
        EXPECT_EQ(step.after.reference_bytes, 0);
        // Loaded to the device only: the host has a copy already.
        EXPECT_EQ(step.moves.reference.bytes, stay[0].reference_bytes);
        EXPECT_GT(step.moves.reference.load_seconds, 0.0);
      }
    }
  }
}

TEST(OffloadTest, AllAtOnceWithTheAllocatorEmptiedEachTimeGivesTheSameBits) {
  const MemoryOptions all = {.offload_params = true,
                             .offload_optimizer_for_logprob = true,
                             .offload_reference = true,
                             .empty_cache = EmptyCache::kAlways};
  for (int32_t world : {1, 2}) {
    const auto stay = TrainOnRanks(world, {}, Passes::kAll), leave = TrainOnRanks(world, all, Passes::kAll);
    EXPECT_TRUE(SameBits(stay[0].parameters, leave[0].parameters));
    // Emptied after the reference pass and after the update.
    for (const Story::Step& step : leave[0].steps) EXPECT_EQ(step.moves.cache_flushes, 2);
    for (const Story::Step& step : stay[0].steps) EXPECT_EQ(step.moves.cache_flushes, 0);
  }
}

TEST(OffloadTest, TheCopyThatComputesIsMadeAgainAndNotMoved) {
  PolicyTrainer::Options options = OptionsFor({}, Passes::kNone);
  options.compute_dtype = DType::kBFloat16;
  auto stays = PolicyTrainer::Create(options).value();
  options.memory.offload_params = true;
  auto leaves = PolicyTrainer::Create(options).value();
  const int64_t weights = stays->manifest().arena_bytes();
  EXPECT_EQ(stays->memory().parameter_bytes, weights + weights / 2);
  for (int i = 0; i < kSteps; ++i) {
    for (auto* one : {stays.get(), leaves.get()}) EXPECT_TRUE(one->Step(Pointers(RandomGroups(7)), i).ok());
    EXPECT_EQ(leaves->memory().parameter_bytes, 0);
    EXPECT_EQ(leaves->TakeMoves().parameters.bytes, 2 * weights);
  }
  EXPECT_TRUE(PolicyCopy(*stays) == PolicyCopy(*leaves));
}

TEST(OffloadTest, WhatAnUpdateNeedsOfTheDeviceIsKnownWhereverTheStateIsNow) {
  const auto whole = PolicyTrainer::Create(OptionsFor({}, Passes::kAll)).value();
  const auto of_parts = [](const PolicyMemory& memory) {
    return memory.parameter_bytes + memory.optimizer_bytes + memory.gradient_bytes + memory.reference_bytes;
  };
  EXPECT_EQ(whole->memory().update_bytes, of_parts(whole->memory()));
  const auto away = PolicyTrainer::Create(OptionsFor({.offload_params = true}, Passes::kAll)).value();
  EXPECT_EQ(away->memory().update_bytes, whole->memory().update_bytes) << "the weights come back for an update";
  // No reference is read in an update.
  const auto without = PolicyTrainer::Create(OptionsFor({.offload_reference = true}, Passes::kAll)).value();
  EXPECT_EQ(without->memory().update_bytes, whole->memory().update_bytes - whole->memory().reference_bytes);
  for (PolicyTrainer* one : {whole.get(), away.get(), without.get()}) {
    const int64_t before = one->memory().update_bytes;
    ASSERT_TRUE(one->EnterRolloutMode().ok());
    EXPECT_EQ(one->memory().update_bytes, before);
    ASSERT_TRUE(one->EnterTrainerMode().ok());
    EXPECT_EQ(InUse(*one,
                    [&]() -> absl::Status {
                      EXPECT_EQ(of_parts(one->memory()), before);
                      return absl::OkStatus();
                    }),
              absl::OkStatus());
  }
}

TEST(OffloadTest, AccumulatedGradientsSurviveAPassForLogProbsAndWhatMovesAroundIt) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
  const int64_t elements = manifest.arena_bytes() / static_cast<int64_t>(sizeof(float));
  SingleRank ranks;
  Actor actor(
      config, manifest, {}, 3, at::kCPU, nullptr, at::kFloat, nullptr,
      ActorArenas::Create(MakeHostStateArena, FlatShards::Create(config, manifest, 0, 1).value(), /*has_copy=*/false)
          .value());
  StateResidency residency(actor, nullptr, {.offload_params = true, .offload_optimizer_for_logprob = true}, "cpu");
  TrainStepOptions options;
  options.loss.correction = loss::Correction::kTis;
  TrainStep step(actor, ranks, options, nullptr, &residency);
  const auto groups = RandomGroups(4);
  ASSERT_TRUE(step.Run(Pointers(groups)).ok());
  const std::vector<float> before(actor.gradients().begin(), actor.gradients().end());
  EXPECT_GT(std::count_if(before.begin(), before.end(), [](float g) { return g != 0; }), elements / 4);
  const PackedBatch batch = Pack({{&groups[0].prompt_ids, &groups[0].samples[0]}}, at::kCPU);
  const at::Tensor here = *step.LogProbs(batch);
  ASSERT_TRUE(residency.BeginPass().ok());
  EXPECT_EQ(residency.memory().optimizer_bytes, 0);
  ASSERT_TRUE(actor.parameter_state().Offload().ok());
  ASSERT_TRUE(residency.BeginUse().ok());
  EXPECT_TRUE(at::equal(*step.LogProbs(batch), here));
  ASSERT_TRUE(residency.EndStep().ok());
  EXPECT_TRUE(SameBits(before, {actor.gradients().begin(), actor.gradients().end()}));
  ASSERT_TRUE(residency.EndUse().ok());
}

TEST(OffloadTest, FiveUsesInARowOfWhichOneFailsLeaveTheWeightsAwayAfterEach) {
  for (int32_t world : {1, 2}) {
    const auto body = [](Communicator& ranks) {
      at::set_num_threads(1);
      auto policy = PolicyTrainer::Create(OptionsFor({.offload_params = true}, Passes::kNone, &ranks)).value();
      const uint64_t digest = policy->Digest().value();
      policy->TakeMoves();
      for (int sync = 0; sync < 5; ++sync) {
        const absl::Status status = InUse(*policy, [&]() -> absl::Status {
          EXPECT_GT(policy->memory().parameter_bytes, 0);
          if (sync == 2) return absl::InternalError("the receiver is gone");
          return ReadWeights(*policy);
        });
        EXPECT_EQ(status.ok(), sync != 2) << status;
        EXPECT_EQ(policy->memory().parameter_bytes, 0);
        const PolicyMoves moves = policy->TakeMoves();
        EXPECT_GT(moves.parameters.load_seconds, 0.0);
        EXPECT_GT(moves.parameters.offload_seconds, 0.0);
        EXPECT_EQ(policy->Digest().value(), digest);
        policy->TakeMoves();
      }
      return 0;
    };
    OnRanks<int>(world, body);
  }
}

TEST(OffloadTest, AStepThatFailsLeavesEverythingWhereItIsBetweenSteps) {
  auto policy =
      PolicyTrainer::Create(
          OptionsFor({.offload_params = true, .offload_optimizer_for_logprob = true, .offload_reference = true},
                     Passes::kAll))
          .value();
  auto groups = RandomGroups(1);
  groups[3].samples[2].tokens.resize(60, 1);
  groups[3].samples[2].logprobs.resize(60, -1.0f);
  const absl::Status status = policy->Step(Pointers(groups), 0).status();
  EXPECT_EQ(ErrorReason(status), "SEQUENCE_TOO_LONG");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("answer 2 of prompt 0/3"), HasSubstr("60 tokens"),
                                      HasSubstr("train.micro_batch_tokens 40")));
  const PolicyMemory memory = policy->memory();
  EXPECT_EQ(memory.parameter_bytes, 0);
  EXPECT_EQ(memory.reference_bytes, 0);
  EXPECT_GT(memory.optimizer_bytes, 0);
}

void ExpectEmptyDevice(const PolicyMemory& memory) {
  EXPECT_EQ(memory.parameter_bytes, 0);
  EXPECT_EQ(memory.optimizer_bytes, 0);
  EXPECT_EQ(memory.gradient_bytes, 0);
  EXPECT_EQ(memory.reference_bytes, 0);
}

TEST(RolloutModeTest, TakesAllOfTheStateAwayServesReadersAndGivesItBackBitForBit) {
  for (int32_t world : {1, 2}) {
    for (bool offload : {false, true}) {
      const auto body = [offload](Communicator& ranks) {
        at::set_num_threads(1);
        const MemoryOptions memory = {.offload_params = offload};
        auto policy = PolicyTrainer::Create(OptionsFor(memory, Passes::kAll, &ranks)).value();
        auto untouched = PolicyTrainer::Create(OptionsFor(memory, Passes::kAll, &ranks)).value();
        for (auto* one : {policy.get(), untouched.get()}) EXPECT_TRUE(one->Step(Pointers(RandomGroups(1)), 0).ok());
        const PolicyMemory before = policy->memory();
        const int64_t weights = offload ? 0 : before.parameter_bytes;
        policy->TakeMoves();

        StateMoves moves = policy->EnterRolloutMode().value();
        ExpectEmptyDevice(policy->memory());
        EXPECT_EQ(moves.bytes, weights + before.optimizer_bytes + before.reference_bytes);
        EXPECT_GT(moves.offload_seconds, 0.0);
        EXPECT_EQ(moves.load_seconds, 0.0);
        ExpectNothingMoved(policy->EnterRolloutMode().value());
        EXPECT_EQ(ErrorReason(policy->Step(Pointers(RandomGroups(2)), 1).status()), "ROLLOUT_MODE");
        ExpectEmptyDevice(policy->memory());
        EXPECT_EQ(policy->Digest().value(), untouched->Digest().value());
        EXPECT_TRUE(PolicyCopy(*policy) == PolicyCopy(*untouched));  // read as a checkpoint reads it
        ExpectEmptyDevice(policy->memory());
        policy->TakeMoves();

        moves = policy->EnterTrainerMode().value();
        EXPECT_GT(moves.load_seconds, 0.0);
        EXPECT_EQ(moves.offload_seconds, 0.0);
        EXPECT_EQ(moves.bytes, weights + before.optimizer_bytes + before.reference_bytes);
        ExpectNothingMoved(policy->EnterTrainerMode().value());
        const PolicyMemory after = policy->memory();
        EXPECT_EQ(after.parameter_bytes, before.parameter_bytes);
        EXPECT_EQ(after.optimizer_bytes, before.optimizer_bytes);
        EXPECT_EQ(after.gradient_bytes, before.gradient_bytes);
        EXPECT_EQ(after.reference_bytes, before.reference_bytes);
        for (auto* one : {policy.get(), untouched.get()}) EXPECT_TRUE(one->Step(Pointers(RandomGroups(2)), 1).ok());
        EXPECT_TRUE(PolicyCopy(*policy) == PolicyCopy(*untouched));
        return 0;
      };
      OnRanks<int>(world, body);
    }
  }
}

std::string BytesOf(const PolicySnapshot& snapshot) {
  std::string bytes;
  for (const PolicyPart part : kPolicyParts) {
    for (const PolicySnapshot::Piece& piece : snapshot.pieces) bytes += std::string(snapshot.Bytes(part, piece));
  }
  return bytes;
}

TEST(RolloutModeTest, ASnapshotLendsTheHostsCopyAndStaysWhatItWasWhenTheNextOneIsMade) {
  const auto body = [](bool offload, Communicator& ranks) {
    at::set_num_threads(1);
    auto policy = PolicyTrainer::Create(OptionsFor({.offload_params = offload}, Passes::kNone, &ranks)).value();
    EXPECT_TRUE(policy->Step(Pointers(RandomGroups(1)), 0).ok());
    const PolicyCopy first(*policy);
    EXPECT_FALSE(policy->reads_on_host());
    EXPECT_TRUE(policy->EnterRolloutMode().ok());
    EXPECT_TRUE(policy->reads_on_host());
    policy->TakeMoves();
    const auto snapshot = policy->TakeSnapshot("").value();
    const auto again = policy->TakeSnapshot("").value();
    const auto weights = policy->TakeWeights("").value();
    EXPECT_TRUE(policy->CheckFinite().ok());
    for (const PolicyPart part : kPolicyParts) {
      const auto place = static_cast<size_t>(part);
      EXPECT_EQ(snapshot->arenas[place], again->arenas[place]) << "a copy of the copy was made";
    }
    EXPECT_FALSE(weights->has_moments());
    ExpectEmptyDevice(policy->memory());
    ExpectNothingMoved(policy->TakeMoves().parameters);
    EXPECT_TRUE(snapshot->FinishCopy().ok());
    if (ranks.rank() == 0) {
      EXPECT_TRUE(first.IsHeldBy(*snapshot));
    }
    const std::string bytes = BytesOf(*snapshot);

    EXPECT_TRUE(policy->EnterTrainerMode().ok());
    EXPECT_FALSE(policy->reads_on_host());
    EXPECT_TRUE(policy->Step(Pointers(RandomGroups(2)), 1).ok());
    const PolicyCopy second(*policy);
    EXPECT_TRUE(policy->EnterRolloutMode().ok());
    EXPECT_EQ(BytesOf(*snapshot), bytes) << "the next copy was written over it";
    if (ranks.rank() == 0) {
      EXPECT_TRUE(second.IsHeldBy(*policy->TakeSnapshot("").value()));
    }
    if (ranks.rank() > 0) {
      EXPECT_NE(BytesOf(*policy->TakeSnapshot("").value()), bytes);
    }
    return 0;
  };
  for (int32_t world : {1, 2}) {
    for (bool offload : {false, true}) {
      OnRanks<int>(world, [&](Communicator& ranks) { return body(offload, ranks); });
    }
  }
}

TEST(RolloutModeTest, WeightsThatAreNotFiniteAreSeenInTheHostsCopyOfAnyRank) {
  for (int32_t world : {1, 2}) {
    OnRanks<int>(world, [](Communicator& ranks) {
      at::set_num_threads(1);
      auto policy = PolicyTrainer::Create(OptionsFor({}, Passes::kNone, &ranks)).value();
      PolicyCopy copy(*policy);
      copy.arena_of(PolicyPart::kParameters)[5] = std::numeric_limits<float>::infinity();
      EXPECT_TRUE(policy->Restore(copy).ok());
      EXPECT_TRUE(policy->EnterRolloutMode().ok());
      const absl::Status finite = policy->CheckFinite();
      EXPECT_EQ(ErrorReason(finite), "NON_FINITE");
      EXPECT_EQ(ErrorDetails(finite).at("tensor"), policy->manifest().tensors()[0].name);
      ExpectEmptyDevice(policy->memory());
      return 0;
    });
  }
}

TEST(PolicyTrainerTest, AStateThatDoesNotFitIsSaidBeforeAnythingIsMadeWithItsSum) {
  PolicyTrainer::Options options = OptionsFor({}, Passes::kReferenceOfLoss);
  options.model.hidden_size = 8192;
  options.model.intermediate_size = 28672;
  options.model.num_hidden_layers = 80;
  options.model.num_attention_heads = 64;
  options.model.num_key_value_heads = 8;
  options.model.head_dim = 128;
  options.device_bytes = int64_t{80} << 30;
  const absl::Status status = PolicyTrainer::Create(options).status();
  EXPECT_EQ(ErrorReason(status), "STATE_TOO_LARGE");
  EXPECT_EQ(PolicyTrainer::CheckFits(options), status);
  // The model has 68.5 billion parameters.
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("weights 26"), HasSubstr(" + gradients 26"), HasSubstr("+ two moments 52"),
                    HasSubstr("+ reference policy 26"), HasSubstr(" = 13"), HasSubstr("cpu has 81920 MiB")));
  options.model = testing::GroupedQueryModel();
  EXPECT_TRUE(PolicyTrainer::CheckFits(options).ok());
  EXPECT_TRUE(PolicyTrainer::Create(options).ok());
}

}  // namespace
}  // namespace syncopate::trainer
