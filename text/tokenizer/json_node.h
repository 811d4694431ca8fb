#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::text::tokenizer {

// Makes an error INVALID_ARGUMENT, reason BAD_TOKENIZER: the file contradicts itself or is no tokenizer.
absl::Status Malformed(absl::string_view what);
// Makes an error INVALID_ARGUMENT, reason UNSUPPORTED_TOKENIZER: this kind of tokenizer is not supported.
absl::Status Unsupported(absl::string_view what);

// A value of tokenizer.json with its path, for errors that name it. A view: the parsed file must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }

  // Whether the object has the key with a value other than null.
  bool Has(absl::string_view key) const;

  // The value of a key. Reason BAD_TOKENIZER if the key is missing or its value has another type, or is too long.
  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<bool> Bool(absl::string_view key) const;
  // A number in [0, 2^31).
  absl::StatusOr<int32_t> Index(absl::string_view key) const;
  absl::StatusOr<JsonNode> Object(absl::string_view key) const;
  absl::StatusOr<std::vector<JsonNode>> Objects(absl::string_view key) const;

  // The same as String and Bool, but `otherwise` if the key is missing or null.
  absl::StatusOr<std::string> StringOr(absl::string_view key, absl::string_view otherwise) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;

  // The error Unsupported("<path>: <what>").
  absl::Status Refuse(absl::string_view what) const;

 private:
  const nlohmann::json* Find(absl::string_view key) const;
  std::string GetPath(absl::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace syncopate::text::tokenizer
