#include "text/tokenizer/json_node.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace syncopate::text::tokenizer {
namespace {

// Bytes of a pattern, a replacement, or a token's text; vocabularies and merges are read elsewhere.
constexpr size_t kLongestSetting = 4096;
constexpr size_t kMostObjects = 1 << 20;

}  // namespace

absl::Status Malformed(absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER", absl::StrCat("bad tokenizer.json: ", what));
}

absl::Status Unsupported(absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_TOKENIZER",
               absl::StrCat("tokenizer.json: ", what,
                            " is not supported; byte-pair tokenizers of the kinds of GPT-2, Llama, Qwen, Mistral, "
                            "DeepSeek and o200k are"));
}

bool JsonNode::Has(absl::string_view key) const {
  const nlohmann::json* value = Find(key);
  return value != nullptr && !value->is_null();
}

absl::StatusOr<std::string> JsonNode::String(absl::string_view key) const {
  const nlohmann::json* value = Find(key);
  const std::string* text = value != nullptr ? value->get_ptr<const std::string*>() : nullptr;
  if (text == nullptr) return Malformed(absl::StrCat(GetPath(key), " is no string"));
  if (text->size() > kLongestSetting) return Malformed(absl::StrCat(GetPath(key), " is longer than 4,096 bytes"));
  return *text;
}

absl::StatusOr<bool> JsonNode::Bool(absl::string_view key) const {
  const nlohmann::json* value = Find(key);
  const bool* flag = value != nullptr ? value->get_ptr<const bool*>() : nullptr;
  if (flag == nullptr) return Malformed(absl::StrCat(GetPath(key), " is neither true nor false"));
  return *flag;
}

absl::StatusOr<int32_t> JsonNode::Index(absl::string_view key) const {
  const nlohmann::json* value = Find(key);
  // The parser stores every number without sign, point or exponent as unsigned; null stands for all others.
  const uint64_t* number = value != nullptr ? value->get_ptr<const uint64_t*>() : nullptr;
  if (number == nullptr || *number > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return Malformed(absl::StrCat(GetPath(key), " is no whole number in [0, 2^31)"));
  }
  return static_cast<int32_t>(*number);
}

absl::StatusOr<JsonNode> JsonNode::Object(absl::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || !value->is_object()) return Malformed(absl::StrCat(GetPath(key), " is no object"));
  return JsonNode(value, GetPath(key));
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Objects(absl::string_view key) const {
  const nlohmann::json* list = Find(key);
  if (list == nullptr || !list->is_array()) return Malformed(absl::StrCat(GetPath(key), " is no list"));
  if (list->size() > kMostObjects) return Malformed(absl::StrCat(GetPath(key), " is too long"));
  std::vector<JsonNode> objects;
  for (const nlohmann::json& value : *list) {
    const std::string path = absl::StrCat(GetPath(key), "[", objects.size(), "]");
    if (!value.is_object()) return Malformed(absl::StrCat(path, " is no object"));
    objects.emplace_back(&value, path);
  }
  return objects;
}

absl::StatusOr<std::string> JsonNode::StringOr(absl::string_view key, absl::string_view otherwise) const {
  if (!Has(key)) return std::string(otherwise);
  return String(key);
}

absl::StatusOr<bool> JsonNode::BoolOr(absl::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  return Bool(key);
}

absl::Status JsonNode::Refuse(absl::string_view what) const { return Unsupported(absl::StrCat(path_, ": ", what)); }

const nlohmann::json* JsonNode::Find(absl::string_view key) const {
  const auto found = value_->find(std::string(key));
  return found == value_->end() ? nullptr : &*found;
}

std::string JsonNode::GetPath(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

}  // namespace syncopate::text::tokenizer
