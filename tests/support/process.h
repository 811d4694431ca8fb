#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"

// Real processes for tests: start them, hurt them, watch their logs. Every wait has a deadline and nothing is left
// behind, whatever way a test ends.
namespace syncopate::testing {

// A new folder that is removed, with all it holds, with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A TCP port of 127.0.0.1 that no process listens on at this moment.
absl::StatusOr<int> FreePort();

// How a process ended.
struct ExitStatus {
  int code = 0;    // what it returned; meaningless if it was killed
  int signal = 0;  // what killed it; 0 if it returned
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

// One child process, leader of a process group of its own, its output in a file. It dies with the thread that started
// it, at the latest. Not thread-safe.
class Process {
 public:
  struct Options {
    std::string program;            // a path
    std::vector<std::string> args;  // without the program's name
    std::string log_path;           // standard output and error are appended to it
    std::string working_folder{};   // empty: this process's
  };

  // Errors if the program cannot be executed.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const Options& options);
  // Kills the whole group, stopped members too.
  ~Process();

  pid_t pid() const { return pid_; }
  bool Running() const;

  // Signals this process only; has no effect if it has ended.
  void Kill();
  void Terminate();
  void Interrupt();
  void Stop();
  void Continue();

  // How it ended; DEADLINE_EXCEEDED with the end of its log if it did not within `timeout`.
  absl::StatusOr<ExitStatus> WaitExit(absl::Duration timeout);

  // The next complete line that this process logs, after the one that the last call found, that `pattern` (ECMAScript)
  // matches somewhere. DEADLINE_EXCEEDED, or FAILED_PRECONDITION if the process ended without it, with the end of the
  // log.
  absl::StatusOr<std::string> WaitForLogLine(const std::string& pattern, absl::Duration timeout);

  // Everything that the log holds now.
  std::string Log() const;

 private:
  Process(pid_t pid, int pid_fd, int watch_fd, size_t log_start, Options options);
  void Signal(int number);
  absl::StatusOr<ExitStatus> Ended() const;  // NOT_FOUND while it runs
  // Sleeps until the process ends, the log may have grown (if `or_log`), or `deadline`.
  void Watch(absl::Time deadline, bool or_log) const;
  std::string LogTail() const;

  const pid_t pid_;
  const int pid_fd_;
  const int watch_fd_;  // inotify on the log
  const Options options_;
  size_t log_position_;  // where WaitForLogLine goes on
};

// Live processes whose command line holds `text`, this one excepted.
std::vector<pid_t> ProcessesNaming(const std::string& text);

}  // namespace syncopate::testing
