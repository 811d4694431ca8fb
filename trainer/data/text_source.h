#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "trainer/data/jsonl_file.h"
#include "trainer/data/pass_order.h"
#include "trainer/data/prompt_row.h"
#include "trainer/data/prompt_writer.h"
#include "trainer/data/prompts.h"

namespace syncopate::trainer {

// The rows of text files and the writer that makes prompts of them.
struct TextRows {
  struct File {
    std::shared_ptr<const JsonlFile> file;
    double weight = 1;
  };
  std::vector<File> files;
  RowFields fields;
  std::shared_ptr<const PromptWriter> writer;

  PassOrder Order(uint64_t seed) const;
  // Errors of JsonlFile::Read, ParsePromptRow and PromptWriter::Write, with file and line before them. `cache` is the
  // calling thread's. Blocks for the disk.
  absl::StatusOr<Prompt> Read(const PassOrder::Place& place, text::tokenizer::PieceCache* cache) const;
};

// Whether an error of TextRows::Read is the row's fault; else it is the file's, or the disk's, and the end of a run.
bool IsBadRow(const absl::Status& status);

// Prompts from files of text. One thread reads and tokenises ahead of its callers, so that none of them waits for a
// disk under a lock: a prompt that is not there yet is kComing, and the listener is called when it is. At most
// Options::ahead prompts, or ahead_bytes of them, are in memory, beside those that were asked for.
//
// A bad row is kUnusable in its turn, and named in the log; or with Options::bad_rows_end_run, its turn is a failure.
// So is a file that is not what it was, and a whole pass of bad rows.
class TextSource final : public PromptSource {
 public:
  struct Options {
    uint64_t seed = 0;
    bool bad_rows_end_run = false;
    int64_t ahead = 4096;
    int64_t ahead_bytes = 64 << 20;
  };

  // Starts the thread. `rows` has files. INVALID_ARGUMENT (reason NO_ROWS) if a pass has no prompts.
  static absl::StatusOr<std::unique_ptr<TextSource>> Create(const Options& options, TextRows rows);
  ~TextSource() override;

  Readiness CheckReadiness(const GroupId& group) const override;
  Readiness Await(const GroupId& group) const override;
  Prompt At(const GroupId& group) const override;
  absl::Status failure() const override;
  void SetListener(std::function<void()> listener) override;

  std::string Render(const std::vector<int32_t>& ids) const override;
  std::string RenderPlain(const std::vector<int32_t>& ids) const override;
  int64_t prompts_per_pass() const override { return order_.prompts_per_pass(); }
  int32_t vocab_size() const override { return rows_.writer->tokenizer().id_limit(); }
  std::vector<int32_t> stop_token_ids() const override { return rows_.writer->options().stop_token_ids; }
  int64_t max_prompt_tokens() const override { return rows_.writer->options().max_prompt_tokens; }
  int64_t max_answer_tokens() const override { return 0; }

 private:
  struct Loaded {
    absl::StatusOr<Prompt> prompt;
    int64_t bytes = 0;
    bool named = false;  // in the log, as a bad row
  };

  TextSource(const Options& options, TextRows rows);
  void ReadAhead();
  bool HasWorkLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GroupId NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if a caller waits for it.
  bool Keep(const GroupId& group, absl::StatusOr<Prompt> prompt) ABSL_LOCKS_EXCLUDED(mutex_);
  Readiness LookLocked(const GroupId& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Groups are asked for in their order, and again after a failed lease. So prompts in memory below a new group were
  // passed over, as happens in a resumed run, and are forgotten to make room.
  void ForgetBelowLocked(const GroupId& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(std::map<GroupId, Loaded>::iterator loaded) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SkipLocked(const GroupId& group, const absl::Status& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GroupId After(const GroupId& group) const;

  const Options options_;
  const TextRows rows_;
  const PassOrder order_;

  mutable Mutex mutex_;
  // Asked for in const methods: what a group's prompt is does not depend on them.
  mutable std::map<GroupId, Loaded> loaded_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t loaded_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::set<GroupId> wanted_ ABSL_GUARDED_BY(mutex_);  // asked for and not in memory; the lowest is read first
  mutable GroupId next_ ABSL_GUARDED_BY(mutex_);              // first that was not read ahead
  mutable GroupId newest_ ABSL_GUARDED_BY(mutex_);            // highest that was asked for
  mutable bool begun_ ABSL_GUARDED_BY(mutex_) = false;        // after the first request, which shows where the run is
  mutable absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t skipped_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bad_in_row_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex listening_;  // held while the listener runs; never under mutex_
  std::function<void()> listener_ ABSL_GUARDED_BY(listening_);
  std::thread thread_;  // last: it uses everything above
};

// The prompts of evaluations: a fixed choice of rows, all in memory.
class ChosenPrompts final : public PromptSource {
 public:
  struct Options {
    uint64_t seed = 0;
    bool bad_rows_end_run = false;
    int64_t prompts = 256;  // or as many as a pass has good rows
  };

  // Reads them: the first good rows in the order of (seed, pass 0). Blocks. INVALID_ARGUMENT (reason NO_ROWS) if there
  // is none; errors of TextRows::Read that are no bad row's, or that end the run.
  static absl::StatusOr<std::unique_ptr<ChosenPrompts>> Read(const Options& options, const TextRows& rows);

  // `group.ordinal` is in [0, size()).
  Prompt At(const GroupId& group) const override { return prompts_[static_cast<size_t>(group.ordinal)]; }
  std::string Render(const std::vector<int32_t>& ids) const override;
  std::string RenderPlain(const std::vector<int32_t>& ids) const override;
  int64_t size() const { return static_cast<int64_t>(prompts_.size()); }
  int64_t prompts_per_pass() const override { return size(); }
  int32_t vocab_size() const override { return writer_->tokenizer().id_limit(); }
  std::vector<int32_t> stop_token_ids() const override { return writer_->options().stop_token_ids; }
  int64_t max_prompt_tokens() const override { return writer_->options().max_prompt_tokens; }
  int64_t max_answer_tokens() const override { return 0; }

 private:
  explicit ChosenPrompts(std::shared_ptr<const PromptWriter> writer) : writer_(std::move(writer)) {}

  const std::shared_ptr<const PromptWriter> writer_;
  std::vector<Prompt> prompts_;
};

}  // namespace syncopate::trainer
