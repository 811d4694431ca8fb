#include "services/telemetry/responder.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <vector>

#include "base/http/http_request.h"
#include "base/status.h"
#include "services/telemetry/metric_names.h"
#include "services/telemetry/process_metrics.h"

namespace syncopate::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The socket of a client, closed with the object.
class RawClient {
 public:
  explicit RawClient(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(ParseHostPort(address)->port);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    timeval limit = {20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~RawClient() { close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& text) { send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Reads to the end of the connection.
  std::string ReadAll() {
    std::string text;
    char buffer[4096];
    ssize_t size = 0;
    while ((size = recv(fd_, buffer, sizeof(buffer), 0)) > 0) text.append(buffer, static_cast<size_t>(size));
    return text;
  }

 private:
  int fd_;
};

class ResponderTest : public ::testing::Test {
 protected:
  ResponderTest() { AddCounter(*registry_, "demo_total", "A counter").Increment(3); }

  void Start(MetricsResponder::Options options = {}) {
    auto started = MetricsResponder::Start(options, {registry_, std::make_shared<ProcessCollector>()});
    ASSERT_TRUE(started.ok()) << started.status();
    responder_ = *std::move(started);
  }
  std::string Ask(const std::string& request) {
    RawClient client(responder_->address());
    client.Send(request);
    return client.ReadAll();
  }

  static constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<MetricsResponder> responder_;
};

TEST_F(ResponderTest, ServesTheMetricsOfItsSourcesAsPrometheusText) {
  Start();
  std::string answer = Ask(kGet);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("# TYPE demo_total counter\ndemo_total 3\n"));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
                           "process_max_fds", "process_start_time_seconds", "process_threads"}) {
    EXPECT_THAT(answer, HasSubstr(std::string("\n") + name + " ")) << name;
  }
}

TEST_F(ResponderTest, AnswersAProbeWithOkOrWithTheReasonWhyNot) {
  absl::Status ready = absl::OkStatus();
  Start({.probes = {{"/livez", [] { return absl::OkStatus(); }}, {"/readyz", [&ready] { return ready; }}}});
  EXPECT_TRUE(Ask("GET /livez HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok\n"));
  EXPECT_THAT(Ask("GET /readyz?verbose HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
  ready = Error(absl::StatusCode::kUnavailable, "NO_WEIGHTS", "no weights yet");
  std::string answer = Ask("GET /readyz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\nno weights yet\n"));
  EXPECT_THAT(Ask("GET /livez/ HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /livez HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(ResponderTest, AnswersGarbageAndForeignMethodsWithAClean4xx) {
  Start();
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("GET /secret HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("\x16\x03\x01\x02 not http at all \xff\xfe"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(kGet), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ResponderTest, RefusesAnOversizedHeaderAndTheClientReadsWhy) {
  Start();
  std::string request = "GET /metrics HTTP/1.1\r\nX: " + std::string(1 << 20, 'x');
  EXPECT_THAT(Ask(request), StartsWith("HTTP/1.1 431 "));
}

TEST_F(ResponderTest, RefusesARequestThatAnnouncesABody) {
  Start();
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ResponderTest, ReadsARequestThatComesInPieces) {
  Start();
  RawClient client(responder_->address());
  for (char c : std::string(kGet)) client.Send(std::string(1, c));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ResponderTest, DropsASlowSenderWithoutMakingOthersWait) {
  Start({.request_timeout = absl::Milliseconds(500)});
  RawClient slow(responder_->address());
  slow.Send("GET /met");
  absl::Time start = Clock::Real()->Now();
  EXPECT_THAT(Ask(kGet), StartsWith("HTTP/1.1 200 "));
  EXPECT_LT(Clock::Real()->Now() - start, absl::Milliseconds(400));
  EXPECT_THAT(slow.ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_GE(Clock::Real()->Now() - start, absl::Milliseconds(400));
}

TEST_F(ResponderTest, TheOldestOfTooManyConnectionsGivesWayToANewOneThatAsks) {
  Start({.max_connections = 2, .request_timeout = absl::Seconds(10)});
  RawClient first(responder_->address()), second(responder_->address());
  EXPECT_THAT(Ask(kGet), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(first.ReadAll(), "");
  second.Send(kGet);  // the younger connection is still open
  EXPECT_THAT(second.ReadAll(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ResponderTest, SaysWhichAddressIsTakenOrForbidden) {
  Start();
  auto second = MetricsResponder::Start({.address = responder_->address()}, {});
  EXPECT_EQ(ErrorReason(second.status()), "ADDRESS_IN_USE");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(responder_->address()));
  EXPECT_EQ(ErrorReason(MetricsResponder::Start({.address = "0.0.0.0:0"}, {}).status()), "INSECURE_BIND");
  EXPECT_TRUE(MetricsResponder::Start({.address = "0.0.0.0:0", .insecure_bind = true}, {}).ok());
  EXPECT_EQ(ErrorReason(MetricsResponder::Start({.max_connections = 0}, {}).status()), "BAD_OPTIONS");
}

TEST_F(ResponderTest, StopsTwiceWithConnectionsOpen) {
  Start();
  RawClient client(responder_->address());
  client.Send("GET");
  responder_->Stop();
  responder_->Stop();
  EXPECT_EQ(client.ReadAll(), "");
}

}  // namespace
}  // namespace syncopate::telemetry
