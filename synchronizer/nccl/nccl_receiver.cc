#include "synchronizer/nccl/nccl_receiver.h"

#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/nccl/rendezvous.h"

namespace syncopate::synchronizer {
namespace {

// A status that another thread sets once.
class Outcome {
 public:
  void Set(absl::Status status) {
    MutexLock lock(&mutex_);
    status_ = std::move(status);
  }
  // The worker bounds every job by its deadline plus the time of an abort, so this wait is bounded too.
  absl::Status Await() {
    MutexLock lock(&mutex_);
    auto known = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return status_.has_value(); };
    mutex_.Await(Condition(&known));
    return *status_;
  }

 private:
  Mutex mutex_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status NcclReceiver::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(rounds.Validate());
  SYNCOPATE_RETURN_IF_ERROR(worker.Validate());
  if (facts.version > 0 && !facts.gpu.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "the NCCL version and the GPU must be known");
}

absl::StatusOr<std::unique_ptr<NcclReceiver>> NcclReceiver::Create(const Options& options,
                                                                   nccl::GroupWorker::DeviceFactory device) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<NcclReceiver>(new NcclReceiver(options, std::move(device)));
}

absl::StatusOr<std::string> NcclReceiver::Open(const Prepare& attempt) {
  std::string kept = worker_.Has(attempt.group) ? attempt.group : "";
  return nccl::Rendezvous{options_.facts.version, options_.facts.gpu, kept, {}}.ToString();
}

absl::StatusOr<nccl::GroupWorker::Job> NcclReceiver::JobFor(const ReceiveRequest& request) const {
  SYNCOPATE_RETURN_IF_ERROR(nccl::CheckMembers(request.sources, request.receivers, request.group));
  if (request.sources.empty()) return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "no source takes part");
  SYNCOPATE_ASSIGN_OR_RETURN(nccl::Rendezvous first, nccl::Rendezvous::Parse(request.sources.front().rendezvous));
  nccl::GroupShape shape{static_cast<int32_t>(request.sources.size()), request.replicas, request.world};
  nccl::GroupWorker::Job job;
  job.attempt = request.attempt;
  job.group = request.group;
  job.ids = std::move(first.ids);
  job.plan = nccl::PlanOfReceiver(shape, request.self, request.copies, options_.rounds);
  job.warm_up = nccl::WarmUp(job.plan, shape, /*source=*/false, nccl::GroupDevice::kScratchBytes);
  job.deadline = request.deadline;
  return job;
}

absl::Status NcclReceiver::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(nccl::GroupWorker::Job job, JobFor(request));
  job.base = destination;
  job.on_connected = [connected = request.on_connected, writing = request.on_writing] {
    connected();
    writing();
  };
  job.on_arrived = request.on_arrived;
  auto outcome = std::make_shared<Outcome>();
  job.done = [outcome](absl::Status status) { outcome->Set(std::move(status)); };
  worker_.Submit(std::move(job));
  std::stop_callback cancel(stop, [this, attempt = request.attempt] {
    worker_.Cancel(attempt, Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended"));
  });
  return outcome->Await();
}

void NcclReceiver::Connect(const ReceiveRequest& request, std::function<void(absl::Status)> done) {
  absl::StatusOr<nccl::GroupWorker::Job> job = JobFor(request);
  if (!job.ok()) return done(job.status());
  job->plan.rounds.clear();
  job->done = std::move(done);
  worker_.Submit(*std::move(job));
}

void NcclReceiver::Close(int64_t attempt) {
  worker_.Cancel(attempt, Error(absl::StatusCode::kAborted, "CLOSED", "the attempt has ended"));
}

}  // namespace syncopate::synchronizer
