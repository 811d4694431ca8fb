#include "rollouter/reward/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchContext = std::unique_ptr<pcre2_match_context, FreeContext>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeData>;

MatchContext LimitedContext() {
  MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), Pattern::kMatchLimit);
  pcre2_set_depth_limit(context.get(), Pattern::kDepthLimit);
  pcre2_set_heap_limit(context.get(), Pattern::kHeapLimitKib);
  return context;
}

PCRE2_SPTR Bytes(absl::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Pattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* const code;
};

absl::StatusOr<Pattern> Pattern::Compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MATCH_INVALID_UTF: a text that was truncated inside a character is still searched. NEVER_BACKSLASH_C: \C would
  // match half a character.
  pcre2_code* compiled = pcre2_compile(Bytes(pattern), pattern.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                                       &error, &offset, nullptr);
  if (compiled == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PATTERN",
                 absl::StrCat("the regular expression ", pattern, " is wrong at byte ", offset, ": ",
                              reinterpret_cast<const char*>(message.data())));
  }
  uint32_t groups = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_CAPTURECOUNT, &groups);
  return Pattern(std::make_shared<const Code>(compiled), groups);
}

absl::StatusOr<std::function<bool(absl::string_view)>> Pattern::CompileMatcher(const std::string& pattern) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Pattern compiled, Compile(pattern));
  return [compiled](absl::string_view text) { return compiled.MatchesAll(text); };
}

bool Pattern::MatchesAll(absl::string_view text) const {
  if (text.size() > kMaxTextBytes) return false;
  const MatchContext context = LimitedContext();
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr));
  const int matched = pcre2_match(code_->code, Bytes(text), text.size(), 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                  data.get(), context.get());
  // If the text is not valid UTF-8, PCRE2 takes the part before the bad byte for the whole text.
  return matched > 0 && pcre2_get_ovector_pointer(data.get())[1] == text.size();
}

std::optional<std::string> Pattern::LastMatch(absl::string_view text) const {
  if (text.size() > kMaxTextBytes) text.remove_prefix(text.size() - kMaxTextBytes);
  const MatchContext context = LimitedContext();
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr));
  std::optional<std::string> last;
  for (size_t at = 0; at <= text.size();) {
    if (pcre2_match(code_->code, Bytes(text), text.size(), at, 0, data.get(), context.get()) <= 0) break;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const bool grouped = groups_ > 0 && pcre2_get_ovector_count(data.get()) > 1 && ends[2] != PCRE2_UNSET;
    const size_t begin = grouped ? ends[2] : ends[0];
    const size_t end = grouped ? ends[3] : ends[1];
    if (end < begin) break;  // \K in a look-ahead can move the start behind the end
    last = std::string(text.substr(begin, end - begin));
    // An empty match would be found again, so the search advances one byte, and then to the start of a character.
    at = ends[1] > at ? ends[1] : at + 1;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  return last;
}

}  // namespace syncopate::rollouter
