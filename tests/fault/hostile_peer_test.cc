// Peers that speak nonsense, or nothing, to every port of a run.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/host_port.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

constexpr int kMutePeers = 50;  // at each port
constexpr int kGarbagePeers = 20;

// One TCP connection, closed with the object. Never blocks for long.
class Peer {
 public:
  explicit Peer(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto parsed = services::ParseHostPort(address);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(parsed.ok() ? parsed->port : 0);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connected() const { return connected_; }
  // As much as the other side takes at once.
  void Send(const std::string& bytes) { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }
  // Reads and forgets until the other side closes; false if it does not within `timeout`.
  bool WaitClosed(absl::Duration timeout) {
    return Eventually(timeout, [this] {
      std::array<char, 4096> buffer;
      const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    });
  }

 private:
  const int fd_;
  bool connected_ = false;
};

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A frame of HTTP/2 whose length, type and contents are what the dice say.
std::string RandomFrame(Dice& dice) {
  std::string frame(9, '\0');
  for (char& byte : frame) byte = static_cast<char>(dice.Between(0, 255));
  for (int64_t left = dice.Between(0, 300); left > 0; --left) frame.push_back(static_cast<char>(dice.Between(0, 255)));
  return frame;
}

std::string Garbage(Dice& dice) {
  switch (dice.Between(0, 4)) {
    case 0:
      return RandomFrame(dice) + RandomFrame(dice);  // no preface
    case 1:
      return kPreface + RandomFrame(dice) + RandomFrame(dice);
    case 2:  // settings in order, then headers that are none
      return kPreface + std::string("\0\0\0\4\0\0\0\0\0", 9) + std::string("\0\0\x40\1\5\0\0\0\1", 9) +
             std::string(64, '\xff');
    case 3:
      return absl::StrCat("GET /metrics HTTP/1.1\r\nX: ",
                          std::string(static_cast<size_t>(dice.Between(1, 20000)), 'x'));
    default:
      return "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client that speaks TLS";
  }
}

TEST(HostilePeerTest, GarbageAndSilenceAtEveryPortLeaveTheRunAlone) {
  RunHarness run(EndlessRun());
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  for (int64_t rollouter : {0, 1}) ASSERT_THAT(watch.AwaitWork(rollouter), IsOk());
  const std::vector<std::pair<std::string, int64_t>> daemons = {
      {"synchronizer", 0}, {"trainer", 0}, {"rollouter", 0}, {"rollouter", 1}};
  Dice dice(7);
  std::vector<std::unique_ptr<Peer>> mute;
  for (const auto& [role, index] : daemons) {
    SCOPED_TRACE(absl::StrCat(role, "-", index));
    auto endpoint = run.Endpoint(role, index);
    ASSERT_THAT(endpoint, IsOk());
    for (const std::string& address : {endpoint->grpc, endpoint->metrics}) {
      for (int i = 0; i < kMutePeers; ++i) {
        mute.push_back(std::make_unique<Peer>(address));
        EXPECT_TRUE(mute.back()->connected()) << address;
      }
      for (int i = 0; i < kGarbagePeers; ++i) {
        Peer peer(address);
        EXPECT_TRUE(peer.connected()) << address;
        peer.Send(Garbage(dice));
      }
    }
    // With all of them still there, the daemon answers those who know how to ask.
    EXPECT_THAT(HttpGet(endpoint->metrics, "/metrics"), IsOk());
  }
  ASSERT_THAT(watch.AwaitMoreSteps(20), IsOk());
  EXPECT_THAT(watch.Members(), IsOk());

  // One that says too little is sent away in the end.
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  Peer slow(trainer->metrics);
  slow.Send("GET /metr");
  EXPECT_TRUE(slow.WaitClosed(absl::Seconds(20)));

  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const Json restarts = run.Summary()["run"]["restarts"];
  for (const auto& [role, index] : daemons) EXPECT_EQ(restarts[absl::StrCat(role, "-", index)], 0);
  EXPECT_THAT(Judge(run), IsClean());
}

}  // namespace
}  // namespace syncopate::testing
