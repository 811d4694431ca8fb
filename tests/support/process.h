#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"

// Real processes for tests: start them, send them signals, watch their logs. Every wait has a deadline. No process
// survives the test, however the test ends.
namespace syncopate::testing {

// A new folder that is removed, with its contents, together with the object.
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
  int code = 0;    // exit code; meaningless if the process was killed
  int signal = 0;  // the signal that killed it; 0 if it exited
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

// One child process, the leader of a process group of its own, with its output in a file. It dies at the latest with
// the thread that started it. Not thread-safe.
class Process {
 public:
  struct Options {
    std::string program;            // path of the executable
    std::vector<std::string> args;  // without the program's name
    std::string log_path;           // standard output and error are appended to it
    std::string working_folder{};   // empty: the working folder of this process
  };

  // Errors if the program cannot be executed.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const Options& options);
  // Kills the whole process group, stopped members too.
  ~Process();

  pid_t pid() const { return pid_; }
  bool Running() const;

  // Signals this process only; has no effect if the process has ended.
  void Kill();
  void Terminate();
  void Interrupt();
  void Stop();
  void Continue();

  // Waits for the exit status; DEADLINE_EXCEEDED with the end of the log if the process did not end within `timeout`.
  absl::StatusOr<ExitStatus> WaitExit(absl::Duration timeout);

  // Returns the next complete log line that `pattern` (ECMAScript) matches somewhere, starting after the line that the
  // last call found. DEADLINE_EXCEEDED, or FAILED_PRECONDITION if the process ended without such a line, with the end
  // of the log.
  absl::StatusOr<std::string> WaitForLogLine(const std::string& pattern, absl::Duration timeout);

  // The present contents of the log.
  std::string Log() const;

 private:
  Process(pid_t pid, int pid_fd, int watch_fd, size_t log_start, Options options);
  void Signal(int number);
  absl::StatusOr<ExitStatus> Ended() const;  // NOT_FOUND while the process runs
  // Sleeps until the process ends, the log may have grown (if `or_log`), or `deadline`.
  void Watch(absl::Time deadline, bool or_log) const;
  std::string LogTail() const;

  const pid_t pid_;
  const int pid_fd_;
  const int watch_fd_;  // inotify descriptor that watches the log
  const Options options_;
  size_t log_position_;  // where WaitForLogLine continues
};

// The live processes whose command line contains `text`, without this process.
std::vector<pid_t> ProcessesNaming(const std::string& text);

}  // namespace syncopate::testing
