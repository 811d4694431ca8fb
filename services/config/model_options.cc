#include "services/config/model_options.h"

#include "absl/strings/str_cat.h"
#include "services/config/rules.h"

namespace syncopate::config {
namespace {

absl::Status DoesNotFit(const std::string& key, const std::string& value, const model::DeviceRequest& request,
                        const std::string& device) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
               absl::StrCat(key, " is ", value, ", but ", request.key, " ", request.wanted, " is ", device,
                            " here; set ", key, "=auto, or name the device"));
}

absl::Status CheckTransport(const v1::RunConfig& config, const model::DeviceRequest& request,
                            const std::string& device) {
  const std::string& transport = config.sync().transport();
  const bool between_gpus = transport == "ipc" || transport == "nccl";
  if (!between_gpus || model::IsCuda(device)) return absl::OkStatus();
  return DoesNotFit("sync.transport", transport, request, device);
}

}  // namespace

model::ModelConfig ModelConfigOf(const v1::RunConfig& config) {
  const v1::ModelSection& section = config.model();
  model::ModelConfig model;
  model.vocab_size = section.vocab_size() > 0 ? section.vocab_size() : ShapeOf(config.data()).vocabulary;
  model.hidden_size = section.hidden_size();
  model.intermediate_size = section.intermediate_size();
  model.num_hidden_layers = section.num_hidden_layers();
  model.num_attention_heads = section.num_attention_heads();
  model.num_key_value_heads = section.num_key_value_heads();
  model.head_dim = section.head_dim();
  model.max_position_embeddings = section.max_position_embeddings();
  model.rope_theta = section.rope_theta();
  model.rms_norm_eps = section.rms_norm_eps();
  model.qk_norm = section.qk_norm();
  model.learned_positions = section.learned_positions();
  model.tie_word_embeddings = section.tie_word_embeddings();
  model.embedding_init_std = section.embedding_init_std();
  model.head_init_std = section.head_init_std();
  return model;
}

DType WireDTypeOf(const v1::RunConfig& config) {
  const std::string& dtype = config.model().dtype();
  if (dtype == "auto") return model::IsCuda(config.rollout().device()) ? DType::kBFloat16 : DType::kFloat32;
  return dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
}

absl::StatusOr<Manifest> WireManifestOf(const v1::RunConfig& config) {
  return model::MakeManifest(ModelConfigOf(config), WireDTypeOf(config), config.sync().bucket_bytes());
}

model::DeviceRequest TrainDeviceRequest(const v1::RunConfig& config) {
  return {.key = "train.device", .wanted = config.train().device()};
}

model::DeviceRequest RolloutDeviceRequest(const v1::RunConfig& config) {
  return {.key = "rollout.device",
          .wanted = config.rollout().device(),
          .reserved = 1,
          .member = config.rollouter().index()};
}

absl::Status CheckTrainDevice(const v1::RunConfig& config, const std::string& device) {
  return CheckTransport(config, TrainDeviceRequest(config), device);
}

absl::Status CheckRolloutDevice(const v1::RunConfig& config, const std::string& device) {
  const model::DeviceRequest request = RolloutDeviceRequest(config);
  SYNCOPATE_RETURN_IF_ERROR(CheckTransport(config, request, device));
  const std::string& install = config.sync().install();
  const bool fits = install == "auto" || (install == "swap") != model::IsCuda(device);
  return fits ? absl::OkStatus() : DoesNotFit("sync.install", install, request, device);
}

rollouter::EngineLoop::Options EngineOptionsOf(const v1::RunConfig& config) {
  rollouter::EngineLoop::Options options;
  options.model = ModelConfigOf(config);
  options.max_sequences = config.rollout().max_sequences();
  options.kv_tokens = config.rollout().kv_tokens();
  options.bucket_bytes = config.sync().bucket_bytes();
  options.dtype = WireDTypeOf(config);
  options.threads = static_cast<int>(config.run().threads());
  return options;
}

}  // namespace syncopate::config
