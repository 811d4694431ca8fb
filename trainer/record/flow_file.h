#pragma once

#include <functional>
#include <future>
#include <string>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/status.h"
#include "trainer/loop/flow_sums.h"

namespace syncopate::trainer {

// The encoding of the sums, passed in because this folder knows no wire format. Decoding checks everything.
struct FlowCodec {
  std::string (*encode)(const FlowSums& sums) = nullptr;
  absl::StatusOr<FlowSums> (*decode)(absl::string_view bytes) = nullptr;
};

// <run.dir>/state/trainer/flow.pb. One caller at a time.
class FlowFile {
 public:
  // `files` must outlive this. `may_write` is asked before each writing, from any thread: false once the file is a
  // newer trainer's.
  FlowFile(FileSystem* files, std::string path, const FlowCodec& codec, std::function<bool()> may_write);
  ~FlowFile();  // waits for what is being written

  // Returns what earlier incarnations wrote last; empty sums without a file. A file that cannot be read is logged and
  // read as no file, as no group and no step depends on it; but with `limits_judge`, that is if the tokens of the run's
  // judge have a limit, it is DATA_LOSS (reason FLOW_LOST), as the count would begin at 0.
  absl::StatusOr<FlowSums> Read(bool limits_judge) const;

  // Writes on a thread of its own, so that a disk that hangs delays no caller; does nothing while another write is
  // under way.
  void WriteSoon(const FlowSums& sums);
  // Writes after what is being written; blocks for the disk.
  void Write(const FlowSums& sums);

 private:
  absl::Status WriteOnce(const FlowSums& sums) const;
  void Await();  // what is being written

  FileSystem* const files_;
  const std::string path_;
  const FlowCodec codec_;
  const std::function<bool()> may_write_;
  std::future<absl::Status> writing_;
  bool failed_ = false;  // the last one
};

}  // namespace syncopate::trainer
