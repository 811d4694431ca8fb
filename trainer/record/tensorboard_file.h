#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/policy_version.h"
#include "base/status.h"

namespace syncopate::trainer {

// A file of scalars that TensorBoard shows. Its format is TFRecord round tensorflow.Event:
//   record | length u64 | masked crc32c u32 of the 8 bytes before | payload | masked crc32c u32 of the payload |
// all little-endian, masked(c) = rotate right (c, 15) + 0xa282ead8. The first payload is Event{wall_time, file_version
// "brain.Event:2"}, the second Event{step, session_log START}, at which TensorBoard forgets what earlier files of the
// folder say of this step and later ones: after a resume that is what was rolled back. The others are Event{wall_time,
// step, summary}.
//
// The payloads are encoded here: no package of Debian has those messages, and of all their fields these few are written
// and none is read. Not thread-safe. A full disk costs records, never the run: see lost().
class TensorBoardFile {
 public:
  struct Scalar {
    std::string tag;
    double value = 0;  // kept as a float
  };

  // Makes `folder` and in it the file of the trainer that begins at `start`. Its name has the epoch where others have
  // the time, since readers go through files by name. Errors of FileSystem.
  static absl::StatusOr<std::unique_ptr<TensorBoardFile>> Open(FileSystem* files, const std::string& folder,
                                                               const PolicyVersion& start,
                                                               const Clock* clock = Clock::Real());

  // Appends one event with all of them, in one write: a reader beside finds whole records. Tags are UTF-8.
  void Write(int64_t step, const std::vector<Scalar>& scalars);

  int64_t lost() const { return lost_; }  // events that the disk did not take; the first of them is in the log

 private:
  TensorBoardFile(std::unique_ptr<AppendFile> file, const Clock* clock) : clock_(clock), file_(std::move(file)) {}
  void Append(const std::string& events);

  const Clock* const clock_;
  const std::unique_ptr<AppendFile> file_;
  int64_t lost_ = 0;
};

// One framed record, for tests too.
std::string TfRecord(absl::string_view payload);

}  // namespace syncopate::trainer
