#include "text/tokenizer/byte_pair_model.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"

namespace syncopate::text::tokenizer {
namespace {

// Bounds for an untrusted file, and for memory: long pieces hardly ever repeat, so they are not cached.
constexpr size_t kLongestToken = 64 << 10;
constexpr size_t kLongestCached = 64;     // bytes of a piece; longer pieces hardly ever come again
constexpr size_t kMostCached = 64 << 10;  // pieces: bounds the memory of a cache to some megabytes

// The byte of a token such as "<0x0A>", else -1.
int ByteTokenValue(absl::string_view token) {
  int value = 0;
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  for (const char digit : token.substr(3, 2)) {
    if (!std::isxdigit(static_cast<uint8_t>(digit)) || std::islower(static_cast<uint8_t>(digit))) return -1;
    value = value * 16 + (digit <= '9' ? digit - '0' : digit - 'A' + 10);
  }
  return value;
}

std::string Shown(absl::string_view token) {
  constexpr size_t kMost = 64;
  return absl::StrCat("'", absl::CHexEscape(token.substr(0, kMost)), "'");
}

// The two sides of a merge: ["a", "b"], or "a b" in older files.
absl::StatusOr<std::pair<std::string, std::string>> GetSides(const nlohmann::json& merge) {
  if (const std::string* text = merge.get_ptr<const std::string*>()) {
    const size_t space = text->find(' ');
    if (space == std::string::npos) return Malformed(absl::StrCat("the merge ", Shown(*text), " has no space"));
    return std::pair(text->substr(0, space), text->substr(space + 1));
  }
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  return Malformed("a merge is neither a pair nor a string");
}

}  // namespace

absl::StatusOr<BytePairModel> BytePairModel::Parse(const JsonNode& node, const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string type, node.StringOr("type", "BPE"));
  if (type != "BPE") return node.Refuse(absl::StrCat("the model ", type));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string affix, node.StringOr(key, ""));
    if (!affix.empty()) return node.Refuse(key);
  }
  // Dropout chooses merges at random: a text would not have one sequence of tokens.
  if (node.Has("dropout") && node.value()["dropout"] != 0.0) return node.Refuse("dropout");
  BytePairModel model;
  model.byte_level_ = options.byte_level;
  SYNCOPATE_ASSIGN_OR_RETURN(model.byte_fallback_, node.BoolOr("byte_fallback", false));
  SYNCOPATE_ASSIGN_OR_RETURN(model.ignore_merges_, node.BoolOr("ignore_merges", false));
  SYNCOPATE_ASSIGN_OR_RETURN(model.fuse_unknown_, node.BoolOr("fuse_unk", false));
  if (model.byte_level_ && model.byte_fallback_) return node.Refuse("byte_fallback in a byte-level vocabulary");
  SYNCOPATE_RETURN_IF_ERROR(model.ReadVocabulary(node, options));
  SYNCOPATE_RETURN_IF_ERROR(model.ReadUnknown(node));
  SYNCOPATE_RETURN_IF_ERROR(model.ReadMerges(node));
  model.FindWordBegin();
  return model;
}

absl::Status BytePairModel::ReadVocabulary(const JsonNode& node, const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(JsonNode vocabulary, node.Object("vocab"));
  if (vocabulary.value().size() > static_cast<size_t>(options.max_tokens)) return Malformed("too many tokens");
  of_byte_.fill(-1);
  by_name_.reserve(vocabulary.value().size());
  by_bytes_.reserve(vocabulary.value().size());
  std::vector<bool> seen;
  for (const auto& [token, value] : vocabulary.value().items()) {
    if (token.size() > kLongestToken) return Malformed(absl::StrCat("the token ", Shown(token), " is too long"));
    const uint64_t* number = value.get_ptr<const uint64_t*>();
    if (number == nullptr || *number >= static_cast<uint64_t>(options.max_tokens)) {
      return Malformed(absl::StrCat("the id of ", Shown(token), " is not in [0, ", options.max_tokens, ")"));
    }
    const int32_t id = static_cast<int32_t>(*number);
    if (seen.size() <= *number) seen.resize(*number + 1);
    if (seen[*number]) return Malformed(absl::StrCat("two tokens have the id ", id));
    seen[*number] = true;
    by_name_.emplace(token, id);
    std::optional<std::string> bytes = byte_level_ ? FromByteAlphabet(token) : token;
    if (!bytes.has_value()) continue;  // no merge can give this token; it may be an added token
    if (byte_level_ && bytes->size() == 1) of_byte_[static_cast<uint8_t>((*bytes)[0])] = id;
    if (const int byte = byte_fallback_ ? ByteTokenValue(token) : -1; byte >= 0) {
      of_byte_[static_cast<size_t>(byte)] = id;
      bytes_.emplace(id, byte);
    }
    by_bytes_.emplace(*std::move(bytes), id);
  }
  id_limit_ = static_cast<int32_t>(seen.size());
  return absl::OkStatus();
}

absl::Status BytePairModel::ReadUnknown(const JsonNode& node) {
  if (!node.Has("unk_token")) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(std::string token, node.String("unk_token"));
  unknown_ = Find(token);
  if (unknown_ < 0) return Malformed(absl::StrCat("unk_token ", Shown(token), " is not in the vocabulary"));
  return absl::OkStatus();
}

absl::Status BytePairModel::ReadMerges(const JsonNode& node) {
  const auto merges = node.value().find("merges");
  if (merges == node.value().end() || !merges->is_array()) return Malformed("model.merges is no list");
  merges_.Reserve(merges->size());
  uint32_t rank = 0;
  for (const nlohmann::json& merge : *merges) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto sides, GetSides(merge));
    const int32_t left = Find(sides.first), right = Find(sides.second), merged = Find(sides.first + sides.second);
    if (left < 0 || right < 0 || merged < 0) {
      return Malformed(
          absl::StrCat("the merge of ", Shown(sides.first), " and ", Shown(sides.second), " is not in the vocabulary"));
    }
    merges_.Add(left, right, rank++, merged);
  }
  return absl::OkStatus();
}

// Without a pre-tokenizer the whole text is one piece, and the cache is of no use. If every token has "▁" only at its
// front, or consists of "▁" only, no merge crosses the position before a "▁" that follows another character. The text
// can then be cut there and gets the same ids.
void BytePairModel::FindWordBegin() {
  constexpr absl::string_view kWordBegin = "\xE2\x96\x81";
  if (byte_level_ || Find(kWordBegin) < 0) return;
  for (const auto& [token, id] : by_name_) {
    size_t at = 0;
    while (absl::StartsWith(absl::string_view(token).substr(at), kWordBegin)) at += kWordBegin.size();
    if (absl::string_view(token).find(kWordBegin, at) != absl::string_view::npos) return;
  }
  word_begin_ = std::string(kWordBegin);
}

int32_t BytePairModel::Find(absl::string_view token) const {
  const auto found = by_name_.find(token);
  return found == by_name_.end() ? -1 : found->second;
}

int BytePairModel::GetByte(int32_t id) const {
  const auto found = bytes_.find(id);
  return found == bytes_.end() ? -1 : found->second;
}

void BytePairModel::Encode(absl::string_view piece, PieceCache* cache, std::vector<int32_t>* ids) const {
  size_t begin = 0;
  if (!word_begin_.empty() && !ignore_merges_) {
    for (size_t at = 0; (at = piece.find(word_begin_, at)) != absl::string_view::npos; at += word_begin_.size()) {
      const bool goes_on = at >= word_begin_.size() && absl::EndsWith(piece.substr(0, at), word_begin_);
      if (at == 0 || goes_on) continue;
      EncodeWhole(piece.substr(begin, at - begin), cache, ids);
      begin = at;
    }
  }
  EncodeWhole(piece.substr(begin), cache, ids);
}

void BytePairModel::EncodeWhole(absl::string_view piece, PieceCache* cache, std::vector<int32_t>* ids) const {
  const bool cached = cache != nullptr && piece.size() <= kLongestCached;
  if (cached) {
    const auto hit = cache->ids_.find(piece);
    if (hit != cache->ids_.end()) {
      ids->insert(ids->end(), hit->second.begin(), hit->second.end());
      return;
    }
  }
  std::vector<int32_t> symbols;
  const auto whole = ignore_merges_ ? by_bytes_.find(piece) : by_bytes_.end();
  if (whole != by_bytes_.end()) {
    symbols.push_back(whole->second);
  } else {
    AppendSymbols(piece, &symbols);
    merges_.Merge(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (cached && cache->ids_.size() < kMostCached) cache->ids_.emplace(piece, std::move(symbols));
}

// Splits the piece into bytes or characters; one without a token becomes its bytes' tokens, or the unknown token.
void BytePairModel::AppendSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const {
  symbols->reserve(piece.size());
  if (byte_level_) {
    for (const char byte : piece) {
      const int32_t id = of_byte_[static_cast<uint8_t>(byte)];
      // A byte without a token and without unk_token is dropped, as in the reference.
      if (id >= 0 || unknown_ >= 0) symbols->push_back(id >= 0 ? id : unknown_);
    }
    return;
  }
  bool after_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const absl::string_view character = piece.substr(at, DecodeCodePoint(piece, at).bytes);
    at += character.size();
    const auto found = by_bytes_.find(character);
    // Either all bytes of a character have tokens, or the whole character is unknown.
    const bool as_bytes = byte_fallback_ && std::all_of(character.begin(), character.end(), [this](char byte) {
                            return of_byte_[static_cast<uint8_t>(byte)] >= 0;
                          });
    if (found != by_bytes_.end()) {
      symbols->push_back(found->second);
    } else if (as_bytes) {
      for (const char byte : character) symbols->push_back(of_byte_[static_cast<uint8_t>(byte)]);
    } else {
      if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) symbols->push_back(unknown_);
      after_unknown = true;
      continue;
    }
    after_unknown = false;
  }
}

}  // namespace syncopate::text::tokenizer
