// The HTTP server over real sockets.
#include "services/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "tests/component/http/http_fixtures.h"
#include "tests/support/status_matchers.h"

namespace syncopate::http {
namespace {

using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<HttpServer> StartServer(HttpServer::Handler handler, const HttpServer::Options& options = {}) {
  auto server = HttpServer::Start(
      options,
      [](const Request& request) {
        return request.path == "/refused" ? Response{.code = 404, .body = "no such page"} : Response{};
      },
      [](int code, const std::string& message) { return absl::StrCat(code, ": ", message); }, std::move(handler));
  EXPECT_THAT(server, IsOk());
  return *std::move(server);
}

void Echo(const std::shared_ptr<Exchange>& exchange) {
  exchange->Respond([body = absl::StrCat("<", exchange->request().body, ">")] { return Response{.body = body}; });
}

TEST(HttpServerTest, OneConnectionCarriesOneRequestAfterTheOther) {
  const auto server = StartServer(Echo);
  Client client(server->endpoint().port);
  for (const std::string body : {"a", "bcd", ""}) {
    client.Post(body);
    EXPECT_THAT(client.ReadUntil(absl::StrCat("<", body, ">")), StartsWith("HTTP/1.1 200"));
  }
}

TEST(HttpServerTest, TheGuardRefusesARequestBeforeItsBody) {
  const auto server = StartServer([](const auto&) { FAIL() << "the handler was called"; });
  Client client(server->endpoint().port);
  client.Send("POST /refused HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("no such page"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpServerTest, AStreamSendsEachPartWhenItIsThere) {
  Box<std::shared_ptr<Exchange>> began;
  const auto parts = std::make_shared<Parts>();
  const auto server = StartServer([&](const std::shared_ptr<Exchange>& exchange) {
    exchange->Stream(parts);
    began.Put(exchange);
  });
  Client client(server->endpoint().port);
  client.Get("/");
  const auto exchange = began.Get();
  for (const std::string part : {"first", "second"}) {
    parts->Add(part);
    exchange->Wake();
    EXPECT_THAT(client.ReadUntil(part), HasSubstr(part));
  }
  parts->Add("third", /*last=*/true);
  exchange->Wake();
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("third"));
}

TEST(HttpServerTest, AClientThatLeavesIsNoticedBeforeAnythingIsSent) {
  Box<bool> gone;
  const auto server = StartServer(
      [&](const std::shared_ptr<Exchange>& exchange) { exchange->SetGoneListener([&] { gone.Put(true); }); });
  Client client(server->endpoint().port);
  client.Get("/");
  client.Close();
  EXPECT_TRUE(gone.Await());
}

TEST(HttpServerTest, AClientThatLeavesAStreamIsNoticed) {
  Box<bool> gone;
  Box<std::shared_ptr<Exchange>> began;
  const auto parts = std::make_shared<Parts>();
  parts->Add("begin");
  const auto server = StartServer([&](const std::shared_ptr<Exchange>& exchange) {
    exchange->SetGoneListener([&] { gone.Put(true); });
    exchange->Stream(parts);
  });
  Client client(server->endpoint().port);
  client.Get("/");
  client.ReadUntil("begin");
  client.Close();
  EXPECT_TRUE(gone.Await());
}

TEST(HttpServerTest, StoppingEndsExchangesThatHaveNoAnswer) {
  Box<bool> gone;
  Box<std::shared_ptr<Exchange>> kept;
  auto server = StartServer([&](const std::shared_ptr<Exchange>& exchange) {
    exchange->SetGoneListener([&] { gone.Put(true); });
    kept.Put(exchange);
  });
  Client client(server->endpoint().port);
  client.Get("/");
  const auto exchange = kept.Get();
  server->Stop();
  EXPECT_TRUE(gone.Await());
  EXPECT_TRUE(client.IsClosed());
  server.reset();
  const auto kept_by_answer = std::make_shared<int>(0);
  exchange->Respond([kept_by_answer] { return Response{}; });  // has no effect, and no server
  EXPECT_EQ(kept_by_answer.use_count(), 1) << "an answer that nobody takes is not kept";
}

TEST(HttpServerTest, SlowHeadersAndSlowBodiesAreCutOff) {
  const auto server =
      StartServer(Echo, {.header_timeout = absl::Milliseconds(300), .body_timeout = absl::Milliseconds(300)});
  Client silent(server->endpoint().port), headers(server->endpoint().port), body(server->endpoint().port);
  headers.Send("POST / HTTP/1.1\r\nHost: he");
  body.Send("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc");
  for (const Client* client : {&silent, &headers, &body}) EXPECT_TRUE(client->IsClosed());
}

TEST(HttpServerTest, ABodyHasALimit) {
  const auto server = StartServer(Echo, {.max_body_bytes = 1000});
  Client said(server->endpoint().port), chunked(server->endpoint().port);
  said.Send("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_THAT(said.ReadUntil("longer"), StartsWith("HTTP/1.1 413"));
  chunked.Send(absl::StrCat("POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n",
                            std::string(1001, 'a'), "\r\n0\r\n\r\n"));
  EXPECT_THAT(chunked.ReadUntil("longer"), StartsWith("HTTP/1.1 413"));
}

TEST(HttpServerTest, AllBodiesTogetherHaveALimit) {
  const auto server = StartServer(Echo, {.max_buffered_bytes = 800});
  Client large(server->endpoint().port);
  large.Post(std::string(900, 'a'));
  EXPECT_THAT(large.ReadUntil("memory"), StartsWith("HTTP/1.1 503"));
  large.Post(std::string(700, 'b'));  // what was refused takes no room
  EXPECT_THAT(large.ReadUntil("b>"), HasSubstr("HTTP/1.1 200"));
}

TEST(HttpServerTest, TwoWordsAboutTheLengthAreRefused) {
  const auto server = StartServer(Echo);
  Client client(server->endpoint().port);
  client.Post("", "Transfer-Encoding: chunked\r\n");
  EXPECT_THAT(client.ReadUntil("exclude"), StartsWith("HTTP/1.1 400"));
}

// Reads from many clients at once, and measures how old each event "data: NANOSECONDS" is when it comes.
class EventReader {
 public:
  EventReader() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
  ~EventReader() { close(epoll_); }
  void Add(const Client& client) {
    tails_.emplace(client.fd(), "");
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = client.fd();
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, client.fd(), &event), 0);
  }
  // The ages of `count` events in milliseconds, ascending; fewer if none comes for kPatience.
  std::vector<double> Read(size_t count) {
    std::vector<double> ages;
    epoll_event ready[64];
    while (ages.size() < count) {
      const int number = epoll_wait(epoll_, ready, 64, static_cast<int>(absl::ToInt64Milliseconds(kPatience)));
      if (number <= 0) break;
      for (int i = 0; i < number; ++i) Receive(ready[i].data.fd, &ages);
    }
    std::sort(ages.begin(), ages.end());
    return ages;
  }

 private:
  void Receive(int fd, std::vector<double>* ages) {
    char buffer[4096];
    const ssize_t size = recv(fd, buffer, sizeof(buffer), 0);
    if (size <= 0) return;
    std::string& tail = tails_[fd];
    tail.append(buffer, static_cast<size_t>(size));
    size_t end = 0;
    while ((end = tail.find("\n\n")) != std::string::npos) {
      const size_t begin = tail.rfind("data: ", end);
      int64_t sent = 0;
      if (begin != std::string::npos && absl::SimpleAtoi(tail.substr(begin + 6, end - begin - 6), &sent)) {
        ages->push_back(1e-6 * static_cast<double>(absl::GetCurrentTimeNanos() - sent));
      }
      tail.erase(0, end + 2);
    }
  }

  const int epoll_;
  std::map<int, std::string> tails_;
};

// How old they are is printed, not judged: machines that test are busy.
TEST(HttpServerTest, HundredsOfStreamsGetEveryEvent) {
  constexpr size_t kStreams = 400, kRounds = 30;
  constexpr absl::Duration kPace = absl::Milliseconds(33);
  Mutex mutex;
  std::vector<std::pair<std::shared_ptr<Exchange>, std::shared_ptr<Parts>>> streams;
  const auto server = StartServer([&](const std::shared_ptr<Exchange>& exchange) {
    auto parts = std::make_shared<Parts>();
    exchange->Stream(parts);
    MutexLock lock(&mutex);
    streams.emplace_back(exchange, std::move(parts));
  });
  std::vector<std::unique_ptr<Client>> clients;
  EventReader reader;
  for (size_t i = 0; i < kStreams; ++i) {
    reader.Add(*clients.emplace_back(std::make_unique<Client>(server->endpoint().port)));
    clients.back()->Get("/");
  }
  std::thread pacer([&] {
    const auto all_there = [&] { return streams.size() == kStreams; };
    const bool never = false;
    MutexLock lock(&mutex);
    ASSERT_TRUE(mutex.AwaitWithTimeout(Condition(&all_there), kPatience));
    for (size_t round = 0; round < kRounds; ++round) {
      for (const auto& [exchange, parts] : streams) {
        parts->Add(absl::StrCat("data: ", absl::GetCurrentTimeNanos(), "\n\n"), round + 1 == kRounds);
        exchange->Wake();
      }
      mutex.AwaitWithTimeout(Condition(&never), kPace);
    }
  });
  const std::vector<double> ages = reader.Read(kStreams * kRounds);
  pacer.join();
  ASSERT_EQ(ages.size(), kStreams * kRounds);
  std::printf("age of an event: median %.1f ms, p99 %.1f ms\n", ages[ages.size() / 2], ages[ages.size() * 99 / 100]);
}

TEST(HttpServerTest, HeadersHaveALimit) {
  const auto server = StartServer(Echo);
  Client client(server->endpoint().port);
  client.Send(absl::StrCat("GET / HTTP/1.1\r\nHost: here\r\nX: ", std::string(100 << 10, 'a'), "\r\n\r\n"));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), ::testing::AnyOf(StartsWith("HTTP/1.1 431"), StartsWith("HTTP/1.1 4"), ""));
  Client other(server->endpoint().port);
  other.Post("x");
  EXPECT_THAT(other.ReadUntil("<x>"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace syncopate::http
