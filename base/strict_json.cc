#include "base/strict_json.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate {
namespace {

using Json = nlohmann::json;

absl::Status BadJson(absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_JSON", absl::StrCat("bad JSON: ", what));
}

// Checks a text without building a value, and stops at the first violation.
class Inspector final : public nlohmann::json_sax<Json> {
 public:
  explicit Inspector(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Enter(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    return Refuse(absl::StrCat("the key '", absl::CHexEscape(key.substr(0, 64)), "' comes twice"));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("not well formed at byte ", position));
  }

  const std::string& complaint() const { return complaint_; }

 private:
  bool Enter() {
    keys_.emplace_back();
    if (static_cast<int>(keys_.size()) <= max_depth_) return true;
    return Refuse(absl::StrCat("nested deeper than ", max_depth_));
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }
  bool Refuse(std::string complaint) {
    complaint_ = std::move(complaint);
    return false;
  }

  const int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open; empty sets for arrays
  std::string complaint_;
};

template <typename Value>
absl::StatusOr<Value> Parse(absl::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return BadJson(absl::StrFormat("%d bytes are over the limit of %d", text.size(), limits.max_bytes));
  }
  Inspector inspector(limits.max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &inspector)) return BadJson(inspector.complaint());
  Value value = Value::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return BadJson("the outermost value is not an object");
  return value;
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text, const JsonLimits& limits) {
  return Parse<Json>(text, limits);
}

absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(absl::string_view text, const JsonLimits& limits) {
  return Parse<nlohmann::ordered_json>(text, limits);
}

absl::StatusOr<std::string> DumpJson(const Json& value, int indent) {
  try {
    return value.dump(indent);
  } catch (const Json::exception&) {  // the library reports this error by an exception only
    return BadJson("a string is not UTF-8");
  }
}

}  // namespace syncopate
