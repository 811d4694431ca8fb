#include "text/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/tokenizer/normal_form.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr size_t kMostSteps = 16;

// The length in bytes of the result of ReplaceAll.
int64_t BytesAfter(absl::string_view text, absl::string_view from, absl::string_view to) {
  int64_t bytes = static_cast<int64_t>(text.size());
  for (size_t at = 0; (at = text.find(from, at)) != absl::string_view::npos; at += from.size()) {
    bytes += static_cast<int64_t>(to.size()) - static_cast<int64_t>(from.size());
  }
  return bytes;
}

}  // namespace

std::string ReplaceAll(absl::string_view text, absl::string_view from, absl::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != absl::string_view::npos; at = hit + from.size()) {
    out.append(text.data() + at, hit - at).append(to.data(), to.size());
  }
  return out.append(text.data() + at, text.size() - at);
}

absl::StatusOr<Normalizer> Normalizer::Parse(const JsonNode& node) {
  Normalizer normalizer;
  SYNCOPATE_RETURN_IF_ERROR(normalizer.Add(node));
  return normalizer;
}

absl::Status Normalizer::Add(const JsonNode& node) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string type, node.String("type"));
  if (type == "Sequence") {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> parts, node.Objects("normalizers"));
    for (const JsonNode& part : parts) SYNCOPATE_RETURN_IF_ERROR(Add(part));
    return absl::OkStatus();
  }
  Step step;
  if (type == "NFC") {
    step.kind = Step::Kind::kComposed;
  } else if (type == "NFD") {
    step.kind = Step::Kind::kDecomposed;
  } else if (type == "Prepend") {
    step.kind = Step::Kind::kPrepend;
    SYNCOPATE_ASSIGN_OR_RETURN(step.to, node.String("prepend"));
  } else if (type == "Replace") {
    step.kind = Step::Kind::kReplace;
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode pattern, node.Object("pattern"));
    if (!pattern.Has("String")) return node.Refuse("Replace by a regular expression");
    SYNCOPATE_ASSIGN_OR_RETURN(step.from, pattern.String("String"));
    SYNCOPATE_ASSIGN_OR_RETURN(step.to, node.String("content"));
    if (step.from.empty()) return node.Refuse("Replace of nothing");
  } else {
    return node.Refuse(absl::StrCat("the normalizer ", type));
  }
  if (steps_.size() == kMostSteps) return node.Refuse("more than 16 normalizers");
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Normalizer::Normalize(absl::string_view text, int64_t max_bytes) const {
  const auto check = [max_bytes](int64_t bytes) {
    if (bytes <= max_bytes) return absl::OkStatus();
    return Error(absl::StatusCode::kInvalidArgument, "TEXT_TOO_LONG",
                 absl::StrCat("the normalized text is longer than ", max_bytes, " bytes; give it in parts"));
  };
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kComposed:
      case Step::Kind::kDecomposed:
        // ASCII is its own normal form, and most text is ASCII.
        if (std::all_of(out.begin(), out.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; })) break;
        out = Normalized(out, step.kind == Step::Kind::kComposed ? NormalForm::kComposed : NormalForm::kDecomposed);
        break;
      case Step::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
      case Step::Kind::kReplace:
        // Checked before it is done: an untrusted file decides how long `to` is.
        SYNCOPATE_RETURN_IF_ERROR(check(BytesAfter(out, step.from, step.to)));
        out = ReplaceAll(out, step.from, step.to);
        break;
    }
    SYNCOPATE_RETURN_IF_ERROR(check(static_cast<int64_t>(out.size())));
  }
  return out;
}

}  // namespace syncopate::text::tokenizer
