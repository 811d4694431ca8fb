#include "rollouter/reward/reward_formula.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace syncopate::rollouter {
namespace {

absl::Status BadFormula(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REWARD_FORMULA", what);
}

// '+', '*' and blanks belong to the formula. Other excluded characters would need quoting in records and log lines.
bool IsPythonName(absl::string_view name) {
  auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' || c == '/';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), allowed);
}

absl::StatusOr<RewardTerm> ParseTerm(absl::string_view text) {
  RewardTerm term;
  const size_t star = text.find('*');
  if (star != absl::string_view::npos) {
    const absl::string_view weight = absl::StripAsciiWhitespace(text.substr(0, star));
    // A negative weight is a penalty. The bound keeps a typing error from turning advantages into infinities.
    if (!absl::SimpleAtod(weight, &term.weight) || !std::isfinite(term.weight) || std::fabs(term.weight) > 1e6) {
      return BadFormula(absl::StrCat("'", weight, "' is no weight; write a number, such as 0.2*format"));
    }
    text = text.substr(star + 1);
  }
  absl::string_view name = absl::StripAsciiWhitespace(text);
  term.part = std::string(name);
  // The check precedes the removal of the prefix: every lease carries the whole name.
  if (name.size() > kMaxRewardNameBytes) {
    return BadFormula(absl::StrCat("the name of a reward has at most ", kMaxRewardNameBytes, " bytes"));
  }
  if (absl::ConsumePrefix(&name, "python:")) {
    term.source = RewardTerm::Source::kPython;
    if (!IsPythonName(name)) {
      return BadFormula(absl::StrCat("'", term.part,
                                     "' names no Python reward; write python:NAME, NAME of letters, "
                                     "digits, '_', '-', '.' and '/'"));
    }
  } else if (name == "http") {
    term.source = RewardTerm::Source::kHttp;
  } else if (name == "judge") {
    term.source = RewardTerm::Source::kJudge;
  } else if (std::find(RewardNames().begin(), RewardNames().end(), name) == RewardNames().end()) {
    return BadFormula(absl::StrCat("no reward is named '", name, "'; there are ", absl::StrJoin(RewardNames(), ", "),
                                   " and python:NAME"));
  }
  term.name = std::string(name);
  return term;
}

}  // namespace

absl::StatusOr<std::vector<RewardTerm>> ParseRewardFormula(absl::string_view formula) {
  std::vector<RewardTerm> terms;
  for (const absl::string_view text : absl::StrSplit(formula, '+')) {
    SYNCOPATE_ASSIGN_OR_RETURN(RewardTerm term, ParseTerm(text));
    // Records and metrics distinguish parts by their names, so a name may occur only once.
    for (const RewardTerm& other : terms) {
      if (other.part == term.part) return BadFormula(absl::StrCat("'", term.part, "' stands there twice"));
    }
    terms.push_back(std::move(term));
    if (terms.size() > kMaxRewardTerms) {
      return BadFormula(absl::StrCat("a reward is a sum of at most ", kMaxRewardTerms, " terms"));
    }
  }
  return terms;
}

// These rewards read token ids only, so that a run on synthetic keys, which has no tokenizer, can use them.
bool IsOfText(const RewardTerm& term) {
  return term.name != "dense" && term.name != "exact" && term.name != "overlong" && term.name != "environment";
}

const std::vector<std::string>& RewardNames() {
  static const auto* names = new std::vector<std::string>{
      "dense", "exact", "match", "regex", "final_number", "math", "format", "overlong", "http", "judge", "environment"};
  return *names;
}

}  // namespace syncopate::rollouter
