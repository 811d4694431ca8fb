#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

// The directory of one run, held by this process: nobody else can run in it until the object is gone. Move-only.
class RunDirectory {
 public:
  // Makes (or with run.resume takes over, if it holds anything) run.dir; an empty run.dir becomes runs/<name>-<time>,
  // `time` as in "20260131-120000". Errors change nothing and say how to go on:
  //   FAILED_PRECONDITION RUN_DIR_TAKEN    it holds something already, a run or not, and this is no resume
  //   FAILED_PRECONDITION RUN_DIR_BUSY     another process runs in it
  //   NOT_FOUND           NOT_A_RUN        it holds something else than a run to resume
  //   INVALID_ARGUMENT    BAD_RUN_DIR      it cannot be looked at, such as a link to itself
  //   and those of FileSystem
  static absl::StatusOr<RunDirectory> Claim(const v1::RunSection& run, const std::string& time);
  ~RunDirectory();
  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const;  // of a file in it

 private:
  RunDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_ = -1;  // descriptor that holds the lock
};

}  // namespace syncopate::run
