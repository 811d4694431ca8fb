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
// Roles of what an environment says.
constexpr char kUser[] = "user", kTool[] = "tool";

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
  SYNCOPATE_ASSIGN_OR_RETURN(made->message_, made->MakeFrame(kUser));
  made->results_ = made->MakeFrame(kTool);
  return made;
}

absl::StatusOr<TurnFormat::Frame> TurnFormat::MakeFrame(const char* role) const {
  SYNCOPATE_ASSIGN_OR_RETURN(Frame frame, RenderStub(ShortStub(), role));
  SYNCOPATE_ASSIGN_OR_RETURN(const Frame later, RenderStub(LongStub(), role));
  if (frame.before != later.before || frame.after != later.after) {
    return NotExtendable("what it writes for a message depends on the turns before it");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(frame.opening, tokenizer_->Encode(frame.before, /*add_special_tokens=*/false));
  SYNCOPATE_ASSIGN_OR_RETURN(frame.closing, tokenizer_->Encode(frame.after, /*add_special_tokens=*/false));
  // Behind a turn that has its end token, the template's own would be a second one.
  const std::vector<int32_t>& opening = frame.opening;
  const auto end = std::find_if(opening.begin(), opening.end(), [this](int32_t token) { return IsEnd(token); });
  frame.opening_behind_end.assign(end == opening.end() ? opening.begin() : end + 1, opening.end());
  return frame;
}

bool TurnFormat::IsEnd(int32_t token) const {
  const std::vector<int32_t>& ends = options_.end_token_ids;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

absl::StatusOr<std::string> TurnFormat::RenderBehindAnswer(Json conversation, const char* role,
                                                           const std::vector<std::string>& messages) const {
  for (const std::string& message : messages) conversation.push_back(Message(role, message));
  text::chat::ChatRequest request;
  request.messages = std::move(conversation);
  request.arguments = options_.chat_arguments;
  SYNCOPATE_ASSIGN_OR_RETURN(const text::chat::RenderedChat chat, format_.Render(request, /*now=*/0));
  const size_t answer = chat.text.find(kAnswer);
  if (answer == std::string::npos) return NotExtendable("it does not write the answer before");
  return chat.text.substr(answer + sizeof(kAnswer) - 1);
}

absl::StatusOr<TurnFormat::Frame> TurnFormat::RenderStub(const Json& conversation, const char* role) const {
  const absl::StatusOr<std::string> behind = RenderBehindAnswer(conversation, role, {kMessage});
  if (!behind.ok()) {
    return ErrorReason(behind.status()) == "TEMPLATE_NOT_EXTENDABLE"
               ? behind.status()
               : NotExtendable(std::string(behind.status().message()));
  }
  const size_t message = behind->find(kMessage);
  if (message == std::string::npos) {
    return NotExtendable(absl::StrCat("it does not write a message of the role ", role, " behind an answer"));
  }
  Frame frame;
  frame.before = behind->substr(0, message);
  frame.after = behind->substr(message + sizeof(kMessage) - 1);
  return frame;
}

absl::StatusOr<EnvironmentAnswer> TurnFormat::Encode(const EnvironmentMessage& said,
                                                     const std::vector<int32_t>& turn) const {
  const bool of_tools = !said.tool_results.empty();
  if (of_tools) SYNCOPATE_RETURN_IF_ERROR(results_.status());
  const Frame& frame = of_tools ? *results_ : message_;
  std::vector<std::string> messages;
  for (const std::string& text : of_tools ? said.tool_results : std::vector<std::string>{said.text}) {
    messages.push_back(ReplaceMalformed(text));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string behind,
                             RenderBehindAnswer(ShortStub(), of_tools ? kTool : kUser, messages));
  // Templates may strip a message, but what stands around it is the same for all. What stands between several results is
  // part of the content.
  if (behind.size() < frame.before.size() + frame.after.size() || !absl::StartsWith(behind, frame.before) ||
      !absl::EndsWith(behind, frame.after)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE",
                 "the chat template writes this message otherwise than others");
  }
  const absl::string_view content =
      absl::string_view(behind).substr(frame.before.size(), behind.size() - frame.before.size() - frame.after.size());
  EnvironmentAnswer answer;
  answer.opening = !turn.empty() && IsEnd(turn.back()) ? frame.opening_behind_end : frame.opening;
  SYNCOPATE_ASSIGN_OR_RETURN(answer.content, tokenizer_->Encode(content, /*add_special_tokens=*/false));
  answer.closing = frame.closing;
  return answer;
}

}  // namespace syncopate::rollouter
