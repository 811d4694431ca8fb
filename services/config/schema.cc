#include "services/config/schema.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "services/config/field_value.h"

namespace syncopate::config {
namespace {

using google::protobuf::FieldDescriptor;

std::string LastWord(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// "lr" for "learning_rate".
std::string Initials(const std::string& name) {
  std::string initials;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(name, '_'))) initials.push_back(word.front());
  return initials;
}

// The edit distance between a word and a key's name; a name cut short or written by its initials counts as one edit.
size_t WordDistance(const std::string& word, const std::string& name) {
  size_t edits = EditDistance(word, name);
  bool cut_short = word.size() >= 3 && absl::StartsWith(name, word);
  bool initials = word.size() >= 2 && word == Initials(name);
  return edits > 1 && (cut_short || initials) ? 1 : edits;
}

// How many edits still let a reader guess the word: one for five letters, three for twelve.
size_t SlipsAllowed(const std::string& word) { return std::max<size_t>(1, word.size() / 4); }

// Writes 1000000, not 1e+06; 1e-30 and 0.999999 stay as they are.
std::string Bound(double value) {
  const bool integral = value == std::floor(value) && std::fabs(value) < 1e15;
  return integral ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
}

std::string Range(const v1::ConfigField& option) {
  if (option.has_min() && option.has_max()) {
    return absl::StrCat(" from ", Bound(option.min()), " to ", Bound(option.max()));
  }
  if (option.has_min()) return absl::StrCat(" of at least ", Bound(option.min()));
  if (option.has_max()) return absl::StrCat(" of at most ", Bound(option.max()));
  return "";
}

}  // namespace

std::string ConfigKey::Expected() const {
  if (option.duration()) return "a duration above zero with a unit, such as 250ms, 10s or 5m";
  if (option.choices_size() == 1) return absl::StrCat(option.choices(0), ", which is all that is built");
  if (option.choices_size() > 0) return absl::StrCat("one of ", absl::StrJoin(option.choices(), ", "));
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_INT64:
      if (option.has_min() && option.has_max() && option.min() == option.max()) {
        return absl::StrCat(Bound(option.min()), ", which is all that is built");
      }
      return absl::StrCat("an integer", Range(option), option.zero_is_auto() ? ", or auto" : "");
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat("a number", Range(option), option.zero_is_auto() ? ", or auto" : "");
    default:
      return option.list() ? "text, or a list of texts" : "text";
  }
}

std::string ConfigKey::Doc() const {
  return absl::StrCat(option.doc(), option.fixed() ? "; fixed for the life of a run" : "");
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
  const std::string word = LastWord(path);
  const std::string section = path.substr(0, path.size() - word.size());
  const size_t allowed = SlipsAllowed(word);
  for (const auto& [name, unused] : sections_) {
    const size_t slips = EditDistance(path, name);
    if (section.empty() && slips <= allowed) consider(name, slips);
  }
  for (const ConfigKey& key : keys_) {
    size_t slips = WordDistance(word, key.field->name());
    if (slips > allowed) continue;
    size_t elsewhere = EditDistance(section, absl::StrCat(key.section->name(), "."));
    // A wrong section counts as one edit if the word is nearly right.
    consider(key.path, slips + (slips <= 2 ? std::min<size_t>(elsewhere, 1) : elsewhere));
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
    config->GetReflection()->MutableMessage(config, key.section);  // also a section whose keys are all empty
    // A string without a default is empty; any other key must have a default, or config.proto is wrong.
    if (key.option.default_().empty() && key.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) continue;
    SYNCOPATE_CHECK(SetValue(key, key.option.default_(), config));
  }
}

}  // namespace syncopate::config
