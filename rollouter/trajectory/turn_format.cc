#include "rollouter/trajectory/turn_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace syncopate::rollouter {
namespace {

using Json = nlohmann::ordered_json;

// Texts that no template writes by itself.
constexpr char kAnswer[] = "stub-answer-5f1c", kMessage[] = "stub-message-8d2e";

Json Message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// The shortest conversation, and a longer one of another shape.
Json ShortStub() { return Json::array({Message("user", "What is it?"), Message("assistant", kAnswer)}); }
Json LongStub() {
  return Json::array({Message("user", "Who?"), Message("assistant", "I."), Message("user", "What is it?"),
                      Message("assistant", kAnswer)});
}

absl::Status NotExtendable(const std::string& why) {
  return Error(absl::StatusCode::kFailedPrecondition, "TEMPLATE_NOT_EXTENDABLE",
               absl::StrCat("the model's chat template cannot say what an environment answers: ", why,
                            "; use another template"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TurnFormat>> TurnFormat::Create(
    std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer, text::chat::ChatFormat format, Options options) {
  std::shared_ptr<TurnFormat> made(new TurnFormat(std::move(tokenizer), std::move(format), std::move(options)));
  SYNCOPATE_RETURN_IF_ERROR(made->Prepare());
  return made;
}

absl::Status TurnFormat::Prepare() {
  SYNCOPATE_ASSIGN_OR_RETURN(const Added added, RenderStub(ShortStub()));
  SYNCOPATE_ASSIGN_OR_RETURN(const Added later, RenderStub(LongStub()));
  if (added.before != later.before || added.after != later.after) {
    return NotExtendable("what it writes for a message depends on the turns before it");
  }
  before_ = added.before;
  after_ = added.after;
  SYNCOPATE_ASSIGN_OR_RETURN(opening_, tokenizer_->Encode(before_, /*add_special_tokens=*/false));
  SYNCOPATE_ASSIGN_OR_RETURN(closing_, tokenizer_->Encode(after_, /*add_special_tokens=*/false));
  // Behind a turn that has its end token, the template's own would be a second one.
  const auto end = std::find_if(opening_.begin(), opening_.end(), [this](int32_t token) { return IsEnd(token); });
  opening_behind_end_.assign(end == opening_.end() ? opening_.begin() : end + 1, opening_.end());
  return absl::OkStatus();
}

bool TurnFormat::IsEnd(int32_t token) const {
  const std::vector<int32_t>& ends = options_.end_token_ids;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

absl::StatusOr<std::string> TurnFormat::RenderBehindAnswer(Json conversation, const std::string& message) const {
  conversation.push_back(Message("user", message));
  text::chat::ChatRequest request;
  request.messages = std::move(conversation);
  request.arguments = options_.chat_arguments;
  SYNCOPATE_ASSIGN_OR_RETURN(const text::chat::RenderedChat chat, format_.Render(request, /*now=*/0));
  const size_t answer = chat.text.find(kAnswer);
  if (answer == std::string::npos) return NotExtendable("it does not write the answer before");
  return chat.text.substr(answer + sizeof(kAnswer) - 1);
}

absl::StatusOr<TurnFormat::Added> TurnFormat::RenderStub(const Json& conversation) const {
  const absl::StatusOr<std::string> behind = RenderBehindAnswer(conversation, kMessage);
  if (!behind.ok()) {
    return ErrorReason(behind.status()) == "TEMPLATE_NOT_EXTENDABLE"
               ? behind.status()
               : NotExtendable(std::string(behind.status().message()));
  }
  const size_t message = behind->find(kMessage);
  if (message == std::string::npos) return NotExtendable("it does not write the message behind an answer");
  return Added{.before = behind->substr(0, message), .after = behind->substr(message + sizeof(kMessage) - 1)};
}

absl::StatusOr<EnvironmentAnswer> TurnFormat::Encode(const std::string& text, const std::vector<int32_t>& turn) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string behind, RenderBehindAnswer(ShortStub(), ReplaceMalformed(text)));
  // Templates may strip a message, but what stands around it is the same for all.
  if (behind.size() < before_.size() + after_.size() || !absl::StartsWith(behind, before_) ||
      !absl::EndsWith(behind, after_)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE",
                 "the chat template writes this message otherwise than others");
  }
  const absl::string_view content =
      absl::string_view(behind).substr(before_.size(), behind.size() - before_.size() - after_.size());
  EnvironmentAnswer answer;
  answer.opening = !turn.empty() && IsEnd(turn.back()) ? opening_behind_end_ : opening_;
  SYNCOPATE_ASSIGN_OR_RETURN(answer.content, tokenizer_->Encode(content, /*add_special_tokens=*/false));
  answer.closing = closing_;
  return answer;
}

}  // namespace syncopate::rollouter
