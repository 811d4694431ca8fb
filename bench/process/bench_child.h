#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/process/event_queue.h"

namespace syncopate::bench {

// One process of a benchmark: takes commands as JSON lines on standard input, answers with JSON lines on standard
// output, and logs to a file. Its lines become events of the queue, and so does its end ("ended", once, last). It is
// killed at the latest when the thread that started it ends. Not thread-safe.
class BenchChild {
 public:
  struct Options {
    std::string name;  // BenchEvent::from
    std::string program;
    std::vector<std::string> arguments;
    std::string log;                            // standard error is appended to it
    std::vector<std::string> environment = {};  // "NAME=value", besides this process's own variables
  };

  // `events` is borrowed. UNAVAILABLE reason CANNOT_START that names the program.
  static absl::StatusOr<std::unique_ptr<BenchChild>> Start(const Options& options, EventQueue* events);
  // Kills the process, also a stopped one, and waits until it is gone.
  ~BenchChild();
  BenchChild(const BenchChild&) = delete;
  BenchChild& operator=(const BenchChild&) = delete;

  const std::string& name() const { return options_.name; }
  pid_t pid() const { return pid_; }
  absl::Time started() const { return started_; }

  // UNAVAILABLE reason PEER_GONE if the process does not read its input any more.
  absl::Status Send(const nlohmann::json& command);
  void Signal(int number) const;
  // The last lines of its log, for error messages.
  std::string LogTail() const;

 private:
  BenchChild(Options options, pid_t pid, int input, int output, EventQueue* events);
  void ReadLines(int output);

  const Options options_;
  const pid_t pid_;
  const int input_;  // the child's standard input
  EventQueue* const events_;
  const absl::Time started_;
  std::thread reader_;
};

}  // namespace syncopate::bench
