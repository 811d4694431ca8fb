// Answers that several rollouters have made one after the other, each under another version of real weights: what the
// ledger keeps of them, joined, has the log-probabilities that the trainer computes.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/philox.h"
#include "model/decoder_spec.h"
#include "ranks/communicator.h"
#include "rollouter/engine/engine.h"
#include "rollouter/trajectory/group_assembly.h"
#include "tests/support/small_model.h"
#include "trainer/actor/actor.h"
#include "trainer/data/partial_answers.h"
#include "trainer/step/train_step.h"

namespace syncopate::rollouter {
namespace {

constexpr float kTemperature = 0.8f;
constexpr int32_t kSamples = 3;

// The weights of a version are drawn from its step.
uint64_t SeedOf(const PolicyVersion& version) { return 70 + static_cast<uint64_t>(version.step); }

// A rollouter's engine that serves one version from its start to its end.
class ServingEngine {
 public:
  ServingEngine(const model::ModelConfig& config, const PolicyVersion& version) {
    at::set_num_threads(1);
    const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
    engine_ = Engine::Create(config, std::make_shared<HostBackend>(config, manifest), Engine::Options()).value();
    model::InitialiseWeights(config, manifest, SeedOf(version), reinterpret_cast<float*>(engine_->policy().shadow()));
    EXPECT_TRUE(engine_->Synchronize().ok());
    EXPECT_TRUE(engine_->policy().Install(version, SeedOf(version)).ok());
  }

  // Answers a lease, for `steps` decode steps at most: the rollouter is lost then. `reports` gets each token.
  std::optional<TrajectoryGroup> Answer(const Lease& lease, std::shared_ptr<AnswerReports> reports, int steps) {
    std::optional<TrajectoryGroup> answer;
    const StopRules stops;
    const auto assembly = std::make_shared<GroupAssembly>(
        lease, MemberId{"rollouter", "rollouter-0", 0, 1, "a"},
        [&answer](absl::StatusOr<TrajectoryGroup> made) {
          if (made.ok()) answer = *std::move(made);
        },
        std::make_shared<TokenCount>(0), &stops, std::move(reports));
    if (assembly->DeliverIfFinished()) return answer;
    GenerationRequest request = RequestFor(lease, lease.id.group.ToString());
    EXPECT_TRUE(engine_->CheckShape(request).ok()) << engine_->CheckShape(request);
    engine_->Add(std::move(request), assembly);
    for (int i = 0; i < steps && engine_->HasWork(); ++i) EXPECT_TRUE(engine_->Step().ok());
    engine_->Abort("");  // what it had not reported is lost with it
    return answer;
  }

 private:
  std::unique_ptr<Engine> engine_;
};

Lease MakeLease(const model::ModelConfig& config, uint64_t seed) {
  Lease lease;
  lease.id = {{0, static_cast<int64_t>(seed)}, 1};
  lease.samples = kSamples;
  lease.seed = seed;
  lease.sampling.temperature = kTemperature;
  lease.sampling.max_new_tokens = static_cast<int32_t>(config.max_position_embeddings / 2);
  const int64_t length = 2 + Philox4x32(seed, 0)[0] % (config.max_position_embeddings / 2 - 2);
  for (int64_t i = 0; i < length; ++i) {
    lease.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, 1 + i)[0] % config.vocab_size));
  }
  return lease;
}

// Leases the group until it is answered: each rollouter but the last is lost after two decode steps, and each serves a
// newer version than the one before.
TrajectoryGroup AnswerInAttempts(const model::ModelConfig& config, Lease lease) {
  trainer::PartialAnswers kept(int64_t{1} << 20);
  for (int32_t attempt = 1; attempt <= 20; ++attempt) {
    lease.id.attempt = attempt;
    lease.version = {1, 3 * attempt};
    lease.starts = kept.BeginLease(lease.id, kSamples, /*reports=*/true);
    std::vector<int32_t> begins(kSamples, 0);
    for (size_t i = 0; i < lease.starts.size(); ++i) begins[i] = static_cast<int32_t>(lease.starts[i].tokens.size());
    const auto reports = std::make_shared<AnswerReports>(begins);
    const bool is_last = attempt == 3;
    std::optional<TrajectoryGroup> answer =
        ServingEngine(config, lease.version).Answer(lease, reports, is_last ? 1000 : 3);
    if (answer.has_value()) {
      TakeOffStarts(lease, &*answer);
      if (kept.HasStart(lease.id)) {
        EXPECT_TRUE(kept.Join(&*answer).ok());
      }
      return *std::move(answer);
    }
    for (const AnswerPart& part : reports->Take(/*least=*/1)) EXPECT_TRUE(kept.Add(lease.id, part).ok());
  }
  ADD_FAILURE() << "the group was never answered";
  return {};
}

// The log-probabilities of a whole answer by the trainer's forward pass under the weights of `version`.
at::Tensor Recompute(const model::ModelConfig& config, const PolicyVersion& version, const TrajectoryGroup& group,
                     const Trajectory& answer) {
  trainer::Actor actor(config, *model::MakeManifest(config, DType::kFloat32), {}, SeedOf(version));
  SingleRank ranks;
  trainer::TrainStepOptions options;
  options.temperature = kTemperature;
  return *trainer::TrainStep(actor, ranks, options).LogProbs(trainer::Pack({{&group.prompt_ids, &answer, 0.0}}));
}

class ContinuedAnswersTest : public ::testing::TestWithParam<model::ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, ContinuedAnswersTest,
                         ::testing::Values(testing::SmallModel(), testing::GroupedQueryModel()));

TEST_P(ContinuedAnswersTest, LogProbsOfEachSpanAreThoseOfItsVersionRecomputedFromTheWholePrefix) {
  int64_t continued = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const TrajectoryGroup group = AnswerInAttempts(GetParam(), MakeLease(GetParam(), seed));
    ASSERT_EQ(group.samples.size(), static_cast<size_t>(kSamples));
    for (const Trajectory& answer : group.samples) {
      ASSERT_EQ(answer.tokens.size(), answer.logprobs.size());
      continued += answer.spans.size() > 1 ? 1 : 0;
      int32_t covered = 0;
      for (const VersionSpan& span : answer.spans) {
        EXPECT_EQ(span.begin, covered);
        covered = span.end;
        const at::Tensor right = Recompute(GetParam(), span.version, group, answer);
        const at::Tensor wrong = Recompute(GetParam(), {1, span.version.step + 1}, group, answer);
        double far = 0;
        for (int32_t i = span.begin; i < span.end; ++i) {
          const double made = answer.logprobs[static_cast<size_t>(i)];
          EXPECT_NEAR(right[i].item<double>(), made, 1e-5) << span.version.ToString() << " token " << i;
          far = std::max(far, std::abs(wrong[i].item<double>() - made));
        }
        EXPECT_GT(far, 1e-3) << "weights of another version would show";
      }
      EXPECT_EQ(covered, std::ssize(answer.tokens)) << "the spans cover the answer";
    }
  }
  EXPECT_GE(continued, 8) << "answers of several attempts";
}

}  // namespace
}  // namespace syncopate::rollouter
