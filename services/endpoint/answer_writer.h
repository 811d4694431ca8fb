#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "services/endpoint/completion_request.h"
#include "services/endpoint/reasoning.h"
#include "text/template/tool_calls.h"
#include "text/tokenizer/tokenizer.h"

// Answers in OpenAI's form; pure.
namespace syncopate::endpoint {

using text::chat::TextParameters;
using text::chat::ToolCall;
using text::chat::ToolCallParser;
using text::chat::ToolFormat;

// One token of an answer, and the text that became final with it.
struct AnswerToken {
  int32_t token = 0;
  float logprob = 0;
  std::string text = {};
  std::vector<TokenLogProb> top = {};
};

// How an answer ended.
struct AnswerEnd {
  FinishReason finish = FinishReason::kStop;
  std::string text = {};  // that became final with the end
  std::vector<VersionSpan> spans = {};
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// Writes one response: either all of it, or chunk by chunk. Not thread-safe.
class AnswerWriter {
 public:
  struct Options {
    RequestKind kind = RequestKind::kCompletion;
    std::string id = {};
    std::string model = {};
    int64_t created = 0;  // Unix seconds
    int32_t n = 1;        // answers to each prompt
    bool logprobs = false;
    bool return_token_ids = false;
    bool include_usage = false;
    Reasoning reasoning = Reasoning::kNone;      // of a chat: thoughts that are taken out of the text
    ToolFormat tool_format = ToolFormat::kNone;  // of the calls that are taken out of the rest
    std::shared_ptr<const TextParameters> text_parameters = nullptr;  // of the tools; may be null
    std::vector<std::vector<int32_t>> prompt_ids = {};                // used with return_token_ids
    const text::tokenizer::Tokenizer* tokenizer = nullptr;            // may be null; must outlive the writer
  };
  explicit AnswerWriter(Options options);

  // The event of a stream for one token; "" if it shows nothing.
  std::string TokenEvent(int32_t choice, const AnswerToken& token);
  // The event for the end of a choice.
  std::string EndEvent(int32_t choice, const AnswerEnd& end);
  // The last events of a stream: the usage if it was asked for, and the end mark.
  std::string LastEvents(const Usage& usage) const;
  // The last event of a stream that fails.
  static std::string ErrorEvent(const absl::Status& status);

  struct Choice {
    std::vector<AnswerToken> tokens;
    AnswerEnd end;
  };
  // A whole response.
  std::string Whole(const std::vector<Choice>& choices, const Usage& usage);

 private:
  nlohmann::ordered_json Envelope(const char* object) const;
  nlohmann::ordered_json LogProbs(int32_t choice, const AnswerToken* tokens, size_t count);
  nlohmann::ordered_json ChatLogProbs(const AnswerToken* tokens, size_t count) const;
  // The parts of a text that are final with it, or at the end.
  ReasoningParser::Parts Split(int32_t choice, const std::string& text, bool at_end);
  nlohmann::ordered_json ChunkChoice(int32_t choice, const ReasoningParser::Parts& parts, const AnswerToken* token);
  nlohmann::ordered_json ToolCalls(int32_t choice, const std::vector<ToolCall>& calls, bool in_stream);
  nlohmann::ordered_json ChatMessage(int32_t choice, const std::string& text);
  const char* FinishName(int32_t choice, FinishReason finish) const;
  std::string Event(const nlohmann::ordered_json& choice) const;
  std::string TokenText(int32_t token) const;

  const Options options_;
  std::vector<bool> began_;                // by choice: an event was written
  std::vector<int64_t> offsets_;           // by choice: characters of its text so far
  std::vector<ReasoningParser> thoughts_;  // by choice
  std::vector<ToolCallParser> parsers_;    // by choice
  std::vector<int32_t> calls_;             // by choice: the calls that were written
};

// The body of an error in OpenAI's form, and the HTTP status for it.
std::string ErrorBody(const absl::Status& status);
int HttpCode(const absl::Status& status);
// The body for a status that the HTTP server itself gives.
std::string ErrorBody(int code, const std::string& message);

}  // namespace syncopate::endpoint
