#include "text/tokenizer/added_tokens.h"

#include "base/utf8.h"
#include "text/tokenizer/code_point_set.h"

namespace syncopate::text::tokenizer {
namespace {

bool IsBlankAt(absl::string_view text, size_t at) {
  return (CodePointClasses::Get()[DecodeCodePoint(text, at).value] & CodePointClasses::kSpace) != 0;
}

// The begin of the run of blanks that ends at `end`, but not before `least`.
size_t BeginOfBlanks(absl::string_view text, size_t end, size_t least) {
  while (end > least) {
    size_t at = end - 1;
    while (at > least && IsContinuationByte(text[at])) --at;
    if (!IsBlankAt(text, at)) break;
    end = at;
  }
  return end;
}

size_t EndOfBlanksAt(absl::string_view text, size_t at) {
  while (at < text.size() && IsBlankAt(text, at)) at += DecodeCodePoint(text, at).bytes;
  return at;
}

}  // namespace

AddedTokens::AddedTokens() : nodes_(1), can_begin_{} {}

// The tokens form a trie of bytes, so that a text is cut in one pass, however many tokens there are.
void AddedTokens::Add(AddedToken token, absl::string_view text) {
  if (text.empty()) return;
  int node = 0;
  for (const char byte : text) {
    int next = Child(node, byte);
    if (next < 0) {
      next = static_cast<int>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<size_t>(node)].next.emplace_back(byte, next);
    }
    node = next;
  }
  can_begin_[static_cast<uint8_t>(text[0])] = true;
  nodes_[static_cast<size_t>(node)].token = static_cast<int>(tokens_.size());
  tokens_.push_back(std::move(token));
}

void AddedTokens::Cut(absl::string_view text, const OnText& on_text, const OnToken& on_token) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    // Nearly every position of a text fails this check, which touches no node of the trie.
    if (!can_begin_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const Hit hit = LongestAt(text, at);
    if (hit.bytes == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(hit.token)];
    const size_t begin = token.takes_blanks_before ? BeginOfBlanks(text, at, done) : at;
    const size_t end = token.takes_blanks_after ? EndOfBlanksAt(text, at + hit.bytes) : at + hit.bytes;
    if (begin > done) on_text(text.substr(done, begin - done), done);
    on_token(token);
    done = at = end;
  }
  if (done < text.size()) on_text(text.substr(done), done);
}

int AddedTokens::Child(int node, char byte) const {
  for (const auto& [key, child] : nodes_[static_cast<size_t>(node)].next) {
    if (key == byte) return child;
  }
  return -1;
}

AddedTokens::Hit AddedTokens::LongestAt(absl::string_view text, size_t at) const {
  Hit longest;
  int node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = Child(node, text[i]);
    if (node < 0) break;
    if (const int token = nodes_[static_cast<size_t>(node)].token; token >= 0) longest = {i + 1 - at, token};
  }
  return longest;
}

}  // namespace syncopate::text::tokenizer
