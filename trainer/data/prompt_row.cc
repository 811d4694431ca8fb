#include "trainer/data/prompt_row.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strict_json.h"
#include "base/utf8.h"

namespace syncopate::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxMessages = 4096;
constexpr int64_t kMaxToolsBytes = 1 << 20;

absl::Status BadRow(const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_ROW", text); }

const Json* Find(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  if (found != object.end()) return found->is_null() ? nullptr : &*found;
  // "a.b" is the field "b" in "a", unless a field has this very name.
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto inner = object.find(name.substr(0, dot));
  return inner == object.end() ? nullptr : Find(*inner, name.substr(dot + 1));
}

const Json* FindAnswer(const Json& row, const RowFields& fields) {
  if (!fields.answer.empty()) return Find(row, fields.answer);
  // Without a configured name: the names that published data sets use.
  for (const char* name : {"answer", "reward_model.ground_truth", "ground_truth"}) {
    if (const Json* found = Find(row, name)) return found;
  }
  return nullptr;
}

absl::Status CheckMessages(const Json& messages, const std::string& field) {
  if (messages.empty()) return BadRow(absl::StrCat("the field '", field, "' is an empty list"));
  if (messages.size() > kMaxMessages) {
    return BadRow(absl::StrCat("the field '", field, "' has more than ", kMaxMessages, " messages"));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* role = Find(messages[i], "role");
    if (role != nullptr && role->is_string()) continue;
    return BadRow(absl::StrCat("message ", i, " of the field '", field, "' is no object with a role"));
  }
  return absl::OkStatus();
}

// A message's content may be parts, of which those of text are its text.
std::string PythonStr(const Json& message) {
  const Json* content = Find(message, "content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const Json& part : content->is_array() ? *content : Json::array()) {
    const Json* words = Find(part, "text");
    if (words != nullptr && words->is_string()) text += words->get<std::string>();
  }
  return text;
}

std::string LastOfTheUser(const Json& messages) {
  const auto last =
      std::find_if(messages.rbegin(), messages.rend(), [](const Json& message) { return message["role"] == "user"; });
  return last == messages.rend() ? "" : PythonStr(*last);
}

std::string FindEnvironment(const Json& row, const RowFields& fields) {
  const Json* named = fields.environment.empty() ? nullptr : Find(row, "environment");
  return named != nullptr && named->is_string() ? named->get<std::string>() : fields.environment;
}

// A row of parquet often has its tools as text.
absl::StatusOr<Json> FindTools(const Json& row, const RowFields& fields) {
  if (fields.environment.empty()) return Json();  // nobody would answer a call: the field is the row's own business
  const Json* own = Find(row, "tools");
  if (own != nullptr && own->is_string() && !own->get<std::string>().empty()) {
    auto tools = ParseTools(own->get<std::string>());
    if (!tools.ok()) return BadRow(absl::StrCat("the field 'tools': ", tools.status().message()));
    return tools->empty() ? Json() : *std::move(tools);
  }
  if (own != nullptr && own->is_array() && !own->empty()) {
    if (const absl::Status good = CheckTools(*own); !good.ok()) {
      return BadRow(absl::StrCat("the field 'tools': ", good.message()));
    }
    return *own;
  }
  if (own != nullptr && !own->is_string() && !own->is_array()) return BadRow("the field 'tools' is no list");
  const auto of_environment = fields.tools.find(FindEnvironment(row, fields));
  return of_environment == fields.tools.end() ? Json() : of_environment->second;
}

}  // namespace

absl::Status CheckTools(const Json& tools) {
  auto bad = [](const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_TOOLS", text); };
  if (!tools.is_array()) return bad("no list of tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json* function = Find(tools[i], "function");
    const Json* name = function == nullptr ? nullptr : Find(*function, "name");
    if (name == nullptr || !name->is_string() || name->get<std::string>().empty()) {
      return bad(absl::StrCat("tool ", i, R"( is not {"type": "function", "function": {"name": ...}})"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseTools(absl::string_view text) {
  // The reader takes objects alone.
  const absl::StatusOr<Json> read = ParseStrictOrderedJson(absl::StrCat("{\"tools\":", text, "}"),
                                                           {.max_bytes = kMaxToolsBytes, .max_depth = kMaxDepth});
  if (!read.ok()) return Error(absl::StatusCode::kInvalidArgument, "BAD_TOOLS", read.status().message());
  const Json tools = read->size() == 1 ? (*read)["tools"] : Json();
  SYNCOPATE_RETURN_IF_ERROR(CheckTools(tools));
  return tools;
}

absl::StatusOr<PromptRow> ParsePromptRow(absl::string_view line, const RowFields& fields, int64_t max_bytes) {
  if (const size_t good = WellFormedPrefix(line); good != line.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_UTF8",
                 absl::StrCat("the line is not UTF-8: its byte ", good, " begins no character"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(Json json, ParseStrictOrderedJson(line, {.max_bytes = max_bytes, .max_depth = kMaxDepth}));
  const Json* prompt = Find(json, fields.prompt);
  if (prompt == nullptr) {
    return BadRow(absl::StrCat("there is no field '", fields.prompt, "'; data.prompt_field names the prompt's"));
  }
  PromptRow row;
  // Under fixed names, whatever the file calls them.
  Json named = Json::object();
  if (prompt->is_string()) {
    row.text = prompt->get<std::string>();
    named["prompt"] = *row.text;
  } else if (prompt->is_array()) {
    SYNCOPATE_RETURN_IF_ERROR(CheckMessages(*prompt, fields.prompt));
    row.messages = *prompt;
    named["prompt"] = LastOfTheUser(row.messages);
    named["messages"] = row.messages;
  } else {
    return BadRow(absl::StrCat("the field '", fields.prompt, "' is neither a text nor a list of messages"));
  }
  if (const Json* answer = FindAnswer(json, fields)) {
    row.answer = *answer;
  } else if (!fields.answer.empty()) {
    return BadRow(absl::StrCat("there is no field '", fields.answer, "', which data.answer_field names"));
  }
  if (const Json* source = Find(json, fields.data_source)) {
    row.data_source = source->is_string() ? source->get<std::string>() : source->dump();
  }
  // Supervised steps learn the answer, unless another field contains the answer.
  row.response = row.answer;
  if (!fields.response.empty()) {
    const Json* response = Find(json, fields.response);
    if (response == nullptr) {
      return BadRow(absl::StrCat("there is no field '", fields.response, "', which data.response_field names"));
    }
    row.response = *response;
  }
  row.environment = FindEnvironment(json, fields);
  SYNCOPATE_ASSIGN_OR_RETURN(row.tools, FindTools(json, fields));
  if (!row.tools.is_null()) named["tools"] = row.tools;
  if (const Json* source = Find(json, fields.data_source)) named["data_source"] = *source;
  if (const Json* extra = Find(json, fields.extra_info)) named["extra_info"] = *extra;
  named["ground_truth"] = row.answer;
  if (!json.contains("answer")) named["answer"] = row.answer;
  json.update(named);
  row.row_json = json.dump();  // of well-formed UTF-8, so that it cannot fail
  return row;
}

}  // namespace syncopate::trainer
