#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/json_node.h"

namespace syncopate::text::tokenizer {

// Decodes ids to text. Once its tokens are set, immutable and thread-safe.
//
// Tokens of byte-level vocabularies are bytes, which are text when they are joined. Tokens of other vocabularies are
// text, or single bytes written as <0x0A>: a run of such bytes is text if it is UTF-8, else it gives one U+FFFD for
// each byte.
class TokenDecoder {
 public:
  // `node` is "decoder" of the file: ByteLevel, Metaspace, or Replace, ByteFallback, Fuse and Strip in this order.
  // Reason UNSUPPORTED_TOKENIZER names a step of another kind.
  static absl::StatusOr<TokenDecoder> Parse(const JsonNode& node);

  bool byte_level() const { return byte_level_; }

  // Sets the token of an id. `byte` is the byte of a token such as <0x0A>, and -1 for all other tokens.
  void Set(int32_t id, absl::string_view token, int byte, bool special);
  int32_t id_limit() const { return static_cast<int32_t>(tokens_.size()); }

  // The text of `ids`, always UTF-8 in a byte-level vocabulary. Ids without a token are skipped.
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
  // Null if the id has no token, or if its token is special and skipped.
  const Token* Find(int32_t id, bool skip_special) const;
  // Removes the prefix that the file names from the beginning of a text: the blank that encoding puts there.
  void StripStart(std::string* text) const;

  std::vector<Token> tokens_;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string strip_;
  int32_t strip_count_ = 0;
  bool byte_level_ = false, byte_fallback_ = false, fused_ = false, any_ = false;
};

// Decodes text id by id: returns whole characters only, and never one that a later id would change. The parts joined
// are Decode of all ids. Only a run of byte tokens that is no UTF-8 may differ, because its valid beginning was
// returned before the invalid part came. Not thread-safe; the decoder must outlive it.
class TextStream {
 public:
  TextStream(const TokenDecoder* decoder, bool skip_special) : decoder_(decoder), skip_special_(skip_special) {}

  // The text that is complete with this id; often empty. Keeps back at most three bytes, or a run of bytes that is no
  // text.
  std::string Add(int32_t id);
  // The rest of the text after the last id.
  std::string End();

 private:
  std::string AddText(const TokenDecoder::Token& token);

  const TokenDecoder* decoder_;
  bool skip_special_;
  bool began_ = false;  // text was returned
  std::string held_;
};

}  // namespace syncopate::text::tokenizer
