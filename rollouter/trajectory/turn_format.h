#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "rollouter/trajectory/episode.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouter {

// Turns what an environment says into tokens behind a turn of the policy, as a message of the user: what the model's
// chat template adds for it to a stub conversation, encoded alone. The conversation itself is never rendered again, as
// many templates would write its earlier turns otherwise. Immutable and thread-safe.
class TurnFormat {
 public:
  struct Options {
    std::vector<int32_t> end_token_ids = {};  // of the model
    nlohmann::ordered_json chat_arguments = nlohmann::ordered_json::object();
  };

  // FAILED_PRECONDITION (reason TEMPLATE_NOT_EXTENDABLE) if the template does not render an answer and a message behind
  // it, or what it adds for a message depends on what was said before; errors of the tokenizer.
  static absl::StatusOr<std::shared_ptr<const TurnFormat>> Create(
      std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer, text::chat::ChatFormat format, Options options);

  // What the model reads behind `turn`, the tokens of a turn, before its next one: the end of that turn if it has none,
  // the message with `text`, and the beginning of the next turn. After no tokens it ends an empty turn.
  // INVALID_ARGUMENT if the template refuses this text; errors of the tokenizer.
  absl::StatusOr<EnvironmentAnswer> Encode(const std::string& text, const std::vector<int32_t>& turn) const;

 private:
  struct Added {
    std::string before, after;  // what stands before the message's text and behind it
  };

  TurnFormat(std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer, text::chat::ChatFormat format,
             Options options)
      : tokenizer_(std::move(tokenizer)), format_(std::move(format)), options_(std::move(options)) {}
  // What the template writes behind the stub's last answer if `message` follows.
  absl::StatusOr<std::string> RenderBehindAnswer(nlohmann::ordered_json conversation, const std::string& message) const;
  absl::StatusOr<Added> RenderStub(const nlohmann::ordered_json& conversation) const;
  absl::Status Prepare();
  bool IsEnd(int32_t token) const;

  const std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer_;
  const text::chat::ChatFormat format_;
  const Options options_;
  std::string before_, after_;  // of any message
  std::vector<int32_t> opening_, opening_behind_end_, closing_;
};

}  // namespace syncopate::rollouter
