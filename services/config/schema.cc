#include "services/config/schema.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "services/config/field_value.h"

namespace syncopate::services {
namespace {

using google::protobuf::FieldDescriptor;

std::string LastWord(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string Range(const v1::ConfigField& option) {
  if (option.has_min() && option.has_max()) return absl::StrCat(" from ", option.min(), " to ", option.max());
  if (option.has_min()) return absl::StrCat(" of at least ", option.min());
  if (option.has_max()) return absl::StrCat(" of at most ", option.max());
  return "";
}

}  // namespace

std::string ConfigKey::Expected() const {
  if (option.duration()) return "a duration above zero with a unit, such as 250ms, 10s or 5m";
  if (option.choices_size() > 0) return absl::StrCat("one of ", absl::StrJoin(option.choices(), ", "));
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat("an integer", Range(option));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat("a number", Range(option));
    default:
      return "text";
  }
}

ConfigSchema::ConfigSchema() {
  const auto* root = v1::RunConfig::descriptor();
  for (int s = 0; s < root->field_count(); ++s) {
    const FieldDescriptor* section = root->field(s);
    sections_[section->name()] = true;
    for (int f = 0; f < section->message_type()->field_count(); ++f) {
      const FieldDescriptor* field = section->message_type()->field(f);
      ConfigKey key{absl::StrCat(section->name(), ".", field->name()), section, field,
                    field->options().GetExtension(v1::config)};
      index_[key.path] = keys_.size();
      keys_.push_back(std::move(key));
    }
  }
}

const ConfigKey* ConfigSchema::Find(const std::string& path) const {
  auto found = index_.find(path);
  return found == index_.end() ? nullptr : &keys_[found->second];
}

std::string ConfigSchema::Nearest(const std::string& path) const {
  std::string nearest;
  size_t best = std::string::npos;
  auto consider = [&](const std::string& candidate, size_t distance) {
    if (distance >= best) return;
    best = distance;
    nearest = candidate;
  };
  bool names_section = path.find('.') == std::string::npos;
  for (const auto& [section, unused] : sections_) {
    if (names_section) consider(section, EditDistance(path, section));
  }
  for (const ConfigKey& key : keys_) {
    // A key cut short counts as one slip, however much is missing.
    bool cut_short = path.size() > key.section->name().size() + 2 && absl::StartsWith(key.path, path);
    consider(key.path, cut_short ? 1 : EditDistance(path, key.path));
    // A right word in a wrong place costs one edit, so that a slip in the right section is preferred.
    consider(key.path, EditDistance(LastWord(path), key.field->name()) + 1);
  }
  return nearest;
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

void SetDefaults(const ConfigSchema& schema, v1::RunConfig* config) {
  for (const ConfigKey& key : schema.keys()) {
    // A string without a default is empty; everything else must have one, or config.proto is wrong.
    if (key.option.default_().empty() && key.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) continue;
    SYNCOPATE_CHECK(SetValue(key, key.option.default_(), config));
  }
}

}  // namespace syncopate::services
