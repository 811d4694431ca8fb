#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "rollouter/environment/environment.h"
#include "rollouter/trajectory/episode.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouter {

// Turns what an environment says into tokens behind a turn of the policy, as a message of the user or as messages of the
// role tool: what the model's chat template adds for them to a stub conversation, encoded alone. The conversation itself is
// never rendered again, as many templates would write its earlier turns otherwise. Immutable and thread-safe.
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
  // the message with said.text or those with said.tool_results, and the beginning of the next turn. After no tokens it
  // ends an empty turn. INVALID_ARGUMENT if the template refuses this text; FAILED_PRECONDITION (reason
  // TEMPLATE_NOT_EXTENDABLE) for tool_results that it cannot write; errors of the tokenizer.
  absl::StatusOr<EnvironmentAnswer> Encode(const EnvironmentMessage& said, const std::vector<int32_t>& turn) const;

 private:
  // What stands around the texts of messages, whatever these are.
  struct Frame {
    std::string before, after;
    std::vector<int32_t> opening, opening_behind_end, closing;  // opening_behind_end: after a turn with its end token
  };

  TurnFormat(std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer, text::chat::ChatFormat format,
             Options options)
      : tokenizer_(std::move(tokenizer)), format_(std::move(format)), options_(std::move(options)) {}
  // What the template writes behind the stub's last answer if these messages of `role` follow.
  absl::StatusOr<std::string> RenderBehindAnswer(nlohmann::ordered_json conversation, const char* role,
                                                 const std::vector<std::string>& messages) const;
  // `before` and `after` of a message of `role`.
  absl::StatusOr<Frame> RenderStub(const nlohmann::ordered_json& conversation, const char* role) const;
  absl::StatusOr<Frame> MakeFrame(const char* role) const;
  bool IsEnd(int32_t token) const;

  const std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer_;
  const text::chat::ChatFormat format_;
  const Options options_;
  Frame message_;                                           // of a message of the user
  absl::StatusOr<Frame> results_ = absl::UnknownError("");  // of messages of the role tool
};

}  // namespace syncopate::rollouter
