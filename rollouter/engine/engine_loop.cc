#include "rollouter/engine/engine_loop.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_thread.h"

namespace syncopate::rollouter {
namespace {

absl::Status TakeHostMemory(int64_t bytes, const EngineBackend& backend, Engine::Options* options) {
  if (bytes == 0) return absl::OkStatus();
  const int64_t block = backend.kv_block_bytes();
  options->host_kv_blocks = bytes / block;
  options->preemption = Scheduler::Preemption::kSwap;
  if (options->host_kv_blocks == 0) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 absl::StrCat("rollout.host_kv_memory of ", bytes, " bytes is less than one block of ", kBlockTokens,
                              " tokens, ", block, " bytes: raise it, or set it to 0"));
  }
  SYNCOPATE_LOG(kInfo, "preempted sequences are swapped to host memory, %d tokens in %d MiB",
                options->host_kv_blocks * kBlockTokens, options->host_kv_blocks * block >> 20);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Start(const Options& options) {
  Engine::Options engine_options;
  engine_options.max_sequences = options.max_sequences;
  engine_options.max_prefill_tokens = options.max_prefill_tokens;
  engine_options.kv_blocks = (options.kv_tokens + kBlockTokens - 1) / kBlockTokens;
  engine_options.deterministic = options.deterministic;
  SYNCOPATE_RETURN_IF_ERROR(engine_options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeWireManifest(options.model, options.dtype, options.bucket_bytes));
  std::shared_ptr<EngineBackend> backend = options.backend;
  try {
    if (backend == nullptr) backend = std::make_shared<HostBackend>(options.model, manifest);
    SYNCOPATE_RETURN_IF_ERROR(TakeHostMemory(options.host_kv_bytes, *backend, &engine_options));
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
