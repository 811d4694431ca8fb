#include "services/endpoint/completion_request.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strict_json.h"

namespace syncopate::endpoint {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Bad(const std::string& key, const std::string& expected) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", absl::StrCat(key, ": expected ", expected),
               {{"param", key}});
}

absl::Status Unsupported(const std::string& key, const std::string& why) {
  return Error(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER", absl::StrCat(key, ": ", why),
               {{"param", key}});
}

// Reads the value of one key.
using Read = std::function<absl::Status(const Json&)>;
using Table = std::map<std::string, Read>;

absl::StatusOr<double> Number(const std::string& key, const Json& value, double least, double most) {
  if (value.is_number() && !value.is_boolean()) {
    const auto number = value.get<double>();
    if (std::isfinite(number) && number >= least && number <= most) return number;
  }
  return Bad(key, absl::StrCat("a number from ", least, " to ", most));
}

absl::StatusOr<int64_t> Integer(const std::string& key, const Json& value, int64_t least, int64_t most) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(most) && static_cast<int64_t>(number) >= least) {
      return static_cast<int64_t>(number);
    }
  } else if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  return Bad(key, absl::StrCat("an integer from ", least, " to ", most));
}

Read ReadFloat(const std::string& key, float* to, double least, double most) {
  return [=](const Json& value) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const double number, Number(key, value, least, most));
    *to = static_cast<float>(number);
    return absl::OkStatus();
  };
}

Read ReadBool(const std::string& key, bool* to) {
  return [=](const Json& value) -> absl::Status {
    if (!value.is_boolean()) return Bad(key, "true or false");
    *to = value.get<bool>();
    return absl::OkStatus();
  };
}

Read ReadString(const std::string& key, std::string* to) {
  return [=](const Json& value) -> absl::Status {
    if (!value.is_string()) return Bad(key, "a string");
    *to = value.get<std::string>();
    return absl::OkStatus();
  };
}

Read ReadObject(const std::string& key, Json* to) {
  return [=](const Json& value) -> absl::Status {
    if (!value.is_object()) return Bad(key, "an object");
    *to = value;
    return absl::OkStatus();
  };
}

// For keys that name the caller or its request, and change no answer.
Read Label() {
  return [](const Json&) { return absl::OkStatus(); };
}

// For keys of which one value asks for nothing.
Read Only(const std::string& key, const Json& allowed, const std::string& why) {
  return [=](const Json& value) -> absl::Status { return value == allowed ? absl::OkStatus() : Unsupported(key, why); };
}

absl::StatusOr<std::vector<int32_t>> Ids(const std::string& key, const Json& value) {
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer(key, id, 0, std::numeric_limits<int32_t>::max()));
    ids.push_back(static_cast<int32_t>(number));
  }
  return ids;
}

// A text, token ids, or a list of these.
absl::Status ReadPrompts(const Json& value, std::vector<Prompt>* prompts) {
  static constexpr char kForms[] = "a string, a list of token ids, or a list of these that is not empty";
  const auto add = [prompts](const Json& one) -> absl::Status {
    if (one.is_string()) {
      prompts->push_back({.text = one.get<std::string>()});
      return absl::OkStatus();
    }
    if (!one.is_array() || one.empty()) return Bad("prompt", kForms);
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, Ids("prompt", one));
    prompts->push_back({.ids = std::move(ids), .is_text = false});
    return absl::OkStatus();
  };
  const bool is_list = value.is_array() && !value.empty() && !value.front().is_number();
  if (!is_list) return add(value);
  if (value.size() > kMaxChoices) return Bad("prompt", absl::StrCat("at most ", kMaxChoices, " prompts"));
  for (const Json& one : value) SYNCOPATE_RETURN_IF_ERROR(add(one));
  return absl::OkStatus();
}

absl::Status ReadStops(const Json& value, std::vector<std::string>* stops) {
  const Json list = value.is_array() ? value : Json::array({value});
  if (list.size() > kMaxStops) return Bad("stop", absl::StrCat("at most ", kMaxStops, " strings"));
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stop.get_ref<const std::string&>().size() > kMaxStopBytes) {
      return Bad("stop", absl::StrCat("a string, or a list of strings, of 1 to ", kMaxStopBytes, " bytes each"));
    }
    stops->push_back(stop.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadBiases(const Json& value, std::vector<TokenBias>* biases) {
  if (!value.is_object() || value.size() > kMaxBiases) {
    return Bad("logit_bias", absl::StrCat("an object of at most ", kMaxBiases, " biases by token id"));
  }
  for (const auto& [name, bias] : value.items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(name, &token) || token < 0) return Bad("logit_bias", "token ids as keys");
    SYNCOPATE_ASSIGN_OR_RETURN(const double number, Number("logit_bias", bias, -100, 100));
    biases->push_back({token, static_cast<float>(number)});
  }
  return absl::OkStatus();
}

// The parts of a content of several parts, joined: templates of models that read text take a string.
absl::StatusOr<std::string> JoinParts(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    const auto type = part.is_object() && part.contains("type") ? part["type"] : Json();
    if (type != "text") {
      return Unsupported("messages",
                         absl::StrCat("a content part of type ", type.dump(), "; the model reads text alone"));
    }
    if (!part.contains("text") || !part["text"].is_string()) return Bad("messages", "a text in each content part");
    text += part["text"].get<std::string>();
  }
  return text;
}

// Templates expect the arguments of a call as an object; OpenAI's clients send them as text.
absl::Status ReadCalls(Json* calls) {
  if (!calls->is_array()) return Bad("messages", "a list as tool_calls");
  for (Json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return Bad("messages", "tool_calls with a function each");
    }
    if (!call["function"].contains("arguments") || !call["function"]["arguments"].is_string()) continue;
    Json& arguments = call["function"]["arguments"];
    const auto parsed = ParseStrictOrderedJson(arguments.get_ref<const std::string&>(),
                                               {.max_bytes = kMaxRequestBytes, .max_depth = kMaxRequestDepth});
    if (parsed.ok()) arguments = *parsed;
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(const Json& value, Json* chat) {
  if (!value.is_array() || value.empty()) return Bad("messages", "a list of messages that is not empty");
  Json messages = value;
  for (Json& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return Bad("messages", "objects with a role");
    }
    const bool has_content = message.contains("content");
    const bool is_list = has_content && message["content"].is_array();
    if (is_list) {
      SYNCOPATE_ASSIGN_OR_RETURN(message["content"], JoinParts(message["content"]));
    } else if (has_content && !message["content"].is_string() && !message["content"].is_null()) {
      return Bad("messages", "a string, null or a list of parts as content");
    }
    // A client repeats a message that it got, with null for what it has not.
    for (const char* key : {"tool_calls", "function_call", "refusal", "audio", "annotations"}) {
      if (message.contains(key) && message[key].is_null()) message.erase(key);
    }
    if (message.contains("tool_calls")) SYNCOPATE_RETURN_IF_ERROR(ReadCalls(&message["tool_calls"]));
  }
  (*chat)["messages"] = std::move(messages);
  return absl::OkStatus();
}

absl::Status ReadResponseFormat(const Json& value) {
  const Json type = value.is_object() && value.contains("type") ? value["type"] : Json();
  if (type == "text") return absl::OkStatus();
  return Unsupported("response_format", absl::StrCat("the type ", type.dump(), " is not served; text is"));
}

absl::Status ReadStreamOptions(const Json& value, bool* include_usage) {
  if (!value.is_object()) return Bad("stream_options", "an object");
  for (const auto& [key, option] : value.items()) {
    if (key == "include_usage" && option.is_boolean()) {
      *include_usage = option.get<bool>();
    } else if (key != "include_obfuscation" || option != false) {
      return Unsupported("stream_options", absl::StrCat(key, " is not served; include_usage is"));
    }
  }
  return absl::OkStatus();
}

// What is decided when all keys of a chat request have been read.
struct ChatOnly {
  Json top_logprobs = nullptr;
  Json tools = Json::array();
  std::string tool_choice = "auto";
};

absl::Status ReadKeys(const Json& body, const Table& table) {
  for (const auto& [key, value] : body.items()) {
    const auto found = table.find(key);
    if (found == table.end()) {
      return Error(absl::StatusCode::kInvalidArgument, "UNKNOWN_PARAMETER",
                   absl::StrCat("the parameter ", key, " is not served here (docs/endpoint.md lists those that are)"),
                   {{"param", key}});
    }
    if (value.is_null()) continue;  // OpenAI's null is a key that is not there
    SYNCOPATE_RETURN_IF_ERROR(found->second(value));
  }
  return absl::OkStatus();
}

// What both kinds of requests have.
Table CommonTable(CompletionRequest* request) {
  SamplingParams* const sampling = &request->sampling;
  const auto max_tokens = [request](const char* key) {
    return [request, key](const Json& value) -> absl::Status {
      SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer(key, value, 1, std::numeric_limits<int32_t>::max()));
      request->max_tokens = static_cast<int32_t>(number);
      return absl::OkStatus();
    };
  };
  Table table = {
      {"model", ReadString("model", &request->model)},
      {"stream", ReadBool("stream", &request->stream)},
      {"stream_options", [=](const Json& value) { return ReadStreamOptions(value, &request->include_usage); }},
      {"stop", [=](const Json& value) { return ReadStops(value, &request->stops); }},
      {"logit_bias", [=](const Json& value) { return ReadBiases(value, &sampling->logit_bias); }},
      {"temperature", ReadFloat("temperature", &sampling->temperature, 0, 100)},
      {"top_p", ReadFloat("top_p", &sampling->top_p, 0, 1)},
      {"min_p", ReadFloat("min_p", &sampling->min_p, 0, 1)},
      {"presence_penalty", ReadFloat("presence_penalty", &sampling->presence_penalty, -2, 2)},
      {"frequency_penalty", ReadFloat("frequency_penalty", &sampling->frequency_penalty, -2, 2)},
      {"repetition_penalty", ReadFloat("repetition_penalty", &sampling->repetition_penalty, 0.01, 100)},
      {"max_tokens", max_tokens("max_tokens")},
      {"return_token_ids", ReadBool("return_token_ids", &request->return_token_ids)},
      {"response_format", ReadResponseFormat},
      {"store", Only("store", false, "nothing is stored here")},
      {"user", Label()},
      {"metadata", Label()},
      {"safety_identifier", Label()},
      {"prompt_cache_key", Label()}};
  table["n"] = [request](const Json& value) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer("n", value, 1, kMaxChoices));
    request->n = static_cast<int32_t>(number);
    return absl::OkStatus();
  };
  table["seed"] = [request](const Json& value) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer("seed", value, std::numeric_limits<int64_t>::min(),
                                                             std::numeric_limits<int64_t>::max()));
    request->seed = static_cast<uint64_t>(number);
    return absl::OkStatus();
  };
  table["top_k"] = [sampling](const Json& value) -> absl::Status {
    // Other servers say -1 for what is 0 here.
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer("top_k", value, -1, std::numeric_limits<int32_t>::max()));
    sampling->top_k = static_cast<int32_t>(std::max<int64_t>(0, number));
    return absl::OkStatus();
  };
  table["stop_token_ids"] = [sampling](const Json& value) -> absl::Status {
    if (!value.is_array() || value.size() > kMaxStops) {
      return Bad("stop_token_ids", absl::StrCat("a list of at most ", kMaxStops, " token ids"));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(sampling->stop_token_ids, Ids("stop_token_ids", value));
    return absl::OkStatus();
  };
  return table;
}

void AddCompletionKeys(CompletionRequest* request, Table* table) {
  (*table)["prompt"] = [request](const Json& value) { return ReadPrompts(value, &request->prompts); };
  (*table)["logprobs"] = [request](const Json& value) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer("logprobs", value, 0, kMaxTopLogProbs));
    request->logprobs = true;
    request->sampling.top_logprobs = static_cast<int32_t>(number);
    return absl::OkStatus();
  };
  (*table)["echo"] = Only("echo", false, "the prompt is not repeated here");
  (*table)["best_of"] = Only("best_of", 1, "answers are not chosen among here; n gives all of them");
}

absl::Status ReadTools(const Json& value, Json* tools) {
  if (!value.is_array()) return Bad("tools", "a list of functions");
  for (const Json& tool : value) {
    const bool is_function = tool.is_object() && tool.contains("type") && tool["type"] == "function" &&
                             tool.contains("function") && tool["function"].is_object() &&
                             tool["function"].contains("name") && tool["function"]["name"].is_string();
    if (!is_function) return Bad("tools", "objects of type function, with a function that has a name");
  }
  *tools = value;
  return absl::OkStatus();
}

// With the choice "none" the template does not see the tools.
void AddTools(const Json& tools, const std::string& choice, CompletionRequest* request) {
  request->parses_tool_calls = !tools.empty() && choice == "auto";
  if (request->parses_tool_calls) request->chat["tools"] = tools;
}

void AddChatKeys(CompletionRequest* request, ChatOnly* only, Table* table) {
  (*table)["messages"] = [request](const Json& value) { return ReadMessages(value, &request->chat); };
  (*table)["max_completion_tokens"] = table->at("max_tokens");
  (*table)["logprobs"] = ReadBool("logprobs", &request->logprobs);
  (*table)["top_logprobs"] = [only](const Json& value) {
    only->top_logprobs = value;
    return absl::OkStatus();
  };
  (*table)["tools"] = [only](const Json& value) { return ReadTools(value, &only->tools); };
  (*table)["tool_choice"] = [only](const Json& value) -> absl::Status {
    if (value != "auto" && value != "none") return Unsupported("tool_choice", "auto and none are served");
    only->tool_choice = value.get<std::string>();
    return absl::OkStatus();
  };
  (*table)["parallel_tool_calls"] = Only("parallel_tool_calls", true, "the model decides how many tools it calls");
  (*table)["chat_template_kwargs"] = ReadObject("chat_template_kwargs", &request->chat_arguments);
  (*table)["modalities"] = Only("modalities", Json::array({"text"}), "the model writes text alone");
}

absl::StatusOr<Json> ParseBody(absl::string_view body) {
  return ParseStrictOrderedJson(body, {.max_bytes = kMaxRequestBytes, .max_depth = kMaxRequestDepth});
}

}  // namespace

absl::StatusOr<CompletionRequest> ParseCompletionRequest(absl::string_view body, RequestKind kind) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest request;
  request.kind = kind;
  ChatOnly only;
  Table table = CommonTable(&request);
  const bool is_chat = kind == RequestKind::kChat;
  if (is_chat) {
    AddChatKeys(&request, &only, &table);
  } else {
    AddCompletionKeys(&request, &table);
  }
  SYNCOPATE_RETURN_IF_ERROR(ReadKeys(json, table));
  if (!only.top_logprobs.is_null()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t number, Integer("top_logprobs", only.top_logprobs, 0, kMaxTopLogProbs));
    if (!request.logprobs) return Bad("top_logprobs", "logprobs to be true with it");
    request.sampling.top_logprobs = static_cast<int32_t>(number);
  }
  if (is_chat && request.chat.is_null()) return Bad("messages", "a list of messages");
  if (is_chat) AddTools(only.tools, only.tool_choice, &request);
  if (!is_chat && request.prompts.empty()) return Bad("prompt", "a prompt");
  if (static_cast<int64_t>(request.prompts.size()) * request.n > kMaxChoices) {
    return Bad("n", absl::StrCat("at most ", kMaxChoices, " answers to all prompts together"));
  }
  return request;
}

absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(absl::string_view body) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  TokenizeRequest request;
  const Table table = {
      {"model", ReadString("model", &request.model)},
      {"prompt", [&request](const Json& value) { return ReadString("prompt", &request.text.emplace())(value); }},
      {"messages", [&request](const Json& value) { return ReadMessages(value, &request.chat); }},
      {"chat_template_kwargs", ReadObject("chat_template_kwargs", &request.chat_arguments)},
      {"add_special_tokens", ReadBool("add_special_tokens", &request.add_special_tokens)},
      {"add_generation_prompt", ReadBool("add_generation_prompt", &request.add_generation_prompt)}};
  SYNCOPATE_RETURN_IF_ERROR(ReadKeys(json, table));
  if (request.text.has_value() == !request.chat.is_null()) return Bad("prompt", "either prompt or messages");
  return request;
}

absl::StatusOr<DetokenizeRequest> ParseDetokenizeRequest(absl::string_view body) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  DetokenizeRequest request;
  bool has_tokens = false;
  const auto read_tokens = [&](const Json& value) -> absl::Status {
    if (!value.is_array()) return Bad("tokens", "a list of token ids");
    has_tokens = true;
    SYNCOPATE_ASSIGN_OR_RETURN(request.ids, Ids("tokens", value));
    return absl::OkStatus();
  };
  SYNCOPATE_RETURN_IF_ERROR(ReadKeys(json, {{"model", ReadString("model", &request.model)}, {"tokens", read_tokens}}));
  if (!has_tokens) return Bad("tokens", "a list of token ids");
  return request;
}

}  // namespace syncopate::endpoint
