#include "synchronizer/ipc/base_lending.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/ipc/unix_socket.h"
#include "synchronizer/ipc/wire.h"

namespace syncopate::synchronizer::ipc {
namespace {

// The base belongs to no attempt and to no version: this number names the one offer of a lender.
constexpr int64_t kBaseOffer = 1;
// A lender answers from a thread that does nothing else, so one that takes longer is stopped or gone.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

absl::Status BadAnswer(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE",
               absl::StrCat("the lender of the base weights answered with ", what));
}

// Waits for the next packet.
absl::StatusOr<Packet> Await(const FileDescriptor& socket, absl::Time until, const std::stop_token& stop,
                             const Clock* clock) {
  for (;;) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<Packet> packet, Receive(socket.get()));
    if (packet.has_value()) return *std::move(packet);
    if (stop.stop_requested()) return Error(absl::StatusCode::kCancelled, "CANCELLED", "the attempt was ended");
    if (clock->Now() >= until) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   "the lender of the base weights did not answer");
    }
    pollfd readable{.fd = socket.get(), .events = POLLIN, .revents = 0};
    ::poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kPoll)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BaseLender>> BaseLender::Create(uint64_t fingerprint,
                                                               const IpcServer::Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string host, HostId());
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<IpcServer> server, IpcServer::Start(options));
  return std::unique_ptr<BaseLender>(new BaseLender(fingerprint, std::move(host), std::move(server)));
}

std::string BaseLender::Lend(SharedMemory memory) {
  const Rendezvous where{host_, memory->info.id, server_->socket_path()};
  const bool is_written = !memory->info.device.empty();
  server_->Add({.attempt = kBaseOffer,
                .version = {},
                .fingerprint = fingerprint_,
                .memory = std::move(memory),
                .complete = true,
                .progress = {},
                .exclusive = is_written});
  return where.ToString();
}

absl::StatusOr<LentMemory> BorrowBase(const std::string& rendezvous, uint64_t fingerprint, const Borrower& borrower,
                                      absl::Time deadline, const std::stop_token& stop, const Clock* clock) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Rendezvous where, Rendezvous::Parse(rendezvous));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string host, HostId());
  if (where.host != host) {
    return Error(absl::StatusCode::kFailedPrecondition, "OTHER_HOST",
                 "the base weights are lent by a process of another host");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor socket, Connect(where.socket));
  SYNCOPATE_RETURN_IF_ERROR(Send(socket.get(), Want{.attempt = kBaseOffer,
                                                    .version = {},
                                                    .fingerprint = fingerprint,
                                                    .mapped_memory = 0,
                                                    .device = borrower.device.empty() ? kHostMemory : borrower.device,
                                                    .borrower = borrower.id}));
  SYNCOPATE_ASSIGN_OR_RETURN(Packet packet, Await(socket, std::min(deadline, clock->Now() + kPatience), stop, clock));
  if (const auto* refusal = std::get_if<Refusal>(&packet.message)) return MakeStatus(*refusal);
  auto* grant = std::get_if<Grant>(&packet.message);
  if (grant == nullptr) return BadAnswer("another message than a grant");
  if (!grant->complete || grant->memory.id != where.memory) return BadAnswer("other memory than it had named");
  if (packet.handles.size() != grant->memory.chunks.size()) return BadAnswer("too few descriptors");
  return LentMemory{std::move(grant->memory), std::move(packet.handles), std::move(socket)};
}

}  // namespace syncopate::synchronizer::ipc
