#include "text/tokenizer/token_decoder.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/normalizer.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";

// The text of a run of byte tokens, as in the reference.
std::string RunAsText(const std::string& run) {
  if (IsUtf8(run)) return run;
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) text += kReplacementCharacter;
  return text;
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Parse(const JsonNode& node) {
  TokenDecoder decoder;
  SYNCOPATE_RETURN_IF_ERROR(decoder.Add(node));
  if (decoder.byte_fallback_ && !decoder.fused_) return node.Refuse("ByteFallback without Fuse");
  return decoder;
}

absl::Status TokenDecoder::Add(const JsonNode& node) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string type, node.String("type"));
  if (type != "Sequence") return AddStep(type, node);
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<JsonNode> parts, node.Objects("decoders"));
  for (const JsonNode& part : parts) SYNCOPATE_RETURN_IF_ERROR(Add(part));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStep(const std::string& type, const JsonNode& node) {
  const bool first = !std::exchange(any_, true);
  if (byte_level_ || fused_) {
    if (type == "Strip" && fused_ && strip_count_ == 0) return AddStrip(node);
    return node.Refuse(absl::StrCat("the decoder ", type, " at this place"));
  }
  if (type == "ByteLevel" && first) {
    byte_level_ = true;
  } else if (type == "Metaspace" && first) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string replacement, node.String("replacement"));
    SYNCOPATE_ASSIGN_OR_RETURN(std::string scheme, node.StringOr("prepend_scheme", "always"));
    if (replacement.empty()) return Malformed(absl::StrCat(node.path(), ".replacement is empty"));
    replacements_.emplace_back(replacement, " ");
    if (scheme != "never") strip_ = " ";  // removes the blank that encoding has prepended
    strip_count_ = 1;
    fused_ = true;
  } else if (type == "Replace" && !byte_fallback_ && replacements_.size() < 8) {
    SYNCOPATE_ASSIGN_OR_RETURN(JsonNode pattern, node.Object("pattern"));
    if (!pattern.Has("String")) return node.Refuse("Replace by a regular expression");
    SYNCOPATE_ASSIGN_OR_RETURN(std::string from, pattern.String("String"));
    SYNCOPATE_ASSIGN_OR_RETURN(std::string to, node.String("content"));
    // Several such replacements in a row could make a short token very long.
    if (from.empty() || to.size() > from.size()) return node.Refuse("Replace by something longer");
    replacements_.emplace_back(std::move(from), std::move(to));
  } else if (type == "ByteFallback" && !byte_fallback_) {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else {
    return node.Refuse(absl::StrCat("the decoder ", type, " at this place"));
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(const JsonNode& node) {
  SYNCOPATE_ASSIGN_OR_RETURN(strip_, node.String("content"));
  SYNCOPATE_ASSIGN_OR_RETURN(strip_count_, node.Index("start"));
  SYNCOPATE_ASSIGN_OR_RETURN(int32_t stop, node.Index("stop"));
  // The end of a text is not known while it is streamed, so nothing can be stripped there.
  if (stop != 0) return node.Refuse("Strip at the end");
  if (strip_.size() != 1 || strip_count_ != 1) return node.Refuse("Strip of anything but one byte");
  return absl::OkStatus();
}

void TokenDecoder::Set(int32_t id, absl::string_view token, int byte, bool special) {
  const size_t index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  Token& entry = tokens_[index];
  entry.special = special;
  entry.byte = static_cast<int16_t>(byte_fallback_ ? byte : -1);
  entry.text = std::string(token);
  if (byte_level_) {
    // Added tokens are not written in the byte alphabet.
    entry.text = FromByteAlphabet(token).value_or(entry.text);
    return;
  }
  for (const auto& [from, to] : replacements_) entry.text = ReplaceAll(entry.text, from, to);
}

std::string TokenDecoder::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text, run;
  for (const int32_t id : ids) {
    const Token* token = Find(id, skip_special);
    if (token == nullptr) continue;
    if (token->byte >= 0) {
      run.push_back(static_cast<char>(token->byte));
      continue;
    }
    // Successive bytes may form one character, so they are collected until the next token that is no byte.
    if (!run.empty()) text += RunAsText(std::exchange(run, {}));
    text += token->text;
  }
  text += RunAsText(run);
  if (byte_level_) return ReplaceMalformed(text);
  StripStart(&text);
  return text;
}

const TokenDecoder::Token* TokenDecoder::Find(int32_t id, bool skip_special) const {
  if (id < 0 || id >= id_limit()) return nullptr;
  const Token& token = tokens_[static_cast<size_t>(id)];
  return skip_special && token.special ? nullptr : &token;
}

void TokenDecoder::StripStart(std::string* text) const {
  if (!strip_.empty() && absl::StartsWith(*text, strip_)) text->erase(0, strip_.size());
}

std::string TextStream::Add(int32_t id) {
  const TokenDecoder::Token* token = decoder_->Find(id, skip_special_);
  if (token == nullptr) return "";
  if (decoder_->byte_level_) {
    held_ += token->text;
    return TakeWholeCharacters(&held_);
  }
  if (token->byte < 0) return AddText(*token);
  held_.push_back(static_cast<char>(token->byte));
  // The bytes are not whole characters yet, and may never be: the next token that is no byte decides.
  if (!IsUtf8(held_)) return "";
  std::string text = std::exchange(held_, {});
  if (!std::exchange(began_, true)) decoder_->StripStart(&text);
  return text;
}

std::string TextStream::AddText(const TokenDecoder::Token& token) {
  if (token.text.empty() && held_.empty()) return "";
  std::string text = RunAsText(std::exchange(held_, {})) + token.text;
  if (!std::exchange(began_, true)) decoder_->StripStart(&text);
  return text;
}

std::string TextStream::End() {
  if (decoder_->byte_level_) return ReplaceMalformed(std::exchange(held_, {}));
  return RunAsText(std::exchange(held_, {}));
}

}  // namespace syncopate::text::tokenizer
