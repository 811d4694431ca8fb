#include "services/member/grpc_transport.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "services/member/weight_service.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/support/tcp_relay.h"
#include "tests/support/transport_conformance.h"

namespace syncopate::synchronizer {
namespace {

// Each source is a server of its own on the loopback interface.
class GrpcHarness final : public TransportHarness {
 public:
  SourceTransport* AddSource(WeightStore* store) override {
    auto source = std::make_unique<Source>(store);
    SourceTransport* end = &source->transport;
    sources_[end] = std::move(source);
    return end;
  }
  void KillSource(SourceTransport* source) override { sources_.at(source)->server->Stop(absl::ZeroDuration()); }
  ReceiverTransport* receiver() override { return &receiver_; }
  ReceiverTransport* AddReceiver() override {
    return more_.emplace_back(std::make_unique<member::GrpcReceiver>()).get();
  }

 private:
  struct Source {
    explicit Source(WeightStore* store)
        : service(store), server(rpc::Server::Start({}, {&service}).value()), transport(server->address()) {}
    member::WeightServiceImpl service;
    std::unique_ptr<rpc::Server> server;
    member::GrpcSource transport;
  };

  member::GrpcReceiver receiver_;
  std::vector<std::unique_ptr<member::GrpcReceiver>> more_;
  std::map<SourceTransport*, std::unique_ptr<Source>> sources_;
};

std::unique_ptr<TransportHarness> MakeGrpcHarness() { return std::make_unique<GrpcHarness>(); }

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformanceTest, ::testing::Values(&MakeGrpcHarness));
INSTANTIATE_TEST_SUITE_P(Grpc, TransportShapesTest, ::testing::Values(&MakeGrpcHarness));

TEST(GrpcReceiverTest, ASourceThatDoesNotAnswerIsNamedWithTheAddressThatItToldAndTheKeyForIt) {
  member::GrpcReceiver receiver;
  ReceiveRequest request;
  for (int32_t rank : {0, 1}) {
    request.sources.push_back({.id = {"trainer", "trainer-0", rank, 2, "t"}, .rendezvous = "127.0.0.1:1"});
  }
  request.copies = {{.source = 1, .bytes = 4}};
  request.world = 1;
  request.deadline = Clock::Real()->Now() + absl::Seconds(20);
  request.on_writing = [] {};
  std::array<char, 4> target{};
  const absl::Status status = receiver.Receive(request, target.data(), std::stop_token());
  EXPECT_EQ(ErrorReason(status), "PEER_LOST");
  for (const char* part : {"trainer rank 1", "127.0.0.1:1", "trainer.advertise"}) {
    EXPECT_THAT(status.message(), ::testing::HasSubstr(part));
  }
}

TEST(GrpcReceiverTest, ASourceWhoseConnectionBreaksBeforeItAnswersIsAskedOnceMore) {
  auto arena = SendArena::Create(Manifest::Create({{"w", DType::kFloat32, {64}}}).value(), {}).value();
  auto staged = arena->Stage({1, 1}, [](char* bytes) {
    std::fill_n(bytes, 256, 'w');
    return absl::OkStatus();
  });
  member::WeightServiceImpl service(arena.get());
  auto server = rpc::Server::Start({}, {&service}).value();
  std::vector<absl::string_view> parts = absl::StrSplit(server->address(), ':');
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(parts.back(), &port));
  testing::TcpRelay relay(port);
  relay.CutOne(0);

  member::GrpcReceiver receiver;
  ReceiveRequest request;
  request.version = {1, 1};
  request.manifest_fingerprint = arena->fingerprint();
  request.sources.push_back(
      {.id = {"trainer", "trainer-0", 0, 1, "t"}, .rendezvous = absl::StrCat("127.0.0.1:", relay.port())});
  request.copies = {{.source = 0, .bytes = 256}};
  request.world = 1;
  request.deadline = Clock::Real()->Now() + absl::Seconds(20);
  request.on_writing = [] {};
  request.on_arrived = [](ByteRange, void*) {};
  std::array<char, 256> target{};
  const absl::Status status = receiver.Receive(request, target.data(), std::stop_token());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(relay.cut(), 1);
  EXPECT_THAT(target, ::testing::Each('w'));
}

// Asks the service directly for bytes that no plan has.
absl::Status FetchRange(int64_t begin, int64_t end) {
  auto arena = SendArena::Create(Manifest::Create({{"w", DType::kFloat32, {64}}}).value(), {}).value();
  auto staged = arena->Stage({1, 1}, [](char*) { return absl::OkStatus(); });
  member::WeightServiceImpl service(arena.get());
  auto server = rpc::Server::Start({}, {&service}).value();
  auto stub = v1::WeightService::NewStub(rpc::MakeChannel(server->address()).value());
  v1::FetchWeightsRequest request;
  request.set_manifest_fingerprint(arena->fingerprint());
  *request.mutable_version() = wire::ToProto(PolicyVersion{1, 1});
  request.add_ranges()->set_begin(begin);
  request.mutable_ranges(0)->set_end(end);
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(absl::Seconds(20)));
  auto stream = stub->FetchWeights(&context, request);
  v1::FetchWeightsResponse chunk;
  while (stream->Read(&chunk)) {
  }
  return rpc::FromGrpc(stream->Finish());
}

TEST(WeightServiceTest, RefusesRangesThatAreNoBytesOfTheArena) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(FetchRange(0, 256).ok());
  for (auto [begin, end] : {std::pair(-256L, 0L), {256L, 0L}, {0L, 512L}, {kMost - 1, kMost}, {-kMost, kMost}}) {
    EXPECT_EQ(ErrorReason(FetchRange(begin, end)), "BAD_RANGE") << begin << " to " << end;
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
