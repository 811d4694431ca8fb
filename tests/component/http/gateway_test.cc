// The gateway between real sockets: endpoints that the test makes behind it, a client before it.
#include "services/gateway/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "services/gateway/passage.h"
#include "tests/component/http/http_fixtures.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tools/gateway/run_gateway.h"

namespace syncopate::gateway {
namespace {

using http::Client;
using http::Exchange;
using http::HttpServer;
using http::Parts;
using http::Request;
using http::Response;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// An endpoint that answers as the test says, or not at all.
class FakeEndpoint {
 public:
  // Null: the exchanges are kept in `exchanges`, unanswered.
  using Reply = std::function<Response(const Request&)>;
  explicit FakeEndpoint(Reply reply = nullptr) {
    server_ =
        HttpServer::Start(
            {}, [](const Request&) { return Response(); }, [](int, const std::string& message) { return message; },
            [this, reply = std::move(reply)](const std::shared_ptr<Exchange>& exchange) {
              requests.Put(exchange->request());
              if (reply) exchange->Respond([response = reply(exchange->request())] { return response; });
              exchanges.Put(exchange);
            })
            .value();
  }
  std::string address() const { return server_->endpoint().ToString(); }
  // Ends it and its connections.
  void Kill() { server_->Stop(); }

  Mailbox<Request> requests;
  Mailbox<std::shared_ptr<Exchange>> exchanges;

 private:
  std::unique_ptr<HttpServer> server_;
};

FakeEndpoint::Reply Says(const std::string& text) {
  return [text](const Request&) { return Response{.body = text}; };
}

class GatewayTest : public ::testing::Test {
 protected:
  void Serve(const std::set<std::string>& addresses, Gateway::Options options = {}) {
    gateway_ = Gateway::Start(std::move(options)).value();
    gateway_->SetEndpoints(addresses);
    port_ = static_cast<uint16_t>(std::stoi(gateway_->url().substr(gateway_->url().rfind(':') + 1)));
  }
  std::unique_ptr<Client> Send(const std::string& body, const std::string& token = "",
                               const std::string& path = "/v1/completions") const {
    auto client = std::make_unique<Client>(port_);
    const std::string bearer = token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n");
    client->Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: 127.0.0.1:", port_,
                              "\r\nContent-Type: application/json\r\nConnection: close\r\n", bearer,
                              "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client;
  }
  // The whole response.
  std::string Ask(const std::string& body, const std::string& token = "") const {
    return Send(body, token)->ReadUntil("\n\n\n never sent");
  }

  std::unique_ptr<Gateway> gateway_;
  uint16_t port_ = 0;
};

TEST_F(GatewayTest, PassesBodyTokenAndResponseAsTheyAre) {
  FakeEndpoint endpoint([](const Request& request) {
    return Response{.code = request.body == "bad" ? 400 : 200, .body = absl::StrCat("<", request.body, ">")};
  });
  Serve({endpoint.address()});
  EXPECT_THAT(
      Ask("{\"prompt\": \"\xc3\xa9\"}", "sk-1"),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("application/json"), EndsWith("<{\"prompt\": \"\xc3\xa9\"}>")));
  EXPECT_THAT(Ask("bad"), AllOf(StartsWith("HTTP/1.1 400"), EndsWith("<bad>")));
  const Request passed = endpoint.requests.All()[0];
  EXPECT_EQ(passed.authorization, "Bearer sk-1");
  EXPECT_EQ(passed.path, "/v1/completions");
  EXPECT_EQ(passed.content_type, "application/json");
  EXPECT_EQ(endpoint.requests.All()[1].authorization, "");
  Client models(port_);
  models.Send(absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: localhost:", port_, "\r\n\r\n"));
  EXPECT_THAT(models.ReadUntil("<>"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(endpoint.requests.All()[2].method, "GET");
}

TEST_F(GatewayTest, PassesAStreamAsItComes) {
  FakeEndpoint endpoint;
  Serve({endpoint.address()});
  const auto client = Send("x");
  ASSERT_TRUE(endpoint.exchanges.WaitFor(1));
  const auto exchange = endpoint.exchanges.All()[0];
  const auto parts = std::make_shared<Parts>();
  exchange->Stream(parts);
  for (const std::string part : {"data: first\n\n", "data: second\n\n"}) {
    parts->Add(part);
    exchange->Wake();
    EXPECT_THAT(client->ReadUntil(part), HasSubstr(part));
  }
  parts->Add("data: third\n\n", /*last=*/true);
  exchange->Wake();
  EXPECT_THAT(client->ReadUntil("0\r\n\r\n"), HasSubstr("third"));
}

TEST_F(GatewayTest, AClientThatReadsLateGetsAllOfALongStream) {
  FakeEndpoint endpoint;
  Serve({endpoint.address()});
  const auto client = Send("x");
  ASSERT_TRUE(endpoint.exchanges.WaitFor(1));
  const auto parts = std::make_shared<Parts>();
  const size_t bytes = 16 * Passage::kMaxWaitingBytes;
  parts->Add(std::string(bytes, 'x') + "the end", /*last=*/true);
  endpoint.exchanges.All()[0]->Stream(parts);
  const std::string all = client->ReadUntil("the end");
  EXPECT_THAT(all.substr(all.size() - std::min<size_t>(all.size(), 100)), HasSubstr("the end"));
  EXPECT_GE(all.size(), bytes);
}

TEST_F(GatewayTest, ARequestGoesToTheLeastLoadedEndpoint) {
  FakeEndpoint one;
  FakeEndpoint two;
  Serve({one.address(), two.address()});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(Send("x"));
  EXPECT_TRUE(one.requests.WaitFor(3));
  EXPECT_TRUE(two.requests.WaitFor(3));
}

TEST_F(GatewayTest, ATokenStaysWithItsEndpointWhileThatIsNotMuchBusier) {
  FakeEndpoint one(Says("one"));
  FakeEndpoint two(Says("two"));
  Serve({one.address(), two.address()});
  const std::string first = Ask("x", "sk-1");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Ask("x", "sk-1").substr(first.size() - 3), first.substr(first.size() - 3));
  EXPECT_EQ(std::max(one.requests.size(), two.requests.size()), 6u);

  Backends backends;
  backends.Set({"a:1", "b:1"});
  std::vector<Backends::Choice> held;
  for (int64_t i = 0; i < 2 * Backends::kSlack; ++i) held.push_back(*backends.Choose("me", {}, absl::UnixEpoch()));
  int64_t at_first = 0;
  for (const auto& choice : held) at_first += choice.address == held[0].address ? 1 : 0;
  EXPECT_GE(at_first, Backends::kSlack);
  EXPECT_LT(at_first, 2 * Backends::kSlack) << "the others are used when one has so much more to do";
}

TEST_F(GatewayTest, AnEndpointThatIsKilledBeforeItAnswersIsReplacedByAnother) {
  FakeEndpoint victim;
  Serve({victim.address()});
  const auto client = Send("x", "sk-1");
  ASSERT_TRUE(victim.exchanges.WaitFor(1));
  FakeEndpoint other(Says("from the other"));
  gateway_->SetEndpoints({victim.address(), other.address()});
  victim.Kill();
  EXPECT_THAT(client->ReadUntil("from the other"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("from the other")));
  EXPECT_THAT(Ask("y", "sk-1"), EndsWith("from the other")) << "the token stays with the other";
  EXPECT_EQ(other.requests.All()[0].authorization, "Bearer sk-1");
}

TEST_F(GatewayTest, AStreamThatBreaksOffIsNotBegunAgainAndEndsWithAnError) {
  FakeEndpoint victim;
  Serve({victim.address()});
  const auto client = Send("x");
  ASSERT_TRUE(victim.exchanges.WaitFor(1));
  FakeEndpoint other(Says("from the other"));
  gateway_->SetEndpoints({victim.address(), other.address()});
  const auto parts = std::make_shared<Parts>();
  parts->Add("data: begun\n\n");
  victim.exchanges.All()[0]->Stream(parts);
  EXPECT_THAT(client->ReadUntil("begun\n\n"), HasSubstr("data: begun"));
  victim.Kill();
  EXPECT_THAT(client->ReadUntil("0\r\n\r\n"), AllOf(HasSubstr("data: {\"error\":"), HasSubstr("broke off its answer")));
  EXPECT_EQ(other.requests.size(), 0u);
}

TEST_F(GatewayTest, ABusyEndpointIsPassedOverAndTheLastRefusalIsPassedOn) {
  const auto busy = [](const Request&) {
    return Response{.code = 429, .body = "full", .headers = {{"Retry-After", "7"}}};
  };
  FakeEndpoint one(busy);
  FakeEndpoint two(busy);
  Serve({one.address(), two.address()});
  EXPECT_THAT(Ask("x"), AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("Retry-After: 7"), EndsWith("full")));
  FakeEndpoint free(Says("free"));
  gateway_->SetEndpoints({one.address(), two.address(), free.address()});
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Ask("x"), EndsWith("free"));
}

TEST_F(GatewayTest, SaysWhatIsWrongWhenNobodyAnswers) {
  FakeEndpoint gone;
  gone.Kill();
  Serve({});
  EXPECT_THAT(Ask("x"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1"), HasSubstr("no rollouter")));
  gateway_->SetEndpoints({gone.address()});
  EXPECT_THAT(Ask("x"), AllOf(StartsWith("HTTP/1.1 502"), HasSubstr(gone.address()), HasSubstr("\"error\"")));
  EXPECT_THAT(Ask("x"), StartsWith("HTTP/1.1 502")) << "it is tried though it rests, as there is no other";
}

TEST_F(GatewayTest, BodiesThatAreUnderWayHaveALimitTogetherAndMakeRoomWhenTheyEnd) {
  EXPECT_EQ(Gateway::Options().max_body_bytes, int64_t{1} << 30);
  FakeEndpoint endpoint;
  Serve({endpoint.address()}, {.max_body_bytes = 100});
  const auto first = Send(std::string(80, 'x'));
  ASSERT_TRUE(endpoint.exchanges.WaitFor(1));
  EXPECT_THAT(Ask(std::string(30, 'y')),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1"), HasSubstr("too large together")));
  const auto small = Send(std::string(20, 'z'));
  ASSERT_TRUE(endpoint.exchanges.WaitFor(2)) << "as much as is left";
  endpoint.exchanges.All()[0]->Respond([] { return Response{.body = "done"}; });
  EXPECT_THAT(first->ReadUntil("done"), EndsWith("done"));
  std::vector<std::unique_ptr<Client>> later;
  EXPECT_TRUE(testing::Eventually(http::kPatience, [&] {
    later.push_back(Send(std::string(30, 'y')));
    return endpoint.exchanges.WaitFor(3, absl::Milliseconds(50));
  }));
  EXPECT_EQ(endpoint.requests.All()[2].body, std::string(30, 'y'));
}

// TCP_USER_TIMEOUT, in milliseconds, of this process's sockets that are connected to the port.
std::vector<unsigned> UnacknowledgedLimits(uint16_t port) {
  std::vector<unsigned> limits;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin_family != AF_INET || ntohs(peer.sin_port) != port) continue;
    unsigned limit = 0;
    size = sizeof(limit);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size), 0);
    limits.push_back(limit);
  }
  return limits;
}

TEST_F(GatewayTest, AnEndpointThatAcknowledgesNothingForThirtySecondsIsGone) {
  FakeEndpoint endpoint;
  Serve({endpoint.address()});
  const auto client = Send("x");
  ASSERT_TRUE(endpoint.exchanges.WaitFor(1));
  const auto port = static_cast<uint16_t>(std::stoi(endpoint.address().substr(endpoint.address().rfind(':') + 1)));
  EXPECT_THAT(UnacknowledgedLimits(port), ElementsAre(30000u));
}

// A URL is made of an endpoint's address and the path.
TEST_F(GatewayTest, APathThatWouldNameAnotherHostOrFileIsRefused) {
  FakeEndpoint endpoint(Says("answer")), elsewhere(Says("secret"));
  Serve({endpoint.address()});
  for (const std::string& path : {absl::StrCat("@", elsewhere.address(), "/v1/models"), std::string("/v1/%20"),
                                  std::string("/v1/a%0d%0ab"), std::string("/v1/%25")}) {
    Client client(port_);
    client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost:", port_, "\r\n\r\n"));
    EXPECT_THAT(client.ReadUntil("}}"), HasSubstr(" 400 ")) << path;
  }
  EXPECT_TRUE(elsewhere.requests.All().empty());
  EXPECT_TRUE(endpoint.requests.All().empty());
}

// The request may be what ended the process.
TEST_F(GatewayTest, ARequestThatEndsTwoEndpointsIsNotSentToAThird) {
  std::vector<std::unique_ptr<FakeEndpoint>> endpoints;
  std::set<std::string> addresses;
  for (int i = 0; i < 3; ++i) {
    endpoints.push_back(std::make_unique<FakeEndpoint>());
    addresses.insert(endpoints.back()->address());
  }
  Serve(addresses);
  const auto client = Send("poison");
  std::set<size_t> killed;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(testing::Eventually(http::kPatience, [&] {
      for (size_t e = 0; e < endpoints.size(); ++e) {
        if (killed.count(e) == 0 && !endpoints[e]->exchanges.All().empty()) {
          endpoints[e]->Kill();
          return killed.insert(e).second;
        }
      }
      return false;
    }));
  }
  EXPECT_THAT(client->ReadUntil("}}"), HasSubstr(" 502 "));
  for (size_t e = 0; e < endpoints.size(); ++e) {
    if (killed.count(e) == 0) {
      EXPECT_TRUE(endpoints[e]->requests.All().empty());
    }
  }
}

TEST_F(GatewayTest, AClientThatLeavesEndsItsRequest) {
  FakeEndpoint endpoint;
  Serve({endpoint.address()});
  auto client = Send("x");
  ASSERT_TRUE(endpoint.exchanges.WaitFor(1));
  Mailbox<int> gone;
  endpoint.exchanges.All()[0]->SetGoneListener([&gone] { gone.Put(0); });
  client.reset();
  EXPECT_TRUE(gone.WaitFor(1));
  gateway_->Stop();
}

TEST_F(GatewayTest, WithoutTokensItIsForThisMachineAndWithTokensForTheirOwners) {
  FakeEndpoint endpoint(Says("answer"));
  Serve({endpoint.address()});
  Client foreign(port_);
  foreign.Send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(foreign.ReadUntil("never"), StartsWith("HTTP/1.1 421"));
  EXPECT_EQ(ErrorReason(Gateway::Start({.address = "0.0.0.0:0"}).status()), "NOT_LOOPBACK");
  Serve({endpoint.address()}, {.judge = [](const std::string& authorization) {
          return authorization == "Bearer sk-1" ? absl::OkStatus() : absl::UnauthenticatedError("no such token");
        }});
  EXPECT_THAT(Ask("x", "sk-2"), AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("no such token")));
  EXPECT_THAT(Ask("x", "sk-1"), EndsWith("answer"));
  EXPECT_EQ(endpoint.requests.size(), 1u);
}

TEST_F(GatewayTest, ItsHealthIsThatOfTheRun) {
  Serve({});
  const auto ask = [this] { return Send("", "", "/health")->ReadUntil("never"); };
  EXPECT_THAT(ask(), StartsWith("HTTP/1.1 503"));
  gateway_->SetEndpoints({"127.0.0.1:1", "127.0.0.1:2"});
  EXPECT_THAT(ask(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\"endpoints\":2")));
}

TEST(ReadyEndpointsTest, AreThoseOfRolloutersThatServeAVersion) {
  v1::ListMembersResponse members;
  const auto add = [&members](const std::string& endpoint, v1::MemberState state, int64_t epoch) {
    v1::MemberStatus* member = members.add_members();
    member->set_endpoint_address(endpoint);
    member->set_state(state);
    member->mutable_serving()->set_epoch(epoch);
  };
  add("10.0.0.1:8000", v1::MEMBER_STATE_ALIVE, 1);
  add("10.0.0.2:8000", v1::MEMBER_STATE_SUSPECT, 1);
  add("10.0.0.3:8000", v1::MEMBER_STATE_DEAD, 1);
  add("10.0.0.4:8000", v1::MEMBER_STATE_LEFT, 1);
  add("10.0.0.5:8000", v1::MEMBER_STATE_ALIVE, 0);
  add("", v1::MEMBER_STATE_ALIVE, 1);
  add("user@evil/path:8000", v1::MEMBER_STATE_ALIVE, 1);
  EXPECT_THAT(ReadyEndpoints(members), ElementsAre("10.0.0.1:8000", "10.0.0.2:8000"));
}

}  // namespace
}  // namespace syncopate::gateway
