#include "services/config/run_model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "model/adapter_files.h"
#include "model/device.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "rollouter/engine/rank_slice.h"
#include "rollouter/reward/pattern.h"
#include "services/config/rules.h"

namespace syncopate::config {
namespace {

constexpr char kModelFolder[] = "model";
constexpr char kAdapterFolder[] = "adapter";

absl::Status BadConfig(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", message);
}

// The shape from the model keys; model.vocab_size 0 becomes the task's vocabulary.
model::ModelConfig ShapeByKeys(const v1::RunConfig& config) {
  const v1::ModelSection& section = config.model();
  model::ModelConfig shape;
  shape.vocab_size = section.vocab_size() > 0 ? section.vocab_size() : GetShape(config.data()).vocabulary;
  shape.hidden_size = section.hidden_size();
  shape.intermediate_size = section.intermediate_size();
  shape.num_hidden_layers = section.num_hidden_layers();
  shape.num_attention_heads = section.num_attention_heads();
  shape.num_key_value_heads = section.num_key_value_heads();
  shape.head_dim = section.head_dim();
  shape.max_position_embeddings = section.max_position_embeddings();
  shape.rope_theta = section.rope_theta();
  shape.rms_norm_eps = section.rms_norm_eps();
  shape.qk_norm = section.qk_norm();
  shape.learned_positions = section.learned_positions();
  shape.tie_word_embeddings = section.tie_word_embeddings();
  shape.embedding_init_std = section.embedding_init_std();
  shape.head_init_std = section.head_init_std();
  return shape;
}

// The folder with adapter_config.json; "" if there is none. A resumed run has its own copy of that file.
std::string FindAdapterDescription(const v1::RunConfig& config) {
  if (config.run().resume()) {
    const std::string kept = KeptAdapterFolder(config.run().dir());
    if (FileSystem::Real()->FileBytes(JoinPath(kept, model::kAdapterConfigFile)).ok()) return kept;
  }
  return config.lora().path();
}

// The adapters of the run on `base`; none if all weights are trained.
absl::StatusOr<model::LoraConfig> FindAdapters(const v1::RunConfig& config, const model::ModelConfig& base) {
  const v1::LoraSection& section = config.lora();
  model::LoraConfig lora;
  if (!section.path().empty()) {
    absl::StatusOr<model::LoraConfig> read =
        model::ReadAdapterConfig(FindAdapterDescription(config), base, rollouter::Pattern::CompileMatcher);
    if (!read.ok()) return Annotate(read.status(), "lora.path");
    lora = *std::move(read);
  } else if (section.rank() > 0) {
    lora.rank = section.rank();
    lora.alpha = section.alpha() > 0 ? section.alpha() : 2.0 * static_cast<double>(section.rank());
    lora.rank_stabilised = section.scaling() == "rslora";
    absl::StatusOr<std::vector<std::string>> projections = model::ParseProjections(section.target_modules());
    if (!projections.ok()) return Annotate(projections.status(), "lora.target_modules");
    lora.projections = *std::move(projections);
  }
  return lora;
}

// Sets the run's adapters in `shape`, and checks that the model can have them.
absl::Status AddAdapters(const v1::RunConfig& config, model::ModelConfig* shape) {
  SYNCOPATE_ASSIGN_OR_RETURN(shape->lora, FindAdapters(config, *shape));
  return shape->lora.enabled() ? shape->Validate() : absl::OkStatus();
}

// The folder with config.json; "" for a model that keys describe. A resumed run has its own copy.
std::string FindDescription(const v1::RunConfig& config) {
  if (config.run().resume()) {
    const std::string kept = KeptModelFolder(config.run().dir());
    if (FileSystem::Real()->FileBytes(JoinPath(kept, model::kHfConfigFile)).ok()) return kept;
  }
  return config.model().path();
}

}  // namespace

std::string KeptModelFolder(const std::string& run_dir) { return JoinPath(run_dir, kModelFolder); }
std::string KeptAdapterFolder(const std::string& run_dir) { return JoinPath(run_dir, kAdapterFolder); }

absl::StatusOr<RunModel> FindRunModel(const v1::RunConfig& config) {
  RunModel model;
  model.description = FindDescription(config);
  const auto ranks = static_cast<int32_t>(config.rollout().tensor_parallel());
  if (model.by_keys()) {
    model.shape = ShapeByKeys(config);
    SYNCOPATE_RETURN_IF_ERROR(AddAdapters(config, &model.shape));
    SYNCOPATE_RETURN_IF_ERROR(rollouter::CheckTensorParallel(model.shape, ranks));
    return model;
  }
  absl::StatusOr<model::HfModel> found = model::ReadHfConfig(model.description);
  if (!found.ok()) return Annotate(found.status(), "model.path");
  const TaskShape task = GetShape(config.data());
  // Keys and values are allocated for the context, so the default is what prompts and answers need and not the model's
  // maximum.
  const int64_t context = config.model().context_length() > 0 ? config.model().context_length()
                                                              : task.prompt_tokens + LongestAnswer(config);
  absl::StatusOr<model::ModelConfig> shape = found->WithContext(context);
  if (!shape.ok()) {
    const char* source = config.data().files().empty() ? "data.length" : "data.max_prompt_tokens";
    return BadConfig(absl::StrCat("model.path: ", shape.status().message(), "; lower ",
                                  config.model().context_length() > 0
                                      ? "model.context_length"
                                      : absl::StrCat("rollout.max_new_tokens or ", source)));
  }
  if (shape->vocab_size < task.vocabulary) {
    return BadConfig(absl::StrCat("model.path: the model has ", shape->vocab_size, " tokens, and the task needs ",
                                  task.vocabulary, "; lower data.alphabet"));
  }
  model.shape = *shape;
  SYNCOPATE_RETURN_IF_ERROR(AddAdapters(config, &model.shape));
  SYNCOPATE_RETURN_IF_ERROR(rollouter::CheckTensorParallel(model.shape, ranks));
  return model;
}

// Decided by the rollouters' device alone: weights are sent in the type that is served, and a trainer casts when it
// stages. Each process of a run must come to the same answer, so this looks at the key "auto" and not at the machine.
DType ToWireDType(const v1::RunConfig& config) {
  const std::string& dtype = config.model().dtype();
  if (dtype == "auto") return model::IsCuda(config.rollout().device()) ? DType::kBFloat16 : DType::kFloat32;
  return dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
}

absl::StatusOr<Manifest> MakeWireManifest(const v1::RunConfig& config, const model::ModelConfig& shape) {
  return model::MakeWireManifest(shape, ToWireDType(config), config.sync().bucket_bytes());
}

std::string MakeRolloutLayout(const v1::RunConfig& config, const model::ModelConfig& shape) {
  return rollouter::TensorParallelLayout(static_cast<int32_t>(config.rollout().tensor_parallel()));
}

absl::StatusOr<std::shared_ptr<const model::WeightFiles>> OpenInitialWeights(const v1::RunConfig& config,
                                                                             const RunModel& model) {
  if (model.by_keys()) return std::shared_ptr<const model::WeightFiles>();
  if (config.model().path().empty()) {
    return BadConfig(
        "model.path is not set, and the run has no checkpoint to take the weights from, or none that contains the base "
        "of "
        "its adapters, or the reference policy that train.kl_coef asks for");
  }
  auto weights = model::WeightFiles::Open(config.model().path(), model.shape);
  if (!weights.ok()) return Annotate(weights.status(), "model.path");
  return weights;
}

absl::StatusOr<std::shared_ptr<const model::AdapterFiles>> OpenInitialAdapters(const v1::RunConfig& config,
                                                                               const RunModel& model) {
  if (config.lora().path().empty()) return std::shared_ptr<const model::AdapterFiles>();
  auto adapters = model::AdapterFiles::Open(config.lora().path(), model.shape);
  if (!adapters.ok()) return Annotate(adapters.status(), "lora.path");
  return adapters;
}

bool LendsBase(const v1::RunConfig& config, const model::ModelConfig& shape) {
  const bool has_ranks = config.trainer().world() > 1 || config.rollout().tensor_parallel() > 1;
  return config.run().share_gpu() && !has_ranks && shape.lora.enabled();
}

}  // namespace syncopate::config
