// A synchronizer alone, whose peers use up its resources: descriptors, memory, cores.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "bench/process/process_usage.h"
#include "tests/fault/fault_support.h"
#include "tests/support/raw_connection.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::control_plane_test {
namespace {

using v1::SynchronizerService;

constexpr int kHungry = 300;           // connections that stay open
constexpr int kSpareDescriptors = 64;  // descriptors that the daemon has left
constexpr int64_t kFloodBytes = 1 << 30;

class ControlPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = run_.StartDaemon("synchronizer");
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
    auto endpoint = run_.Endpoint("synchronizer");
    ASSERT_THAT(endpoint, IsOk());
    endpoint_ = *endpoint;
    auto parsed = ParseHostPort(endpoint_.grpc);
    ASSERT_THAT(parsed, IsOk());
    port_ = parsed->port;
    auto channel = rpc::MakeChannel(endpoint_.grpc);
    ASSERT_THAT(channel, IsOk());
    old_ = SynchronizerService::NewStub(*channel);
    ASSERT_THAT(AskOnOldConnection(), IsOk());
  }

  absl::Status AskOnOldConnection(absl::Duration limit = kPatience) {
    return rpc::CallUnary(old_.get(), &SynchronizerService::Stub::GetStatus, v1::SynchronizerServiceGetStatusRequest(),
                          limit)
        .status();
  }
  absl::Status AskOnNewConnection(absl::Duration limit = kPatience) {
    return Call<SynchronizerService>(endpoint_.grpc, &SynchronizerService::Stub::GetStatus,
                                     v1::SynchronizerServiceGetStatusRequest(), limit)
        .status();
  }
  bench::ProcessUsage Usage() {
    auto usage = bench::ReadProcessUsage(daemon_->pid());
    EXPECT_THAT(usage, IsOk());
    return usage.value_or(bench::ProcessUsage());
  }

  RunHarness run_;
  std::unique_ptr<Process> daemon_;
  daemon::DaemonEndpoint endpoint_;
  int port_ = 0;
  std::unique_ptr<SynchronizerService::Stub> old_;
};

TEST_F(ControlPlaneTest, ListensAgainWhenThoseWhoTookAllItsDescriptorsAreGone) {
  const auto limit = static_cast<rlim_t>(Usage().descriptors + kSpareDescriptors);
  const rlimit low{limit, limit};
  ASSERT_EQ(::prlimit(daemon_->pid(), RLIMIT_NOFILE, &low, nullptr), 0);
  {
    std::vector<std::unique_ptr<RawConnection>> hungry;
    for (int i = 0; i < kHungry; ++i) hungry.push_back(std::make_unique<RawConnection>(port_));
    ASSERT_TRUE(
        Eventually(kPatience, [this, limit] { return Usage().descriptors + 2 >= static_cast<int64_t>(limit); }));
    EXPECT_FALSE(AskOnNewConnection(absl::Seconds(1)).ok()) << "so no descriptor was left";
    EXPECT_THAT(AskOnOldConnection(), IsOk());
  }
  const Stopwatch free_again;
  ASSERT_TRUE(Eventually(kPatience, [this] { return AskOnNewConnection(absl::Seconds(1)).ok(); })) << daemon_->Log();
  Report("until a new connection is served", free_again.Elapsed());
  EXPECT_THAT(AskOnOldConnection(), IsOk());
}

TEST_F(ControlPlaneTest, HeadersWithoutEndCostItNeitherItsMemoryNorItsAnswers) {
  for (auto make : {&HeaderFlood::OfManyHeaders, &HeaderFlood::OfOneLongHeader}) {
    const HeaderFlood flood = make();
    RawConnection peer(port_);
    ASSERT_TRUE(peer.Send(Http2Hello() + flood.begin));
    int64_t sent = 0;
    while (sent < kFloodBytes && peer.Send(flood.more)) sent += static_cast<int64_t>(flood.more.size());
    EXPECT_LT(sent, kFloodBytes);
    EXPECT_THAT(AskOnOldConnection(), IsOk());
    EXPECT_THAT(AskOnNewConnection(), IsOk());
  }
  EXPECT_LT(Usage().resident_bytes, int64_t{1} << 30);
  EXPECT_THAT(daemon_->Log(), ::testing::HasSubstr("began no call"));
}

}  // namespace
}  // namespace syncopate::testing::control_plane_test
