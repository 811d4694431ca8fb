// A policy that trains adapters: the parts that change, the saved files, and the name of the base.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/adapter_files.h"
#include "model/decoder_spec.h"
#include "model/hf_config.h"
#include "model/weight_files.h"
#include "tests/support/file_contents.h"
#include "tests/support/golden_models.h"
#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/base_memory.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::GetBytes;
using testing::OnRanks;
using testing::Pointers;
using testing::PolicyCopy;

std::vector<TrajectoryGroup> Groups(uint64_t seed) {
  return testing::RandomGroups(static_cast<int32_t>(testing::GroupedQueryModel().vocab_size), 6, 4, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

// The parameter is the dtype in which the policy computes. The base is in that dtype alone; the adapters are in float32
// in any case.
class AdapterPolicyTest : public ::testing::TestWithParam<DType> {
 protected:
  static PolicyTrainer::Options Options(uint64_t seed = 1, Communicator* ranks = nullptr) {
    PolicyTrainer::Options options;
    options.model = testing::WithAdapters(testing::GroupedQueryModel());
    options.compute_dtype = GetParam();
    options.seed = seed;
    options.step.micro_batch_tokens = 40;  // several micro-batches in each update
    options.step.loss.correction = loss::Correction::kTis;
    options.adapter_config = model::FormatAdapterConfig(options.model.lora, "models/base");
    if (ranks != nullptr) options.mesh = *ranks;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeDTypes, AdapterPolicyTest, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// The float32 arena of a policy of one rank.
std::string ReadArena(const Policy& policy) {
  std::string arena(static_cast<size_t>(policy.manifest().arena_bytes()), '\0');
  EXPECT_TRUE(policy
                  .ReadShard(DType::kFloat32,
                             [&arena](int64_t begin, absl::string_view bytes) {
                               std::memcpy(arena.data() + begin, bytes.data(), bytes.size());
                               return absl::OkStatus();
                             })
                  .ok());
  return arena;
}

TEST_P(AdapterPolicyTest, TrainsTheAdaptersAndLeavesTheirBaseBitForBit) {
  at::set_num_threads(1);  // two threads on products this small would wait for each other
  auto policy = PolicyTrainer::Create(Options()).value();
  const Manifest& manifest = policy->manifest();
  const size_t first = manifest.tensors().size() - policy->trained().tensors().size();
  ASSERT_TRUE(model::IsAdapterName(policy->trained().tensors()[0].name));
  EXPECT_EQ(manifest.tensors()[first].name, policy->trained().tensors()[0].name);
  const auto base_bytes = static_cast<size_t>(manifest.ranges()[first].begin);
  const auto trained_bytes = manifest.arena_bytes() - static_cast<int64_t>(base_bytes);
  const bool is_rounded = GetParam() == DType::kBFloat16;
  // In bfloat16 the base has 2 bytes a number; the adapters have 4, and their copy has 2.
  EXPECT_EQ(policy->memory().parameter_bytes,
            is_rounded ? static_cast<int64_t>(base_bytes) / 2 + trained_bytes * 3 / 2 : manifest.arena_bytes());
  EXPECT_EQ(policy->memory().gradient_bytes, trained_bytes);
  EXPECT_EQ(policy->memory().optimizer_bytes, 2 * trained_bytes);
  const std::string before = ReadArena(*policy);
  const uint64_t base = policy->BaseDigest().value();
  for (int step = 0; step < 3; ++step) {
    const auto made = policy->Step(Pointers(Groups(7)), step);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_GT(made->gradient_norm, 0);
  }
  const std::string after = ReadArena(*policy);
  EXPECT_EQ(before.substr(0, base_bytes), after.substr(0, base_bytes));
  for (size_t i = first; i < manifest.tensors().size(); ++i) {
    const auto begin = static_cast<size_t>(manifest.ranges()[i].begin);
    const auto size = static_cast<size_t>(manifest.ranges()[i].size());
    EXPECT_NE(before.substr(begin, size), after.substr(begin, size)) << manifest.tensors()[i].name;
  }
  EXPECT_EQ(policy->BaseDigest().value(), base);
}

// Memory of send slots, with rows between the matrices of the base that others write to.
struct LentBase {
  explicit LentBase(const model::ModelConfig& config)
      : layout(model::MakeWireManifest(config, DType::kBFloat16).value()),
        bytes(static_cast<size_t>(layout.adapters_begin())) {}
  std::shared_ptr<const BaseMemory> memory() {
    return std::make_shared<const BaseMemory>(BaseMemory{layout, [this]() -> absl::StatusOr<std::shared_ptr<char>> {
                                                           ++allocated;
                                                           return std::shared_ptr<char>(std::shared_ptr<void>(),
                                                                                        bytes.data());
                                                         }});
  }
  void WriteToFreeRows(char value) {
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const TensorSpec& spec = layout.tensors()[i];
      if (spec.adapter || spec.shape.size() < 2) continue;
      std::memset(bytes.data() + layout.ranges()[i].end, value, static_cast<size_t>(spec.SpareBytes()));
    }
  }

  const Manifest layout;
  std::vector<char> bytes;
  int allocated = 0;
};

TEST(AdapterPolicyBaseTest, ABaseInMemoryOfTheSendSlotsTrainsTheSameAdaptersAndStaysWhereItIs) {
  at::set_num_threads(1);
  PolicyTrainer::Options options;
  options.model = testing::WithAdapters(testing::GroupedQueryModel());
  options.compute_dtype = DType::kBFloat16;
  options.seed = 1;
  options.step.micro_batch_tokens = 40;
  options.step.loss.correction = loss::Correction::kTis;
  options.step.loss.kl_coefficient = 0.01;  // the reference is the base
  auto own = PolicyTrainer::Create(options).value();
  LentBase lent(options.model);
  ASSERT_TRUE(CanHoldBase(own->manifest(), lent.layout));
  options.base_memory = lent.memory();
  auto policy = PolicyTrainer::Create(options).value();
  EXPECT_EQ(lent.allocated, 1);
  const auto base_bytes =
      own->manifest().ranges()[own->manifest().tensors().size() - own->trained().tensors().size()].begin;
  EXPECT_EQ(policy->memory().parameter_bytes, own->memory().parameter_bytes - base_bytes / 2);
  EXPECT_EQ(policy->BaseDigest().value(), own->BaseDigest().value());
  EXPECT_EQ(ReadArena(*policy), ReadArena(*own));
  const std::vector<const void*> places = policy->device_tensors();
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorSpec& spec = lent.layout.tensors()[i];
    if (!spec.adapter) {
      EXPECT_EQ(places[i], lent.bytes.data() + lent.layout.ranges()[i].begin) << spec.name;
    }
    const auto bytes = static_cast<size_t>(spec.NumBytes());
    EXPECT_EQ(std::memcmp(places[i], own->device_tensors()[i], bytes), 0) << spec.name;
  }

  int64_t moved = 0, moved_own = 0;
  for (int step = 0; step < 4; ++step) {
    const auto a = own->Step(Pointers(Groups(7)), step), b = policy->Step(Pointers(Groups(7)), step);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    EXPECT_EQ(a->gradient_norm, b->gradient_norm);
    EXPECT_EQ(policy->Digest().value(), own->Digest().value()) << "step " << step;
    EXPECT_TRUE(policy->CheckFinite().ok());
    // A turn of the rollouters: one of them writes to the free rows of the base that it maps.
    moved_own += own->EnterRolloutMode().value().bytes;
    moved += policy->EnterRolloutMode().value().bytes;
    lent.WriteToFreeRows(static_cast<char>(step + 1));
    ASSERT_TRUE(own->EnterTrainerMode().ok() && policy->EnterTrainerMode().ok());
  }
  EXPECT_EQ(ReadArena(*policy), ReadArena(*own));
  EXPECT_GT(moved, 0);
  EXPECT_LE(moved, moved_own - 4 * base_bytes / 2) << "the base stays on the device";
}

// q_proj and k_proj lie side by side in float32 and would not in bfloat16, so no product of both could be made.
TEST(AdapterPolicyBaseTest, ALayoutThatPartsJointLinearsCannotHoldTheBase) {
  const auto manifest = [](DType dtype, int64_t columns) {
    TensorSpec q{.name = "q", .dtype = dtype, .shape = {1, columns}, .joint = "qkv"}, k = q, a = q;
    k.name = "k";
    a = {.name = "a", .dtype = dtype, .shape = {1, 64}, .unit = 1, .adapter = true};
    return Manifest::Create({q, k, a}).value();
  };
  EXPECT_TRUE(CanHoldBase(manifest(DType::kFloat32, 128), manifest(DType::kBFloat16, 128)));
  EXPECT_FALSE(CanHoldBase(manifest(DType::kFloat32, 64), manifest(DType::kBFloat16, 64)));
  EXPECT_FALSE(CanHoldBase(manifest(DType::kFloat32, 128), manifest(DType::kFloat32, 128)))
      << "it computes in bfloat16";
}

TEST_P(AdapterPolicyTest, ABaseIsNamedByItsNumbersAlone) {
  const uint64_t base = PolicyTrainer::Create(Options(1)).value()->BaseDigest().value();
  EXPECT_NE(base, 0u);
  EXPECT_NE(PolicyTrainer::Create(Options(2)).value()->BaseDigest().value(), base);
  PolicyTrainer::Options other = Options(1);
  other.model.lora = {.rank = 2, .alpha = 1, .projections = {"q_proj"}};
  EXPECT_EQ(PolicyTrainer::Create(other).value()->BaseDigest().value(), base);
  other.model.lora = {};
  EXPECT_EQ(PolicyTrainer::Create(other).value()->BaseDigest().value(), 0u);
  OnRanks<bool>(3, [&](Communicator& ranks) {
    EXPECT_EQ(PolicyTrainer::Create(Options(1, &ranks)).value()->BaseDigest().value(), base);
    return true;
  });
}

TEST_P(AdapterPolicyTest, ABaseFromFilesHasTheDigestOfTheFiles) {
  const std::string folder = testing::GoldenModelPath("qwen2-full");
  PolicyTrainer::Options options = Options();
  options.model = testing::WithAdapters(model::ReadHfConfig(folder).value().config);
  options.weights = model::WeightFiles::Open(folder, options.model).value();
  const uint64_t base = model::DigestBase(*options.weights, options.model);
  EXPECT_EQ(PolicyTrainer::Create(options).value()->BaseDigest().value(), base);
  OnRanks<bool>(2, [&](Communicator& ranks) {
    options.mesh = ranks;
    EXPECT_EQ(PolicyTrainer::Create(options).value()->BaseDigest().value(), base);
    return true;
  });
}

// Weights that are staged and exported beside a step are those before the step; an export copies the adapters.
TEST_P(AdapterPolicyTest, IsReadBesideAStepAsItWasBefore) {
  auto policy = PolicyTrainer::Create(Options()).value();
  ASSERT_TRUE(policy->Step(Pointers(Groups(7)), 0).ok());
  const std::string before = ReadArena(*policy);
  const std::shared_ptr<const PolicySnapshot> whole = policy->TakeSnapshot("").value();
  const std::shared_ptr<const PolicySnapshot> weights = policy->TakeWeights("").value();
  std::string read;
  ASSERT_TRUE(policy
                  ->SetReader([&]() -> absl::Status {
                    EXPECT_EQ(read, "");
                    read = ReadArena(*policy);
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_TRUE(policy->Step(Pointers(Groups(8)), 1).ok());
  EXPECT_EQ(read, before);
  EXPECT_NE(ReadArena(*policy), before);

  const auto saved = PolicyFiles(whole), exported = PolicyFiles(weights);
  EXPECT_TRUE(whole->has_moments());
  EXPECT_FALSE(weights->has_moments());
  ASSERT_EQ(exported.size(), 2u);
  for (const auto& [name, contents] : exported) EXPECT_EQ(GetBytes(contents), GetBytes(saved.at(name))) << name;
  EXPECT_EQ(weights->base_digest, policy->BaseDigest().value());
  const std::string model = GetBytes(exported.at(model::kAdapterWeightsFile));
  const auto parsed = SavedPolicy::ParseWeights(policy->trained(), {model});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->base_digest(), weights->base_digest);
}

// New adapters add nothing, so the policy equals its base. A step leads away from the base, and the divergence pulls
// back.
TEST_P(AdapterPolicyTest, TheReferenceIsTheBaseWithoutACopy) {
  PolicyTrainer::Options options = Options();
  options.step.loss.kl_coefficient = 0.1;
  options.optimizer.learning_rate = 0.05;
  auto policy = PolicyTrainer::Create(options).value();
  EXPECT_EQ(policy->memory().reference_bytes, 0);
  const auto first = policy->Step(Pointers(Groups(7)), 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->reference_kl, 0);
  const auto second = policy->Step(Pointers(Groups(7)), 1);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_GT(second->reference_kl, 0);
}

struct Saved {
  std::map<std::string, CheckpointStore::Contents> files;
  std::shared_ptr<const PolicyCopy> state;  // whole on rank 0 alone
};

Saved Save(const PolicyTrainer& policy) {
  return {PolicyFiles(policy.TakeSnapshot("").value()), std::make_shared<PolicyCopy>(policy)};
}

TEST_P(AdapterPolicyTest, ACheckpointIsAPeftDirectoryBesideTheMoments) {
  auto policy = PolicyTrainer::Create(Options()).value();
  ASSERT_TRUE(policy->Step(Pointers(Groups(7)), 0).ok());
  const Saved saved = Save(*policy);
  ASSERT_EQ(saved.files.size(), 3u);
  const std::string model = GetBytes(saved.files.at(model::kAdapterWeightsFile));
  const std::string optimizer = GetBytes(saved.files.at(OptimizerFileName(0, 1)));
  EXPECT_EQ(GetBytes(saved.files.at(model::kAdapterConfigFile)), Options().adapter_config);
  const auto parsed = model::SafetensorsFile::Parse(model).value();
  EXPECT_EQ(parsed.tensors().size(), policy->trained().tensors().size());
  EXPECT_EQ(model::FindBaseDigest(parsed.metadata()), policy->BaseDigest().value());

  const auto restored = SavedPolicy::Parse(policy->trained(), {{model, optimizer}});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->base_digest(), policy->BaseDigest().value());
  auto resumed = PolicyTrainer::Create(Options()).value();
  ASSERT_TRUE(resumed->Restore(*restored).ok());
  for (auto* one : {policy.get(), resumed.get()}) ASSERT_TRUE(one->Step(Pointers(Groups(8)), 1).ok());
  EXPECT_EQ(PolicyCopy(*policy), PolicyCopy(*resumed));
  EXPECT_EQ(ReadArena(*policy), ReadArena(*resumed));
}

TEST_P(AdapterPolicyTest, RanksMakeTheSameUpdatesAndSaveForAnyNumberOfThem) {
  auto alone = PolicyTrainer::Create(Options()).value();
  ASSERT_TRUE(alone->Step(Pointers(Groups(7)), 0).ok());
  const double norm = alone->Step(Pointers(Groups(8)), 1)->gradient_norm;
  for (int32_t world : {2, 3}) {
    const std::vector<Saved> ranks = OnRanks<Saved>(world, [&](Communicator& communicator) {
      auto policy = PolicyTrainer::Create(Options(1, &communicator)).value();
      EXPECT_TRUE(policy->Step(Pointers(Groups(7)), 0).ok());
      const auto made = policy->Step(Pointers(Groups(8)), 1);
      EXPECT_TRUE(made.ok()) << made.status();
      const double apart = GetParam() == DType::kFloat32 ? 1e-4 : 2e-2;
      EXPECT_NEAR(made.ok() ? made->gradient_norm : 0, norm, apart * norm);
      return Save(*policy);
    });
    std::vector<std::string> bytes;
    std::vector<SavedPolicy::RankFiles> views;
    for (int32_t rank = 0; rank < world; ++rank) {
      const auto& files = ranks[static_cast<size_t>(rank)].files;
      EXPECT_EQ(files.count(model::kAdapterConfigFile), rank == 0 ? 1u : 0u);
      bytes.push_back(GetBytes(files.at(ModelFileName(rank, world, /*adapters=*/true))));
      bytes.push_back(GetBytes(files.at(OptimizerFileName(rank, world))));
    }
    for (size_t i = 0; i < bytes.size(); i += 2) views.push_back({bytes[i], bytes[i + 1]});
    auto resumed = PolicyTrainer::Create(Options()).value();
    const auto source = SavedPolicy::Parse(resumed->trained(), views);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_TRUE(resumed->Restore(*source).ok());
    EXPECT_EQ(PolicyCopy(*resumed), *ranks[0].state);
  }
}

}  // namespace
}  // namespace syncopate::trainer
