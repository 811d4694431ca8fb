#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/control/control_case.h"
#include "bench/control/data_peer_options.h"
#include "bench/process/bench_child.h"
#include "bench/process/event_queue.h"
#include "bench/process/process_usage.h"
#include "services/auth/transport_security.h"

namespace syncopate::bench {

// The security of a process of that role ("": a command line); null without TLS. Errors of TransportSecurity::Load.
absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> LoadBenchSecurity(const BenchTls& tls,
                                                                                 const std::string& role);

// The daemons under load in `syncopate bench control`, as processes of their own. Used by one thread, which must
// outlive them; they are killed with it.
class ControlHosts {
 public:
  struct Options {
    std::string binary_dir;  // of syncopate-synchronizer and syncopate-bench-data
    std::string work_dir;    // for state and logs
    BenchTls tls = {};
  };
  explicit ControlHosts(const Options& options) : options_(options) {}

  // Starts a real synchronizer. A restart has the same state and addresses. Errors of BenchChild; DEADLINE_EXCEEDED
  // reason NOT_READY with the end of its log.
  absl::Status StartSynchronizer();
  void KillSynchronizer() { synchronizer_.reset(); }
  const std::string& synchronizer() const { return synchronizer_address_; }          // host:port
  const std::string& synchronizer_metrics() const { return synchronizer_metrics_; }  // host:port
  absl::StatusOr<ProcessUsage> SynchronizerUsage() const { return ReadProcessUsage(synchronizer_->pid()); }

  // Starts the trainer's data service. Errors as StartSynchronizer.
  absl::Status StartData();
  void StopData() { data_.reset(); }
  const std::string& data() const { return data_address_; }  // host:port
  absl::StatusOr<ProcessUsage> DataUsage() const { return ReadProcessUsage(data_->pid()); }

 private:
  const Options options_;
  EventQueue events_;
  std::unique_ptr<BenchChild> synchronizer_;
  std::unique_ptr<BenchChild> data_;
  std::string synchronizer_address_;
  std::string synchronizer_metrics_;
  std::string data_address_;
};

}  // namespace syncopate::bench
