// Own code, because available libraries have other Unicode versions than the reference: the same text would get other
// ids.
//
// Both forms decompose every character and sort marks by their combining classes; NFC then composes the pairs in the
// table of compositions (Unicode Standard Annex 15). Hangul syllables are handled by arithmetic.
#include "text/tokenizer/normal_form.h"

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/unicode_tables.h"

namespace syncopate::text::tokenizer {
namespace {

// Section 3.12 of the Unicode standard.
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

struct Character {
  char32_t code_point;
  uint8_t combining_class;
};

// The characters that normalizing can affect: those that have a combining class, decompose, or are part of a
// composition.
class NormalFormTables {
 public:
  static const NormalFormTables& Get() {
    static const NormalFormTables* const tables = new NormalFormTables;
    return *tables;
  }

  // A text of inert characters only is in both normal forms.
  bool IsInert(char32_t c) const { return !active_[c]; }

  uint8_t CombiningClass(char32_t c) const { return active_[c] ? classes_[c] : 0; }

  const Decomposition* Find(char32_t c) const {
    const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                         [](const Decomposition& d, char32_t value) { return d.code_point < value; });
    return found != std::end(kDecompositions) && found->code_point == c ? found : nullptr;
  }

  // The composition of two characters; 0 if there is none.
  static char32_t Compose(char32_t first, char32_t second) {
    if (first >= kLead && first < kLead + kLeads && second >= kVowel && second < kVowel + kVowels) {
      return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
    }
    const bool takes_tail = first >= kSyllable && first < kSyllable + kSyllables && (first - kSyllable) % kTails == 0;
    // U+11A7 is the base from which tails are counted, and is no tail itself.
    if (takes_tail && second > kTail && second < kTail + kTails) return first + (second - kTail);
    const auto before = [](const Composition& c, const std::pair<char32_t, char32_t>& pair) {
      return std::pair(c.first, c.second) < pair;
    };
    const std::pair<char32_t, char32_t> pair(first, second);
    const auto* found = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), pair, before);
    const bool hit = found != std::end(kCompositions) && found->first == first && found->second == second;
    return hit ? found->composed : 0;
  }

 private:
  NormalFormTables() : active_(0x110000), classes_(0x110000) {
    for (const CombiningRange& range : kCombiningRanges) {
      for (char32_t c = range.first; c <= range.last; ++c) {
        active_[c] = true;
        classes_[c] = range.combining_class;
      }
    }
    for (const Decomposition& decomposition : kDecompositions) active_[decomposition.code_point] = true;
    // Only second parts are active: a first part without one after it does not change.
    for (const Composition& composition : kCompositions) active_[composition.second] = true;
    for (char32_t c = kSyllable; c < kSyllable + kSyllables; ++c) active_[c] = true;
    for (char32_t c = kVowel; c < kTail + kTails; ++c) active_[c] = true;
  }

  std::vector<bool> active_;
  std::vector<uint8_t> classes_;
};

void AppendDecomposed(char32_t c, const NormalFormTables& tables, std::vector<Character>* out) {
  if (tables.IsInert(c)) return out->push_back({c, 0});
  if (c >= kSyllable && c < kSyllable + kSyllables) {
    const char32_t index = c - kSyllable;
    out->push_back({kLead + index / (kVowels * kTails), 0});
    out->push_back({kVowel + index % (kVowels * kTails) / kTails, 0});
    if (index % kTails != 0) out->push_back({kTail + index % kTails, 0});
    return;
  }
  const Decomposition* parts = tables.Find(c);
  if (parts == nullptr) return out->push_back({c, tables.CombiningClass(c)});
  for (size_t i = 0; i < parts->length; ++i) {
    const char32_t part = kDecompositionParts[parts->begin + i];
    out->push_back({part, tables.CombiningClass(part)});
  }
}

// Sorts the marks between two characters of class 0 stably by class.
void PutInOrder(std::vector<Character>* characters) {
  for (auto begin = characters->begin(); begin != characters->end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, characters->end(), [](const Character& c) { return c.combining_class == 0; });
    std::stable_sort(begin, end,
                     [](const Character& a, const Character& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
}

void PutTogether(std::vector<Character>* characters) {
  size_t kept = 0, starter = characters->size();
  int last_class = -1;  // class of the last character kept since the starter; -1: none
  for (const Character c : *characters) {
    const bool blocked = last_class >= static_cast<int>(c.combining_class);
    if (starter < kept && !blocked) {
      const char32_t composed = NormalFormTables::Compose((*characters)[starter].code_point, c.code_point);
      if (composed != 0) {
        (*characters)[starter].code_point = composed;
        continue;
      }
    }
    if (c.combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = c.combining_class;
    }
    (*characters)[kept++] = c;
  }
  characters->resize(kept);
}

}  // namespace

std::string Normalized(absl::string_view text, NormalForm form) {
  const NormalFormTables& tables = NormalFormTables::Get();
  bool inert = true;
  for (size_t at = 0; at < text.size() && inert;) {
    const CodePoint c = DecodeCodePoint(text, at);
    inert = c.value < 0x80 || tables.IsInert(c.value);
    at += c.bytes;
  }
  if (inert) return std::string(text);
  std::vector<Character> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeCodePoint(text, at);
    AppendDecomposed(c.value, tables, &characters);
    at += c.bytes;
  }
  PutInOrder(&characters);
  if (form == NormalForm::kComposed) PutTogether(&characters);
  std::string normalized;
  normalized.reserve(text.size());
  for (const Character& c : characters) AppendUtf8(c.code_point, &normalized);
  return normalized;
}

}  // namespace syncopate::text::tokenizer
