#include "bench/control/scrape.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/status.h"

namespace syncopate::bench {

absl::StatusOr<Scrape> ScrapeMetrics(const std::string& address, absl::Duration limit) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort endpoint, ParseHostPort(address));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(endpoint.port);
  auto failed = [&address](const std::string& what) {
    return Error(absl::StatusCode::kUnavailable, "NO_METRICS", absl::StrCat("no metrics from ", address, ": ", what));
  };
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &to.sin_addr) != 1) return failed("not an IPv4 address");
  const absl::Time began = Clock::Real()->Now();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("no socket");
  absl::Cleanup closed = [fd] { ::close(fd); };
  const timeval timeout = absl::ToTimeval(limit);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return failed("no process listens there");
  const std::string request = absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", address, "\r\n\r\n");
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return failed("the request was not taken");
  }
  std::string answer;
  std::array<char, 65536> buffer;
  ssize_t count = 0;
  // The responder closes the connection after each answer, so the end of the stream is the end of the page.
  while ((count = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0) answer.append(buffer.data(), count);
  if (count < 0) return failed("the answer does not end");
  if (!absl::StartsWith(answer, "HTTP/1.1 200 ")) return failed("the answer is not 200");
  return Scrape{Clock::Real()->Now() - began, static_cast<int64_t>(answer.size())};
}

}  // namespace syncopate::bench
