#include "trainer/record/flow_file.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kMaxFlowBytes = 4 << 20;

}  // namespace

FlowFile::FlowFile(FileSystem* files, std::string path, const FlowCodec& codec, std::function<bool()> may_write)
    : files_(files), path_(std::move(path)), codec_(codec), may_write_(std::move(may_write)) {}

FlowFile::~FlowFile() { Await(); }

absl::StatusOr<FlowSums> FlowFile::Read(bool limits_judge) const {
  const absl::StatusOr<std::string> bytes = ReadFile(files_, path_, kMaxFlowBytes);
  if (absl::IsNotFound(bytes.status())) return FlowSums();
  absl::StatusOr<FlowSums> sums = bytes.ok() ? codec_.decode(*bytes) : bytes.status();
  if (sums.ok()) return *std::move(sums);
  if (limits_judge) {
    return Error(absl::StatusCode::kDataLoss, "FLOW_LOST",
                 absl::StrCat(path_,
                              " holds the count of tokens that the run's judge has used, which reward.judge_tokens "
                              "limits, and cannot be read: ",
                              sums.status().message(),
                              ". Put a copy of it there; or delete it, which begins the count at 0, and resume with "
                              "reward.judge_tokens less what the judge's provider says was used"));
  }
  SYNCOPATE_LOG(kError, "the summary lacks the times of earlier incarnations: %s: %s", path_, sums.status().ToString());
  return FlowSums();
}

void FlowFile::WriteSoon(const FlowSums& sums) {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  Await();
  writing_ = std::async(std::launch::async, [this, sums] { return WriteOnce(sums); });
}

void FlowFile::Write(const FlowSums& sums) {
  Await();
  writing_ = std::async(std::launch::deferred, [this, &sums] { return WriteOnce(sums); });
  Await();
}

absl::Status FlowFile::WriteOnce(const FlowSums& sums) const {
  if (!may_write_()) return absl::OkStatus();
  return WriteFileAtomically(files_, path_, codec_.encode(sums));
}

void FlowFile::Await() {
  if (!writing_.valid()) return;
  const absl::Status written = writing_.get();
  if (!written.ok() && !failed_) {
    SYNCOPATE_LOG(kWarning, "the summary may lack times and refused answers of this life: %s", written.ToString());
  }
  failed_ = !written.ok();
}

}  // namespace syncopate::trainer
