#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/trajectory.h"

// OpenAI's requests as plain values; pure functions of the body.
namespace syncopate::endpoint {

// Limits of a request, the same for every model.
inline constexpr size_t kMaxRequestBytes = 16 << 20;
inline constexpr int kMaxRequestDepth = 64;
inline constexpr int32_t kMaxChoices = 1024;  // prompts x n
inline constexpr size_t kMaxStops = 16;       // stop texts, and stop tokens
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr int32_t kMaxTopLogProbs = 20;
inline constexpr size_t kMaxBiases = 1024;

enum class RequestKind { kCompletion, kChat };

// A prompt is a text or token ids.
struct Prompt {
  std::string text = {};
  std::vector<int32_t> ids = {};
  bool is_text = true;
};

struct CompletionRequest {
  RequestKind kind = RequestKind::kCompletion;
  std::string model;            // "": the one that is served
  std::vector<Prompt> prompts;  // kCompletion: one or more
  nlohmann::ordered_json chat;  // kChat: "messages", and "tools" if the template shall see them
  nlohmann::ordered_json chat_arguments = nlohmann::ordered_json::object();  // further variables of the template
  bool parses_tool_calls = false;                                            // tools are there, and tool_choice is auto
  int32_t n = 1;                                                             // answers to each prompt
  std::optional<uint64_t> seed;                                              // nullopt: another one for each request
  std::optional<int32_t> max_tokens;  // nullopt: 16 for kCompletion, the rest of the context for kChat
  SamplingParams sampling;            // max_new_tokens is not set
  std::vector<std::string> stops;
  bool logprobs = false;  // sampling.top_logprobs says how many beside the drawn token
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
};

// Parses the body of /v1/completions or /v1/chat/completions. INVALID_ARGUMENT, with the key as metadata "param": reason
// BAD_REQUEST for a wrong value, UNKNOWN_PARAMETER for a key that is not known here, UNSUPPORTED_PARAMETER for a value
// that OpenAI allows and this server does not; BAD_JSON.
absl::StatusOr<CompletionRequest> ParseCompletionRequest(absl::string_view body, RequestKind kind);

// The body of /tokenize: a text, or a conversation as of /v1/chat/completions.
struct TokenizeRequest {
  std::string model;
  std::optional<std::string> text;  // nullopt: `chat`
  nlohmann::ordered_json chat;      // as CompletionRequest.chat
  nlohmann::ordered_json chat_arguments = nlohmann::ordered_json::object();
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
};
absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(absl::string_view body);

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> ids;
};
absl::StatusOr<DetokenizeRequest> ParseDetokenizeRequest(absl::string_view body);

}  // namespace syncopate::endpoint
