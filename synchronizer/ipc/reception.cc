#include "synchronizer/ipc/reception.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer::ipc {
namespace {

// The longest sleep without copies under way. A message wakes it at once; an injected clock does not.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(50);

absl::Status Cancelled() { return Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended"); }

absl::Status BadReply(const std::string& detail) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", detail);
}

}  // namespace

Reception::Reception(const Options& options, Parts parts, const ReceiveRequest& request, FetchRoute route,
                     char* destination)
    : options_(options),
      parts_(std::move(parts)),
      request_(request),
      route_(std::move(route)),
      destination_(destination),
      cursor_(route_.segments, options.chunk_bytes),
      links_(route_.upstreams.size()) {}

Reception::~Reception() {
  for (Link& link : links_) {
    // A connection that watches mapped memory stays open, so the upstream must be told that reading has ended.
    if (link.granted) Send(link.socket.get(), Release{request_.attempt}).IgnoreError();
  }
}

absl::Status Reception::Run(const std::stop_token& stop) {
  stop_ = stop;
  std::stop_callback wake(stop, [this] { wake_.Wake(); });
  absl::Status received = Attempt();
  if (received.ok()) return received;
  // After an error copies may still run, and their memory must not be freed.
  absl::Status drained = parts_.queue->Drain(options_.drain_deadline);
  return drained.ok() ? received : drained;
}

absl::Status Reception::Probe(const std::stop_token& stop) {
  stop_ = stop;
  std::stop_callback wake(stop, [this] { wake_.Wake(); });
  SYNCOPATE_RETURN_IF_ERROR(ConnectAll());
  return WaitForGrants();
}

std::vector<std::shared_ptr<const MappedMemory>> Reception::mappings() const {
  std::vector<std::shared_ptr<const MappedMemory>> mappings;
  for (const Link& link : links_) mappings.push_back(link.mapped);
  return mappings;
}

absl::Status Reception::Attempt() {
  SYNCOPATE_ASSIGN_OR_RETURN(finished_, parts_.queue->Finished());
  SYNCOPATE_RETURN_IF_ERROR(ConnectAll());
  SYNCOPATE_RETURN_IF_ERROR(WaitForGrants());
  request_.on_connected();
  return CopyAll();
}

absl::Status Reception::ConnectAll() {
  for (size_t i = 0; i < links_.size(); ++i) {
    const Rendezvous& where = route_.upstreams[i].where;
    absl::StatusOr<FileDescriptor> socket = Connect(where.socket);
    if (!socket.ok()) return Blame(i, socket.status());
    links_[i].socket = *std::move(socket);
    // Mapping another process's memory takes milliseconds, and the mapping stays valid while the memory exists. So it
    // is kept from sync to sync, and `mapped_memory` tells the upstream that no descriptors are needed.
    links_[i].mapped = parts_.mappings->Find(where.memory);
    Want want;
    want.attempt = request_.attempt;
    want.version = request_.version;
    want.fingerprint = request_.manifest_fingerprint;
    want.mapped_memory = links_[i].mapped != nullptr ? where.memory : 0;
    SYNCOPATE_RETURN_IF_ERROR(Blame(i, Send(links_[i].socket.get(), want)));
  }
  return absl::OkStatus();
}

absl::Status Reception::WaitForGrants() {
  while (!std::ranges::all_of(links_, &Link::granted)) SYNCOPATE_RETURN_IF_ERROR(WaitForNews());
  return absl::OkStatus();
}

absl::Status Reception::CopyAll() {
  for (;;) {
    SYNCOPATE_RETURN_IF_ERROR(IssueChunks());
    SYNCOPATE_RETURN_IF_ERROR(CollectFinishedChunks());
    if (cursor_.done()) break;
    SYNCOPATE_RETURN_IF_ERROR(WaitForNews());
  }
  if (stop_.stop_requested()) return Cancelled();
  // The copied bytes are good only if no upstream withdrew its memory during the copies.
  for (size_t i = 0; i < links_.size(); ++i) SYNCOPATE_RETURN_IF_ERROR(TakeNews(i));
  return absl::OkStatus();
}

absl::Status Reception::IssueChunks() {
  // At least one chunk of any size; otherwise enough bytes to keep the copy engine busy, but not more, because a stop
  // must wait for all queued copies.
  while (cursor_.in_flight() == 0 || cursor_.bytes_in_flight() < options_.bytes_in_flight) {
    std::optional<Segment> chunk = cursor_.Next();
    if (!chunk.has_value()) break;
    char* to = destination_ + chunk->to;
    const char* from = links_[chunk->upstream].mapped->data() + chunk->from;
    // Called before the first byte of the destination changes.
    if (!std::exchange(writing_, true)) request_.on_writing();
    SYNCOPATE_RETURN_IF_ERROR(parts_.queue->Copy(to, from, chunk->bytes));
    request_.on_arrived({chunk->to, chunk->to + chunk->bytes}, parts_.queue->stream());
  }
  return absl::OkStatus();
}

absl::Status Reception::CollectFinishedChunks() {
  SYNCOPATE_ASSIGN_OR_RETURN(int64_t finished, parts_.queue->Finished());
  int64_t fresh = finished - finished_;
  finished_ += fresh;
  for (int32_t source : cursor_.Finish(fresh)) {
    // Replicas that read from this one may now read these bytes.
    parts_.server->Advance(request_.attempt, source, cursor_.progress(source));
  }
  return absl::OkStatus();
}

absl::Status Reception::WaitForNews() {
  SYNCOPATE_RETURN_IF_ERROR(CheckTime());
  std::vector<pollfd> sockets = {{wake_.fd(), POLLIN, 0}};
  for (const Link& link : links_) sockets.push_back({link.socket.get(), POLLIN, 0});
  // Copies that finish on the GPU wake no thread, so they are polled; without copies under way only a message matters.
  absl::Duration sleep = cursor_.in_flight() > 0 ? options_.poll_interval : kLongestSleep;
  if (cursor_.in_flight() == 0 && cursor_.ready()) sleep = absl::ZeroDuration();
  timespec timeout = absl::ToTimespec(std::min(sleep, request_.deadline - options_.clock->Now()));
  if (::ppoll(sockets.data(), sockets.size(), &timeout, nullptr) <= 0) return absl::OkStatus();
  for (size_t i = 0; i < links_.size(); ++i) {
    if (sockets[i + 1].revents != 0) SYNCOPATE_RETURN_IF_ERROR(TakeNews(i));
  }
  return CheckTime();
}

absl::Status Reception::TakeNews(size_t upstream) {
  for (;;) {
    absl::StatusOr<std::optional<Packet>> packet = Receive(links_[upstream].socket.get());
    if (!packet.ok()) return Blame(upstream, packet.status());
    if (!packet->has_value()) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(Blame(upstream, OnMessage(upstream, *std::move(*packet))));
  }
}

absl::Status Reception::OnMessage(size_t upstream, Packet packet) {
  if (const auto* refusal = std::get_if<Refusal>(&packet.message)) return MakeStatus(*refusal);
  if (auto* grant = std::get_if<Grant>(&packet.message)) {
    return OnGrant(upstream, std::move(*grant), std::move(packet.handles));
  }
  const auto* progress = std::get_if<Progress>(&packet.message);
  if (progress == nullptr || progress->attempt != request_.attempt) return BadReply("an answer to nothing asked");
  for (size_t source = 0; source < progress->bytes.size(); ++source) {
    cursor_.Available(static_cast<int32_t>(upstream), static_cast<int32_t>(source), progress->bytes[source]);
  }
  return absl::OkStatus();
}

absl::Status Reception::OnGrant(size_t upstream, Grant grant, std::vector<FileDescriptor> handles) {
  const FetchRoute::Upstream& expected = route_.upstreams[upstream];
  Link& link = links_[upstream];
  // Every value from the peer is checked against the request and the rendezvous.
  if (grant.attempt != request_.attempt || link.granted) return BadReply("a grant of nothing asked");
  if (grant.memory.id != expected.where.memory || grant.memory.bytes() < expected.bytes) {
    return Error(absl::StatusCode::kFailedPrecondition, "MEMORY_MISMATCH",
                 absl::StrFormat("it lends %d bytes of memory %016x, announced were %d of %016x", grant.memory.bytes(),
                                 grant.memory.id, expected.bytes, expected.where.memory));
  }
  if (grant.with_handles) {
    if (handles.size() != grant.memory.chunks.size()) return BadReply("a grant without its descriptors");
    SYNCOPATE_ASSIGN_OR_RETURN(link.mapped, parts_.engine->Map({grant.memory, std::move(handles)}));
    if (parts_.mappings->keeps()) KeepMapped(link, grant.memory.id);
  }
  if (link.mapped == nullptr) return BadReply("a grant without its descriptors");
  link.granted = true;
  for (size_t source = 0; source < grant.progress.size(); ++source) {
    cursor_.Available(static_cast<int32_t>(upstream), static_cast<int32_t>(source), grant.progress[source]);
  }
  if (grant.complete) cursor_.AllAvailable(static_cast<int32_t>(upstream));
  return absl::OkStatus();
}

void Reception::KeepMapped(const Link& link, uint64_t memory) {
  FileDescriptor watched(::fcntl(link.socket.get(), F_DUPFD_CLOEXEC, 0));
  parts_.mappings->Insert(memory, link.mapped);
  // A mapping keeps the memory of a dead process allocated, so the mapping is dropped when the process is gone.
  auto drop = [mappings = parts_.mappings, memory] { mappings->Drop(memory); };
  if (watched.valid()) parts_.server->Watch(std::move(watched), drop);
}

absl::Status Reception::CheckTime() const {
  if (stop_.stop_requested()) return Cancelled();
  if (options_.clock->Now() < request_.deadline) return absl::OkStatus();
  int32_t awaited = cursor_.waits_for();
  return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
               absl::StrFormat("the weights from %s did not arrive in time",
                               awaited < 0 ? "the last copies" : route_.upstreams[awaited].name));
}

absl::Status Reception::Blame(size_t upstream, const absl::Status& status) const {
  return status.ok() ? status : Annotate(status, route_.upstreams[upstream].name);
}

}  // namespace syncopate::synchronizer::ipc
