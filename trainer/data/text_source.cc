#include "trainer/data/text_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

namespace syncopate::trainer {
namespace {

// Bad rows are named one by one up to here, then only counted: a log is no second copy of a bad file.
constexpr int64_t kNamedRows = 1000;

// Reading and tokenising a row takes milliseconds; what takes longer than this does not come.
constexpr absl::Duration kReadWithin = absl::Minutes(2);

absl::Status NoRows(const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "NO_ROWS", text); }

// The approximate memory of a prompt, in bytes.
int64_t GetBytes(const absl::StatusOr<Prompt>& prompt) {
  if (!prompt.ok()) return static_cast<int64_t>(prompt.status().message().size());
  const size_t ids = prompt->prompt_ids.size() + prompt->answer_ids.size() + prompt->response_ids.size();
  return static_cast<int64_t>(ids * sizeof(int32_t) + prompt->task.row_json.size());
}

std::string RenderIds(const PromptWriter& writer, const std::vector<int32_t>& ids, bool plain = false) {
  return writer.tokenizer().Decode(ids, /*skip_special_tokens=*/plain);
}

// Names figures, so that it is short; cut at the end of a character.
std::string ShownSource(const std::string& source) {
  constexpr size_t kMaxBytes = 64;
  return source.substr(0, WellFormedPrefix(absl::string_view(source).substr(0, kMaxBytes)));
}

}  // namespace

bool IsBadRow(const absl::Status& status) { return absl::IsInvalidArgument(status); }

PassOrder TextRows::Order(uint64_t seed) const {
  std::vector<PassOrder::File> shares;
  for (const File& one : files) shares.push_back({one.file->rows(), one.weight});
  return {shares, seed};
}

absl::StatusOr<Prompt> TextRows::Read(const PassOrder::Place& place, text::tokenizer::PieceCache* cache) const {
  const JsonlFile& file = *files[static_cast<size_t>(place.file)].file;
  const auto read = [&]() -> absl::StatusOr<Prompt> {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string line, file.Read(place.row));
    auto row = ParsePromptRow(line, fields, JsonlFile::kMaxRowBytes);
    auto prompt = row.ok() ? writer->Write(*row, cache) : row.status();
    if (prompt.ok()) {
      prompt->origin = {file.path(), ShownSource(row->data_source), ShownSource(row->environment)};
    }
    if (prompt.ok()) return prompt;
    // Whatever is wrong with a row, the time that a template takes for it included, is the row's fault.
    return Error(absl::StatusCode::kInvalidArgument, ErrorReason(prompt.status()), prompt.status().message());
  };
  absl::StatusOr<Prompt> prompt = read();
  if (prompt.ok() || !IsBadRow(prompt.status())) return prompt;
  return Annotate(prompt.status(), file.Where(place.row));
}

// -- TextSource

absl::StatusOr<std::unique_ptr<TextSource>> TextSource::Create(const Options& options, TextRows rows) {
  auto source = std::unique_ptr<TextSource>(new TextSource(options, std::move(rows)));
  if (source->prompts_per_pass() < 1) return NoRows("data.files: with these weights a pass has no rows");
  source->thread_ = std::thread([raw = source.get()] { raw->ReadAhead(); });
  return source;
}

TextSource::TextSource(const Options& options, TextRows rows)
    : options_(options), rows_(std::move(rows)), order_(rows_.Order(options.seed)) {}

TextSource::~TextSource() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

GroupId TextSource::After(const GroupId& group) const {
  if (group.ordinal + 1 >= prompts_per_pass()) return {group.pass + 1, 0};
  return {group.pass, group.ordinal + 1};
}

bool TextSource::HasWorkLocked() const {
  if (stopped_) return true;
  if (!failure_.ok()) return false;
  const bool room = static_cast<int64_t>(loaded_.size()) < options_.ahead && loaded_bytes_ < options_.ahead_bytes;
  return !wanted_.empty() || (begun_ && room);
}

GroupId TextSource::NextLocked() {
  // What is waited for comes before what may be needed; the first in order, as it is used first.
  if (!wanted_.empty()) return *wanted_.begin();
  GroupId next = next_;
  while (loaded_.contains(next)) next = After(next);
  next_ = After(next);
  return next;
}

void TextSource::ReadAhead() {
  text::tokenizer::PieceCache cache;
  while (true) {
    GroupId group;
    {
      MutexLock lock(&mutex_);
      auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasWorkLocked(); };
      mutex_.Await(Condition(&has_work));
      if (stopped_) return;
      group = NextLocked();
    }
    // Without the lock: reading and tokenising take the time.
    if (!Keep(group, rows_.Read(order_.At(group), &cache))) continue;
    MutexLock listening(&listening_);
    if (listener_) listener_();
  }
}

bool TextSource::Keep(const GroupId& group, absl::StatusOr<Prompt> prompt) {
  MutexLock lock(&mutex_);
  const bool wanted = wanted_.erase(group) > 0;
  if (!prompt.ok() && !IsBadRow(prompt.status())) {
    failure_ = prompt.status();
    return true;
  }
  bad_in_row_ = prompt.ok() ? 0 : bad_in_row_ + 1;
  // Two passes must be bad in a row, as the good rows of one pass may all come first and those of the next last.
  if (bad_in_row_ >= 2 * prompts_per_pass() && !options_.bad_rows_end_run) {
    failure_ = NoRows(
        absl::StrCat("data.files: not one row of a whole pass is a prompt; the last: ", prompt.status().message()));
    return true;
  }
  const int64_t bytes = GetBytes(prompt);
  if (loaded_.emplace(group, Loaded{std::move(prompt), bytes, false}).second) loaded_bytes_ += bytes;
  return wanted;
}

PromptSource::Readiness TextSource::LookLocked(const GroupId& group) const {
  if (!failure_.ok()) return Readiness::kComing;
  ForgetBelowLocked(group);
  auto found = loaded_.find(group);
  if (found == loaded_.end()) {
    wanted_.insert(group);
    // Reading ahead goes on from the furthest that was asked for. A resumed run begins in the middle.
    if (!begun_ || next_ <= group) next_ = After(group);
    begun_ = true;
    return Readiness::kComing;
  }
  const absl::Status& status = found->second.prompt.status();
  if (status.ok()) return Readiness::kReady;
  if (options_.bad_rows_end_run) {
    failure_ = Error(absl::StatusCode::kInvalidArgument, "BAD_DATA_ROW",
                     absl::StrCat(status.message(), "; mend the file, or set data.bad_rows=skip"));
    return Readiness::kComing;
  }
  if (!std::exchange(found->second.named, true)) SkipLocked(group, status);
  return Readiness::kUnusable;
}

void TextSource::ForgetBelowLocked(const GroupId& group) const {
  // Groups are asked for in order, so what lies below has been used or skipped.
  if (group <= newest_) return;
  newest_ = group;
  while (!loaded_.empty() && loaded_.begin()->first < group) ForgetLocked(loaded_.begin());
}

void TextSource::ForgetLocked(std::map<GroupId, Loaded>::iterator loaded) const {
  loaded_bytes_ -= loaded->second.bytes;
  loaded_.erase(loaded);
}

void TextSource::SkipLocked(const GroupId& group, const absl::Status& why) const {
  ++skipped_;
  if (skipped_ <= kNamedRows) {
    SYNCOPATE_LOG(kWarning, "skipped group %s: %s", group.ToString(), why.message());
  }
  if (skipped_ == kNamedRows) {
    SYNCOPATE_LOG(kWarning, "%d rows were skipped; further ones are counted, not named", kNamedRows);
  }
}

PromptSource::Readiness TextSource::CheckReadiness(const GroupId& group) const {
  MutexLock lock(&mutex_);
  return LookLocked(group);
}

PromptSource::Readiness TextSource::Await(const GroupId& group) const {
  MutexLock lock(&mutex_);
  Readiness readiness = LookLocked(group);
  while (readiness == Readiness::kComing && failure_.ok() && !stopped_) {
    auto came = [this, &group]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopped_ || !failure_.ok() || loaded_.contains(group);
    };
    if (!mutex_.AwaitWithTimeout(Condition(&came), kReadWithin)) {
      failure_ = Error(absl::StatusCode::kDeadlineExceeded, "ROW_NOT_READ",
                       absl::StrCat("the row of group ", group.ToString(), " was not read within ",
                                    absl::FormatDuration(kReadWithin), "; look at the disk of data.files"));
    }
    readiness = LookLocked(group);
  }
  return readiness;
}

Prompt TextSource::At(const GroupId& group) const {
  MutexLock lock(&mutex_);
  auto found = loaded_.find(group);
  SYNCOPATE_CHECK(found != loaded_.end() && found->second.prompt.ok());
  Prompt prompt = *std::move(found->second.prompt);
  ForgetLocked(found);
  return prompt;
}

absl::Status TextSource::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

void TextSource::SetListener(std::function<void()> listener) {
  MutexLock lock(&listening_);
  listener_ = std::move(listener);
}

std::string TextSource::Render(const std::vector<int32_t>& ids) const { return RenderIds(*rows_.writer, ids); }

std::string TextSource::RenderPlain(const std::vector<int32_t>& ids) const {
  return RenderIds(*rows_.writer, ids, /*plain=*/true);
}

// -- ChosenPrompts

absl::StatusOr<std::unique_ptr<ChosenPrompts>> ChosenPrompts::Read(const Options& options, const TextRows& rows) {
  auto chosen = std::unique_ptr<ChosenPrompts>(new ChosenPrompts(rows.writer));
  const PassOrder order = rows.Order(options.seed);
  text::tokenizer::PieceCache cache;
  for (int64_t i = 0; i < order.prompts_per_pass() && chosen->size() < options.prompts; ++i) {
    absl::StatusOr<Prompt> prompt = rows.Read(order.At({0, i}), &cache);
    if (prompt.ok()) {
      chosen->prompts_.push_back(*std::move(prompt));
      continue;
    }
    if (!IsBadRow(prompt.status()) || options.bad_rows_end_run) return prompt.status();
    SYNCOPATE_LOG(kWarning, "not evaluated: %s", prompt.status().message());
  }
  if (chosen->size() == 0) return NoRows("data.eval_files: not one row is a prompt");
  return chosen;
}

std::string ChosenPrompts::Render(const std::vector<int32_t>& ids) const { return RenderIds(*writer_, ids); }

std::string ChosenPrompts::RenderPlain(const std::vector<int32_t>& ids) const {
  return RenderIds(*writer_, ids, /*plain=*/true);
}

}  // namespace syncopate::trainer
