#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "text/tokenizer/normalizer.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr size_t kMostSplits = 16;

// The pattern of ByteLevel with use_regex.
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const JsonNode& node, const Options& options) {
  PreTokenizer pre_tokenizer;
  SYNCOPATE_RETURN_IF_ERROR(pre_tokenizer.Add(node, options));
  return pre_tokenizer;
}

absl::Status PreTokenizer::Add(const JsonNode& node, const Options& options) {
  if (steps_.size() > kMostSplits) return node.Refuse("more than 16 pre-tokenizers");
  SYNCOPATE_ASSIGN_OR_RETURN(std::string type, node.String("type"));
  if (type == "Sequence") {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> parts, node.Objects("pretokenizers"));
    for (const JsonNode& part : parts) SYNCOPATE_RETURN_IF_ERROR(Add(part, options));
    return absl::OkStatus();
  }
  if (type == "Split") {
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode pattern, node.Object("pattern"));
    SYNCOPATE_ASSIGN_OR_RETURN(std::string behavior, node.String("behavior"));
    SYNCOPATE_ASSIGN_OR_RETURN(bool invert, node.BoolOr("invert", false));
    if (!pattern.Has("Regex")) return node.Refuse("Split by a string");
    if (behavior != "Isolated" || invert) return node.Refuse(absl::StrCat("Split with the behavior ", behavior));
    SYNCOPATE_ASSIGN_OR_RETURN(std::string regex, pattern.String("Regex"));
    return AddPattern(regex, options);
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    SYNCOPATE_ASSIGN_OR_RETURN(bool prefix, node.BoolOr("add_prefix_space", true));
    if (prefix) return node.Refuse("ByteLevel with add_prefix_space");
    SYNCOPATE_ASSIGN_OR_RETURN(bool use_regex, node.BoolOr("use_regex", true));
    return use_regex ? AddPattern(kGpt2Pattern, options) : absl::OkStatus();
  }
  if (type == "Digits") {
    SYNCOPATE_ASSIGN_OR_RETURN(bool individual, node.BoolOr("individual_digits", false));
    steps_.emplace_back(std::in_place_type<Digits>, Digits{individual});
    return absl::OkStatus();
  }
  if (type == "Metaspace") return AddMetaspace(node);
  return node.Refuse(absl::StrCat("the pre-tokenizer ", type));
}

absl::Status PreTokenizer::AddPattern(absl::string_view pattern, const Options& options) {
  // The scanner recognises the patterns of common model families and is faster than the general matcher.
  std::optional<SplitScanner> scanner = SplitScanner::Recognise(pattern);
  if (scanner.has_value() && options.use_scanner) {
    steps_.emplace_back(std::in_place_type<SplitScanner>, *scanner);
    return absl::OkStatus();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::Parse(pattern));
  steps_.emplace_back(std::in_place_type<SplitPattern>, std::move(compiled));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonNode& node) {
  Metaspace metaspace;
  SYNCOPATE_ASSIGN_OR_RETURN(metaspace.replacement, node.String("replacement"));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string scheme, node.StringOr("prepend_scheme", "always"));
  SYNCOPATE_ASSIGN_OR_RETURN(metaspace.split, node.BoolOr("split", true));
  const absl::string_view replacement = metaspace.replacement;
  if (replacement.empty() || DecodeCodePoint(replacement, 0).bytes != replacement.size()) {
    return Malformed(absl::StrCat(node.path(), ".replacement is not one character"));
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return node.Refuse(absl::StrCat("the prepend_scheme ", scheme));
  }
  // After another step, each piece would get its own prefix.
  if (!steps_.empty()) return node.Refuse("Metaspace after another pre-tokenizer");
  metaspace.prepend = scheme != "never";
  metaspace.first_only = scheme == "first";
  steps_.emplace_back(std::in_place_type<Metaspace>, std::move(metaspace));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Split(bool at_start, std::string* text, std::vector<Piece>* pieces) const {
  pieces->assign(1, Piece{0, static_cast<uint32_t>(text->size())});
  if (text->empty()) pieces->clear();
  std::vector<Piece> next;
  int64_t steps_left = SplitPattern::StepsFor(text->size());
  for (const Step& step : steps_) {
    next.clear();
    if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      if (!text->empty()) SplitMetaspace(*metaspace, at_start, text, &next);
      pieces->swap(next);
      continue;
    }
    next.reserve(pieces->size() + text->size() / 4);  // English has about one piece for four bytes
    for (const Piece piece : *pieces) {
      if (const auto* scanner = std::get_if<SplitScanner>(&step)) {
        scanner->Split(*text, piece, &next);
      } else if (const auto* pattern = std::get_if<SplitPattern>(&step)) {
        SYNCOPATE_RETURN_IF_ERROR(pattern->Split(*text, piece, &steps_left, &next));
      } else {
        SplitDigits(std::get<Digits>(step), *text, piece, &next);
      }
    }
    pieces->swap(next);
  }
  return absl::OkStatus();
}

// Splits numbers from other text: each digit alone, or runs of digits.
void PreTokenizer::SplitDigits(const Digits& digits, absl::string_view text, Piece piece, std::vector<Piece>* out) {
  const CodePointClasses& classes = CodePointClasses::Get();
  uint32_t begin = piece.begin;
  bool before = false;
  for (uint32_t at = piece.begin; at < piece.end;) {
    const CodePoint c = DecodeCodePoint(text, at);
    const bool now = (classes[c.value] & CodePointClasses::kNumber) != 0;
    if (at > begin && (now != before || (now && digits.individual))) {
      out->push_back({begin, at});
      begin = at;
    }
    before = now;
    at += static_cast<uint32_t>(c.bytes);
  }
  out->push_back({begin, piece.end});
}

// Replaces each blank by the replacement; with `split`, each replacement begins a new piece.
void PreTokenizer::SplitMetaspace(const Metaspace& metaspace, bool at_start, std::string* text,
                                  std::vector<Piece>* out) {
  const std::string& mark = metaspace.replacement;
  *text = ReplaceAll(*text, " ", mark);
  // "first" prepends at the start of the whole text only, "always" after each added token too.
  const bool prepend = metaspace.prepend && (at_start || !metaspace.first_only);
  if (prepend && !absl::StartsWith(*text, mark)) text->insert(0, mark);
  size_t begin = 0;
  if (metaspace.split) {
    for (size_t at = text->find(mark, 1); at != std::string::npos; at = text->find(mark, at + mark.size())) {
      out->push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(at)});
      begin = at;
    }
  }
  out->push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(text->size())});
}

}  // namespace syncopate::text::tokenizer
