#include "services/config/settings.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace syncopate::config {
namespace {

std::string Where(const std::string& source, const YAML::Mark& mark) {
  return mark.is_null() ? source : absl::StrCat(source, ":", mark.line + 1);
}

bool HasScalarsOnly(const YAML::Node& list) {
  return std::all_of(list.begin(), list.end(), [](const YAML::Node& item) { return item.IsScalar(); });
}

std::string JoinScalars(const YAML::Node& list) {
  std::vector<std::string> items;
  for (const YAML::Node& item : list) items.push_back(item.Scalar());
  return absl::StrJoin(items, ", ");
}

std::string KeyText(const YAML::Node& key) { return key.IsScalar() ? key.Scalar() : "?"; }

// Limit on the keys within maps of one text. By aliases a map may contain itself, or another map a million times.
constexpr int kMostInnerKeys = 1000;

// `inner_keys`: how many keys within maps may still be read.
Setting MakeSetting(const std::string& source, const std::string& path, const YAML::Node& key, const YAML::Node& value,
                    int* inner_keys) {
  Setting setting{Where(source, key.Mark()), path, "", Setting::Kind::kPlain};
  if (value.IsScalar()) {
    setting.value = value.Scalar();
    // yaml-cpp tags a quoted scalar "!": "5" in quotes is text, not a number.
    if (value.Tag() == "!") setting.kind = Setting::Kind::kQuoted;
  } else if (value.IsNull() || (value.IsMap() && value.size() == 0)) {
    setting.kind = Setting::Kind::kNull;
  } else if (value.IsSequence() && HasScalarsOnly(value)) {
    setting.kind = Setting::Kind::kList;
    setting.value = JoinScalars(value);
  } else {
    setting.kind = Setting::Kind::kNotScalar;
    setting.value = value.IsSequence() ? "a list" : "a map";
    if (value.IsSequence()) return setting;
    for (const auto& entry : value) {
      if (--*inner_keys < 0) break;
      const std::string inner = absl::StrCat(path, ".", KeyText(entry.first));
      setting.inner.push_back(MakeSetting(source, inner, entry.first, entry.second, inner_keys));
    }
  }
  return setting;
}

void AppendSection(const std::string& source, const std::string& name, const YAML::Node& section, int* inner_keys,
                   ParsedSettings* parsed) {
  for (const auto& entry : section) {
    std::string path = absl::StrCat(name, ".", KeyText(entry.first));
    parsed->settings.push_back(MakeSetting(source, path, entry.first, entry.second, inner_keys));
  }
}

void AppendDocument(const std::string& source, const YAML::Node& document, ParsedSettings* parsed) {
  if (document.IsNull()) return;
  if (!document.IsMap()) {
    parsed->problems.push_back({Where(source, document.Mark()), "", "", "sections such as `run:` with keys below", ""});
    return;
  }
  int inner_keys = kMostInnerKeys;
  for (const auto& entry : document) {
    std::string name = KeyText(entry.first);
    if (entry.second.IsMap() && entry.second.size() > 0) {
      AppendSection(source, name, entry.second, &inner_keys, parsed);
    } else {
      parsed->settings.push_back(MakeSetting(source, name, entry.first, entry.second, &inner_keys));
    }
  }
}

// The number, from 1, of the first line whose indentation contains a tab and which has text after it; 0 if there is
// none. YAML allows no tab there, and its parser's message is about something else.
int LineIndentedByTab(const std::string& text) {
  int line = 0;
  for (absl::string_view one : absl::StrSplit(text, '\n')) {
    ++line;
    const size_t begin = one.find_first_not_of(" \t\r");
    if (begin == absl::string_view::npos || one[begin] == '#') continue;
    if (one.substr(0, begin).find('\t') != absl::string_view::npos) return line;
  }
  return 0;
}

ConfigProblem NoYaml(const std::string& text, const std::string& source, const YAML::Exception& error) {
  if (const int line = LineIndentedByTab(text); line > 0) {
    return {absl::StrCat(source, ":", line), "", "", "blanks before the key, not a tab, which YAML does not allow", ""};
  }
  return {Where(source, error.mark), "", "", absl::StrCat("YAML, but: ", error.msg), ""};
}

// Counts the documents of a text. YAML::LoadAll would find endlessly many in some texts ("!,").
class DocumentCounter final : public YAML::EventHandler {
 public:
  int count() const { return count_; }
  const YAML::Mark& newest() const { return newest_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count_;
    newest_ = mark;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int count_ = 0;
  YAML::Mark newest_;
};

}  // namespace

ParsedSettings ParseYamlSettings(const std::string& text, const std::string& source) {
  ParsedSettings parsed;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentCounter documents;
    while (documents.count() < 2 && parser.HandleNextDocument(documents)) {
    }
    if (documents.count() > 1) {
      parsed.problems.push_back({Where(source, documents.newest()), "", "", "one YAML document, not several", ""});
    } else {
      AppendDocument(source, YAML::Load(text), &parsed);
    }
  } catch (const YAML::Exception& error) {  // yaml-cpp reports errors by exceptions only; no other code here throws
    parsed.problems.push_back(NoYaml(text, source, error));
  }
  return parsed;
}

std::optional<std::string> JoinFlowList(const std::string& text) {
  if (text.empty() || text.front() != '[') return std::nullopt;
  try {
    const YAML::Node list = YAML::Load(text);
    if (list.IsSequence() && HasScalarsOnly(list)) return JoinScalars(list);
  } catch (const YAML::Exception&) {
    return std::nullopt;  // not a list, but a name that begins like one
  }
  return std::nullopt;
}

ParsedSettings ParseOverrides(const std::vector<std::string>& overrides) {
  ParsedSettings parsed;
  for (const std::string& override_text : overrides) {
    size_t equals = override_text.find('=');
    if (equals == std::string::npos || equals == 0) {
      parsed.problems.push_back({kCommandLine, override_text, "", "an override such as train.learning_rate=1e-3", ""});
      continue;
    }
    parsed.settings.push_back(
        {kCommandLine, override_text.substr(0, equals), override_text.substr(equals + 1), Setting::Kind::kPlain});
  }
  return parsed;
}

}  // namespace syncopate::config
