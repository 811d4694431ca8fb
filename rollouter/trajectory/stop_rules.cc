#include "rollouter/trajectory/stop_rules.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 256;

absl::Status BadStop(const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_STOP", text); }

}  // namespace

absl::StatusOr<StopRules> ParseStopRules(const std::string& json) {
  StopRules rules;
  if (json.empty()) return rules;
  const nlohmann::json list = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return BadStop("a JSON list of texts and token ids, such as [\"</answer>\", 151645]");
  if (list.size() > kMaxStops) return BadStop(absl::StrCat("at most ", kMaxStops, " texts and token ids"));
  for (const nlohmann::json& item : list) {
    if (item.is_number_integer()) {
      const auto id = item.get<int64_t>();
      if (id < 0 || id > INT32_MAX) return BadStop(absl::StrCat("token ids from 0 on; ", id, " is none"));
      rules.token_ids.push_back(static_cast<int32_t>(id));
    } else if (item.is_string() && !item.get<std::string>().empty() &&
               item.get<std::string>().size() <= kMaxStopBytes) {
      rules.texts.push_back(item.get<std::string>());
    } else {
      return BadStop(
          absl::StrCat("texts of 1 to ", kMaxStopBytes, " bytes and token ids; ", item.dump(), " is neither"));
    }
  }
  return rules;
}

absl::StatusOr<StopRules> MakeStopRules(const std::string& json,
                                        std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer,
                                        int64_t vocab_size) {
  SYNCOPATE_ASSIGN_OR_RETURN(StopRules rules, ParseStopRules(json));
  for (const int32_t id : rules.token_ids) {
    if (id >= vocab_size) {
      return BadStop(absl::StrCat("rollout.stop names token ", id, ", but the model's vocabulary has ", vocab_size));
    }
  }
  if (!rules.texts.empty() && tokenizer == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_TOKENIZER",
                 absl::StrCat("rollout.stop has the text \"", rules.texts.front(),
                              "\", but the model has no tokenizer: name token ids, or take a model.path that has one"));
  }
  rules.tokenizer = std::move(tokenizer);
  return rules;
}

}  // namespace syncopate::rollouter
