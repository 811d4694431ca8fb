#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncopate::trainer {

// Tools in OpenAI's form, a list of {"type": "function", "function": {"name": ...}}, by the environment that has them.
using EnvironmentTools = std::map<std::string, nlohmann::ordered_json>;
// Reads such a list. INVALID_ARGUMENT (reason BAD_TOOLS) if it is none.
absl::StatusOr<nlohmann::ordered_json> ParseTools(absl::string_view text);
absl::Status CheckTools(const nlohmann::ordered_json& tools);

// Where the parts of a row are: names of fields, with a dot into an object ("reward_model.ground_truth"). A field whose
// own name has the dot goes first.
struct RowFields {
  std::string prompt = "prompt";
  std::string answer = {};    // empty: the first there is of answer, reward_model.ground_truth and ground_truth
  std::string response = {};  // what supervised steps teach; empty: the answer
  std::string data_source = "data_source";
  std::string extra_info = "extra_info";
  std::string environment = {};  // of a row that names none; empty: rows are not played
  EnvironmentTools tools = {};   // of a row without tools of its own
};

// One row of a data file: what is asked, and what its answers are judged by.
struct PromptRow {
  std::string data_source;          // as text; "": the row has none
  std::optional<std::string> text;  // a prompt that is plain text; else:
  nlohmann::ordered_json messages;  // a conversation: [{"role": "user", "content": ...}, ...], at least one
  nlohmann::ordered_json answer;    // what rewards compare with, of any type; null: none
  nlohmann::ordered_json response;  // what supervised steps teach, of any type; null: none
  std::string environment;          // that it is played in: its own, or the default; "": in none
  // That the prompt shows, if the row is played: its field "tools", or its environment's; null: none.
  nlohmann::ordered_json tools;
  // For rewards, one JSON object: the line's own with all its fields, and in place of fields of these names "prompt"
  // (the text, or that of the last message of the user), "messages" of a conversation, "data_source" and "extra_info"
  // where the row has them, and "ground_truth": `answer`, null included. "answer" is `answer` too if the line has no
  // such field. "tools" is `tools`, if there are any.
  std::string row_json;
};

// Reads one line. It trusts nothing in it: at most `max_bytes`, nested 64 deep. INVALID_ARGUMENT: reason BAD_UTF8 with
// the byte, BAD_JSON (lone surrogates too), or BAD_ROW naming the field that is missing or of another kind. Pure.
absl::StatusOr<PromptRow> ParsePromptRow(absl::string_view line, const RowFields& fields, int64_t max_bytes);

}  // namespace syncopate::trainer
