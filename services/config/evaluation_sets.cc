#include "services/config/evaluation_sets.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::config {
namespace {

constexpr size_t kMaxSets = 16;
constexpr int32_t kMaxSamples = 1024;
constexpr int64_t kMaxTokens = 4194304, kMaxPrompts = 65536;

absl::Status BadSets(const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", text); }

bool IsName(absl::string_view text) {
  auto fits = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits);
}

template <typename Integer>
bool ReadCount(absl::string_view text, Integer most, Integer* value) {
  return absl::SimpleAtoi(text, value) && *value >= 1 && *value <= most;
}

// One word behind the file, such as "n=32".
absl::Status ReadWord(absl::string_view word, EvaluationSetText* set) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto& [key, value] = parts;
  bool good = false;
  if (key == "n") {
    good = ReadCount(value, kMaxSamples, &set->samples);
  } else if (key == "temperature") {
    good = absl::SimpleAtod(value, &set->temperature) && set->temperature >= 0 && set->temperature <= 10;
  } else if (key == "top_p") {
    good = absl::SimpleAtod(value, &set->top_p) && set->top_p > 0 && set->top_p <= 1;
  } else if (key == "max_new_tokens") {
    good = ReadCount(value, kMaxTokens, &set->max_new_tokens);
  } else if (key == "prompts") {
    good = ReadCount(value, kMaxPrompts, &set->prompts);
  } else if (key == "reward") {
    set->reward = std::string(value);
    good = !value.empty();
  } else {
    return BadSets(
        absl::StrCat("words n=, temperature=, top_p=, max_new_tokens=, prompts= and reward= behind the file of "
                     "set ",
                     set->name, "; ", word, " is none"));
  }
  return good ? absl::OkStatus() : BadSets(absl::StrCat("another value in the word ", word, " of set ", set->name));
}

absl::StatusOr<EvaluationSetText> ReadSet(absl::string_view item) {
  EvaluationSetText set;
  const size_t colon = item.find(':');
  if (colon == absl::string_view::npos) {
    return BadSets(absl::StrCat("sets as \"NAME: FILE n=32\" with commas between them; ", item, " names none"));
  }
  set.name = std::string(absl::StripAsciiWhitespace(item.substr(0, colon)));
  if (!IsName(set.name)) {
    return BadSets(
        absl::StrCat("names of sets of up to 64 letters, digits, '_', '-' and '.'; \"", set.name, "\" is none"));
  }
  const std::vector<std::string> words =
      absl::StrSplit(item.substr(colon + 1), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.empty()) return BadSets(absl::StrCat("a file behind the name of set ", set.name));
  set.path = words.front();
  for (size_t i = 1; i < words.size(); ++i) SYNCOPATE_RETURN_IF_ERROR(ReadWord(words[i], &set));
  if (set.samples > 1 && set.temperature == 0) {
    return BadSets(absl::StrCat("a temperature above 0 of set ", set.name, ", whose ", set.samples,
                                " answers to a prompt would all be the same"));
  }
  return set;
}

}  // namespace

absl::StatusOr<std::vector<EvaluationSetText>> ParseEvaluationSets(const std::string& list) {
  std::vector<EvaluationSetText> sets;
  if (absl::StripAsciiWhitespace(list).empty()) return sets;
  std::set<std::string> names;
  for (absl::string_view item : absl::StrSplit(list, ',')) {
    SYNCOPATE_ASSIGN_OR_RETURN(EvaluationSetText set, ReadSet(absl::StripAsciiWhitespace(item)));
    if (!names.insert(set.name).second)
      return BadSets(absl::StrCat("each name of a set once; ", set.name, " is there twice"));
    sets.push_back(std::move(set));
  }
  if (sets.size() > kMaxSets) return BadSets(absl::StrCat("at most ", kMaxSets, " sets"));
  return sets;
}

}  // namespace syncopate::config
