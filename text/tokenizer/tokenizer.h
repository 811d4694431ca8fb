#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/status.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/byte_pair_model.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/token_decoder.h"

namespace syncopate::text::tokenizer {

struct TokenizerLimits {
  int64_t max_file_bytes = 128 << 20;
  int max_depth = 16;
  int32_t max_tokens = 1 << 22;      // limit of the number of tokens and of the ids
  int64_t max_text_bytes = 8 << 20;  // bytes of one text, before and after it is normalized
};

// The tokenizer of a Hugging Face tokenizer.json, for the byte-pair kinds of GPT-2, Llama, Qwen, Mistral, DeepSeek and
// o200k. It gives the same ids as PyPI `tokenizers`. Own code, because no library for C++ gives the same ids
// (docs/text.md).
//
//   text → added tokens cut out → normalizer → pre-tokenizer → merges in each piece → ids
//
// "truncation" and "padding" of the file are not applied, like the default of `transformers`. Immutable; many threads
// may call Encode and Decode, each with its own cache.
class Tokenizer {
 public:
  // Trusts nothing in `json`. INVALID_ARGUMENT: reason UNSUPPORTED_TOKENIZER names an unsupported part, BAD_TOKENIZER a
  // part that is wrong or over a limit, BAD_JSON if `json` is no JSON.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Parse(absl::string_view json,
                                                                const TokenizerLimits& limits = {},
                                                                const PreTokenizer::Options& options = {});
  // Reads `folder`/tokenizer.json; follows links, because the caches of model hubs consist of links. Errors of Parse
  // and of reading.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(FileSystem* files, const std::string& folder,
                                                               const TokenizerLimits& limits = {});

  // The ids of a text; with `add_special_tokens` also the ids that the file puts around a text (such as a begin of
  // text). INVALID_ARGUMENT: reason BAD_UTF8 with the byte, TEXT_TOO_LONG, TEXT_TOO_COSTLY. `cache` may be null.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens,
                                              PieceCache* cache = nullptr) const;

  // The text of `ids`, always UTF-8: malformed bytes become U+FFFD. Ids without a token are skipped.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
    return decoder_.Decode(ids, skip_special_tokens);
  }
  // Decodes id by id. The tokenizer must outlive the stream.
  TextStream Stream(bool skip_special_tokens) const { return TextStream(&decoder_, skip_special_tokens); }

  // One more than the highest id.
  int32_t id_limit() const { return decoder_.id_limit(); }
  // The id of a token as the file writes it ("<|im_end|>"), if there is one.
  std::optional<int32_t> FindToken(absl::string_view token) const;

 private:
  Tokenizer() = default;

  absl::Status ReadAddedTokens(const JsonNode& root);
  absl::Status ReadPostProcessor(const JsonNode& node);
  absl::Status ReadTemplate(const JsonNode& node);
  void FillDecoder();

  absl::Status EncodePart(absl::string_view part, bool at_start, int64_t* bytes_left, PieceCache* cache,
                          std::vector<int32_t>* ids) const;
  absl::Status EncodeNormal(absl::string_view text, bool at_start, PieceCache* cache, std::vector<int32_t>* ids) const;

  TokenizerLimits limits_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::optional<BytePairModel> model_;
  TokenDecoder decoder_;
  AddedTokens raw_added_, normalized_added_;  // searched before and after normalizing
  absl::flat_hash_map<std::string, AddedToken> added_;
  std::vector<int32_t> prefix_, suffix_;
};

// A function that decodes ids to text without special tokens; null for a null tokenizer.
inline std::function<std::string(const std::vector<int32_t>&)> MakeTextDecoder(
    std::shared_ptr<const Tokenizer> tokenizer) {
  if (tokenizer == nullptr) return nullptr;
  return [tokenizer = std::move(tokenizer)](const std::vector<int32_t>& ids) {
    return tokenizer->Decode(ids, /*skip_special_tokens=*/true);
  };
}

}  // namespace syncopate::text::tokenizer
