#include "bench/sync/peer_options.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasReason;

TEST(PeerOptionsTest, SurviveTheCommandLine) {
  PeerOptions options;
  options.role = PeerOptions::Role::kReceiver;
  options.model = "qwen2.5-7b";
  options.synchronizer = "127.0.0.1:9";
  options.run_dir = "/tmp/a \"b\"";
  options.rank = 1;
  options.world = 2;
  options.replica = 3;
  options.source_layout = "flat:2:fp32";
  options.receiver_layout = "tp:2";
  options.device = 5;
  options.transport = "ipc";
  options.install = "in_place";
  options.chunk_bytes = int64_t{1} << 40;
  options.decode = false;
  options.shared_device = true;
  auto parsed = ParsePeerOptions(ToJsonText(options));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToJsonText(*parsed), ToJsonText(options));
  EXPECT_EQ(parsed->role, PeerOptions::Role::kReceiver);
  EXPECT_EQ(parsed->chunk_bytes, options.chunk_bytes);
}

TEST(PeerOptionsTest, RefuseWhatTheConductorWouldNotSay) {
  EXPECT_THAT(ParsePeerOptions("no json"), HasReason("BAD_JSON"));
  EXPECT_THAT(ParsePeerOptions("{\"role\": 0}"), HasReason("BAD_PEER_OPTIONS"));
  PeerOptions options;
  options.rank = 2;
  options.world = 2;
  EXPECT_THAT(ParsePeerOptions(ToJsonText(options)), HasReason("BAD_PEER_OPTIONS"));
}

}  // namespace
}  // namespace syncopate::bench
