#include "text/tokenizer/pattern_parser.h"

#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "text/tokenizer/json_node.h"

namespace syncopate::text::tokenizer {
namespace {

// Bounds for an untrusted tokenizer.json. They are far above the patterns of published models, and keep parsing cheap
// and its recursion shallow.
constexpr size_t kLongestPattern = 4096;
constexpr int kMostParts = 400;
constexpr int kDeepest = 20;
constexpr int kMostRepetitions = 1000;

absl::StatusOr<CodePointSet> Category(const std::string& name) {
  std::optional<CodePointSet> set = CodePointSet::OfCategory(name);
  if (!set.has_value()) return Unsupported(absl::StrCat("the class \\p{", name, "} in a split pattern"));
  return *std::move(set);
}

// One character of a class, or the set of an escape.
struct Atom {
  CodePointSet set;
  std::optional<char32_t> single;
};

// The part of Oniguruma's syntax that tokenizers use. Unsupported syntax is refused, never guessed: a pattern that is
// misread gives other tokens than the model was trained on, and no error shows it.
class PatternParser {
 public:
  explicit PatternParser(absl::string_view pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const CodePoint c = DecodeCodePoint(pattern, at);
      text_.push_back(c.value);
      at += c.bytes;
    }
  }

  absl::StatusOr<PatternTree> Parse() {
    SYNCOPATE_ASSIGN_OR_RETURN(PatternTree tree, Choice(/*fold=*/false));
    if (More()) return Refuse("an unexpected ')'");
    return tree;
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return Unsupported(absl::StrCat(what, " at character ", at_, " of a split pattern"));
  }

  bool More() const { return at_ < text_.size(); }
  bool NextIs(char32_t c) const { return More() && text_[at_] == c; }

  bool Take(absl::string_view ascii) {
    if (text_.size() - at_ < ascii.size()) return false;
    for (size_t i = 0; i < ascii.size(); ++i) {
      if (text_[at_ + i] != static_cast<char32_t>(ascii[i])) return false;
    }
    at_ += ascii.size();
    return true;
  }

  absl::StatusOr<PatternTree> Choice(bool fold) {
    if (++depth_ > kDeepest) return Refuse("groups nested too deeply");
    PatternTree tree;
    tree.kind = PatternTree::Kind::kChoice;
    do {
      SYNCOPATE_ASSIGN_OR_RETURN(PatternTree branch, Sequence(fold));
      tree.children.push_back(std::move(branch));
    } while (Take("|"));
    --depth_;
    if (tree.children.size() > 1) return tree;
    PatternTree only = std::move(tree.children[0]);
    return only;
  }

  absl::StatusOr<PatternTree> Sequence(bool fold) {
    PatternTree tree;
    while (More() && !NextIs('|') && !NextIs(')')) {
      SYNCOPATE_ASSIGN_OR_RETURN(PatternTree part, Repeated(fold));
      tree.children.push_back(std::move(part));
      if (++parts_ > kMostParts) return Refuse("too many parts");
    }
    return tree;
  }

  absl::StatusOr<PatternTree> Repeated(bool fold) {
    SYNCOPATE_ASSIGN_OR_RETURN(PatternTree once, Part(fold));
    PatternTree tree;
    tree.kind = PatternTree::Kind::kRepeat;
    if (Take("?")) {
      tree.least = 0;
    } else if (Take("*")) {
      tree.least = 0;
      tree.most = -1;
    } else if (Take("+")) {
      tree.most = -1;
    } else if (Take("{")) {
      SYNCOPATE_RETURN_IF_ERROR(Bounds(&tree));
    } else {
      return once;
    }
    // Lazy repetitions are not supported.
    if (NextIs('?')) return Refuse("a repetition that takes as little as it can");
    tree.possessive = Take("+");
    // A repeated set only needs a counter; a repeated group would need backtracking into each of its repetitions.
    const bool optional = tree.least == 0 && tree.most == 1 && !tree.possessive;
    if (once.kind != PatternTree::Kind::kSet && !optional) return Refuse("a repetition of a group");
    if (NextIs('*') || NextIs('+') || NextIs('?') || NextIs('{')) return Refuse("a repetition of a repetition");
    tree.children.push_back(std::move(once));
    return tree;
  }

  absl::Status Bounds(PatternTree* tree) {
    SYNCOPATE_ASSIGN_OR_RETURN(tree->least, Number());
    tree->most = tree->least;
    if (Take(",")) {
      tree->most = -1;
      if (!NextIs('}')) {
        SYNCOPATE_ASSIGN_OR_RETURN(tree->most, Number());
      }
    }
    if (!Take("}")) return Refuse("no '}'");
    if (tree->most >= 0 && tree->most < tree->least) return Refuse("a repetition with bounds out of order");
    return absl::OkStatus();
  }

  absl::StatusOr<int> Number() {
    if (!More() || text_[at_] < '0' || text_[at_] > '9') return Refuse("no number");
    int number = 0;
    for (; More() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      number = number * 10 + static_cast<int>(text_[at_] - '0');
      if (number > kMostRepetitions) return Refuse("more than 1,000 repetitions");
    }
    return number;
  }

  absl::StatusOr<PatternTree> Part(bool fold) {
    if (Take("(?:")) return Group(Choice(fold));
    if (Take("(?i:")) return Group(Choice(true));
    if (Take("(?=") || Take("(?!")) {
      PatternTree tree;
      tree.kind = PatternTree::Kind::kAhead;
      tree.negated = text_[at_ - 1] == '!';
      SYNCOPATE_ASSIGN_OR_RETURN(PatternTree inner, Group(Choice(fold)));
      tree.children.push_back(std::move(inner));
      return tree;
    }
    if (Take("(?")) return Refuse("this kind of group");
    if (Take("(")) return Group(Choice(fold));
    if (NextIs('^') || NextIs('$')) return Refuse("an anchor");
    if (NextIs('*') || NextIs('+') || NextIs('?') || NextIs('{')) return Refuse("a repetition of nothing");
    PatternTree tree;
    tree.kind = PatternTree::Kind::kSet;
    if (Take("[")) {
      SYNCOPATE_ASSIGN_OR_RETURN(tree.set, Class(fold));
    } else if (Take(".")) {
      tree.set.Add('\n', '\n');
      tree.set.Negate();
    } else {
      SYNCOPATE_ASSIGN_OR_RETURN(Atom atom, One(fold));
      tree.set = std::move(atom.set);
    }
    return tree;
  }

  absl::StatusOr<PatternTree> Group(absl::StatusOr<PatternTree> inner) {
    if (inner.ok() && !Take(")")) return Refuse("no ')'");
    return inner;
  }

  absl::StatusOr<CodePointSet> Class(bool fold) {
    CodePointSet set;
    const bool negated = Take("^");
    // A ']' in the first position is an ordinary character.
    for (bool first = true; More() && (first || !NextIs(']')); first = false) {
      if (Take("&&")) return Refuse("'&&' in a class");
      if (NextIs('[')) return Refuse("a class in a class");
      SYNCOPATE_ASSIGN_OR_RETURN(Atom from, One(fold));
      // A '-' in the last position is an ordinary character.
      const bool range = from.single.has_value() && NextIs('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        set.Add(from.set);
        continue;
      }
      ++at_;
      SYNCOPATE_ASSIGN_OR_RETURN(Atom to, One(fold));
      if (!to.single.has_value() || *to.single < *from.single) return Refuse("a range out of order");
      // A range with case ignored is not supported, as no model's pattern uses one.
      if (fold) return Refuse("a range where case is ignored");
      set.Add(*from.single, *to.single);
    }
    if (!Take("]")) return Refuse("no ']'");
    if (negated) set.Negate();
    return set;
  }

  // Parses a character, or an escape that means a character or a class.
  absl::StatusOr<Atom> One(bool fold) {
    char32_t c = text_[at_++];
    if (c == '\\') {
      if (!More()) return Refuse("nothing after '\\'");
      c = text_[at_++];
      if (c == 'p' || c == 'P' || c == 's' || c == 'S' || c == 'd' || c == 'D') return EscapedClass(c);
      SYNCOPATE_ASSIGN_OR_RETURN(c, EscapedCharacter(c));
    }
    Atom atom;
    atom.single = c;
    atom.set.Add(c, c);
    if (fold && c >= 0x80) return Refuse("a character outside ASCII where case is ignored");
    if (fold && std::isalpha(static_cast<int>(c)) != 0) {
      const char32_t lower = c | 0x20;
      atom.set.Add(lower, lower);
      atom.set.Add(lower ^ 0x20, lower ^ 0x20);
      // The two characters outside ASCII whose case folding is an ASCII letter: the long s and the Kelvin sign.
      if (lower == 's') atom.set.Add(0x17F, 0x17F);
      if (lower == 'k') atom.set.Add(0x212A, 0x212A);
    }
    return atom;
  }

  absl::StatusOr<Atom> EscapedClass(char32_t letter) {
    Atom atom;
    const char32_t lower = letter | 0x20;
    if (lower == 's') {
      atom.set = CodePointSet::Spaces();
    } else {
      std::string name = "Nd";
      if (lower == 'p') {
        name.clear();
        if (!Take("{")) return Refuse("no '{'");
        while (More() && !NextIs('}')) AppendUtf8(text_[at_++], &name);
        if (!Take("}")) return Refuse("no '}'");
      }
      SYNCOPATE_ASSIGN_OR_RETURN(atom.set, Category(name));
    }
    // The capital escapes \P, \S and \D are negated classes.
    if (letter != lower) atom.set.Negate();
    return atom;
  }

  absl::StatusOr<char32_t> EscapedCharacter(char32_t letter) {
    switch (letter) {
      case 'r':
        return U'\r';
      case 'n':
        return U'\n';
      case 't':
        return U'\t';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case 'x':
      case 'u':
        return Hexadecimal(letter);
      default:
        if (letter < 128 && std::isalnum(static_cast<int>(letter)) != 0) return Refuse("this escape");
        return letter;
    }
  }

  absl::StatusOr<char32_t> Hexadecimal(char32_t letter) {
    const bool braces = Take("{");
    const int most = braces ? 6 : letter == 'x' ? 2 : 4;
    char32_t value = 0;
    int digits = 0;
    for (; digits < most && More() && text_[at_] < 128 && std::isxdigit(static_cast<int>(text_[at_])); ++digits) {
      const char32_t digit = text_[at_++];
      value = value * 16 + (digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    if (digits == 0 || (braces && !Take("}")) || value > 0x10FFFF) return Refuse("a bad hexadecimal character");
    return value;
  }

  std::u32string text_;
  size_t at_ = 0;
  int depth_ = 0, parts_ = 0;
};

}  // namespace

absl::StatusOr<PatternTree> ParsePattern(absl::string_view pattern) {
  if (pattern.size() > kLongestPattern) return Unsupported("a split pattern of more than 4,096 bytes");
  return PatternParser(pattern).Parse();
}

}  // namespace syncopate::text::tokenizer
