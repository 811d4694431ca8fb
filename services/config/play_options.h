#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollouter/trajectory/play_assembly.h"
#include "syncopate/v1/config.pb.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::config {

// The text of a model from files, for environments that say text.
struct PlayText {
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer = nullptr;  // null: the model has none
  std::optional<text::chat::ChatFormat> format = std::nullopt;            // none: it has no chat template
  std::vector<int32_t> end_token_ids = {};
};

// How samples play with environment.name, from a configuration that has passed its checks; none without an environment.
// `remote` of the rules is not set. With data.files: FAILED_PRECONDITION (reason NO_CHAT_TEMPLATE or
// TEMPLATE_NOT_EXTENDABLE) if the model's text has no turns.
absl::StatusOr<std::optional<rollouter::PlayRules>> MakePlayOptions(const v1::RunConfig& config, const PlayText& text);

}  // namespace syncopate::config
