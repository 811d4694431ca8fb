#include "tools/generate/generator.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "model/hf_config.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/generate/folder_engine.h"

namespace syncopate::generate {
namespace {

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
      const model::ModelConfig shape,
      model.WithContext(static_cast<int64_t>(options.prompt_ids.size()) + options.max_new_tokens));
  return WithAdapter(shape, options.adapter);
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
  SYNCOPATE_ASSIGN_OR_RETURN(
      const auto engine,
      StartFolderEngine({.folder = options.folder, .adapter = options.adapter, .threads = options.threads}, shape));
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
