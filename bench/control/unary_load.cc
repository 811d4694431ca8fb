#include "bench/control/unary_load.h"

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "services/rpc/status.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {

void LoadTotals::Merge(const LoadTotals& other) {
  ok += other.ok;
  failed += other.failed;
  if (first_failure.ok()) first_failure = other.first_failure;
  latency.Merge(other.latency);
}

// Makes one call after the other.
class UnaryLoad::Caller {
 public:
  Caller(const std::shared_ptr<grpc::Channel>& channel, absl::Duration call_limit)
      : stub_(v1::SynchronizerService::NewStub(channel)), call_limit_(call_limit) {}

  void Call() {
    context_.emplace();  // gRPC allows one call for each context
    context_->set_deadline(rpc::CallDeadline(call_limit_));
    response_.Clear();
    began_ = Clock::Real()->Now();
    stub_->async()->GetStatus(&*context_, &request_, &response_,
                              [this](const grpc::Status& status) { Answered(rpc::FromGrpc(status)); });
  }

  LoadTotals TakeTotals() {
    MutexLock lock(&mutex_);
    return std::exchange(totals_, {});
  }

  void Stop() {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  void Join() {
    MutexLock lock(&mutex_);
    mutex_.Await(Condition(&ended_));  // its calls have a deadline
  }

 private:
  void Answered(const absl::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (status.ok()) {
        ++totals_.ok;
        totals_.latency.Add(Clock::Real()->Now() - began_);
      } else {
        ++totals_.failed;
        if (totals_.first_failure.ok()) totals_.first_failure = status;
      }
      ended_ = stopping_;
      if (ended_) return;
    }
    Call();
  }

  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  const absl::Duration call_limit_;
  // The context of the one running call.
  std::optional<grpc::ClientContext> context_;
  v1::SynchronizerServiceGetStatusRequest request_;
  v1::SynchronizerServiceGetStatusResponse response_;
  absl::Time began_;

  Mutex mutex_;
  LoadTotals totals_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<UnaryLoad>> UnaryLoad::Start(const Options& options) {
  if (options.connections < 1 || options.callers < 1 || options.call_limit <= absl::ZeroDuration()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "UnaryLoad: all numbers must be positive");
  }
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int32_t i = 0; i < options.connections; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(channels.emplace_back(), rpc::MakeChannel(options.address, options.channel));
  }
  std::unique_ptr<UnaryLoad> load(new UnaryLoad());
  for (int32_t i = 0; i < options.callers; ++i) {
    load->callers_.push_back(std::make_unique<Caller>(channels[i % channels.size()], options.call_limit));
  }
  for (auto& caller : load->callers_) caller->Call();
  return load;
}

UnaryLoad::~UnaryLoad() {
  // Stops all before it waits for any, so that the last calls end together.
  for (auto& caller : callers_) caller->Stop();
  for (auto& caller : callers_) caller->Join();
}

LoadTotals UnaryLoad::TakeTotals() {
  LoadTotals totals;
  for (auto& caller : callers_) {
    totals.Merge(caller->TakeTotals());
  }
  return totals;
}

}  // namespace syncopate::bench
