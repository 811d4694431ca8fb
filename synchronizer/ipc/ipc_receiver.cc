#include "synchronizer/ipc/ipc_receiver.h"

#include <utility>

#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/ipc/fetch_route.h"
#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/superseded.h"

namespace syncopate::synchronizer {
namespace {

// The error for replicas that read from this receiver. SUPERSEDED is passed on, because it is true for them too.
absl::Status Failed(const absl::Status& why) {
  if (IsSuperseded(ErrorReason(why))) return why;
  return Error(absl::StatusCode::kUnavailable, "PEER_LOST",
               "the replica that relays these weights failed itself: " + std::string(why.message()));
}

}  // namespace

absl::Status IpcReceiver::Options::Validate() const {
  bool good = engine != nullptr && chunk_bytes > 0 && bytes_in_flight > 0 && poll_interval > absl::ZeroDuration() &&
              drain_deadline > absl::ZeroDuration();
  if (good) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "an ipc receiver needs a copy engine, and sizes and durations above zero");
}

absl::StatusOr<std::unique_ptr<IpcReceiver>> IpcReceiver::Create(Options options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(std::string host, ipc::HostId());
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ipc::IpcServer> server, ipc::IpcServer::Start(options.server));
  return std::unique_ptr<IpcReceiver>(new IpcReceiver(std::move(options), std::move(host), std::move(server)));
}

IpcReceiver::IpcReceiver(Options options, std::string host, std::unique_ptr<ipc::IpcServer> server)
    : options_(std::move(options)),
      host_(std::move(host)),
      mappings_(std::make_shared<ipc::MappingCache>(options_.mapped_memories)),
      server_(std::move(server)) {}

IpcReceiver::~IpcReceiver() {
  MutexLock lock(&mutex_);
  for (Copies& copies : stuck_copies_) {
    // Freeing memory that a GPU still writes to would corrupt other data: a queue that cannot be drained is leaked.
    if (copies.queue->Drain(options_.drain_deadline).ok()) continue;
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory for this the process ends, as it should.
    [[maybe_unused]] Copies* leaked = new Copies(std::move(copies));
  }
}

absl::StatusOr<std::string> IpcReceiver::Open(const Prepare& attempt) {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(stuck_);
  }
  // Other processes can map a shadow in device memory only; without one this receiver only reads.
  if (options_.shadow == nullptr || attempt.rehearsal) return std::string();
  absl::StatusOr<SharedMemory> shadow = options_.shadow();
  if (!shadow.ok()) {
    SYNCOPATE_LOG(kWarning, "ipc: this receiver relays nothing: %s", std::string(shadow.status().message()));
    return std::string();
  }
  ipc::OfferTable::Offer offer;
  offer.attempt = attempt.attempt;
  offer.version = attempt.version;
  offer.fingerprint = attempt.manifest_fingerprint;
  offer.memory = *std::move(shadow);
  offer.progress.assign(static_cast<size_t>(attempt.sources), 0);
  ipc::Rendezvous where{host_, offer.memory->info.id, server_->socket_path()};
  // The shadow is about to be overwritten: replicas that still read an older version from it are notified.
  server_->Reclaim(where.memory, attempt.version);
  server_->Add(std::move(offer));
  return where.ToString();
}

absl::Status IpcReceiver::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  Copies copies;
  SYNCOPATE_ASSIGN_OR_RETURN(copies.queue, TakeQueue());
  absl::Status received = ReceiveWith(&copies, request, destination, stop);
  if (received.ok()) {
    server_->Complete(request.attempt);
  } else {
    // Replicas that read from this one wait for its bytes; the error spares them the wait until their deadline.
    server_->Withdraw(request.attempt, Failed(received));
  }
  GiveBack(std::move(copies), received);
  return received;
}

absl::Status IpcReceiver::ReceiveWith(Copies* copies, const ReceiveRequest& request, char* destination,
                                      const std::stop_token& stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(ipc::FetchRoute route, ipc::RouteFor(request, host_));
  ipc::Reception::Parts parts{options_.engine, copies->queue.get(), mappings_, server_.get()};
  ipc::Reception reception(ReceptionOptions(), std::move(parts), request, std::move(route), destination);
  absl::Status received = reception.Run(stop);
  copies->mappings = reception.mappings();
  return received;
}

ipc::Reception::Options IpcReceiver::ReceptionOptions() const {
  return {options_.chunk_bytes, options_.bytes_in_flight, options_.poll_interval, options_.drain_deadline,
          options_.clock};
}

absl::Status IpcReceiver::Probe(const ReceiveRequest& request, std::stop_token stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(ipc::FetchRoute route, ipc::RouteFor(request, host_));
  // A rehearsal maps memory and copies nothing.
  ipc::Reception::Parts parts{options_.engine, /*queue=*/nullptr, mappings_, server_.get()};
  ipc::Reception reception(ReceptionOptions(), std::move(parts), request, std::move(route), /*destination=*/nullptr);
  return reception.Probe(stop);
}

void IpcReceiver::Close(int64_t attempt) { server_->Retire(attempt); }

absl::StatusOr<std::unique_ptr<ipc::CopyQueue>> IpcReceiver::TakeQueue() {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(stuck_);
    if (!idle_queues_.empty()) {
      std::unique_ptr<ipc::CopyQueue> queue = std::move(idle_queues_.back());
      idle_queues_.pop_back();
      return queue;
    }
  }
  return options_.engine->NewQueue();
}

void IpcReceiver::GiveBack(Copies copies, const absl::Status& received) {
  MutexLock lock(&mutex_);
  if (ErrorReason(received) == reason::kCopyStuck) {
    stuck_ = received;
    stuck_copies_.push_back(std::move(copies));
  } else {
    // Kept for the next sync, because making a stream and its events is slow.
    idle_queues_.push_back(std::move(copies.queue));
  }
}

}  // namespace syncopate::synchronizer
