#include "bench/sync/run_words.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "bench/sync/bench_model.h"

namespace syncopate::bench {
namespace {

constexpr int32_t kAnswersPerPrompt = 4;
constexpr int32_t kGpuAnswerTokens = 128, kHostAnswerTokens = 16;

}  // namespace

std::vector<std::string> BenchRunWords(const SyncCase& sync_case, const model::ModelConfig& shape) {
  const int32_t samples = std::min(kAnswersPerPrompt, sync_case.answers);
  const int32_t groups = std::max(1, sync_case.answers / samples);
  const int32_t tokens = sync_case.answer_tokens > 0 ? sync_case.answer_tokens
                         : sync_case.cpu             ? kHostAnswerTokens
                                                     : kGpuAnswerTokens;
  const char* device = sync_case.cpu ? "cpu" : "cuda";
  const bool in_place = sync_case.install == "in_place";
  std::vector<std::string> words = ShapeWords(shape);
  const std::vector<std::string> more = {
      absl::StrCat("train.device=", device),
      absl::StrCat("rollout.device=", device),
      absl::StrCat("trainer.world=", sync_case.sources),
      absl::StrCat("rollout.tensor_parallel=", sync_case.tensor_parallel),
      absl::StrCat("sync.transport=", sync_case.transport),
      absl::StrCat("sync.install=", in_place ? "in_place" : "auto"),
      absl::StrCat("sync.every_steps=", kStepsPerVersion),
      absl::StrCat("sync.bucket_bytes=", BenchBucketBytes(shape)),
      "run.steps=1000000000",
      "data.task=reverse",
      "data.length=4",
      "data.alphabet=8",
      absl::StrCat("data.batch_groups=", groups),
      absl::StrCat("rollout.samples=", samples),
      absl::StrCat("rollout.max_new_tokens=", tokens),
      absl::StrCat("rollout.max_sequences=", std::max(16, 2 * sync_case.answers)),
      absl::StrCat("rollout.kv_tokens=",
                   std::max<int64_t>(int64_t{2} * sync_case.answers, 16) * shape.max_position_embeddings / 2),
      // An answer of random weights earns nothing, and a batch without any advantage makes no update: the term for the
      // entropy makes one all the same.
      "train.entropy_coef=0.01",
      "train.learning_rate=1e-4",
      "train.micro_batch_tokens=4096",
      // With the smallest bound, rollouters need the new version for the next batch: they wait for it.
      absl::StrCat("staleness.max_staleness=", sync_case.calm ? kStepsPerVersion - 1 : 8),
      // 0: nothing is outstanding while a step runs, so that rollouters stand still then.
      absl::StrCat("staleness.target_staleness=", sync_case.decode ? 1 : 0),
      "checkpoint.every_steps=0",
      "checkpoint.at_end=false",
      "eval.every_steps=0",
      "eval.prompts=1",
      "eval.show_samples=0",
      "metrics.tensorboard=false",
  };
  words.insert(words.end(), more.begin(), more.end());
  if (sync_case.lora > 0) words.push_back(absl::StrCat("lora.rank=", sync_case.lora));
  return words;
}

}  // namespace syncopate::bench
