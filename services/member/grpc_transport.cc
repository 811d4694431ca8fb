#include "services/member/grpc_transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"

namespace syncopate::member {
namespace {

using synchronizer::Copy;
using synchronizer::ReceiveRequest;

absl::Status BadChunk(const std::string& detail) {
  return Error(absl::StatusCode::kDataLoss, "BAD_CHUNK", "the source sent what was not asked for: " + detail);
}

// Writes the chunks of a fetch to the places that the copies name, in the order of the request. Bounds come from the
// plan, never from the peer.
class Placement {
 public:
  Placement(const std::vector<Copy>& copies, char* destination, const synchronizer::Arrived& on_arrived)
      : copies_(copies), destination_(destination), on_arrived_(on_arrived) {}

  absl::Status Place(const v1::FetchWeightsResponse& chunk) {
    if (next_ == copies_.size()) return BadChunk("more bytes than the plan has");
    // Chunks come in the order of the requested ranges, so one cursor is enough; a chunk out of order is refused before
    // a byte of it is written.
    const Copy& copy = copies_[next_];
    const int64_t bytes = static_cast<int64_t>(chunk.data().size());
    if (chunk.offset() != copy.source_offset + done_ || bytes == 0 || bytes > copy.bytes - done_) {
      return BadChunk(absl::StrFormat("%d bytes at %d instead of up to %d at %d", bytes, chunk.offset(),
                                      copy.bytes - done_, copy.source_offset + done_));
    }
    const int64_t to = copy.destination_offset + done_;
    std::memcpy(destination_ + to, chunk.data().data(), chunk.data().size());
    // Null: the bytes are in host memory, complete when this is called, whatever stream the check runs on.
    on_arrived_({to, to + bytes}, nullptr);
    done_ += bytes;
    if (done_ == copy.bytes) {
      ++next_;
      done_ = 0;
    }
    return absl::OkStatus();
  }

  bool complete() const { return next_ == copies_.size(); }

 private:
  const std::vector<Copy>& copies_;
  char* const destination_;
  const synchronizer::Arrived& on_arrived_;
  size_t next_ = 0;
  int64_t done_ = 0;  // bytes written of copies_[next_]
};

// Turns the end of a broken fetch from trainer rank `source` into an error for the sync.
absl::Status Explain(const absl::Status& status, int32_t source, const std::string& rendezvous,
                     const std::stop_token& stop) {
  if (stop.stop_requested()) return Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended");
  if (absl::IsDeadlineExceeded(status)) {
    return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                 absl::StrCat("the weights of trainer rank ", source, " at ", rendezvous, " did not arrive in time"));
  }
  // A reason comes from the source itself (e.g. the version is superseded) and is passed on unchanged.
  if (!ErrorReason(status).empty()) return status;
  return Error(absl::StatusCode::kUnavailable, "PEER_LOST",
               absl::StrCat("trainer rank ", source, " does not answer at ", rendezvous,
                            ", the address that it told (its trainer.advertise, or trainer.listen if that is not set): "
                            "it is gone, or this rollouter cannot reach that address: ",
                            status.message()));
}

// The fetches of one Receive. The first error ends all of them, and is the result. Thread-safe.
class FetchRound {
 public:
  FetchRound(const std::stop_token& stop, size_t fetches)
      : fetches_(fetches), forward_(stop, [this] { own_.request_stop(); }) {}

  std::stop_token stop() const { return own_.get_token(); }
  // The number of the next fetch to make; from `fetches` on there is none.
  size_t Next() {
    MutexLock lock(&mutex_);
    return result_.ok() ? next_++ : fetches_;
  }
  void End(const absl::Status& status) {
    if (status.ok()) return;
    {
      MutexLock lock(&mutex_);
      if (!result_.ok()) return;  // the first error has ended this fetch
      result_ = status;
    }
    own_.request_stop();
  }
  absl::Status result() {
    MutexLock lock(&mutex_);
    return result_;
  }

 private:
  const size_t fetches_;
  std::stop_source own_;
  Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
  const std::stop_callback<std::function<void()>> forward_;  // last: it may run at once
};

v1::FetchWeightsRequest MakeRequest(const ReceiveRequest& request, const std::vector<Copy>& copies) {
  v1::FetchWeightsRequest message;
  message.set_attempt(request.attempt);
  *message.mutable_version() = wire::ToProto(request.version);
  message.set_manifest_fingerprint(request.manifest_fingerprint);
  for (const Copy& copy : copies) {
    v1::FetchWeightsRequest::Range* range = message.add_ranges();
    range->set_begin(copy.source_offset);
    range->set_end(copy.source_offset + copy.bytes);
  }
  return message;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GrpcReceiver::Stub>> GrpcReceiver::StubFor(const std::string& rendezvous) {
  MutexLock lock(&mutex_);
  std::shared_ptr<Stub>& stub = stubs_[rendezvous];
  if (stub == nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                               rpc::MakeChannel(rendezvous, {.security = security_, .peer_role = "trainer"}));
    stub = v1::WeightService::NewStub(std::move(channel));
  }
  return stub;
}

// Without this each later sync would dial an address where nothing listens any more.
void GrpcReceiver::ForgetStub(const std::string& rendezvous) {
  MutexLock lock(&mutex_);
  stubs_.erase(rendezvous);
}

absl::StatusOr<GrpcReceiver::CopiesBySource> GrpcReceiver::SplitBySource(const ReceiveRequest& request) {
  CopiesBySource by_source;
  for (const Copy& copy : request.copies) by_source[copy.source].push_back(copy);
  for (const auto& [source, copies] : by_source) {
    if (source < static_cast<int32_t>(request.sources.size())) continue;
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST", absl::StrFormat("source rank %d is gone", source));
  }
  return by_source;
}

absl::Status GrpcReceiver::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(const CopiesBySource by_source, SplitBySource(request));
  std::vector<int32_t> order;
  for (const auto& [source, copies] : by_source) order.push_back(source);
  if (order.empty()) return absl::OkStatus();
  // Each replica begins with another source, so that few sources are not asked by all of them at first.
  const auto replica = static_cast<size_t>(request.self / std::max(request.world, 1));
  std::rotate(order.begin(), order.begin() + static_cast<int64_t>(replica % order.size()), order.end());
  // Called once for all sources: with a transfer in place, the first byte from any of them destroys the old weights.
  std::once_flag written;
  ReceiveRequest once = request;
  once.on_writing = [&] { std::call_once(written, request.on_writing); };

  FetchRound round(stop, order.size());
  auto fetch = [&] {
    for (size_t next = round.Next(); next < order.size(); next = round.Next()) {
      const int32_t source = order[next];
      round.End(ReceiveFrom(once, source, by_source.at(source), destination, round.stop()));
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min(kFetches, order.size()); ++i) threads.emplace_back(fetch);
  fetch();
  threads.clear();  // joins: nothing writes to the destination after this
  return round.result();
}

absl::Status GrpcReceiver::Probe(const ReceiveRequest& request, std::stop_token stop) {
  SYNCOPATE_ASSIGN_OR_RETURN(const CopiesBySource by_source, SplitBySource(request));
  for (const auto& [source, copies] : by_source) {
    // An empty fetch: the source answers whether it has the version.
    SYNCOPATE_RETURN_IF_ERROR(ReceiveFrom(request, source, /*copies=*/{}, /*destination=*/nullptr, stop));
  }
  return absl::OkStatus();
}

absl::Status GrpcReceiver::ReceiveFrom(const ReceiveRequest& request, int32_t source, const std::vector<Copy>& copies,
                                       char* destination, const std::stop_token& stop) {
  FetchEnd end = Fetch(request, source, copies, destination, stop);
  // The source did not answer: its connection may be old, and gRPC 1.51 sometimes takes a connect that is under way for
  // a failed one (grpc/grpc pull request 35064). A source that is gone refuses the second connection at once.
  if (end.unanswered) end = Fetch(request, source, copies, destination, stop);
  return end.status;
}

GrpcReceiver::FetchEnd GrpcReceiver::Fetch(const ReceiveRequest& request, int32_t source,
                                           const std::vector<Copy>& copies, char* destination,
                                           const std::stop_token& stop) {
  const std::string& rendezvous = request.sources[source].rendezvous;
  absl::StatusOr<std::shared_ptr<Stub>> stub = StubFor(rendezvous);
  if (!stub.ok()) return {stub.status()};
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(request.deadline - clock_->Now()));
  // Runs on the thread that requests the stop, or here if the stop was requested already.
  std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  auto stream = (*stub)->FetchWeights(&context, MakeRequest(request, copies));
  Placement placement(copies, destination, request.on_arrived);
  v1::FetchWeightsResponse chunk;
  absl::Status placed;
  bool answered = false;
  while (placed.ok() && stream->Read(&chunk)) {
    answered = true;
    request.on_writing();
    placed = placement.Place(chunk);
  }
  // Without this Finish() would wait for the end of the call, and the source would go on sending.
  if (!placed.ok()) context.TryCancel();
  const grpc::Status ended = stream->Finish();
  if (!placed.ok()) return {placed};
  if (!ended.ok()) {
    const bool lost = ended.error_code() == grpc::StatusCode::UNAVAILABLE;
    if (lost) ForgetStub(rendezvous);  // a new source has a new address
    const absl::Status status = rpc::FromGrpc(ended);
    return {Explain(status, source, rendezvous, stop), lost && !answered && ErrorReason(status).empty()};
  }
  if (!placement.complete()) return {BadChunk("it ended early")};
  return {};
}

}  // namespace syncopate::member
