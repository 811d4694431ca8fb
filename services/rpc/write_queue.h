#pragma once

#include <grpcpp/impl/call_op_set.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"

namespace syncopate::rpc {

// How much a stream queues for a peer that reads slowly, and how long it waits for one that does nothing.
struct StreamOptions {
  int64_t max_queued_messages = 1024;                // beside the one in flight
  int64_t max_queued_bytes = 64 << 20;               // total size, serialized
  absl::Duration stalled_after = absl::Seconds(10);  // one write pending for this long: the peer does not read

  // For bidirectional streams of a server whose clients send heartbeats: without a message for this long the call ends
  // with UNAVAILABLE (reason SILENT). gRPC's keepalive proves only that the process exists, not that its threads work.
  absl::Duration silent_after = absl::InfiniteDuration();

  absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS) on a value that is not positive
};

// Options for handing one message to gRPC. With `gather` gRPC delays it for the messages that are queued behind it:
// gRPC sends when it has enough, or when the last one is handed over.
inline grpc::WriteOptions MakeWriteOptions(bool gather) {
  return gather ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions();
}

inline int64_t MessageBytes(const google::protobuf::MessageLite& message) {
  return static_cast<int64_t>(message.ByteSizeLong());
}
inline int64_t MessageBytes(const grpc::ByteBuffer& buffer) { return static_cast<int64_t>(buffer.Length()); }

// The outgoing side of a stream: a bounded queue and at most one message in flight. Only decides; its owner locks and
// talks to gRPC. Not thread-safe.
template <typename Message>
class WriteQueue {
 public:
  explicit WriteQueue(const StreamOptions& options) : options_(options) {}

  // False if a bound would be exceeded; then nothing is queued. A single message is never refused on an empty queue, so
  // it is not measured before a second one comes: measuring costs as much as writing it.
  bool Push(Message message) {
    int64_t bytes = kUncounted;
    if (!waiting_.empty()) {
      Waiting& first = waiting_.front();
      if (first.bytes == kUncounted) queued_bytes_ += first.bytes = MessageBytes(first.message);
      bytes = MessageBytes(message);
      const bool many = static_cast<int64_t>(waiting_.size()) >= options_.max_queued_messages;
      if (many || queued_bytes_ + bytes > options_.max_queued_bytes) return false;
      queued_bytes_ += bytes;
    }
    waiting_.push_back({std::move(message), bytes});
    return true;
  }

  // The next message to write, or null if one is in flight or none waits. Its address stays valid until End().
  const Message* Begin() {
    if (in_flight_.has_value() || waiting_.empty()) return nullptr;
    if (waiting_.front().bytes != kUncounted) queued_bytes_ -= waiting_.front().bytes;
    in_flight_.emplace(std::move(waiting_.front().message));
    waiting_.pop_front();
    return &*in_flight_;
  }
  void End() {
    in_flight_.reset();
    one_is_out_ = true;
  }
  // Whether the message of the last Begin() may wait for more. False for a stream's first message: it carries a
  // server's initial metadata, and gRPC ends no write before they are sent, so the next write would never come.
  bool gather() const { return one_is_out_ && !waiting_.empty(); }

  // Drops the waiting messages; the message in flight stays until End().
  void Clear() {
    waiting_.clear();
    queued_bytes_ = 0;
  }

  bool in_flight() const { return in_flight_.has_value(); }
  bool empty() const { return waiting_.empty(); }  // nothing waits

 private:
  static constexpr int64_t kUncounted = -1;

  struct Waiting {
    Message message;
    int64_t bytes;
  };

  StreamOptions options_;
  std::deque<Waiting> waiting_;
  std::optional<Message> in_flight_;
  bool one_is_out_ = false;
  int64_t queued_bytes_ = 0;  // of the messages that are measured
};

}  // namespace syncopate::rpc
