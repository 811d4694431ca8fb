#include "services/endpoint/answer_writer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace syncopate::endpoint {
namespace {

using Json = nlohmann::ordered_json;

// Text of a model is UTF-8 already; the handler only keeps a mistake here from being an exception.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string ToEvent(const Json& json) { return absl::StrCat("data: ", Dump(json), "\n\n"); }

int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !IsContinuationByte(byte); });
}

Json Versions(const std::vector<VersionSpan>& spans) {
  Json versions = Json::array();
  for (const VersionSpan& span : spans) {
    versions.push_back(
        {{"epoch", span.version.epoch}, {"step", span.version.step}, {"begin", span.begin}, {"end", span.end}});
  }
  return versions;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json Bytes(const std::string& text) {
  Json bytes = Json::array();
  for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
  return bytes;
}

const char* ErrorType(int code) {
  if (code == 401) return "authentication_error";
  if (code == 403) return "permission_error";
  if (code == 429) return "rate_limit_error";
  return code >= 500 ? "server_error" : "invalid_request_error";
}

Json ErrorJson(int code, const std::string& message, const Json& param, const Json& reason) {
  return {{"error", {{"message", message}, {"type", ErrorType(code)}, {"param", param}, {"code", reason}}}};
}

Json ErrorJson(const absl::Status& status) {
  const ErrorMetadata details = ErrorDetails(status);
  const auto param = details.find("param");
  std::string reason = ErrorReason(status);
  std::transform(reason.begin(), reason.end(), reason.begin(), [](unsigned char c) { return std::tolower(c); });
  return ErrorJson(HttpCode(status), std::string(status.message()),
                   param == details.end() ? Json() : Json(param->second), reason.empty() ? Json() : Json(reason));
}

}  // namespace

int HttpCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

std::string ErrorBody(const absl::Status& status) { return Dump(ErrorJson(status)); }

std::string ErrorBody(int code, const std::string& message) { return Dump(ErrorJson(code, message, nullptr, nullptr)); }

AnswerWriter::AnswerWriter(Options options)
    : options_(std::move(options)),
      began_(options_.prompt_ids.size() * static_cast<size_t>(options_.n), false),
      offsets_(began_.size(), 0),
      thoughts_(began_.size(), ReasoningParser(options_.reasoning)),
      parsers_(began_.size(), ToolCallParser(options_.tool_format, options_.text_parameters)),
      calls_(began_.size(), 0) {}

const char* AnswerWriter::FinishName(int32_t choice, FinishReason finish) const {
  if (finish == FinishReason::kLength) return "length";
  return calls_[static_cast<size_t>(choice)] > 0 ? "tool_calls" : "stop";
}

Json AnswerWriter::ToolCalls(int32_t choice, const std::vector<ToolCall>& calls, bool in_stream) {
  Json result = Json::array();
  for (const ToolCall& call : calls) {
    const int32_t index = calls_[static_cast<size_t>(choice)]++;
    Json one = Json::object();
    if (in_stream) one["index"] = index;
    one["id"] = absl::StrCat("call_", options_.id, "_", choice, "_", index);
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    result.push_back(std::move(one));
  }
  return result;
}

ReasoningParser::Parts AnswerWriter::Split(int32_t choice, const std::string& text, bool at_end) {
  ReasoningParser& thoughts = thoughts_[static_cast<size_t>(choice)];
  ToolCallParser& parser = parsers_[static_cast<size_t>(choice)];
  ReasoningParser::Parts parts = thoughts.Add(text);
  parts.answer = parser.Add(parts.answer);
  if (!at_end) return parts;
  const ReasoningParser::Parts rest = thoughts.End();
  parts.thoughts += rest.thoughts;
  parts.answer += parser.Add(rest.answer);
  parts.answer += parser.End();
  return parts;
}

Json AnswerWriter::ChatMessage(int32_t choice, const std::string& text) {
  const ReasoningParser::Parts parts = Split(choice, text, /*at_end=*/true);
  const Json calls = ToolCalls(choice, parsers_[static_cast<size_t>(choice)].TakeCalls(), /*in_stream=*/false);
  Json message = {{"role", "assistant"}, {"content", parts.answer}, {"refusal", nullptr}};
  if (!parts.thoughts.empty()) message["reasoning_content"] = parts.thoughts;
  if (calls.empty()) return message;
  if (parts.answer.empty()) message["content"] = nullptr;
  message["tool_calls"] = calls;
  return message;
}

Json AnswerWriter::Envelope(const char* object) const {
  return {{"id", options_.id}, {"object", object}, {"created", options_.created}, {"model", options_.model}};
}

std::string AnswerWriter::TokenText(int32_t token) const {
  return options_.tokenizer == nullptr ? absl::StrCat("token_id:", token)
                                       : options_.tokenizer->Decode({token}, /*skip_special_tokens=*/false);
}

Json AnswerWriter::ChatLogProbs(const AnswerToken* tokens, size_t count) const {
  Json content = Json::array();
  const auto entry = [this](int32_t token, float logprob) {
    const std::string text = TokenText(token);
    return Json{{"token", text}, {"logprob", logprob}, {"bytes", Bytes(text)}};
  };
  for (size_t i = 0; i < count; ++i) {
    Json one = entry(tokens[i].token, tokens[i].logprob);
    one["top_logprobs"] = Json::array();
    for (const TokenLogProb& top : tokens[i].top) one["top_logprobs"].push_back(entry(top.token, top.logprob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

Json AnswerWriter::LogProbs(int32_t choice, const AnswerToken* tokens, size_t count) {
  if (!options_.logprobs) return nullptr;
  if (options_.kind == RequestKind::kChat) return ChatLogProbs(tokens, count);
  Json result = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
  for (size_t i = 0; i < count; ++i) {
    result["tokens"].push_back(TokenText(tokens[i].token));
    result["token_logprobs"].push_back(tokens[i].logprob);
    Json tops = Json::object();
    for (const TokenLogProb& top : tokens[i].top) tops[TokenText(top.token)] = top.logprob;
    result["top_logprobs"].push_back(std::move(tops));
    int64_t& offset = offsets_[static_cast<size_t>(choice)];
    result["text_offset"].push_back(offset);
    offset += CountCharacters(tokens[i].text);
  }
  return result;
}

Json AnswerWriter::ChunkChoice(int32_t choice, const ReasoningParser::Parts& parts, const AnswerToken* token) {
  const bool first = !began_[static_cast<size_t>(choice)];
  began_[static_cast<size_t>(choice)] = true;
  Json one = {{"index", choice}};
  if (options_.kind == RequestKind::kChat) {
    one["delta"] = Json::object();
    if (first) one["delta"]["role"] = "assistant";
    if (!parts.thoughts.empty()) one["delta"]["reasoning_content"] = parts.thoughts;
    if (parts.thoughts.empty() || !parts.answer.empty()) one["delta"]["content"] = parts.answer;
    const Json calls = ToolCalls(choice, parsers_[static_cast<size_t>(choice)].TakeCalls(), /*in_stream=*/true);
    if (!calls.empty()) one["delta"]["tool_calls"] = calls;
  } else {
    one["text"] = parts.answer;
  }
  one["logprobs"] = token == nullptr ? Json() : LogProbs(choice, token, 1);
  one["finish_reason"] = nullptr;
  if (!options_.return_token_ids) return one;
  if (first) one["prompt_token_ids"] = options_.prompt_ids[static_cast<size_t>(choice / options_.n)];
  one["token_ids"] = token == nullptr ? Json::array() : Json::array({token->token});
  return one;
}

std::string AnswerWriter::Event(const Json& choice) const {
  Json chunk = Envelope(options_.kind == RequestKind::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({choice});
  if (options_.include_usage) chunk["usage"] = nullptr;
  return ToEvent(chunk);
}

std::string AnswerWriter::TokenEvent(int32_t choice, const AnswerToken& token) {
  const ReasoningParser::Parts parts = Split(choice, token.text, /*at_end=*/false);
  const bool shows =
      !parts.thoughts.empty() || !parts.answer.empty() || parsers_[static_cast<size_t>(choice)].has_calls();
  if (!shows && !options_.logprobs && !options_.return_token_ids) return "";
  return Event(ChunkChoice(choice, parts, &token));
}

std::string AnswerWriter::EndEvent(int32_t choice, const AnswerEnd& end) {
  Json one = ChunkChoice(choice, Split(choice, end.text, /*at_end=*/true), nullptr);
  one["finish_reason"] = FinishName(choice, end.finish);
  one["policy_versions"] = Versions(end.spans);
  return Event(one);
}

std::string AnswerWriter::LastEvents(const Usage& usage) const {
  std::string events;
  if (options_.include_usage) {
    Json chunk = Envelope(options_.kind == RequestKind::kChat ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(usage);
    events = ToEvent(chunk);
  }
  return events + "data: [DONE]\n\n";
}

std::string AnswerWriter::ErrorEvent(const absl::Status& status) { return ToEvent(ErrorJson(status)); }

std::string AnswerWriter::Whole(const std::vector<Choice>& choices, const Usage& usage) {
  const bool is_chat = options_.kind == RequestKind::kChat;
  Json answer = Envelope(is_chat ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    std::string text;
    for (const AnswerToken& token : choice.tokens) text += token.text;
    text += choice.end.text;
    Json one = {{"index", i}};
    if (is_chat) {
      one["message"] = ChatMessage(static_cast<int32_t>(i), text);
    } else {
      one["text"] = text;
    }
    one["logprobs"] = LogProbs(static_cast<int32_t>(i), choice.tokens.data(), choice.tokens.size());
    one["finish_reason"] = FinishName(static_cast<int32_t>(i), choice.end.finish);
    one["policy_versions"] = Versions(choice.end.spans);
    if (options_.return_token_ids) {
      one["prompt_token_ids"] = options_.prompt_ids[i / static_cast<size_t>(options_.n)];
      one["token_ids"] = Json::array();
      for (const AnswerToken& token : choice.tokens) one["token_ids"].push_back(token.token);
    }
    answer["choices"].push_back(std::move(one));
  }
  answer["usage"] = UsageJson(usage);
  return Dump(answer);
}

}  // namespace syncopate::endpoint
