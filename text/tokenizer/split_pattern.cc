#include "text/tokenizer/split_pattern.h"

#include <utility>

#include "base/utf8.h"

namespace syncopate::text::tokenizer {
namespace {

constexpr int64_t kNoMatch = -1;

}  // namespace

// The depth of recursion is bounded by the choices, repetitions and look-aheads in the pattern, however long the text.
class SplitPattern::Matcher {
 public:
  Matcher(const std::vector<Node>& nodes, absl::string_view text, int64_t* steps_left)
      : nodes_(nodes), text_(text), steps_left_(*steps_left) {}

  bool exhausted() const { return steps_left_ < 0; }

  // The end of the match that begins at `at`, or kNoMatch.
  int64_t Match(int index, size_t at) {
    while (true) {
      const Node& node = nodes_[static_cast<size_t>(index)];
      if (--steps_left_ < 0) return kNoMatch;
      switch (node.kind) {
        case Node::Kind::kAccept:
          return static_cast<int64_t>(at);
        case Node::Kind::kSet: {
          const size_t bytes = Taken(node.set, at);
          if (bytes == 0) return kNoMatch;
          at += bytes;
          break;
        }
        case Node::Kind::kChoice:
          for (size_t i = 0; i + 1 < node.branches.size(); ++i) {
            const int64_t end = Match(node.branches[i], at);
            if (end != kNoMatch || exhausted()) return end;
          }
          index = node.branches.back();
          continue;
        case Node::Kind::kRepeat:
          if (!node.possessive) return MatchRepeat(node, at);
          if (const auto [end, count] = Run(node, at); count >= node.least) {
            at = end;
            break;
          }
          return kNoMatch;
        case Node::Kind::kAhead:
          if ((Match(node.branches[0], at) != kNoMatch) == node.negated || exhausted()) return kNoMatch;
          break;
      }
      index = node.next;
    }
  }

 private:
  // Bytes of the character at `at` if the set contains it, else 0.
  size_t Taken(const CodePointSet& set, size_t at) const {
    if (at >= text_.size()) return 0;
    const CodePoint c = DecodeCodePoint(text_, at);
    return set.Contains(c.value) ? c.bytes : 0;
  }

  // The end of the longest run that the node may take, and its length in characters.
  std::pair<size_t, int64_t> Run(const Node& node, size_t at) {
    int64_t count = 0;
    for (size_t bytes; (node.most < 0 || count < node.most) && (bytes = Taken(node.set, at)) != 0; ++count) at += bytes;
    steps_left_ -= count;
    return {at, count};
  }

  // Tries the longest run first and gives back one character at a time, as a greedy quantifier does.
  int64_t MatchRepeat(const Node& node, size_t at) {
    auto [end, count] = Run(node, at);
    for (; count >= node.least; --count) {
      const int64_t match = Match(node.next, end);
      if (match != kNoMatch || exhausted() || count == 0) return match;
      do {
        --end;
      } while (IsContinuationByte(text_[end]));
    }
    return kNoMatch;
  }

  const std::vector<Node>& nodes_;
  const absl::string_view text_;
  int64_t& steps_left_;
};

absl::StatusOr<SplitPattern> SplitPattern::Parse(absl::string_view pattern) {
  SYNCOPATE_ASSIGN_OR_RETURN(PatternTree tree, ParsePattern(pattern));
  SplitPattern compiled;
  compiled.nodes_.emplace_back();
  compiled.start_ = compiled.Compile(std::move(tree), 0);
  return compiled;
}

int SplitPattern::Compile(PatternTree tree, int next) {
  Node node;
  node.next = next;
  node.least = tree.least;
  node.most = tree.most;
  node.possessive = tree.possessive;
  node.negated = tree.negated;
  switch (tree.kind) {
    case PatternTree::Kind::kSequence:  // back to front, because each node names the node after it
      for (auto part = tree.children.rbegin(); part != tree.children.rend(); ++part) {
        next = Compile(std::move(*part), next);
      }
      return next;
    case PatternTree::Kind::kSet:
      node.kind = Node::Kind::kSet;
      node.set = std::move(tree.set);
      break;
    case PatternTree::Kind::kChoice:
      node.kind = Node::Kind::kChoice;
      for (PatternTree& branch : tree.children) node.branches.push_back(Compile(std::move(branch), next));
      break;
    case PatternTree::Kind::kRepeat:
      if (tree.children[0].kind == PatternTree::Kind::kSet) {
        node.kind = Node::Kind::kRepeat;
        node.set = std::move(tree.children[0].set);
      } else {  // an optional group
        node.kind = Node::Kind::kChoice;
        node.branches = {Compile(std::move(tree.children[0]), next), next};
      }
      break;
    case PatternTree::Kind::kAhead:
      node.kind = Node::Kind::kAhead;
      node.branches = {Compile(std::move(tree.children[0]), 0)};
      break;
  }
  nodes_.push_back(std::move(node));
  return static_cast<int>(nodes_.size()) - 1;
}

absl::Status SplitPattern::Split(absl::string_view text, Piece piece, int64_t* steps_left,
                                 std::vector<Piece>* out) const {
  const absl::string_view part = text.substr(piece.begin, piece.end - piece.begin);
  Matcher matcher(nodes_, part, steps_left);
  const auto add = [&](size_t begin, size_t end) {
    if (end > begin)
      out->push_back({piece.begin + static_cast<uint32_t>(begin), piece.begin + static_cast<uint32_t>(end)});
  };
  size_t done = 0;
  for (size_t at = 0; at < part.size();) {
    const int64_t match = matcher.Match(start_, at);
    if (matcher.exhausted()) {
      return Error(absl::StatusCode::kInvalidArgument, "TEXT_TOO_COSTLY",
                   "the tokenizer's split pattern takes too many steps on this text");
    }
    if (match <= static_cast<int64_t>(at)) {  // no match, or an empty match
      at += DecodeCodePoint(part, at).bytes;
      continue;
    }
    add(done, at);
    add(at, static_cast<size_t>(match));
    done = at = static_cast<size_t>(match);
  }
  add(done, part.size());
  return absl::OkStatus();
}

}  // namespace syncopate::text::tokenizer
