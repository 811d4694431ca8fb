#include "trainer/data/guess_task.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/guess_tokens.h"
#include "base/philox.h"

namespace syncopate::trainer {
namespace {

using namespace guess_tokens;  // NOLINT: the file is about these

class GuessTask final : public PromptSource {
 public:
  explicit GuessTask(uint64_t seed) : seed_(seed) {}

  Prompt At(const GroupId& group) const override {
    const uint64_t key = HashCombine(seed_, static_cast<uint64_t>(group.pass));
    const auto id = static_cast<int32_t>(Philox4x32(key, static_cast<uint64_t>(group.ordinal))[0] % kNumbers);
    Prompt prompt;
    prompt.prompt_ids = {kBegin, kAsk};
    prompt.answer_ids = {id, kEnd};
    prompt.task.row_json = absl::StrCat(R"({"ground_truth": )", id + 1, "}");
    return prompt;
  }

  std::string Render(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (int32_t id : ids) {
      if (id != kBegin) absl::StrAppend(&text, text.empty() ? "" : " ", RenderOne(id));
    }
    return text;
  }

  int64_t prompts_per_pass() const override { return 0; }
  int32_t vocab_size() const override { return kVocabulary; }
  std::vector<int32_t> stop_token_ids() const override { return {kEnd}; }
  int64_t max_prompt_tokens() const override { return kPromptTokens; }
  int64_t max_answer_tokens() const override { return kTurnTokens; }

 private:
  static std::string RenderOne(int32_t id) {
    switch (id) {
      case kAsk:
        return "?";
      case kEnd:
        return ".";
      case kHigher:
        return "higher";
      case kLower:
        return "lower";
      case kNoNumber:
        return "no number";
      default:
        return id >= 0 && id < kNumbers ? absl::StrCat(id + 1) : "?";
    }
  }

  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<PromptSource> MakeGuessTask(uint64_t seed) { return std::make_unique<GuessTask>(seed); }

}  // namespace syncopate::trainer
