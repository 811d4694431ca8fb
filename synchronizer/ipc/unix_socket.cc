#include "synchronizer/ipc/unix_socket.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::synchronizer::ipc {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kControlBytes = CMSG_SPACE(kMaxHandles * sizeof(int));

absl::Status SystemError(const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, "SYSTEM", absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status PeerLost(const std::string& detail) { return Error(absl::StatusCode::kUnavailable, "PEER_LOST", detail); }

absl::StatusOr<sockaddr_un> GetAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PATH",
                 absl::StrCat("'", path, "' is no path for a socket: 1 to ", sizeof(address.sun_path) - 1,
                              " bytes are possible"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

absl::StatusOr<FileDescriptor> NewSocket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SystemError("socket");
  return fd;
}

// A process that connects gets descriptors of this process's memory. The folder's mode keeps other users out already;
// this check asks the kernel as well.
bool SameUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// The descriptors sent with a packet.
std::vector<FileDescriptor> TakeHandles(msghdr& header) {
  std::vector<FileDescriptor> handles;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      handles.emplace_back(fd);
    }
  }
  return handles;
}

}  // namespace

absl::StatusOr<FileDescriptor> Listen(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(sockaddr_un address, GetAddress(path));
  SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  bool listening = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                   ::listen(fd.get(), kBacklog) == 0;
  if (!listening) return SystemError(absl::StrCat("listening at ", path));
  return fd;
}

absl::StatusOr<std::optional<FileDescriptor>> Accept(const FileDescriptor& listener) {
  FileDescriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    if (SameUser(fd.get())) return std::optional<FileDescriptor>(std::move(fd));
    return std::optional<FileDescriptor>();
  }
  // Other errors belong to a connection that ended before it was accepted.
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    return Error(absl::StatusCode::kResourceExhausted, "NO_DESCRIPTORS",
                 absl::StrCat("a connection cannot be taken: ", std::strerror(errno)));
  }
  return std::optional<FileDescriptor>();
}

absl::StatusOr<FileDescriptor> Connect(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(sockaddr_un address, GetAddress(path));
  SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return PeerLost(absl::StrCat("no process answers at ", path, ": ", std::strerror(errno)));
  }
  if (!SameUser(fd.get())) {
    return Error(absl::StatusCode::kPermissionDenied, "OTHER_USER",
                 absl::StrCat(path, " belongs to a process of another user"));
  }
  return fd;
}

absl::Status Send(int socket, const Message& message, const std::vector<FileDescriptor>& handles) {
  SYNCOPATE_CHECK(handles.size() <= kMaxHandles);
  std::string packet = Encode(message);
  iovec part{packet.data(), packet.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  if (!handles.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(handles.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(handles.size() * sizeof(int));
    for (size_t i = 0; i < handles.size(); ++i) {
      int fd = handles[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(packet.size())) return absl::OkStatus();
  // The peer has not read a full buffer of messages, so it has stopped; a server with one thread must not wait for it.
  if (errno == EAGAIN || errno == EWOULDBLOCK) return PeerLost("the peer takes no messages any more");
  return PeerLost(absl::StrCat("the peer cannot be told anything: ", std::strerror(errno)));
}

absl::StatusOr<std::optional<Packet>> Receive(int socket) {
  std::string packet(kMaxMessageBytes, '\0');
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Packet>();
  if (size <= 0) return PeerLost(size == 0 ? "the peer hung up" : absl::StrCat("the peer: ", std::strerror(errno)));
  // Taken before the packet is checked, so that the descriptors are closed in every case.
  std::vector<FileDescriptor> handles = TakeHandles(header);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "the peer sent more than a packet may contain");
  }
  packet.resize(static_cast<size_t>(size));
  SYNCOPATE_ASSIGN_OR_RETURN(Message message, Decode(packet));
  return std::optional<Packet>(Packet{std::move(message), std::move(handles)});
}

WakeUp::WakeUp() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { SYNCOPATE_CHECK(fd_.valid()); }

void WakeUp::Wake() const {
  uint64_t one = 1;
  // Fails only if the counter is full; then the descriptor is readable anyway.
  [[maybe_unused]] ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

void WakeUp::Clear() const {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t taken = ::read(fd_.get(), &count, sizeof(count));  // an empty counter is fine
}

}  // namespace syncopate::synchronizer::ipc
