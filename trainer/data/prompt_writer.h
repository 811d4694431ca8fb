#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_row.h"
#include "trainer/data/prompts.h"

namespace syncopate::trainer {

// Makes token ids of rows, with the tokenizer and the chat template of a model directory. Immutable; Write may be
// called by many threads, each with a cache of its own.
class PromptWriter {
 public:
  struct Options {
    bool use_chat_template = true;  // if there is one; a text is then one message of the user
    nlohmann::ordered_json chat_arguments = nlohmann::ordered_json::object();  // such as enable_thinking
    std::string system_prompt = {};  // before every conversation that does not begin with one; or before a text
    int64_t max_prompt_tokens = 1024;
    int32_t vocab_size = 0;  // of the model: ids are below it
    std::vector<int32_t> stop_token_ids = {};
    // Rewards that compare ids need the answer's ids, followed by the first stop token.
    bool with_answer_ids = false;
    // Supervised steps need the response's ids, followed by the first stop token, with at most max_response_tokens that
    // are trained on.
    bool with_response_ids = false;
    int64_t max_response_tokens = 0;  // 0: any
  };

  // Reads tokenizer.json, and the chat template if it is to be used. Errors of Tokenizer::Load and ChatFormat::Load,
  // but that a template may be missing.
  static absl::StatusOr<std::shared_ptr<const PromptWriter>> Load(FileSystem* files, const std::string& folder,
                                                                  Options options);

  // INVALID_ARGUMENT: reason NO_CHAT_TEMPLATE for a conversation or tools without one, TOOLS_NOT_SHOWN if the template does
  // not write the row's tools, PROMPT_TOO_LONG, EMPTY_PROMPT,
  // NO_RESPONSE, RESPONSE_TOO_LONG, BAD_RESPONSE, TOKEN_OUTSIDE_MODEL, and the errors of template and tokenizer.
  //
  // A response that is a list of {"role", "content"} goes on with the conversation of the prompt: what the template
  // adds for each turn is encoded by itself. Of a turn of the assistant everything up to its end token is taught, of
  // other turns nothing.
  absl::StatusOr<Prompt> Write(const PromptRow& row, text::tokenizer::PieceCache* cache) const;

  const text::tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  const Options& options() const { return options_; }

 private:
  explicit PromptWriter(Options options) : options_(std::move(options)) {}
  struct Response {
    std::vector<int32_t> ids;
    std::vector<TokenRange> given;
  };

  nlohmann::ordered_json MakeConversation(const PromptRow& row) const;
  // What the template makes of `messages`, which begin with the system prompt, and of `tools`; null: none.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                     bool add_generation_prompt) const;
  absl::StatusOr<std::vector<int32_t>> WriteChat(const PromptRow& row, text::tokenizer::PieceCache* cache) const;
  // The row's response, a list of turns.
  absl::StatusOr<Response> WriteTurns(const PromptRow& row, text::tokenizer::PieceCache* cache) const;
  // The number of ids up to the last end token; 0: there is none.
  size_t EndOfAnswer(const std::vector<int32_t>& ids) const;
  absl::Status CheckInModel(const char* what, const std::vector<int32_t>& ids) const;
  absl::StatusOr<Response> WriteResponse(const PromptRow& row, text::tokenizer::PieceCache* cache) const;
  absl::StatusOr<std::vector<int32_t>> WriteAnswer(const nlohmann::ordered_json& answer,
                                                   text::tokenizer::PieceCache* cache) const;

  const Options options_;
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer_;
  std::optional<text::chat::ChatFormat> format_;  // none: texts stand as they are
};

}  // namespace syncopate::trainer
