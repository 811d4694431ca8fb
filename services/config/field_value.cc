#include "services/config/field_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "services/config/duration.h"

namespace syncopate::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool InRange(const v1::ConfigField& option, double value) {
  if (option.zero_is_auto() && value == 0) return true;
  return (!option.has_min() || value >= option.min()) && (!option.has_max() || value <= option.max());
}

bool AcceptsText(const v1::ConfigField& option, const std::string& text) {
  if (option.choices_size() > 0) {
    return std::find(option.choices().begin(), option.choices().end(), text) != option.choices().end();
  }
  if (!option.duration()) return true;
  // An empty text is allowed if the default is empty too.
  bool empty_is_default = text.empty() && option.default_().empty();
  return empty_is_default || ParseDuration(text).ok();
}

// The text as a double-quoted YAML scalar, so that printed values can be read back.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted.append({'\\', c});
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

// The shortest text that reads back as the same number: 0.1 stays 0.1. YAML 1.1 reads 1e-06 as a text and 1.0e-06 as a
// number, so the latter is written.
std::string Shortest(double value) {
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

}  // namespace

bool SetValue(const ConfigKey& key, const std::string& written, v1::RunConfig* config) {
  const std::string text = key.option.zero_is_auto() && written == "auto" ? "0" : written;
  Message* section = config->GetReflection()->MutableMessage(config, key.section);
  const auto* reflection = section->GetReflection();
  switch (key.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      // YAML 1.1 also knows yes, on and y, and readers differ about them.
      if (text != "true" && text != "false") return false;
      reflection->SetBool(section, key.field, text == "true");
      return true;
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value) || !InRange(key.option, static_cast<double>(value))) return false;
      reflection->SetInt64(section, key.field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) || !InRange(key.option, value)) return false;
      reflection->SetDouble(section, key.field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (!AcceptsText(key.option, text)) return false;
      reflection->SetString(section, key.field, text);
      return true;
    default:
      SYNCOPATE_CHECK(false && "config.proto contains a type that the configuration cannot represent");
      return false;
  }
}

std::string GetValue(const ConfigKey& key, const v1::RunConfig& config) {
  const Message& section = config.GetReflection()->GetMessage(config, key.section);
  const auto* reflection = section.GetReflection();
  switch (key.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(section, key.field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(section, key.field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Shortest(reflection->GetDouble(section, key.field));
    default:
      return Quoted(reflection->GetString(section, key.field));
  }
}

}  // namespace syncopate::config
