#include "services/endpoint/reasoning.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace syncopate::endpoint {
namespace {

constexpr absl::string_view kThink = "<think>", kEndThink = "</think>";

void DropLeadingSpace(std::string* text) {
  text->erase(0, text->size() - absl::StripLeadingAsciiWhitespace(*text).size());
}

}  // namespace

Reasoning FindReasoning(absl::string_view chat_template) {
  return absl::StrContains(chat_template, kEndThink) ? Reasoning::kAtStart : Reasoning::kNone;
}

Reasoning ReasoningAfter(Reasoning model, absl::string_view prompt) {
  if (model == Reasoning::kNone) return model;
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), kThink) ? Reasoning::kBegun : model;
}

ReasoningParser::State ReasoningParser::FirstState(Reasoning reasoning) {
  if (reasoning == Reasoning::kNone) return State::kAnswer;
  return reasoning == Reasoning::kBegun ? State::kThoughts : State::kOpening;
}

ReasoningParser::Parts ReasoningParser::Add(absl::string_view text) {
  held_.append(text.data(), text.size());
  Parts parts;
  while (Advance(&parts)) continue;
  return parts;
}

bool ReasoningParser::Advance(Parts* parts) {
  switch (state_) {
    case State::kOpening:
      return AdvanceOpening();
    case State::kThoughts:
      return AdvanceThoughts(parts);
    case State::kGap:
      DropLeadingSpace(&held_);
      if (held_.empty()) return false;
      state_ = State::kAnswer;
      return true;
    case State::kAnswer:
      parts->answer += std::exchange(held_, "");
      return false;
  }
  return false;
}

bool ReasoningParser::AdvanceOpening() {
  const absl::string_view begun = absl::StripLeadingAsciiWhitespace(held_);
  if (absl::StartsWith(begun, kThink)) {
    held_.erase(0, held_.size() - begun.size() + kThink.size());
    state_ = State::kThoughts;
    return true;
  }
  if (absl::StartsWith(kThink, begun)) return false;  // also if it is empty
  state_ = State::kAnswer;
  return true;
}

bool ReasoningParser::AdvanceThoughts(Parts* parts) {
  if (!has_thoughts_) DropLeadingSpace(&held_);
  const size_t close = absl::string_view(held_).find(kEndThink);
  if (close != absl::string_view::npos) {
    parts->thoughts += std::string(absl::StripTrailingAsciiWhitespace(absl::string_view(held_).substr(0, close)));
    held_.erase(0, close + kEndThink.size());
    state_ = State::kGap;
    return true;
  }
  // Held back: the beginning of a mark, and white space that may stand before one.
  size_t keep = std::min(held_.size(), kEndThink.size() - 1);
  while (keep > 0 && !absl::EndsWith(held_, kEndThink.substr(0, keep))) --keep;
  const absl::string_view ready =
      absl::StripTrailingAsciiWhitespace(absl::string_view(held_).substr(0, held_.size() - keep));
  if (ready.empty()) return false;
  has_thoughts_ = true;
  const size_t size = ready.size();
  parts->thoughts += std::string(ready);
  held_.erase(0, size);
  return false;
}

ReasoningParser::Parts ReasoningParser::End() {
  Parts parts;
  if (state_ == State::kThoughts) {
    parts.thoughts = std::string(absl::StripTrailingAsciiWhitespace(held_));
  } else if (state_ == State::kOpening) {
    parts.answer = held_;
  }
  held_.clear();
  return parts;
}

}  // namespace syncopate::endpoint
