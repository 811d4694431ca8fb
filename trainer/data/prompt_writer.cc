#include "trainer/data/prompt_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

using Json = nlohmann::ordered_json;
using text::chat::ChatFormat;
using text::tokenizer::PieceCache;

// The day that templates are told it is, for some write it down: a prompt is the same after every restart. 2025-01-01.
constexpr int64_t kToday = 1735689600;

absl::Status BadPrompt(const char* reason, const std::string& text) {
  return Error(absl::StatusCode::kInvalidArgument, reason, text);
}

Json Message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

bool BeginsWithSystem(const Json& messages) {
  const Json& role = messages[0]["role"];
  return role == "system" || role == "developer";
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PromptWriter>> PromptWriter::Load(FileSystem* files, const std::string& folder,
                                                                       Options options) {
  auto writer = std::shared_ptr<PromptWriter>(new PromptWriter(std::move(options)));
  SYNCOPATE_ASSIGN_OR_RETURN(writer->tokenizer_, text::tokenizer::Tokenizer::Load(files, folder));
  if (!writer->options_.use_chat_template) return writer;
  absl::StatusOr<ChatFormat> format = ChatFormat::Load(files, folder);
  // Base models have none: prompts are plain text then.
  if (ErrorReason(format.status()) == reason::kNoChatTemplate) return writer;
  SYNCOPATE_RETURN_IF_ERROR(format.status());
  writer->format_ = *std::move(format);
  return writer;
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::WriteChat(Json messages, PieceCache* cache) const {
  if (!format_.has_value()) {
    return BadPrompt(reason::kNoChatTemplate, options_.use_chat_template
                                                  ? "the prompt is a conversation, and the model has no chat template"
                                                  : "the prompt is a conversation, and data.chat_template is off");
  }
  if (!options_.system_prompt.empty() && !BeginsWithSystem(messages)) {
    messages.insert(messages.begin(), Message("system", options_.system_prompt));
  }
  text::chat::ChatRequest request;
  request.messages = std::move(messages);
  request.arguments = options_.chat_arguments;
  SYNCOPATE_ASSIGN_OR_RETURN(const text::chat::RenderedChat chat, format_->Render(request, kToday));
  // A template writes the begin of text itself, as transformers has it.
  return tokenizer_->Encode(chat.text, /*add_special_tokens=*/false, cache);
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::WriteAnswer(const Json& answer, PieceCache* cache) const {
  const std::string text = answer.is_string() ? answer.get<std::string>() : answer.dump();
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_->Encode(text, /*add_special_tokens=*/false, cache));
  // A right answer also ends: comparing token by token, a policy must learn to stop.
  if (!options_.stop_token_ids.empty()) ids.push_back(options_.stop_token_ids.front());
  return ids;
}

absl::Status PromptWriter::CheckInModel(const char* what, const std::vector<int32_t>& ids) const {
  const int32_t highest = *std::max_element(ids.begin(), ids.end());
  // A tokenizer may have more tokens than the model has embeddings; an index beyond them would be an error on the
  // device, far from its cause.
  if (options_.vocab_size == 0 || highest < options_.vocab_size) return absl::OkStatus();
  return BadPrompt("TOKEN_OUTSIDE_MODEL", absl::StrCat("the ", what, " has token ", highest, ", and the model has ",
                                                       options_.vocab_size, " tokens"));
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::WriteResponse(const Json& response, PieceCache* cache) const {
  if (response.is_null()) {
    return BadPrompt("NO_RESPONSE", "there is no answer to learn; data.response_field names the field that holds it");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, WriteAnswer(response, cache));
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens == 0) return BadPrompt("NO_RESPONSE", "the answer to learn is empty");
  if (options_.max_response_tokens > 0 && tokens > options_.max_response_tokens) {
    return BadPrompt("RESPONSE_TOO_LONG",
                     absl::StrCat("the answer to learn has ", tokens, " tokens with its end token, more than the ",
                                  options_.max_response_tokens, " of rollout.max_new_tokens"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckInModel("answer to learn", ids));
  return ids;
}

absl::StatusOr<Prompt> PromptWriter::Write(const PromptRow& row, PieceCache* cache) const {
  Prompt prompt;
  if (!row.text.has_value()) {
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.prompt_ids, WriteChat(row.messages, cache));
  } else if (format_.has_value()) {
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.prompt_ids, WriteChat(Json::array({Message("user", *row.text)}), cache));
  } else {
    const std::string text = absl::StrCat(options_.system_prompt, *row.text);
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.prompt_ids, tokenizer_->Encode(text, /*add_special_tokens=*/true, cache));
  }
  const auto tokens = static_cast<int64_t>(prompt.prompt_ids.size());
  if (tokens == 0) return BadPrompt("EMPTY_PROMPT", "the prompt is empty");
  if (tokens > options_.max_prompt_tokens) {
    return BadPrompt("PROMPT_TOO_LONG", absl::StrCat("the prompt has ", tokens, " tokens, more than the ",
                                                     options_.max_prompt_tokens, " of data.max_prompt_tokens"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckInModel("prompt", prompt.prompt_ids));
  if (options_.with_answer_ids && !row.answer.is_null()) {
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.answer_ids, WriteAnswer(row.answer, cache));
  }
  if (options_.with_response_ids) {
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.response_ids, WriteResponse(row.response, cache));
  }
  prompt.task.row_json = row.row_json;
  return prompt;
}

}  // namespace syncopate::trainer
