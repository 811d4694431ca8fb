#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"

namespace syncopate::trainer {

// samples.jsonl in the run directory, and samples.1.jsonl, which is what it was before it became too long: the two take
// `max_bytes` at most, and the oldest samples go first. Mode 0600. A full disk costs lines, never the run: the first
// loss is in the log, and lost() counts them. Not thread-safe; blocks for the disk.
//
// Begin() removes the lines of training steps beyond `restored_step`, which the trainer makes again, and a last line
// that a crash has cut off. So a line is there at most once. What the disk had not taken when the process died is
// missing: nothing is synced. Until Begin() has succeeded nothing is written, and it is tried again every kRetry.
class SampleFile {
 public:
  struct Options {
    std::string folder;  // the run directory
    int64_t max_bytes = 256 << 20;
    int64_t restored_step = 0;
  };
  static constexpr absl::Duration kRetry = absl::Seconds(10);

  // Both pointers must outlive this.
  SampleFile(FileSystem* files, Options options, const Clock* clock = Clock::Real());

  // Reads what is there, at most once. An error is logged, and Append() goes on trying.
  void Begin();
  // Writes one line, which is given without its end; one that is longer than half of max_bytes is lost.
  void Append(absl::string_view line);
  int64_t lost() const { return lost_; }

 private:
  absl::Status TryBegin() const;
  absl::Status RemoveUndone(const std::string& path) const;
  absl::Status Write(absl::string_view line);
  absl::Status OpenFile();

  FileSystem* const files_;
  const Options options_;
  const std::string path_, older_;
  const Clock* const clock_;
  bool begun_ = false;
  absl::Time next_try_ = absl::InfinitePast();  // of Begin()
  std::unique_ptr<AppendFile> file_;            // null before the first line, and between two files
  int64_t whole_bytes_ = 0;                     // of it; what lies behind is half a line
  int64_t lost_ = 0;
  bool failed_ = false;  // the last line
};

}  // namespace syncopate::trainer
