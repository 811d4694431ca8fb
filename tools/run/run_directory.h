#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

// The directory of one run, locked by this process: no other process can run in it while this object exists. Move-only.
class RunDirectory {
 public:
  // Creates run.dir, or with run.resume takes it over if it contains a run; an empty run.dir becomes
  // runs/<name>-<time>, with `time` like "20260131-120000". Errors change nothing and say how to go on:
  //   FAILED_PRECONDITION RUN_DIR_TAKEN    it is not empty, whatever it contains, and this is no resume
  //   FAILED_PRECONDITION RUN_DIR_BUSY     another process runs in it
  //   NOT_FOUND           NOT_A_RUN        it contains something, but no run to resume
  //   INVALID_ARGUMENT    BAD_RUN_DIR      it cannot be examined, e.g. a link to itself
  //   and errors of FileSystem
  static absl::StatusOr<RunDirectory> Claim(const v1::RunSection& run, const std::string& time);
  ~RunDirectory();
  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const;  // of a file in the directory

 private:
  RunDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_ = -1;  // the descriptor with the lock
};

}  // namespace syncopate::run
