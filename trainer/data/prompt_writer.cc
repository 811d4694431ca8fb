#include "trainer/data/prompt_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
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

bool IsAnswer(const Json& turn) { return turn["role"] == "assistant"; }

// A list of messages. Any other list is a text, in JSON.
bool IsConversation(const Json& response) {
  auto is_message = [](const Json& one) {
    return one.is_object() && one.contains("role") && one["role"].is_string() && one.contains("content");
  };
  return response.is_array() && !response.empty() && std::all_of(response.begin(), response.end(), is_message);
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

Json PromptWriter::MakeConversation(const PromptRow& row) const {
  Json messages = row.text.has_value() ? Json::array({Message("user", *row.text)}) : Json(row.messages);
  if (!options_.system_prompt.empty() && !BeginsWithSystem(messages)) {
    messages.insert(messages.begin(), Message("system", options_.system_prompt));
  }
  return messages;
}

absl::StatusOr<std::string> PromptWriter::Render(const Json& messages, const Json& tools,
                                                 bool add_generation_prompt) const {
  if (!format_.has_value()) {
    return BadPrompt(reason::kNoChatTemplate,
                     absl::StrCat("the row ", tools.is_null() ? "is a conversation" : "has tools",
                                  options_.use_chat_template ? ", and the model has no chat template"
                                                             : ", and data.chat_template is off"));
  }
  text::chat::ChatRequest request;
  request.messages = messages;
  request.tools = tools;
  request.arguments = options_.chat_arguments;
  request.add_generation_prompt = add_generation_prompt;
  SYNCOPATE_ASSIGN_OR_RETURN(text::chat::RenderedChat chat, format_->Render(request, kToday));
  return std::move(chat.text);
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::WriteChat(const PromptRow& row, PieceCache* cache) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                             Render(MakeConversation(row), row.tools, /*add_generation_prompt=*/true));
  if (!row.tools.is_null()) {
    const auto name = row.tools[0]["function"]["name"].get<std::string>();
    if (!absl::StrContains(text, name)) {
      return BadPrompt("TOOLS_NOT_SHOWN", absl::StrCat("the model's chat template does not show the tool ", name,
                                                       " of the row; use another template"));
    }
  }
  // A template writes the begin of text itself, as transformers has it.
  return tokenizer_->Encode(text, /*add_special_tokens=*/false, cache);
}

// Each turn is what the template adds for it: tokens of earlier turns never change, whatever comes after them.
absl::StatusOr<PromptWriter::Response> PromptWriter::WriteTurns(const PromptRow& row, PieceCache* cache) const {
  Json messages = MakeConversation(row);
  const Json& turns = row.response;
  if (!IsAnswer(turns.front()) || !IsAnswer(turns.back())) {
    return BadPrompt("BAD_RESPONSE", "a response of several turns begins and ends with one of the assistant");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::string before, Render(messages, row.tools, /*add_generation_prompt=*/true));
  Response response;
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool is_answer = IsAnswer(turns[i]), answer_follows = i + 1 < turns.size() && IsAnswer(turns[i + 1]);
    if (is_answer && answer_follows) {
      return BadPrompt("BAD_RESPONSE", "two turns of the assistant follow each other in the response; make them one");
    }
    messages.push_back(turns[i]);
    const bool asks_next = !is_answer && answer_follows;
    SYNCOPATE_ASSIGN_OR_RETURN(std::string text, Render(messages, row.tools, asks_next));
    if (!absl::StartsWith(text, before)) {
      return BadPrompt("BAD_RESPONSE",
                       absl::StrCat("the chat template writes what comes before turn ", i,
                                    " of the response otherwise once that turn is there, so the turns cannot be told "
                                    "apart; use another template, or a response of one text"));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(
        std::vector<int32_t> ids,
        tokenizer_->Encode(absl::string_view(text).substr(before.size()), /*add_special_tokens=*/false, cache));
    before = std::move(text);
    size_t taught = is_answer ? EndOfAnswer(ids) : 0;
    if (is_answer && taught == 0 && !options_.stop_token_ids.empty()) {
      ids.push_back(options_.stop_token_ids.front());  // a template that ends no turn
    }
    if (is_answer && taught == 0) taught = ids.size();
    const auto begin = static_cast<int32_t>(response.ids.size() + taught);
    response.ids.insert(response.ids.end(), ids.begin(), ids.end());
    const auto end = static_cast<int32_t>(response.ids.size());
    if (begin == end) continue;
    if (!response.given.empty() && response.given.back().end == begin) {
      response.given.back().end = end;
    } else {
      response.given.push_back({begin, end});
    }
  }
  // No later turn reads what a template writes behind the last end token.
  if (!response.given.empty() && response.given.back().end == static_cast<int32_t>(response.ids.size())) {
    response.ids.resize(static_cast<size_t>(response.given.back().begin));
    response.given.pop_back();
  }
  return response;
}

size_t PromptWriter::EndOfAnswer(const std::vector<int32_t>& ids) const {
  const std::vector<int32_t>& stops = options_.stop_token_ids;
  for (size_t i = ids.size(); i > 0; --i) {
    if (std::find(stops.begin(), stops.end(), ids[i - 1]) != stops.end()) return i;
  }
  return 0;
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

absl::StatusOr<PromptWriter::Response> PromptWriter::WriteResponse(const PromptRow& row, PieceCache* cache) const {
  if (row.response.is_null()) {
    return BadPrompt("NO_RESPONSE", "there is no answer to learn; data.response_field names its field");
  }
  Response response;
  if (IsConversation(row.response)) {
    SYNCOPATE_ASSIGN_OR_RETURN(response, WriteTurns(row, cache));
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(response.ids, WriteAnswer(row.response, cache));
  }
  const auto all = static_cast<int64_t>(response.ids.size());
  int64_t tokens = all;
  for (const TokenRange& range : response.given) tokens -= range.end - range.begin;
  if (tokens == 0) return BadPrompt("NO_RESPONSE", "the answer to learn is empty");
  if (options_.max_response_tokens > 0 && tokens > options_.max_response_tokens) {
    return BadPrompt("RESPONSE_TOO_LONG",
                     absl::StrCat("the answer to learn has ", tokens, " tokens with its end token, more than the ",
                                  options_.max_response_tokens, " of rollout.max_new_tokens"));
  }
  // Prompts and answers that are as long as they may be fill the context of a run.
  const int64_t longest = options_.max_prompt_tokens + options_.max_response_tokens;
  if (options_.max_response_tokens > 0 && all > longest) {
    return BadPrompt("RESPONSE_TOO_LONG",
                     absl::StrCat("the turns of the response have ", all, " tokens, more than the ", longest,
                                  " of data.max_prompt_tokens and rollout.max_new_tokens together"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckInModel("answer to learn", response.ids));
  return response;
}

absl::StatusOr<Prompt> PromptWriter::Write(const PromptRow& row, PieceCache* cache) const {
  Prompt prompt;
  if (!row.text.has_value() || !row.tools.is_null() || format_.has_value()) {
    SYNCOPATE_ASSIGN_OR_RETURN(prompt.prompt_ids, WriteChat(row, cache));
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
    SYNCOPATE_ASSIGN_OR_RETURN(Response response, WriteResponse(row, cache));
    prompt.response_ids = std::move(response.ids);
    prompt.response_given = std::move(response.given);
  }
  prompt.task.row_json = row.row_json;
  return prompt;
}

}  // namespace syncopate::trainer
