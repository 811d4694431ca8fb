#pragma once

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "bench/process/event_queue.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {

// Turns the records of WatchSyncs into events: kind "sync", body the SyncRecord as JSON with its proto names. Watches
// for ever, also across restarts of the synchronizer; each record comes once. Thread-safe.
class SyncWatch {
 public:
  // `events` is borrowed. INVALID_ARGUMENT reason BAD_ADDRESS.
  static absl::StatusOr<std::unique_ptr<SyncWatch>> Start(const std::string& synchronizer, EventQueue* events);
  ~SyncWatch();
  SyncWatch(const SyncWatch&) = delete;
  SyncWatch& operator=(const SyncWatch&) = delete;

 private:
  SyncWatch(std::shared_ptr<grpc::Channel> channel, EventQueue* events);
  void Run();
  void ReadStream();

  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  EventQueue* const events_;
  std::set<std::pair<int64_t, std::string>> seen_;  // used by the thread: attempt, replica
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the running call
  std::thread thread_;                                           // last: it uses the other members
};

}  // namespace syncopate::bench
