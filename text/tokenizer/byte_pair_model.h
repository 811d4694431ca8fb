#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/merge_table.h"

namespace syncopate::text::tokenizer {

// A cache of pieces with their ids, because words repeat often. Not thread-safe: each thread needs its own. Use it with
// one tokenizer only. Bounded: 64 Ki pieces of at most 64 bytes.
class PieceCache {
 public:
  void Clear() { ids_.clear(); }

 private:
  friend class BytePairModel;
  absl::flat_hash_map<std::string, std::vector<int32_t>> ids_;
};

// The vocabulary and the merges of a byte-pair encoding. Immutable and thread-safe.
class BytePairModel {
 public:
  struct Options {
    bool byte_level = false;  // tokens are written in the byte alphabet
    int32_t max_tokens = 1 << 22;
  };

  // `node` is "model" of the file. Reason UNSUPPORTED_TOKENIZER names another type of model or a setting of another
  // family; BAD_TOKENIZER names a contradiction.
  static absl::StatusOr<BytePairModel> Parse(const JsonNode& node, const Options& options);

  // The id of a token as the file writes it; -1 if there is none.
  int32_t Find(absl::string_view token) const;
  // The number of tokens, and the highest id plus one. They differ if ids have holes.
  int32_t tokens() const { return static_cast<int32_t>(by_name_.size()); }
  int32_t id_limit() const { return id_limit_; }
  const absl::flat_hash_map<std::string, int32_t>& vocabulary() const { return by_name_; }
  // The byte of a token such as <0x0A>, if byte_fallback is on; else -1.
  int GetByte(int32_t id) const;

  // Appends the ids of one piece to *ids. `cache` may be null.
  void Encode(absl::string_view piece, PieceCache* cache, std::vector<int32_t>* ids) const;

 private:
  absl::Status ReadVocabulary(const JsonNode& node, const Options& options);
  absl::Status ReadMerges(const JsonNode& node);
  absl::Status ReadUnknown(const JsonNode& node);
  void FindWordBegin();

  void EncodeWhole(absl::string_view piece, PieceCache* cache, std::vector<int32_t>* ids) const;
  void AppendSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const;

  absl::flat_hash_map<std::string, int32_t> by_name_;  // ids by the token's text in the file
  // Ids by the token's text in the input: its raw bytes in a byte-level vocabulary, else as in by_name_.
  absl::flat_hash_map<std::string, int32_t> by_bytes_;
  std::array<int32_t, 256> of_byte_{};       // the token of a byte; -1 if there is none
  absl::flat_hash_map<int32_t, int> bytes_;  // the byte of each token <0xXX>
  MergeTable merges_;
  int32_t id_limit_ = 0, unknown_ = -1;
  bool byte_level_ = false, byte_fallback_ = false, ignore_merges_ = false, fuse_unknown_ = false;
  std::string word_begin_;  // see FindWordBegin
};

}  // namespace syncopate::text::tokenizer
