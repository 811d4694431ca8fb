#include "tools/generate/generator.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "model/adapter_files.h"
#include "model/decoder_spec.h"
#include "model/hf_config.h"
#include "model/weight_files.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/pattern.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::generate {
namespace {

constexpr absl::Duration kInstallDeadline = absl::Minutes(1);  // nothing else runs in this process

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

class AnswerSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    answer_ = std::move(trajectory);
    finished_ = true;
  }
  Trajectory Wait() {
    MutexLock lock(&mutex_);
    mutex_.Await(Condition(&finished_));
    return std::move(answer_);
  }

 private:
  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  Trajectory answer_ ABSL_GUARDED_BY(mutex_);
};

// The model's shape with exactly the context of this prompt and answer: the KV cache needs no more room.
absl::StatusOr<model::ModelConfig> ShapeFor(const GenerateOptions& options, const model::HfModel& model) {
  if (options.prompt_ids.empty()) return BadRequest("the prompt is empty");
  if (options.max_new_tokens <= 0) return BadRequest("max_new_tokens must be positive");
  for (int32_t id : options.prompt_ids) {
    if (id < 0 || id >= model.config.vocab_size) {
      return BadRequest(absl::StrCat("token id ", id, " is outside the vocabulary of ", model.config.vocab_size));
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(
      model::ModelConfig shape,
      model.WithContext(static_cast<int64_t>(options.prompt_ids.size()) + options.max_new_tokens));
  if (options.adapter.empty()) return shape;
  SYNCOPATE_ASSIGN_OR_RETURN(shape.lora,
                             model::ReadAdapterConfig(options.adapter, shape, rollouter::Pattern::CompileMatcher));
  SYNCOPATE_RETURN_IF_ERROR(shape.Validate());
  return shape;
}

// Writes the adapters into the arena of their model's manifest, in float32.
void ReadAdapters(const model::AdapterFiles& adapters, const Manifest& manifest, char* arena) {
  const size_t first = model::CountBaseTensors(manifest);
  for (size_t i = 0; i < adapters.size(); ++i) {
    auto* const numbers = reinterpret_cast<float*>(arena + manifest.ranges()[first + i].begin);
    adapters.Read(i, absl::MakeSpan(numbers, static_cast<size_t>(manifest.tensors()[first + i].NumElements())));
  }
}

absl::StatusOr<std::unique_ptr<rollouter::EngineLoop>> StartEngine(const GenerateOptions& options,
                                                                   const model::ModelConfig& shape) {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto weights, model::WeightFiles::Open(options.folder, shape));
  SYNCOPATE_RETURN_IF_ERROR(weights->CheckFinite());
  std::shared_ptr<const model::AdapterFiles> adapters;
  if (!options.adapter.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(adapters, model::AdapterFiles::Open(options.adapter, shape));
  }
  rollouter::EngineLoop::Options engine_options;
  engine_options.model = shape;
  engine_options.max_sequences = 1;
  engine_options.threads = options.threads;
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest, model::MakeManifest(shape, engine_options.dtype));
  SYNCOPATE_ASSIGN_OR_RETURN(engine_options.backend, rollouter::MakeInPlaceHostBackend(shape, manifest));
  SYNCOPATE_ASSIGN_OR_RETURN(auto engine, rollouter::EngineLoop::Start(engine_options));
  SYNCOPATE_RETURN_IF_ERROR(engine->BeginInPlace({1, 0}, kInstallDeadline));
  weights->ReadAll(engine->manifest(), engine->shadow());
  if (adapters != nullptr) ReadAdapters(*adapters, engine->manifest(), engine->shadow());
  SYNCOPATE_RETURN_IF_ERROR(engine->Install({1, 0}, /*digest=*/0, kInstallDeadline).status());
  return engine;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> IdsOfText(const std::string& folder, const std::string& text, bool chat) {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto tokenizer, text::tokenizer::Tokenizer::Load(FileSystem::Real(), folder));
  absl::StatusOr<text::chat::ChatFormat> format = text::chat::ChatFormat::Load(FileSystem::Real(), folder);
  if (!chat || ErrorReason(format.status()) == reason::kNoChatTemplate) {
    return tokenizer->Encode(text, /*add_special_tokens=*/true);
  }
  SYNCOPATE_RETURN_IF_ERROR(format.status());
  text::chat::ChatRequest request;
  request.messages.push_back({{"role", "user"}, {"content", text}});
  SYNCOPATE_ASSIGN_OR_RETURN(const text::chat::RenderedChat rendered,
                             format->Render(request, absl::ToUnixSeconds(Clock::Real()->Now())));
  return tokenizer->Encode(rendered.text, /*add_special_tokens=*/false);
}

absl::StatusOr<std::string> TextOfIds(const std::string& folder, const std::vector<int32_t>& ids) {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto tokenizer, text::tokenizer::Tokenizer::Load(FileSystem::Real(), folder));
  return tokenizer->Decode(ids, /*skip_special_tokens=*/true);
}

absl::StatusOr<Trajectory> GenerateFromFolder(const GenerateOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel model, model::ReadHfConfig(options.folder));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig shape, ShapeFor(options, model));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto engine, StartEngine(options, shape));
  rollouter::GenerationRequest request;
  request.id = "generate";
  request.prompt_ids = options.prompt_ids;
  request.sampling.temperature = static_cast<float>(options.temperature);
  request.sampling.max_new_tokens = static_cast<int32_t>(options.max_new_tokens);
  request.sampling.stop_token_ids = model.eos_token_ids;
  request.seeds = {SampleSeed(options.seed, 0)};
  auto sink = std::make_shared<AnswerSink>();
  SYNCOPATE_RETURN_IF_ERROR(engine->Submit(std::move(request), sink));
  Trajectory answer = sink->Wait();
  if (answer.finish != FinishReason::kAborted) return answer;
  const absl::Status failure = engine->GetStatus().failure;
  return failure.ok() ? absl::InternalError("the engine has ended by itself") : failure;
}

}  // namespace syncopate::generate
