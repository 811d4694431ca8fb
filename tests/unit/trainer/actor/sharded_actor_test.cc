#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/half.h"
#include "base/unit_shards.h"
#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/flat_shards.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

using testing::GatherArena;
using testing::GatherGradient;
using testing::LargestDifference;
using testing::OnRanks;
using testing::Pointers;
using testing::PolicyCopy;

std::vector<model::ModelConfig> Models() {
  model::ModelConfig untied = testing::GroupedQueryModel();
  untied.qk_norm = true;
  untied.tie_word_embeddings = false;
  return {testing::SmallModel(), testing::GroupedQueryModel(), untied, testing::BiasedModel()};
}

Manifest ManifestFor(const model::ModelConfig& config) { return *model::MakeManifest(config, DType::kFloat32); }

std::vector<TrajectoryGroup> RandomGroups(const model::ModelConfig& config, int groups, int samples, uint64_t seed) {
  return testing::RandomGroups(config.vocab_size, groups, samples, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * draw(6);
                               });
}

// The loss weights that stay above 0 for the drawn log-probs, which are far from those of a model.
TrainStepOptions StepOptions() {
  TrainStepOptions options;
  options.loss.correction = loss::Correction::kTis;
  return options;
}

TEST(FlatShardsTest, EveryElementIsHeldByOneRankAndCutsAreAtBlocks) {
  for (const model::ModelConfig& config : Models()) {
    const Manifest manifest = ManifestFor(config);
    const int64_t elements = manifest.arena_bytes() / 4;
    for (int32_t world : {1, 2, 3, 4, 7}) {
      std::vector<int> held(static_cast<size_t>(elements), 0);
      for (int32_t rank = 0; rank < world; ++rank) {
        const FlatShards shards = FlatShards::Create(config, manifest, rank, world).value();
        ASSERT_EQ(shards.units(), config.num_hidden_layers + 2);
        int64_t next = 0;
        for (int u = 0; u < shards.units(); ++u) {
          EXPECT_EQ(shards.unit(u).begin, next);
          EXPECT_GT(shards.unit(u).count, 0);
          EXPECT_EQ(shards.unit(u).shard % 64, 0);
          next += shards.unit(u).count;
        }
        EXPECT_EQ(next, elements);
        for (const FlatShards::Piece& piece : shards.MakePieces(0, elements)) {
          EXPECT_LE(piece.local_begin + piece.count, shards.local_elements());
          EXPECT_TRUE(world > 1 || piece.local_begin == piece.whole_begin);
          for (int64_t i = 0; i < piece.count; ++i) ++held[static_cast<size_t>(piece.whole_begin + i)];
        }
      }
      EXPECT_THAT(held, ::testing::Each(1)) << world;
    }
  }
}

TEST(FlatShardsTest, MoreRanksThanALayerDividesIntoAreRefused) {
  const model::ModelConfig config = testing::SmallModel();
  const absl::Status status = FlatShards::Create(config, ManifestFor(config), 0, 100000).status();
  EXPECT_EQ(ErrorReason(status), "TOO_MANY_RANKS");
  EXPECT_THAT(status.message(), ::testing::HasSubstr("100000 ranks"));
}

struct Outcome {
  std::vector<float> gradient, parameters;  // whole, on rank 0
  StepFigures metrics;
};

Outcome StepOnRank(const model::ModelConfig& config, const TrainStepOptions& options,
                   const std::vector<TrajectoryGroup>& groups, Communicator& ranks, int steps = 1,
                   at::ScalarType reduce = at::kFloat) {
  at::set_num_threads(1);  // this thread's number of threads: more would wait for each other on tensors this small
  Actor actor(config, ManifestFor(config), {}, 3, at::kCPU, nullptr, at::kFloat, &ranks, {}, reduce);
  TrainStep step(actor, ranks, options);
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    auto metrics = step.Run(Pointers(groups), /*step=*/i);
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    outcome.metrics = metrics.value_or(StepFigures());
  }
  outcome.gradient = GatherGradient(actor, ranks);
  outcome.parameters = GatherArena(actor, actor.parameters(), ranks);
  return outcome;
}

std::vector<Outcome> StepOnRanks(int32_t world, const model::ModelConfig& config, const TrainStepOptions& options,
                                 const std::vector<TrajectoryGroup>& groups, int steps = 1) {
  return OnRanks<Outcome>(world,
                          [&](Communicator& ranks) { return StepOnRank(config, options, groups, ranks, steps); });
}

TEST(ShardedActorTest, LossAndGradientDoNotDependOnHowManyRanksThereAre) {
  for (const model::ModelConfig& config : Models()) {
    const auto groups = RandomGroups(config, 6, 4, 19);
    SingleRank single;
    const Outcome whole = StepOnRank(config, StepOptions(), groups, single);
    for (int32_t world : {1, 2, 3, 4}) {
      // Micro-batches of one or two sequences, and micro-batches so large that some ranks have none.
      for (int64_t tokens : {16, 60, 1 << 20}) {
        for (Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
          TrainStepOptions options = StepOptions();
          options.micro_batch_tokens = tokens;
          options.recompute = recompute;
          const std::vector<Outcome> ranks = StepOnRanks(world, config, options, groups);
          EXPECT_LT(LargestDifference(ranks[0].gradient, whole.gradient), 1e-6) << world << " ranks, " << tokens;
          for (const Outcome& rank : ranks) {
            EXPECT_NEAR(rank.metrics.loss, whole.metrics.loss, 1e-7);  // the terms are about 1
            EXPECT_NEAR(rank.metrics.gradient_norm, whole.metrics.gradient_norm, 1e-5 * whole.metrics.gradient_norm);
            EXPECT_NEAR(rank.metrics.update_norm, whole.metrics.update_norm, 1e-3 * whole.metrics.update_norm);
            EXPECT_NEAR(rank.metrics.entropy, whole.metrics.entropy, 1e-6);
            EXPECT_NEAR(rank.metrics.top_probability, whole.metrics.top_probability, 1e-6);
            EXPECT_EQ(rank.metrics.trained_tokens, whole.metrics.trained_tokens);
            EXPECT_EQ(rank.metrics.trained_samples, whole.metrics.trained_samples);
            EXPECT_EQ(rank.metrics.updates, 1);
          }
        }
      }
    }
  }
}

TEST(ShardedActorTest, GradientsThatAreSummedInBFloat16AreThoseOfFloat32ButForItsRounding) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const auto groups = RandomGroups(config, 6, 4, 19);
  for (int32_t world : {2, 3, 4}) {
    for (int64_t tokens : {16, 1 << 20}) {  // makes many micro-batches, or one
      TrainStepOptions options = StepOptions();
      options.micro_batch_tokens = tokens;
      const Outcome exact = StepOnRanks(world, config, options, groups)[0];
      const std::vector<Outcome> rounded = OnRanks<Outcome>(
          world, [&](Communicator& ranks) { return StepOnRank(config, options, groups, ranks, 1, at::kBFloat16); });
      // Rounding changes a part by up to 2^-9 of itself, and each sum likewise.
      const double difference = LargestDifference(rounded[0].gradient, exact.gradient);
      EXPECT_LT(difference, 0.01) << world << " ranks, " << tokens;
      EXPECT_GT(difference, 1e-5) << world << " ranks, " << tokens;
      EXPECT_EQ(rounded[0].metrics.loss, exact.metrics.loss);
      for (const Outcome& rank : rounded) {
        EXPECT_EQ(rank.gradient, rounded[0].gradient);
        EXPECT_EQ(rank.metrics.gradient_norm, rounded[0].metrics.gradient_norm);
        EXPECT_NEAR(rank.metrics.gradient_norm, exact.metrics.gradient_norm, 0.01 * exact.metrics.gradient_norm);
      }
    }
  }
}

// In bfloat16, 1 + 2^-9 is 1.
TEST(ShardedActorTest, WhatMicroBatchesAddUpToIsFloat32AlsoWhereRanksSumInBFloat16) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const Manifest manifest = ManifestFor(config);
  OnRanks<bool>(2, [&](Communicator& ranks) {
    const FlatShards shards = FlatShards::Create(config, manifest, ranks.rank(), 2).value();
    at::Tensor local = at::full({shards.local_elements()}, -1, at::kFloat);
    ReducedGradients gradients(config, manifest, shards, local, ranks, at::kBFloat16);
    gradients.Zero();
    const int unit = FlatShards::LayerUnit(0);
    for (int batch = 0; batch <= 256; ++batch) {
      EXPECT_TRUE(gradients.Acquire(unit).ok());
      if (ranks.rank() == 1) {
        gradients.views().layers[0].post_norm.fill_(batch == 0 ? 1.0 : std::ldexp(1.0, -9));
      }
      EXPECT_TRUE(gradients.Release(unit).ok());
    }
    EXPECT_TRUE(gradients.Flush().ok());
    const std::vector<float> whole = [&] {
      const at::Tensor all = GatherUnit(shards, unit, local, ranks).value();
      return std::vector<float>(all.data_ptr<float>(), all.data_ptr<float>() + shards.unit(unit).count);
    }();
    EXPECT_EQ(std::count(whole.begin(), whole.end(), 1.5f), config.hidden_size);
    EXPECT_EQ(std::count(whole.begin(), whole.end(), 0.0f), shards.unit(unit).count - config.hidden_size);
    return true;
  });
}

TEST(ShardedActorTest, ASupervisedStepDoesNotDependOnHowManyRanksThereAre) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const auto groups = RandomGroups(config, 6, 1, 23);
  auto run = [&](Communicator& ranks) {
    Actor actor(config, ManifestFor(config), {}, 3, at::kCPU, nullptr, at::kFloat, &ranks);
    TrainStepOptions options = TrainStepOptions().Supervised();
    options.micro_batch_tokens = 20;
    auto metrics = TrainStep(actor, ranks, options).RunSupervised(Pointers(groups));
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    return Outcome{GatherGradient(actor, ranks), {}, metrics.value_or(StepFigures())};
  };
  SingleRank single;
  const Outcome whole = run(single);
  for (int32_t world : {2, 4}) {
    const std::vector<Outcome> ranks = OnRanks<Outcome>(world, run);
    EXPECT_LT(LargestDifference(ranks[0].gradient, whole.gradient), 1e-6);
    EXPECT_NEAR(ranks[0].metrics.loss, whole.metrics.loss, 1e-6);
  }
}

TEST(ShardedActorTest, MoreRanksThanSequencesLeaveSomeWithoutWork) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const auto groups = RandomGroups(config, 1, 2, 4);
  SingleRank single;
  const Outcome whole = StepOnRank(config, StepOptions(), groups, single);
  const std::vector<Outcome> ranks = StepOnRanks(4, config, StepOptions(), groups);
  EXPECT_LT(LargestDifference(ranks[0].gradient, whole.gradient), 1e-6);
}

TEST(ShardedActorTest, TheSameNumberOfRanksGivesTheSameBits) {
  const model::ModelConfig config = testing::SmallModel();
  const auto groups = RandomGroups(config, 6, 4, 20);
  TrainStepOptions options;
  options.micro_batch_tokens = 40;
  for (int32_t world : {2, 3}) {
    const Outcome first = StepOnRanks(world, config, options, groups, 3)[0];
    const Outcome second = StepOnRanks(world, config, options, groups, 3)[0];
    EXPECT_EQ(first.parameters, second.parameters);
    EXPECT_EQ(first.metrics.loss, second.metrics.loss);
  }
}

TEST(ShardedActorTest, TheFirstWeightsAreThoseOfOneRank) {
  for (const model::ModelConfig& config : Models()) {
    const Manifest manifest = ManifestFor(config);
    SingleRank single;
    auto weights_of = [&](Communicator& ranks) {
      Actor actor(config, manifest, {}, 5, at::kCPU, nullptr, at::kFloat, &ranks);
      return GatherArena(actor, actor.parameters(), ranks);
    };
    EXPECT_EQ(OnRanks<std::vector<float>>(3, weights_of)[0], weights_of(single));
  }
}

// Makes one update for each entry of the list, with gradients that are equal everywhere and as large as the entry.
// Returns the factor of the last update.
double LastFactor(const AdamWOptions& options, const std::vector<double>& norms, Communicator& ranks) {
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = ManifestFor(config);
  Actor actor(config, manifest, options, 3, at::kCPU, nullptr, at::kFloat, &ranks);
  const double elements = static_cast<double>(manifest.arena_bytes()) / 4;
  double factor = 0;
  for (double norm : norms) {
    const float element = static_cast<float>(norm / std::sqrt(elements));
    auto gradients = actor.gradients();
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    for (const FlatShards::Piece& piece : actor.shards().MakePieces(0, manifest.arena_bytes() / 4)) {
      std::fill_n(gradients.begin() + piece.local_begin, piece.count, element);
    }
    const auto measured = actor.QueueUpdate(at::zeros({}));
    EXPECT_TRUE(measured.ok());
    EXPECT_NEAR(measured->gradient.item<double>(), norm, 1e-5 * norm);
    actor.CountUpdate();
    factor = double{gradients[0]} / element;
  }
  return factor;
}

TEST(ShardedActorTest, GradientsAreClippedByTheNormsOfAllRanks) {
  AdamWOptions by_norm;
  by_norm.max_grad_growth = 0;
  for (const auto& [options, norms] : std::vector<std::pair<AdamWOptions, std::vector<double>>>{
           {by_norm, {4.0}}, {AdamWOptions(), {0.1, 0.1, 0.1, 0.9}}}) {
    SingleRank single;
    const double expected = LastFactor(options, norms, single);
    EXPECT_LT(expected, 0.5);
    for (double factor :
         OnRanks<double>(3, [&, o = options, n = norms](Communicator& ranks) { return LastFactor(o, n, ranks); })) {
      EXPECT_NEAR(factor, expected, 1e-6);
    }
  }
}

TEST(ShardedActorTest, WeightDecayReachesTheSameWeightsOnAnyNumberOfRanks) {
  const model::ModelConfig config = testing::BiasedModel();
  const Manifest manifest = ManifestFor(config);
  AdamWOptions options;
  options.weight_decay = 0.5;
  options.learning_rate = 0.5;
  options.decay_all = false;
  auto decayed = [&](Communicator& ranks) {
    Actor actor(config, manifest, options, 3, at::kCPU, nullptr, at::kFloat, &ranks);
    EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
    return GatherArena(actor, actor.parameters(), ranks);
  };
  SingleRank single;
  const std::vector<float> expected = decayed(single);
  for (int32_t world : {2, 4}) EXPECT_EQ(OnRanks<std::vector<float>>(world, decayed)[0], expected);
}

PolicyTrainer::Options OptionsOn(Communicator& ranks) {
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.seed = 3;
  options.mesh = ranks;
  return options;
}

// The contents of a checkpoint, and the expected whole.
struct Saved {
  std::shared_ptr<const PolicyCopy> state;  // whole on rank 0; empty on the others
  uint64_t digest = 0;
};

Saved Save(const PolicyTrainer& trainer) {
  Saved saved;
  saved.state = std::make_shared<PolicyCopy>(trainer);
  saved.digest = trainer.Digest().value_or(0);
  EXPECT_TRUE(trainer.CheckFinite().ok());
  return saved;
}

TEST(ShardedActorTest, AStateIsRestoredBitByBitOnAnotherNumberOfRanks) {
  SingleRank single;
  const auto groups = RandomGroups(testing::GroupedQueryModel(), 4, 4, 30);
  const std::vector<Saved> saved = OnRanks<Saved>(3, [&](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(OptionsOn(ranks)).value();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(trainer->Step(Pointers(groups)).ok());
    return Save(*trainer);
  });
  EXPECT_EQ(saved[0].state->updates(), 2);
  EXPECT_EQ(saved[1].digest, saved[0].digest);
  auto restored = [&](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(OptionsOn(ranks)).value();
    EXPECT_TRUE(trainer->Restore(*saved[0].state).ok());
    return Save(*trainer);
  };
  const Saved alone = restored(single);
  EXPECT_TRUE(*alone.state == *saved[0].state);
  EXPECT_EQ(alone.digest, saved[0].digest);
  for (int32_t world : {2, 3, 4}) {
    const std::vector<Saved> again = OnRanks<Saved>(world, restored);
    EXPECT_TRUE(*again[0].state == *saved[0].state) << world;
    for (const Saved& rank : again) EXPECT_EQ(rank.digest, saved[0].digest) << world;
  }
}

template <typename Number>
std::vector<Number> ReadShard(const Policy& policy, DType dtype) {
  std::vector<Number> shard;
  const auto append = [&shard](int64_t begin, absl::string_view bytes) {
    EXPECT_EQ(begin, static_cast<int64_t>(shard.size() * sizeof(Number)));
    const auto* numbers = reinterpret_cast<const Number*>(bytes.data());
    shard.insert(shard.end(), numbers, numbers + bytes.size() / sizeof(Number));
    return absl::OkStatus();
  };
  EXPECT_TRUE(policy.ReadShard(dtype, append).ok());
  return shard;
}

TEST(ShardedActorTest, EachRankReadsItsShardAsTheUnitsAreCut) {
  const auto groups = RandomGroups(testing::GroupedQueryModel(), 4, 4, 31);
  for (int32_t world : {1, 2, 3}) {
    OnRanks<bool>(world, [&](Communicator& ranks) {
      auto trainer = PolicyTrainer::Create(OptionsOn(ranks)).value();
      for (int step = 0; step < 2; ++step) {
        const std::vector<float> shard = ReadShard<float>(*trainer, DType::kFloat32);
        EXPECT_EQ(trainer->GetShardDType(*model::MakeManifest(testing::GroupedQueryModel(), DType::kBFloat16)),
                  DType::kFloat32);
        const std::vector<uint16_t> rounded = ReadShard<uint16_t>(*trainer, DType::kBFloat16);
        EXPECT_EQ(rounded.size(), shard.size());
        for (size_t i = 0; i < rounded.size(); ++i) EXPECT_EQ(rounded[i], RoundToBFloat16(shard[i])) << i;
        const Manifest& manifest = trainer->manifest();
        const PolicyCopy state(*trainer);  // of all ranks, on rank 0
        const std::vector<UnitShards> units = CutUnits(manifest, world);
        EXPECT_EQ(static_cast<int64_t>(shard.size()), units.back().local_begin + units.back().shard);
        for (size_t i = 0; ranks.rank() == 0 && i < manifest.tensors().size(); ++i) {
          const UnitShards& unit = units[static_cast<size_t>(manifest.tensors()[i].unit)];
          const int64_t first = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
          const int64_t last = std::min(first + manifest.tensors()[i].NumElements(), unit.begin + unit.shard);
          for (int64_t at = first; at < last; ++at) {
            EXPECT_EQ(shard[static_cast<size_t>(unit.local_begin + at - unit.begin)],
                      state.parameters()[static_cast<size_t>(at)])
                << manifest.tensors()[i].name << " element " << at - first;
          }
        }
        EXPECT_TRUE(trainer->Step(Pointers(groups)).ok());
      }
      return true;
    });
  }
}

TEST(ShardedActorTest, WeightsThatAreNotFiniteAreNamedOnAllRanks) {
  SingleRank single;
  const Saved good = Save(*PolicyTrainer::Create(OptionsOn(single)).value());
  PolicyCopy bad = *good.state;
  const Manifest manifest = ManifestFor(testing::GroupedQueryModel());
  for (size_t tensor : {size_t{0}, size_t{5}, manifest.tensors().size() - 1}) {
    PolicyCopy spoilt = bad;
    spoilt.arena_of(PolicyPart::kParameters)[static_cast<size_t>(manifest.ranges()[tensor].begin) / 4] = NAN;
    const auto statuses = OnRanks<absl::Status>(3, [&](Communicator& ranks) {
      auto trainer = PolicyTrainer::Create(OptionsOn(ranks)).value();
      EXPECT_TRUE(trainer->Restore(spoilt).ok());
      return trainer->CheckFinite();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(ErrorReason(status), "NON_FINITE");
      EXPECT_EQ(ErrorDetails(status).at("tensor"), manifest.tensors()[tensor].name);
    }
  }
}

TEST(ShardedActorTest, AnUpdateThatIsNotFiniteIsSkippedOnAllRanks) {
  const model::ModelConfig config = testing::SmallModel();
  auto poisoned = RandomGroups(config, 2, 4, 10);
  poisoned[0].samples[0].reward = std::numeric_limits<float>::quiet_NaN();
  for (const Outcome& rank : StepOnRanks(3, config, {}, poisoned)) {
    EXPECT_EQ(rank.metrics.skipped_updates, 1);
    EXPECT_EQ(rank.metrics.updates, 0);
  }
}

TEST(ShardedActorTest, RanksThatWereGivenDifferentBatchesAllSayWho) {
  const model::ModelConfig config = testing::SmallModel();
  const auto groups = RandomGroups(config, 4, 4, 1), others = RandomGroups(config, 4, 4, 2);
  const auto results = OnRanks<absl::Status>(3, [&](Communicator& ranks) {
    auto options = OptionsOn(ranks);
    options.model = config;
    auto trainer = PolicyTrainer::Create(options).value();
    return trainer->Step(Pointers(ranks.rank() == 2 ? others : groups)).status();
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(ErrorReason(result), "RANK_MISMATCH");
    EXPECT_THAT(result.message(), ::testing::HasSubstr("trainer rank 2 has another batch"));
  }
}

TEST(ShardedActorTest, ALostRankEndsTheStepOfTheOthers) {
  const auto groups = RandomGroups(testing::GroupedQueryModel(), 4, 4, 1);
  const auto results = OnRanks<absl::Status>(3, [&](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(OptionsOn(ranks)).value();
    if (ranks.rank() == 1) return absl::OkStatus();
    return trainer->Step(Pointers(groups)).status();
  });
  EXPECT_EQ(ErrorReason(results[0]), "RANK_LOST");
  EXPECT_EQ(ErrorReason(results[2]), "RANK_LOST");
}

// Without a copy of the base in float32, whose memory a step would need.
TEST(ShardedActorTest, TheDigestOfABaseInBFloat16IsThatOfItsNumbersInFloat32OnAnyNumberOfRanks) {
  const model::ModelConfig config = testing::WithAdapters(testing::SmallModel());
  for (const int64_t bucket_bytes : {int64_t{4096}, int64_t{1} << 20}) {
    const Manifest manifest = model::MakeManifest(config, DType::kFloat32, bucket_bytes).value();
    // The digests before and after an update, which changes the adapters.
    const auto digest_twice = [&](Communicator& ranks, const std::function<uint64_t(const Actor&)>& digest) {
      Actor actor(config, manifest, {}, 3, at::kCPU, nullptr, at::kBFloat16, &ranks);
      EXPECT_TRUE(actor.base_is_rounded());
      std::vector<uint64_t> digests = {digest(actor)};
      std::fill(actor.gradients().begin(), actor.gradients().end(), 0.01f);
      EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
      digests.push_back(digest(actor));
      return digests;
    };
    const auto of_all_bytes = [&](const Actor& actor) {
      std::vector<char> arena(static_cast<size_t>(manifest.arena_bytes()));
      const auto keep = [&arena](int64_t begin, absl::string_view bytes) {
        std::copy(bytes.begin(), bytes.end(), arena.begin() + begin);
        return absl::OkStatus();
      };
      EXPECT_TRUE(actor.ReadShard(DType::kFloat32, keep).ok());
      return CombineDigests(DigestBuckets(manifest, arena.data()));
    };
    SingleRank alone;
    const std::vector<uint64_t> expected = digest_twice(alone, of_all_bytes);
    EXPECT_NE(expected[0], expected[1]);
    for (const int world : {1, 2, 3}) {
      const auto found = OnRanks<std::vector<uint64_t>>(world, [&](Communicator& ranks) {
        return digest_twice(ranks, [](const Actor& actor) { return actor.Digest().value_or(0); });
      });
      for (const auto& digests : found) EXPECT_EQ(digests, expected) << world << " ranks, buckets of " << bucket_bytes;
    }
  }
}

TEST(ShardedActorTest, ARanksShareThatDoesNotFitIsSaidBeforeAnythingIsMadeWithItsSum) {
  OnRanks<bool>(2, [](Communicator& ranks) {
    PolicyTrainer::Options options = OptionsOn(ranks);
    options.model.vocab_size = 152064;  // Qwen2.5-7B: 7.6 billion parameters
    options.model.hidden_size = 3584;
    options.model.intermediate_size = 18944;
    options.model.num_hidden_layers = 28;
    options.model.num_attention_heads = 28;
    options.model.num_key_value_heads = 4;
    options.model.head_dim = 128;
    options.model.tie_word_embeddings = false;
    options.compute_dtype = DType::kBFloat16;
    options.device_bytes = int64_t{60} << 30;
    const absl::Status status = PolicyTrainer::Create(options).status();
    EXPECT_EQ(ErrorReason(status), "STATE_TOO_LARGE");
    EXPECT_THAT(status.message(),
                ::testing::HasSubstr("weights 14526 MiB + gradients 14526 MiB + two moments 29051 MiB "
                                     "+ bfloat16 copy 7263 MiB + gathered units 99"));
    return true;
  });
}

TEST(ShardedActorTest, MoreRanksThanALayerHoldsAreRefusedBeforeAnythingIsMade) {
  class Many final : public Communicator {
   public:
    int32_t rank() const override { return 0; }
    int32_t world() const override { return 64000; }
    void Abort(const std::string&) override {}
    absl::Status Perform(const Collective&, void*, void*) override { return absl::InternalError("not expected"); }
  } many;
  EXPECT_EQ(ErrorReason(PolicyTrainer::Create(OptionsOn(many)).status()), "TOO_MANY_RANKS");
}

}  // namespace
}  // namespace syncopate::trainer
