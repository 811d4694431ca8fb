#include "tools/report/sample_search.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_descriptor.h"
#include "base/http/http_request.h"
#include "base/status.h"
#include "base/utf8.h"
#include "trainer/record/sample_record.h"

namespace syncopate::report {
namespace {

using nlohmann::json;

constexpr int64_t kPieceBytes = 256 << 10;
constexpr int64_t kMaxSampleBytes = 4 << 20;  // of a longer line nothing is shown; the trainer writes none
constexpr size_t kMaxShownBytes = 16 << 10;

bool ContainsLower(absl::string_view text, absl::string_view lower) {
  return std::search(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) {
           return absl::ascii_tolower(static_cast<unsigned char>(a)) == b;
         }) != text.end();
}

absl::StatusOr<std::string> Unescaped(absl::string_view name, absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain.push_back(text[i] == '+' ? ' ' : text[i]);
      continue;
    }
    int byte = 0;
    const bool is_hex = i + 2 < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2])) &&
                        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte);
    if (!is_hex) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_QUERY",
                   absl::StrCat(name, ": a % is followed by two hexadecimal digits"));
    }
    plain.push_back(static_cast<char>(byte));
    i += 2;
  }
  return plain;
}

template <typename Number>
absl::Status ReadBound(absl::string_view query, const char* name, bool (*read)(absl::string_view, Number*),
                       std::optional<Number>* bound) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, Unescaped(name, QueryValue(query, name)));
  if (text.empty()) return absl::OkStatus();
  Number value = {};
  // A NaN is no bound: everything and nothing lies below it.
  if (!read(text, &value) || std::isnan(static_cast<double>(value))) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_QUERY", absl::StrCat(name, ": it is no number"));
  }
  *bound = value;
  return absl::OkStatus();
}

bool ReadInteger(absl::string_view text, int64_t* value) { return absl::SimpleAtoi(text, value); }
bool ReadReal(absl::string_view text, double* value) { return absl::SimpleAtod(text, value); }

std::string Text(const json& sample, const char* key) {
  const auto found = sample.find(key);
  return found != sample.end() && found->is_string() ? found->get<std::string>() : "";
}

bool ContainsText(const json& sample, const std::string& lower) {
  for (const char* key : {"prompt", "answer", "expected", "extracted", "outcome", "finish", "set", "file",
                          "data_source", "environment", "rollouter", "group"}) {
    const auto found = sample.find(key);
    if (found == sample.end() || !found->is_string()) continue;
    if (ContainsLower(found->get_ref<const std::string&>(), lower)) return true;
  }
  const auto parts = sample.find("reward_parts");
  if (parts == sample.end() || !parts->is_object()) return false;
  for (const auto& [name, value] : parts->items()) {
    if (ContainsLower(name, lower)) return true;
  }
  return false;
}

template <typename Number>
bool IsWithin(const json& sample, const char* key, const std::optional<Number>& from, const std::optional<Number>& to) {
  if (!from.has_value() && !to.has_value()) return true;
  const auto found = sample.find(key);
  if (found == sample.end() || !found->is_number()) return false;
  const auto value = found->get<Number>();
  return (!from.has_value() || value >= *from) && (!to.has_value() || value <= *to);
}

void CutText(json* text) {
  if (!text->is_string()) return;
  const auto& whole = text->get_ref<const std::string&>();
  if (whole.size() <= kMaxShownBytes) return;
  *text = whole.substr(0, WellFormedPrefix(absl::string_view(whole).substr(0, kMaxShownBytes))) + " ...";
}

// For a page: without ids, and no text longer than a person reads there.
json Shown(json sample) {
  for (const char* key : {"prompt_ids", "answer_ids"}) sample.erase(key);
  for (auto& [key, value] : sample.items()) CutText(&value);
  const auto turns = sample.find("turns");
  if (turns == sample.end() || !turns->is_array()) return sample;
  for (json& turn : *turns) {
    if (turn.is_object() && turn.contains("text")) CutText(&turn["text"]);
  }
  return sample;
}

struct OpenFile {
  FileDescriptor fd = {};
  SamplePlace end = {};
};

std::optional<OpenFile> OpenSamples(const std::string& path) {
  // A run directory may be somebody else's: neither a link out of it is followed, nor a pipe waited for.
  OpenFile file{.fd = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK))};
  struct stat status {};
  if (!file.fd.valid() || ::fstat(file.fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  file.end = {.inode = status.st_ino, .offset = status.st_size};
  return file;
}

// Reads lines of one file backwards.
class BackwardLines {
 public:
  BackwardLines(int fd, int64_t end) : fd_(fd), position_(end) {}

  // The line before, without its end; nullopt at the beginning of the file, or when it cannot be read. Lines longer
  // than kMaxSampleBytes are passed over. `go_on` is asked before each piece of the file: false ends with nullopt and
  // stopped().
  template <typename GoOn>
  std::optional<std::string> Next(const GoOn& go_on) {
    while (true) {
      const size_t newline = held_.empty() ? std::string::npos : held_.rfind('\n');
      if (newline != std::string::npos) return Cut(newline + 1);
      if (position_ == 0) return held_.empty() ? std::nullopt : Cut(0);
      if (!go_on()) {
        stopped_ = true;
        return std::nullopt;
      }
      if (!ReadPiece()) return std::nullopt;
    }
  }
  // Where the line that was returned last begins: all before it is still to be read.
  int64_t offset() const { return offset_; }
  bool stopped() const { return stopped_; }

 private:
  // Takes the line that begins at `at` out of held_, and the end of the line before it.
  std::optional<std::string> Cut(size_t at) {
    offset_ = position_ + static_cast<int64_t>(at);
    std::string line = skipping_ ? "" : held_.substr(at);
    skipping_ = false;
    held_.resize(at > 0 ? at - 1 : 0);
    return line;
  }
  bool ReadPiece() {
    if (static_cast<int64_t>(held_.size()) > kMaxSampleBytes) {
      held_.clear();
      skipping_ = true;
    }
    const int64_t size = std::min(kPieceBytes, position_);
    std::string piece(static_cast<size_t>(size), '\0');
    if (::pread(fd_, piece.data(), piece.size(), position_ - size) != size) return false;  // it has been cut, or worse
    position_ -= size;
    held_.insert(0, piece);
    return true;
  }

  const int fd_;
  int64_t position_;  // of held_ in the file
  std::string held_;  // read, and not returned
  int64_t offset_ = 0;
  bool skipping_ = false;  // held_ is the beginning of a line that is too long
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<SampleQuery> ReadSampleQuery(absl::string_view query) {
  SampleQuery wanted;
  for (auto [name, text] :
       {std::pair("q", &wanted.text), std::pair("kind", &wanted.kind), std::pair("outcome", &wanted.outcome)}) {
    SYNCOPATE_ASSIGN_OR_RETURN(*text, Unescaped(name, QueryValue(query, name)));
  }
  SYNCOPATE_RETURN_IF_ERROR(ReadBound(query, "step_from", ReadInteger, &wanted.step_from));
  SYNCOPATE_RETURN_IF_ERROR(ReadBound(query, "step_to", ReadInteger, &wanted.step_to));
  SYNCOPATE_RETURN_IF_ERROR(ReadBound(query, "reward_from", ReadReal, &wanted.reward_from));
  SYNCOPATE_RETURN_IF_ERROR(ReadBound(query, "reward_to", ReadReal, &wanted.reward_to));
  return wanted;
}

bool Matches(const SampleQuery& query, const json& sample) {
  if (!sample.is_object()) return false;
  if (!query.kind.empty() && Text(sample, "kind") != query.kind) return false;
  if (!query.outcome.empty() && Text(sample, "outcome") != query.outcome) return false;
  if (!IsWithin(sample, "step", query.step_from, query.step_to)) return false;
  if (!IsWithin(sample, "reward", query.reward_from, query.reward_to)) return false;
  return query.text.empty() || ContainsText(sample, absl::AsciiStrToLower(query.text));
}

bool MayMatch(const SampleQuery& query, absl::string_view line) {
  const std::optional<trainer::SampleHead> head = trainer::ReadSampleHead(line);
  if (!head.has_value()) return false;
  if (!query.kind.empty() && head->kind != query.kind) return false;
  if (query.step_from.has_value() && head->version.step < *query.step_from) return false;
  if (query.step_to.has_value() && head->version.step > *query.step_to) return false;
  // What JSON escapes looks different on the line.
  const bool is_plain = std::none_of(query.text.begin(), query.text.end(), [](char c) {
    return c == '"' || c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  return !is_plain || query.text.empty() || ContainsLower(line, absl::AsciiStrToLower(query.text));
}

std::string ToText(const SamplePlace& place) { return absl::StrCat(place.inode, "-", place.offset); }

std::optional<SamplePlace> ReadSamplePlace(absl::string_view place) {
  const std::vector<absl::string_view> parts = absl::StrSplit(place, '-');
  SamplePlace read;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &read.inode) || !absl::SimpleAtoi(parts[1], &read.offset) ||
      read.offset < 0) {
    return std::nullopt;
  }
  return read;
}

json FindSamples(const std::string& run_dir, const SampleSearch& search, const Clock& clock) {
  const absl::Time deadline = clock.Now() + search.within;
  json found = {
      {"samples", json::array()}, {"next", ""}, {"complete", true}, {"searched_bytes", 0}, {"available", false}};
  std::optional<OpenFile> newer = OpenSamples(absl::StrCat(run_dir, "/samples.jsonl"));
  std::optional<OpenFile> older = OpenSamples(absl::StrCat(run_dir, "/samples.1.jsonl"));
  // It has become the older one just now.
  if (newer.has_value() && older.has_value() && newer->end.inode == older->end.inode) older.reset();
  int64_t searched = 0;
  // A page goes on in the file that it has begun with, also when that has become the older one since.
  bool begun = !search.from.has_value();
  for (OpenFile* file : {newer.has_value() ? &*newer : nullptr, older.has_value() ? &*older : nullptr}) {
    if (file == nullptr) continue;
    found["available"] = true;
    const bool is_here = search.from.has_value() && search.from->inode == file->end.inode;
    if (!begun && !is_here) continue;
    begun = true;
    int64_t at = is_here ? std::min(search.from->offset, file->end.offset) : file->end.offset;
    BackwardLines lines(file->fd.get(), at);
    while (found["samples"].size() < search.most) {
      const auto line = lines.Next([&] { return clock.Now() < deadline; });
      if (!line.has_value()) break;
      searched += at - lines.offset();
      at = lines.offset();
      if (!MayMatch(search.query, *line)) continue;
      json sample = json::parse(*line, nullptr, /*allow_exceptions=*/false);  // half a line, at worst
      if (!sample.is_discarded() && Matches(search.query, sample)) found["samples"].push_back(Shown(std::move(sample)));
      if (clock.Now() >= deadline) break;
    }
    found["searched_bytes"] = searched;
    const bool is_newer = newer.has_value() && file == &*newer;
    const bool is_last = at == 0 && !(is_newer && older.has_value());
    const bool out_of_time = lines.stopped() || (clock.Now() >= deadline && at > 0);
    if (out_of_time) found["complete"] = false;
    if (out_of_time || found["samples"].size() >= search.most) {
      if (!is_last) found["next"] = ToText({file->end.inode, at});
      return found;
    }
  }
  return found;
}

}  // namespace syncopate::report
