#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

// A token that is cut out of the text before all other steps.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // decoding may leave it out
  bool normalized = false;  // searched in the normalized text instead of the given text
  bool takes_blanks_before = false, takes_blanks_after = false;
};

// Finds added tokens in a text: the leftmost; the longest of several at one position. Once filled, immutable and
// thread-safe.
class AddedTokens {
 public:
  AddedTokens();

  // `text` is the text to search for: the token's content, or its normalized form. An empty `text` is never found.
  void Add(AddedToken token, absl::string_view text);
  bool empty() const { return tokens_.empty(); }

  // Receives a part between two tokens, and its position in the text.
  using OnText = std::function<void(absl::string_view part, size_t at)>;
  using OnToken = std::function<void(const AddedToken& token)>;
  // Calls one of the two for every part of the text, in order; parts are never empty.
  void Cut(absl::string_view text, const OnText& on_text, const OnToken& on_token) const;

 private:
  struct Node {
    std::vector<std::pair<char, int>> next;
    int token = -1;  // the token that ends at this node
  };
  struct Hit {
    size_t bytes = 0;  // 0: none
    int token = -1;
  };

  int Child(int node, char byte) const;
  Hit LongestAt(absl::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;          // a trie of bytes; the first node is the root
  std::array<bool, 256> can_begin_;  // whether a token begins with this byte: skips most of a text
};

}  // namespace syncopate::text::tokenizer
