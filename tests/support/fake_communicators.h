#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/nccl/communicator.h"

// NCCL as its callers see it, on host memory and within one process: members meet by an id, messages between a pair are
// matched in order, and no member notices that another member is gone.
namespace syncopate::synchronizer::nccl {

class FakeNetwork {
 public:
  UniqueId NewId() {
    MutexLock lock(&mutex_);
    UniqueId id{};
    int64_t number = ++ids_;
    std::memcpy(id.data(), &number, sizeof(number));
    return id;
  }
  int64_t ids() {
    MutexLock lock(&mutex_);
    return ids_;
  }

  void Join(const UniqueId& id, int32_t rank) {
    MutexLock lock(&mutex_);
    joined_[id].insert(rank);
  }
  bool Met(const UniqueId& id, int32_t size) {
    MutexLock lock(&mutex_);
    return static_cast<int32_t>(joined_[id].size()) == size;
  }
  void Send(const UniqueId& id, int32_t from, int32_t to, std::string bytes) {
    MutexLock lock(&mutex_);
    mail_[{id, from, to}].push_back(std::move(bytes));
  }
  // Returns false if no message has arrived.
  bool Receive(const UniqueId& id, int32_t from, int32_t to, char* into, int64_t bytes) {
    MutexLock lock(&mutex_);
    std::deque<std::string>& box = mail_[{id, from, to}];
    if (box.empty()) return false;
    SYNCOPATE_CHECK(static_cast<int64_t>(box.front().size()) == bytes);  // real NCCL would hang or overrun the buffer
    std::memcpy(into, box.front().data(), static_cast<size_t>(bytes));
    box.pop_front();
    return true;
  }

 private:
  Mutex mutex_;
  int64_t ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<UniqueId, std::set<int32_t>> joined_ ABSL_GUARDED_BY(mutex_);
  std::map<std::tuple<UniqueId, int32_t, int32_t>, std::deque<std::string>> mail_ ABSL_GUARDED_BY(mutex_);
};

// What the device of one member has done, and what it is to do. Thread-safe.
class FakeDeviceControl {
 public:
  struct Counts {
    int joins = 0;
    int aborts = 0;
    int finalised = 0;
    int open = 0;
  };
  Counts counts() {
    MutexLock lock(&mutex_);
    return counts_;
  }
  void SetPollError(absl::Status error) {
    MutexLock lock(&mutex_);
    poll_error_ = std::move(error);
  }
  void SetAbortError(absl::Status error) {
    MutexLock lock(&mutex_);
    abort_error_ = std::move(error);
  }
  // From this call on, messages of this member are not delivered.
  void Freeze(bool frozen) {
    MutexLock lock(&mutex_);
    frozen_ = frozen;
  }

 private:
  friend class FakeCommunicator;
  friend class FakeDevice;
  Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  absl::Status poll_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status abort_error_ ABSL_GUARDED_BY(mutex_);
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
};

// The messages of one member that its stream has not processed yet, in order.
struct FakeStream {
  struct Message {
    UniqueId id{};
    int32_t from = 0;
    int32_t to = 0;
    char* bytes = nullptr;
    int64_t size = 0;
    bool sends = false;
  };
  std::deque<Message> messages;
};

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(FakeNetwork* network, FakeDeviceControl* control, FakeStream* stream, const UniqueId& id,
                   const Seat& seat)
      : network_(network), control_(control), stream_(stream), id_(id), seat_(seat) {
    MutexLock lock(&control_->mutex_);
    ++control_->counts_.joins;
    ++control_->counts_.open;
  }
  ~FakeCommunicator() override { Abort().IgnoreError(); }

  absl::Status Begin(const std::vector<Transmission>& messages, char* base) override {
    for (const Transmission& message : messages) {
      FakeStream::Message queued{id_, seat_.rank, message.peer, base + message.range.begin, message.range.size(), true};
      if (message.kind == Transmission::Kind::kBroadcast) {
        for (int32_t to = 1; to < seat_.size && seat_.rank == 0; ++to) {
          queued.to = to;
          stream_->messages.push_back(queued);
        }
      }
      bool receives = message.kind == Transmission::Kind::kReceive ||
                      (message.kind == Transmission::Kind::kBroadcast && seat_.rank != 0);
      if (receives) queued = {id_, message.peer, seat_.rank, queued.bytes, queued.size, false};
      if (receives || message.kind == Transmission::Kind::kSend) stream_->messages.push_back(queued);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Poll() override {
    {
      MutexLock lock(&control_->mutex_);
      SYNCOPATE_RETURN_IF_ERROR(control_->poll_error_);
    }
    return network_->Met(id_, seat_.size);
  }
  absl::Status Finalize(absl::Duration) override {
    MutexLock lock(&control_->mutex_);
    ++control_->counts_.finalised;
    --control_->counts_.open;
    ended_ = true;
    return absl::OkStatus();
  }
  absl::Status Abort() override {
    MutexLock lock(&control_->mutex_);
    if (ended_) return absl::OkStatus();
    ended_ = true;
    ++control_->counts_.aborts;
    --control_->counts_.open;
    std::erase_if(stream_->messages, [this](const FakeStream::Message& message) { return message.id == id_; });
    return control_->abort_error_;
  }

 private:
  FakeNetwork* const network_;
  FakeDeviceControl* const control_;
  FakeStream* const stream_;
  const UniqueId id_;
  const Seat seat_;
  bool ended_ = false;
};

class FakeDevice final : public GroupDevice {
 public:
  FakeDevice(FakeNetwork* network, FakeDeviceControl* control) : network_(network), control_(control) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const UniqueId& id, const Seat& seat) override {
    network_->Join(id, seat.rank);
    return std::make_unique<FakeCommunicator>(network_, control_, &stream_, id, seat);
  }
  char* scratch() override { return scratch_.data(); }
  void* stream() override { return nullptr; }
  absl::Status Mark() override { return absl::OkStatus(); }
  // Within a round messages of different peers do not wait for each other; the queue is tried as a whole.
  absl::StatusOr<bool> Reached() override {
    {
      MutexLock lock(&control_->mutex_);
      if (control_->frozen_) return false;
    }
    std::set<std::tuple<UniqueId, int32_t, int32_t>> waiting;  // later messages of a waiting pair keep their order
    std::erase_if(stream_.messages, [&](const FakeStream::Message& message) {
      std::tuple<UniqueId, int32_t, int32_t> pair{message.id, message.from, message.to};
      if (waiting.contains(pair)) return false;
      if (message.sends) {
        network_->Send(message.id, message.from, message.to,
                       std::string(message.bytes, static_cast<size_t>(message.size)));
        return true;
      }
      if (network_->Receive(message.id, message.from, message.to, message.bytes, message.size)) return true;
      waiting.insert(pair);
      return false;
    });
    return stream_.messages.empty();
  }
  absl::Status Drain(absl::Duration) override { return absl::OkStatus(); }

 private:
  FakeNetwork* const network_;
  FakeDeviceControl* const control_;
  FakeStream stream_;
  std::array<char, kScratchBytes> scratch_{};
};

}  // namespace syncopate::synchronizer::nccl
