#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// Finds the sources of one process by rendezvous name. Thread-safe.
class InprocHub {
 public:
  // `store` is borrowed until Remove(name).
  void Add(const std::string& name, WeightStore* store);
  void Remove(const std::string& name);
  WeightStore* Find(const std::string& name) const;  // null if there is none

 private:
  mutable Mutex mutex_;
  std::map<std::string, WeightStore*> stores_ ABSL_GUARDED_BY(mutex_);
};

// The transport "inproc": both ends in one process. For the synchronous twin and tests.
class InprocSource final : public SourceTransport {
 public:
  explicit InprocSource(std::string rendezvous) : rendezvous_(std::move(rendezvous)) {}
  std::string name() const override { return "inproc"; }
  absl::StatusOr<std::string> Open(const Prepare&) override { return rendezvous_; }
  void Close(int64_t) override {}

 private:
  const std::string rendezvous_;
};

class InprocReceiver final : public ReceiverTransport {
 public:
  explicit InprocReceiver(const InprocHub* hub, const Clock* clock = Clock::Real()) : hub_(hub), clock_(clock) {}
  std::string name() const override { return "inproc"; }
  absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) override;
  absl::Status Probe(const ReceiveRequest& request, std::stop_token stop) override;

 private:
  using Readers = std::map<int32_t, std::unique_ptr<WeightReader>>;  // by source
  absl::StatusOr<Readers> OpenSources(const ReceiveRequest& request) const;
  absl::StatusOr<std::unique_ptr<WeightReader>> OpenSource(const ReceiveRequest& request, int32_t rank) const;
  absl::Status CopyChunks(const ReceiveRequest& request, const Copy& copy, WeightReader* reader, char* destination,
                          const std::stop_token& stop) const;

  const InprocHub* const hub_;
  const Clock* const clock_;
};

}  // namespace syncopate::synchronizer
