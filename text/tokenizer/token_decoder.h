#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/json_node.h"

namespace syncopate::text::tokenizer {

// Ids back to text. Immutable once its pieces are set; thread-safe then.
//
// Byte-level vocabularies give bytes, which are text when they are put together. The others give text, and single bytes
// as tokens like <0x0A>: of these a run is text if all of it is UTF-8, else U+FFFD for each.
class TokenDecoder {
 public:
  // `node` is "decoder" of the file: ByteLevel, Metaspace, or Replace, ByteFallback, Fuse and Strip in this order.
  // Reason UNSUPPORTED_TOKENIZER names any other kind.
  static absl::StatusOr<TokenDecoder> Parse(const JsonNode& node);

  bool byte_level() const { return byte_level_; }

  // What a token stands for. `byte` is that of <0x0A> and -1 for all other tokens.
  void Set(int32_t id, absl::string_view token, int byte, bool special);
  int32_t id_limit() const { return static_cast<int32_t>(tokens_.size()); }

  // Ids without a token give nothing.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const;

 private:
  friend class TextStream;

  struct Token {
    std::string text;  // bytes in a byte-level vocabulary
    int16_t byte = -1;
    bool special = false;
  };

  absl::Status Add(const JsonNode& node);
  absl::Status AddStep(const std::string& type, const JsonNode& node);
  absl::Status AddStrip(const JsonNode& node);
  // Null if there is nothing to show of it.
  const Token* Find(int32_t id, bool skip_special) const;
  // Takes from the beginning of a text what the file says: the blank that encoding puts there.
  void StripStart(std::string* text) const;

  std::vector<Token> tokens_;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string strip_;
  int32_t strip_count_ = 0;
  bool byte_level_ = false, byte_fallback_ = false, fused_ = false, any_ = false;
};

// Text as it becomes known, id by id: whole characters only, and never one that a later id would change. The pieces add
// up to Decode of all the ids; only a run of byte tokens that is no UTF-8 may differ, as its good part was shown before
// the bad one came. Not thread-safe; the decoder must outlive it.
class TextStream {
 public:
  TextStream(const TokenDecoder* decoder, bool skip_special) : decoder_(decoder), skip_special_(skip_special) {}

  // What the id lets be shown; often nothing. Holds back three bytes at most, or a run of bytes that is no text.
  std::string Add(int32_t id);
  // What is left when no more ids come.
  std::string End();

 private:
  std::string AddText(const TokenDecoder::Token& token);

  const TokenDecoder* decoder_;
  bool skip_special_;
  bool began_ = false;  // something was shown
  std::string held_;
};

}  // namespace syncopate::text::tokenizer
