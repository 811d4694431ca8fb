#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate::text::tokenizer {

// A token that is cut out of the text before everything else.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // decoding may leave it out
  bool normalized = false;  // looked for in the normalized text instead of the given one
  bool takes_blanks_before = false, takes_blanks_after = false;
};

// Finds added tokens in a text: the leftmost, of several at one place the longest. Immutable once filled; thread-safe
// then.
class AddedTokens {
 public:
  AddedTokens();

  // `text` is what to look for: the token's content, or what normalizing makes of it; nothing is found of "".
  void Add(AddedToken token, absl::string_view text);
  bool empty() const { return tokens_.empty(); }

  // A part between two tokens, and where in the text it begins.
  using OnText = std::function<void(absl::string_view part, size_t at)>;
  using OnToken = std::function<void(const AddedToken& token)>;
  // Calls one of the two for every part of the text, in order; parts are never empty.
  void Cut(absl::string_view text, const OnText& on_text, const OnToken& on_token) const;

 private:
  struct Node {
    std::vector<std::pair<char, int>> next;
    int token = -1;  // that ends here
  };
  struct Hit {
    size_t bytes = 0;  // 0: none
    int token = -1;
  };

  int Child(int node, char byte) const;
  Hit LongestAt(absl::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;          // a trie of bytes; the root is the first
  std::array<bool, 256> can_begin_;  // by the root's bytes: most of a text is no token
};

}  // namespace syncopate::text::tokenizer
