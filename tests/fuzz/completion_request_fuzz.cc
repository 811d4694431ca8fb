// Parses the untrusted body of a request to the endpoint, the result is an error or a request within its limits; and reads
// the same bytes as an answer in which a model calls tools: its text and its calls do not depend on how it was cut.
#include <cstdlib>
#include <string>

#include "services/endpoint/completion_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/template/tool_calls.h"

using namespace syncopate::endpoint;  // NOLINT(google-build-using-namespace)
using syncopate::text::chat::ToolCall;
using syncopate::text::chat::ToolCallParser;
using syncopate::text::chat::ToolFormat;

namespace {

void CheckRequest(absl::string_view body, RequestKind kind) {
  const auto request = ParseCompletionRequest(body, kind);
  if (!request.ok()) return;
  const bool is_chat = kind == RequestKind::kChat;
  if (is_chat == request->chat.is_null() || is_chat != request->prompts.empty()) std::abort();
  if (request->n < 1 || request->n * static_cast<int64_t>(request->prompts.size()) > kMaxChoices) std::abort();
  if (request->max_tokens.value_or(1) < 1 || request->sampling.top_logprobs > kMaxTopLogProbs) std::abort();
  if (!(request->sampling.temperature >= 0) || request->sampling.top_k < 0) std::abort();
  for (const Prompt& prompt : request->prompts) {
    if (!prompt.is_text && prompt.ids.empty()) std::abort();
  }
}

std::string ReadAnswer(ToolFormat format, absl::string_view answer, size_t part) {
  ToolCallParser parser(format);
  std::string text;
  for (size_t i = 0; i < answer.size(); i += part) text += parser.Add(answer.substr(i, part));
  text += parser.End();
  for (const ToolCall& call : parser.TakeCalls()) text += '\0' + call.name + '\0' + call.arguments;
  return text;
}

}  // namespace

SYNCOPATE_FUZZ_TARGET(completion_request) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  CheckRequest(body, RequestKind::kCompletion);
  CheckRequest(body, RequestKind::kChat);
  (void)ParseTokenizeRequest(body);
  (void)ParseDetokenizeRequest(body);
  for (const ToolFormat format : {ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral}) {
    if (ReadAnswer(format, body, 1) != ReadAnswer(format, body, size + 1)) std::abort();
  }
  return 0;
}
