#include "tools/generate/folder_engine.h"

#include <utility>

#include "model/adapter_files.h"
#include "model/decoder_spec.h"
#include "model/weight_files.h"
#include "rollouter/reward/pattern.h"

namespace syncopate::generate {
namespace {

constexpr absl::Duration kInstallDeadline = absl::Minutes(1);  // nothing else runs in this process

// Writes the adapters into the arena of their model's manifest, in float32.
void ReadAdapters(const model::AdapterFiles& adapters, const Manifest& manifest, char* arena) {
  const size_t first = model::CountBaseTensors(manifest);
  for (size_t i = 0; i < adapters.size(); ++i) {
    auto* const numbers = reinterpret_cast<float*>(arena + manifest.ranges()[first + i].begin);
    adapters.Read(i, absl::MakeSpan(numbers, static_cast<size_t>(manifest.tensors()[first + i].NumElements())));
  }
}

}  // namespace

absl::StatusOr<model::ModelConfig> WithAdapter(model::ModelConfig shape, const std::string& adapter) {
  if (adapter.empty()) return shape;
  SYNCOPATE_ASSIGN_OR_RETURN(shape.lora, model::ReadAdapterConfig(adapter, shape, rollouter::Pattern::CompileMatcher));
  SYNCOPATE_RETURN_IF_ERROR(shape.Validate());
  return shape;
}

absl::StatusOr<std::unique_ptr<rollouter::EngineLoop>> StartFolderEngine(const FolderEngineOptions& options,
                                                                         const model::ModelConfig& shape) {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto weights, model::WeightFiles::Open(options.folder, shape));
  SYNCOPATE_RETURN_IF_ERROR(weights->CheckFinite());
  std::shared_ptr<const model::AdapterFiles> adapters;
  if (!options.adapter.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(adapters, model::AdapterFiles::Open(options.adapter, shape));
  }
  rollouter::EngineLoop::Options engine_options;
  engine_options.model = shape;
  engine_options.max_sequences = options.max_sequences;
  engine_options.kv_tokens = options.kv_tokens;
  engine_options.threads = options.threads;
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest, model::MakeWireManifest(shape, engine_options.dtype));
  SYNCOPATE_ASSIGN_OR_RETURN(engine_options.backend, rollouter::MakeInPlaceHostBackend(shape, manifest));
  SYNCOPATE_ASSIGN_OR_RETURN(auto engine, rollouter::EngineLoop::Start(engine_options));
  SYNCOPATE_RETURN_IF_ERROR(engine->BeginInPlace({1, 0}, kInstallDeadline));
  weights->ReadAll(engine->manifest(), engine->shadow());
  if (adapters != nullptr) ReadAdapters(*adapters, engine->manifest(), engine->shadow());
  SYNCOPATE_RETURN_IF_ERROR(engine->Install({1, 0}, /*digest=*/0, kInstallDeadline).status());
  return engine;
}

}  // namespace syncopate::generate
