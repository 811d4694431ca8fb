#include "bench/train/beside_steps.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "bench/measure/figures.h"
#include "bench/train/train_stager.h"
#include "trainer/checkpoint/export_store.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using trainer::PolicyTrainer;

constexpr double kGiB = 1 << 30;
constexpr int kExports = 5;

double MillisecondsSince(absl::Time begin) { return absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin); }

absl::Status OtherBits(const char* what) { return Error(absl::StatusCode::kInternal, "DIGEST_CHANGED", what); }

// With the digest of the weights before it, which a trainer makes once a step, after the launch of the staging.
absl::StatusOr<double> TimeStep(PolicyTrainer& policy, const TrainBatch& batch) {
  const absl::Time begin = Clock::Real()->Now();
  SYNCOPATE_RETURN_IF_ERROR(policy.Digest().status());
  SYNCOPATE_RETURN_IF_ERROR(policy.Step(batch.groups()).status());
  return MillisecondsSince(begin);
}

// A folder that describes `shape` as a Hugging Face model, and another one beside it; gone with this object.
class ExportFolders {
 public:
  explicit ExportFolders(const model::ModelConfig& shape)
      : root_(std::filesystem::temp_directory_path() / absl::StrCat("syncopate-bench-", getpid())) {
    std::filesystem::create_directories(description());
    const bool is_qwen3 = shape.qk_norm;
    const char* const family = is_qwen3 ? "qwen3" : shape.qkv_bias ? "qwen2" : "llama";
    const char* const named = is_qwen3 ? "Qwen3ForCausalLM" : shape.qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
    const json config = {{"architectures", {named}},
                         {"model_type", family},
                         {"hidden_act", "silu"},
                         {"hidden_size", shape.hidden_size},
                         {"intermediate_size", shape.intermediate_size},
                         {"num_hidden_layers", shape.num_hidden_layers},
                         {"num_attention_heads", shape.num_attention_heads},
                         {"num_key_value_heads", shape.num_key_value_heads},
                         {"head_dim", shape.head_dim},
                         {"max_position_embeddings", shape.max_position_embeddings},
                         {"vocab_size", shape.vocab_size},
                         {"rope_theta", shape.rope_theta},
                         {"rms_norm_eps", shape.rms_norm_eps},
                         {"tie_word_embeddings", shape.tie_word_embeddings}};
    std::ofstream(description() + "/config.json") << config.dump(2) << "\n";
  }
  ~ExportFolders() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  ExportFolders(const ExportFolders&) = delete;
  ExportFolders& operator=(const ExportFolders&) = delete;

  std::string description() const { return root_ / "description"; }
  std::string exports() const { return root_ / "exports"; }

 private:
  const std::filesystem::path root_;
};

}  // namespace

absl::StatusOr<json> MeasureStaging(PolicyTrainer& policy, const TrainBatch& batch, const BesideSteps& asked) {
  const DType dtype = asked.on_gpu ? DType::kBFloat16 : DType::kFloat32;
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, model::MakeWireManifest(asked.shape, dtype));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto stager, MakeTrainStager(&policy, wire, asked.device, asked.on_gpu));
  std::vector<double> step_ms, staged_step_ms, launch_ms, update_wait_ms, digests_ms, alone_ms;
  PolicyVersion version{1, 0};
  for (int i = 0; i < asked.steps; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double alone, TimeStep(policy, batch));
    step_ms.push_back(alone);
    ++version.step;
    SYNCOPATE_ASSIGN_OR_RETURN(const auto expected, InUse(policy, [&] { return stager->Stage(version); }));
    alone_ms.push_back(expected.seconds * 1e3);
    ++version.step;
    stager->TakeWaitSeconds();
    const absl::Time begin = Clock::Real()->Now();
    SYNCOPATE_RETURN_IF_ERROR(InUse(policy, [&] { return stager->Launch(version); }));
    launch_ms.push_back(MillisecondsSince(begin));
    // The thread that publishes versions does the same.
    double digests_after_ms = 0;
    auto staged = std::async(std::launch::async, [&] {
      auto made = stager->Await();
      digests_after_ms = MillisecondsSince(begin);
      return made;
    });
    const absl::StatusOr<double> stepped = TimeStep(policy, batch);
    staged_step_ms.push_back(MillisecondsSince(begin));
    update_wait_ms.push_back(stager->TakeWaitSeconds() * 1e3);
    SYNCOPATE_ASSIGN_OR_RETURN(const auto made, staged.get());
    SYNCOPATE_RETURN_IF_ERROR(stepped.status());
    digests_ms.push_back(digests_after_ms);
    if (made.digest != expected.digest)
      return OtherBits("what was staged beside a step is not what was there before it");
  }
  const double gib = static_cast<double>(wire.arena_bytes()) / kGiB;
  return json{{"step_ms", Median(step_ms)},
              {"staged_step_ms", Median(staged_step_ms)},
              {"loss_ratio", Median(staged_step_ms) / Median(step_ms) - 1},
              {"wait_ms", Median(launch_ms) + Median(update_wait_ms)},
              {"launch_ms", Median(launch_ms)},
              {"update_wait_ms", Median(update_wait_ms)},
              {"digests_ms", Median(digests_ms)},
              {"alone_ms", Median(alone_ms)},
              {"staged_gib", gib},
              {"gib_per_second", gib / Median(alone_ms) * 1e3}};
}

absl::StatusOr<json> MeasureExport(PolicyTrainer& policy, const TrainBatch& batch, const BesideSteps& asked) {
  const ExportFolders folders(asked.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(
      const auto store, trainer::ExportStore::Open(FileSystem::Real(),
                                                   {.root = folders.exports(), .description = folders.description()}));
  std::vector<double> step_ms, first_step_ms, beside_step_ms, held_ms, copied_ms, written_ms;
  double gib = 0;
  // The first export also takes host memory for the copy.
  for (int i = 0; i <= kExports; ++i) {
    for (int step = 0; step < std::max(1, asked.steps / kExports); ++step) {
      SYNCOPATE_ASSIGN_OR_RETURN(const double alone, TimeStep(policy, batch));
      step_ms.push_back(alone);
    }
    SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t digest, policy.Digest());
    const absl::Time begin = Clock::Real()->Now();
    SYNCOPATE_ASSIGN_OR_RETURN(auto snapshot, policy.TakeWeights(""));
    const double held = MillisecondsSince(begin);
    std::atomic<bool> is_written = false;
    double copied_after_ms = 0, written_after_ms = 0;
    auto write = std::async(std::launch::async, [&]() -> absl::Status {
      absl::Status status = snapshot->FinishCopy();
      copied_after_ms = MillisecondsSince(begin);
      if (status.ok()) status = store->Write({.name = absl::StrCat("export-", i), .snapshot = snapshot}).status();
      written_after_ms = MillisecondsSince(begin);
      is_written = true;
      return status;
    });
    absl::Status stepped;
    std::vector<double> beside;
    while (stepped.ok() && (beside.empty() || !is_written)) {
      const absl::StatusOr<double> one = TimeStep(policy, batch);
      stepped = one.status();
      if (one.ok()) beside.push_back(*one);
    }
    SYNCOPATE_RETURN_IF_ERROR(write.get());
    SYNCOPATE_RETURN_IF_ERROR(stepped);
    if (CombineDigests(DigestBuckets(snapshot->manifest, snapshot->arenas[0].get())) != digest) {
      return OtherBits("what was exported is not what the step before has left");
    }
    std::error_code ignored;
    std::filesystem::remove_all(store->GetPath(absl::StrCat("export-", i)), ignored);
    gib = static_cast<double>(snapshot->manifest.arena_bytes()) / kGiB / 2;
    if (i == 0) {
      step_ms.clear();
      continue;
    }
    held_ms.push_back(held);
    copied_ms.push_back(copied_after_ms);
    written_ms.push_back(written_after_ms);
    first_step_ms.push_back(beside.front());
    // The last one may have gone on after the export.
    for (size_t step = 1; step + 1 < beside.size(); ++step) beside_step_ms.push_back(beside[step]);
  }
  json line = {{"step_ms", Median(step_ms)},
               {"held_ms", Median(held_ms)},
               {"copied_ms", Median(copied_ms)},
               {"written_ms", Median(written_ms)},
               {"first_step_ms", Median(first_step_ms)},
               {"first_loss_ratio", (Median(first_step_ms) + Median(held_ms)) / Median(step_ms) - 1},
               {"steps_beside", beside_step_ms.size()},
               {"exported_gib", gib}};
  if (beside_step_ms.empty()) return line;  // an export took less than two steps
  line["beside_step_ms"] = Median(beside_step_ms);
  line["loss_ratio"] = Median(beside_step_ms) / Median(step_ms) - 1;
  return line;
}

}  // namespace syncopate::bench
