#include "rollouter/engine/engine_loop.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_thread.h"

namespace syncopate::rollouter {

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Start(const Options& options) {
  Engine::Options engine_options;
  engine_options.max_sequences = options.max_sequences;
  engine_options.max_prefill_tokens = options.max_prefill_tokens;
  engine_options.kv_blocks = (options.kv_tokens + kBlockTokens - 1) / kBlockTokens;
  engine_options.deterministic = options.deterministic;
  SYNCOPATE_RETURN_IF_ERROR(engine_options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, options.dtype, options.bucket_bytes));
  std::shared_ptr<EngineBackend> backend = options.backend;
  try {
    if (backend == nullptr) backend = std::make_shared<HostBackend>(options.model, manifest);
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                               Engine::Create(options.model, std::move(backend), engine_options));
    return std::make_unique<EngineThread>(options.threads, std::move(manifest), std::move(engine));
  } catch (const std::exception& error) {
    return model::TorchError(
        error, absl::StrCat("the engine cannot start; it has room for keys and values of ", options.max_sequences,
                            " sequences beside the weights: lower rollout.max_sequences or "
                            "model.max_position_embeddings"));
  }
}

}  // namespace syncopate::rollouter
