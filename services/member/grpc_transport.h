#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "services/auth/transport_security.h"
#include "synchronizer/transport/transport.h"
#include "syncopate/v1/weights.grpc.pb.h"

// The transport "grpc": receivers pull weights from the sources' WeightService over host memory. Used on CPUs, and in
// networks that let nothing else through.
namespace syncopate::member {

// The source's end: tells receivers where the source's WeightService listens; that service does the rest.
class GrpcSource final : public synchronizer::SourceTransport {
 public:
  // `address`: host:port that receivers can reach.
  explicit GrpcSource(std::string address) : address_(std::move(address)) {}
  std::string name() const override { return "grpc"; }
  absl::StatusOr<std::string> Open(const synchronizer::Prepare& attempt) override { return address_; }
  void Close(int64_t attempt) override {}

 private:
  const std::string address_;
};

// The receiver's end. Fetches from all sources at once, on a thread for each, at most kFetches; each replica begins
// with another source. Keeps one connection to each source that it has talked to, until that source is gone.
class GrpcReceiver final : public synchronizer::ReceiverTransport {
 public:
  // `security` null: plaintext.
  explicit GrpcReceiver(std::shared_ptr<const auth::TransportSecurity> security = nullptr,
                        const Clock* clock = Clock::Real())
      : security_(std::move(security)), clock_(clock) {}
  std::string name() const override { return "grpc"; }
  absl::Status Receive(const synchronizer::ReceiveRequest& request, char* destination, std::stop_token stop) override;
  // Opens an empty fetch from each source.
  absl::Status Probe(const synchronizer::ReceiveRequest& request, std::stop_token stop) override;

 private:
  static constexpr size_t kFetches = 8;

  using Stub = v1::WeightService::Stub;
  absl::StatusOr<std::shared_ptr<Stub>> StubFor(const std::string& rendezvous);
  void ForgetStub(const std::string& rendezvous);
  using CopiesBySource = std::map<int32_t, std::vector<synchronizer::Copy>>;
  static absl::StatusOr<CopiesBySource> SplitBySource(const synchronizer::ReceiveRequest& request);
  // Receives all bytes that `copies`, all of trainer rank `source`, ask for. A source that does not answer is asked
  // once more over a new connection.
  absl::Status ReceiveFrom(const synchronizer::ReceiveRequest& request, int32_t source,
                           const std::vector<synchronizer::Copy>& copies, char* destination,
                           const std::stop_token& stop);
  struct FetchEnd {
    absl::Status status;
    bool unanswered = false;  // the connection failed before a byte came
  };
  FetchEnd Fetch(const synchronizer::ReceiveRequest& request, int32_t source,
                 const std::vector<synchronizer::Copy>& copies, char* destination, const std::stop_token& stop);

  const std::shared_ptr<const auth::TransportSecurity> security_;
  const Clock* const clock_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Stub>> stubs_ ABSL_GUARDED_BY(mutex_);  // keyed by rendezvous
};

}  // namespace syncopate::member
