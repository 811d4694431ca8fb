#include "services/endpoint/answer_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace syncopate::endpoint {

AnswerText::AnswerText(const text::tokenizer::Tokenizer* tokenizer, const std::vector<std::string>* stops,
                       const std::vector<int32_t>* end_tokens)
    : stops_(stops), end_tokens_(end_tokens) {
  if (tokenizer != nullptr) stream_ = tokenizer->Stream(/*skip_special_tokens=*/true);
}

std::string AnswerText::Add(int32_t token) {
  if (!stream_.has_value() || std::find(end_tokens_->begin(), end_tokens_->end(), token) != end_tokens_->end())
    return "";
  held_ += stream_->Add(token);
  return Release();
}

std::string AnswerText::End() {
  if (!stream_.has_value() || stopped_) return "";
  held_ += stream_->End();
  std::string text = Release();
  if (!stopped_) text += std::exchange(held_, "");
  return text;
}

std::string AnswerText::Release() {
  size_t first = std::string::npos;
  for (const std::string& stop : *stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return std::exchange(held_, "");
  }
  // The longest end of the text with which a stop may begin.
  size_t keep = 0;
  for (const std::string& stop : *stops_) {
    for (size_t size = std::min(held_.size(), stop.size() - 1); size > keep; --size) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, size))) keep = size;
    }
  }
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

}  // namespace syncopate::endpoint
