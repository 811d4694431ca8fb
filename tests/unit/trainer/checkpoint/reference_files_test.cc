// The reference policy of a run that begins with supervised steps: the policy at their end, which checkpoints contain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/file_contents.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::GetBytes;
using testing::Pointers;

using Files = std::map<std::string, std::string>;

std::vector<TrajectoryGroup> RandomGroups(uint64_t seed) {
  return testing::RandomGroups(testing::GroupedQueryModel().vocab_size, 6, 4, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

std::vector<TrajectoryGroup> Answers(uint64_t seed) {
  return testing::RandomGroups(testing::GroupedQueryModel().vocab_size, 6, 1, seed,
                               [](Trajectory& sample, const testing::Draw&) { sample.logprobs.clear(); });
}

struct Variant {
  bool kl_in_reward = false;
  bool offload_reference = false;
  DType compute = DType::kFloat32;
};

PolicyTrainer::Options MakeOptions(Communicator& ranks, uint64_t seed, const Variant& variant = {}) {
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.seed = seed;
  options.mesh = ranks;
  options.compute_dtype = variant.compute;
  options.step.loss.kl_coefficient = 0.1;
  options.step.loss.kl_in_reward = variant.kl_in_reward;
  if (variant.kl_in_reward) options.step.loss.kl_estimator = loss::KlEstimator::kK1;
  options.memory.offload_reference = variant.offload_reference;
  options.reference_after_supervised = true;
  return options;
}

void Teach(PolicyTrainer& trainer, int steps) {
  for (int i = 0; i < steps; ++i) EXPECT_TRUE(trainer.SupervisedStep(Pointers(Answers(static_cast<uint64_t>(i)))).ok());
}

double StepOn(PolicyTrainer& trainer, uint64_t seed) {
  const auto made = trainer.Step(Pointers(RandomGroups(seed)), 0);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? made->reference_kl : -1;
}

Files Save(const PolicyTrainer& trainer) {
  Files files;
  for (const auto& [name, contents] : PolicyFiles(trainer.TakeSnapshot("").value())) files[name] = GetBytes(contents);
  return files;
}

// Restores from the files that all ranks have saved.
absl::Status Restore(PolicyTrainer& trainer, const std::vector<Files>& saved) {
  const auto world = static_cast<int32_t>(saved.size());
  std::vector<SavedPolicy::RankFiles> views;
  std::vector<absl::string_view> references;
  for (int32_t rank = 0; rank < world; ++rank) {
    const Files& files = saved[static_cast<size_t>(rank)];
    views.push_back({files.at(ModelFileName(rank, world)), files.at(OptimizerFileName(rank, world))});
    const auto reference = files.find(ReferenceFileName(rank, world));
    if (reference != files.end()) references.push_back(reference->second);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(SavedPolicy policy, SavedPolicy::Parse(trainer.manifest(), views));
  if (!references.empty()) SYNCOPATE_RETURN_IF_ERROR(policy.AddReference(trainer.manifest(), references));
  return trainer.Restore(policy);
}

TEST(ReferenceFilesTest, TheReferenceIsThePolicyAtTheEndOfTheSupervisedSteps) {
  SingleRank single;
  auto taught = PolicyTrainer::Create(MakeOptions(single, 1)).value();
  Teach(*taught, 3);
  EXPECT_NEAR(StepOn(*taught, 7), 0, 1e-12);
  const double moved = StepOn(*taught, 7);
  EXPECT_GT(moved, 1e-6);

  PolicyTrainer::Options options = MakeOptions(single, 1);
  options.reference_after_supervised = false;
  auto from_start = PolicyTrainer::Create(options).value();
  Teach(*from_start, 3);
  EXPECT_GT(StepOn(*from_start, 7), 2 * moved) << "the divergence from the weights before the supervised steps";
}

TEST(ReferenceFilesTest, AResumedPolicyHasTheReferenceAndGoesOnWithTheSameBits) {
  for (const int32_t world : {1, 2, 3}) {
    for (const Variant& variant : std::vector<Variant>{{},
                                                       {.kl_in_reward = true, .offload_reference = true},
                                                       {.offload_reference = true, .compute = DType::kBFloat16}}) {
      std::vector<uint64_t> digests;
      const std::vector<Files> saved = testing::OnRanks<Files>(world, [&](Communicator& ranks) {
        auto trainer = PolicyTrainer::Create(MakeOptions(ranks, 1, variant)).value();
        Teach(*trainer, 2);
        StepOn(*trainer, 3);
        Files files = Save(*trainer);
        EXPECT_TRUE(files.contains(ReferenceFileName(ranks.rank(), world)));
        StepOn(*trainer, 4);
        const uint64_t digest = trainer->Digest().value_or(0);
        if (ranks.rank() == 0) digests.push_back(digest);
        return files;
      });
      testing::OnRanks<bool>(world, [&](Communicator& ranks) {
        auto resumed = PolicyTrainer::Create(MakeOptions(ranks, 9, variant)).value();
        EXPECT_TRUE(Restore(*resumed, saved).ok());
        EXPECT_EQ(Save(*resumed), saved[static_cast<size_t>(ranks.rank())]) << "what is saved again is the same";
        EXPECT_GT(StepOn(*resumed, 4), 0);
        EXPECT_EQ(resumed->Digest().value_or(0), digests.at(0)) << world << " ranks";
        return true;
      });
    }
  }
}

TEST(ReferenceFilesTest, TheReferenceOfSeveralRanksIsRestoredOnAnotherNumberOfThem) {
  const auto save = [](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(MakeOptions(ranks, 1)).value();
    Teach(*trainer, 2);
    StepOn(*trainer, 3);
    return Save(*trainer);
  };
  for (const int32_t before : {1, 3}) {
    const std::vector<Files> saved = testing::OnRanks<Files>(before, save);
    std::vector<double> divergences;
    for (const int32_t after : {1, 2, 4}) {
      const std::vector<double> ranks = testing::OnRanks<double>(after, [&](Communicator& communicator) {
        auto resumed = PolicyTrainer::Create(MakeOptions(communicator, 9)).value();
        EXPECT_TRUE(Restore(*resumed, saved).ok());
        return StepOn(*resumed, 4);
      });
      divergences.push_back(ranks[0]);
    }
    EXPECT_GT(divergences[0], 1e-7);
    EXPECT_NEAR(divergences[1], divergences[0], 1e-3 * divergences[0]);
    EXPECT_NEAR(divergences[2], divergences[0], 1e-3 * divergences[0]);
  }
}

TEST(ReferenceFilesTest, ACheckpointBeforeTheFirstStepOnRewardsHasNoReferenceAndNeedsNone) {
  SingleRank single;
  auto trainer = PolicyTrainer::Create(MakeOptions(single, 1)).value();
  Teach(*trainer, 2);
  const Files saved = Save(*trainer);
  EXPECT_FALSE(saved.contains(ReferenceFileName(0, 1)));
  auto resumed = PolicyTrainer::Create(MakeOptions(single, 9)).value();
  // Another checkpoint was read first, as when a trainer that was replaced has saved meanwhile.
  StepOn(*resumed, 5);
  ASSERT_TRUE(Restore(*resumed, {saved}).ok());
  EXPECT_FALSE(Save(*resumed).contains(ReferenceFileName(0, 1)));
  for (PolicyTrainer* one : {trainer.get(), resumed.get()}) {
    EXPECT_NEAR(StepOn(*one, 3), 0, 1e-12);
    EXPECT_GT(StepOn(*one, 4), 0);
  }
  EXPECT_EQ(*trainer->Digest(), *resumed->Digest());
}

TEST(ReferenceFilesTest, AReferenceThatEntersRolloutModeBeforeItIsRenewedIsTheNewOneAfterIt) {
  SingleRank single;
  auto stays = PolicyTrainer::Create(MakeOptions(single, 1)).value();
  auto leaves = PolicyTrainer::Create(MakeOptions(single, 1)).value();
  for (PolicyTrainer* one : {stays.get(), leaves.get()}) {
    const bool moves = one == leaves.get();
    // Both moves copy the reference to the host; the second one must not take the copy of the first.
    if (moves) {
      ASSERT_TRUE(one->EnterRolloutMode().ok() && one->EnterTrainerMode().ok());
    }
    Teach(*one, 2);
    StepOn(*one, 3);
    if (moves) {
      ASSERT_TRUE(one->EnterRolloutMode().ok() && one->EnterTrainerMode().ok());
    }
    StepOn(*one, 4);
  }
  EXPECT_EQ(*stays->Digest(), *leaves->Digest());
}

TEST(ReferenceFilesTest, ShardsOfAReferenceThatAreNotTheWholeAreRefused) {
  const std::vector<Files> saved = testing::OnRanks<Files>(2, [](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(MakeOptions(ranks, 1)).value();
    StepOn(*trainer, 3);
    return Save(*trainer);
  });
  SingleRank single;
  const Manifest manifest = PolicyTrainer::Create(MakeOptions(single, 1)).value()->manifest();
  const std::string &first = saved[0].at(ReferenceFileName(0, 2)), &second = saved[1].at(ReferenceFileName(1, 2));
  const std::string& model = saved[0].at(ModelFileName(0, 2));
  auto reason = [&](const std::vector<absl::string_view>& files) {
    auto policy =
        SavedPolicy::ParseWeights(manifest, {saved[0].at(ModelFileName(0, 2)), saved[1].at(ModelFileName(1, 2))});
    return ErrorReason(policy->AddReference(manifest, files));
  };
  EXPECT_EQ(reason({first, second}), "");
  EXPECT_EQ(reason({first, first}), "CHECKPOINT_MISMATCH");
  EXPECT_EQ(reason({first}), "CHECKPOINT_MISMATCH");
  EXPECT_EQ(reason({first, model}), "CHECKPOINT_MISMATCH");
}

}  // namespace
}  // namespace syncopate::trainer
