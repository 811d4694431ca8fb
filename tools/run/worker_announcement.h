#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace syncopate::run {

// The file in which a worker of users' Python says that it listens and which code it has (syncopate-worker --announce).
// The file of an earlier worker is not believed; it cannot be told by its process id, as the command may be a script.
// Not thread-safe.
class WorkerAnnouncement {
 public:
  explicit WorkerAnnouncement(std::string path) : path_(std::move(path)) {}

  // Call before a worker is started: removes the file of an earlier one, or, if that may not be removed, as another
  // user's may not, takes it for none until it is replaced.
  void Forget();
  // The digest of the code of the worker that was started since; nullopt until it has announced itself.
  std::optional<std::string> ReadDigest() const;

 private:
  std::optional<std::filesystem::file_time_type> WrittenAt() const;

  const std::string path_;
  std::optional<std::filesystem::file_time_type> old_;  // when the file was written that could not be removed
};

}  // namespace syncopate::run
