#include "synchronizer/ipc/wire.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/ipc/rendezvous.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer::ipc {
namespace {

using ::syncopate::testing::HasReason;

std::vector<Message> Examples() {
  Grant grant{-3, {0x0123456789abcdefULL, "GPU-7", {1, 1LL << 40}}, true, {0, 5, 1LL << 50}, true};
  return {Want{1, {2, 3}, ~0ULL, 77, "GPU-7", ~0ULL},
          Want{},
          grant,
          Grant{1, {9, "", {4096}}, false, {}, false},
          Progress{4, {1, 2, 3}},
          Progress{},
          Refusal{5, 10, "SUPERSEDED", "taken for a newer version"},
          Release{6}};
}

TEST(IpcWireTest, EveryMessageArrivesAsItWasSent) {
  for (const Message& message : Examples()) {
    absl::StatusOr<Message> decoded = Decode(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == message);
  }
}

TEST(IpcWireTest, ATruncatedOrLengthenedPacketIsRefused) {
  for (const Message& message : Examples()) {
    std::string packet = Encode(message);
    for (size_t size = 0; size < packet.size(); ++size) {
      EXPECT_THAT(Decode(packet.substr(0, size)).status(), HasReason("BAD_MESSAGE")) << size;
    }
    EXPECT_THAT(Decode(packet + '\0').status(), HasReason("BAD_MESSAGE"));
  }
}

TEST(IpcWireTest, DamagedPacketsAreRefusedOrGiveSaneMessages) {
  std::mt19937_64 random(3);
  for (const Message& message : Examples()) {
    for (int i = 0; i < 2000; ++i) {
      std::string packet = Encode(message);
      for (int flips = 0; flips < 3; ++flips) packet[random() % packet.size()] = static_cast<char>(random());
      absl::StatusOr<Message> decoded = Decode(packet);
      if (!decoded.ok()) continue;
      if (const auto* grant = std::get_if<Grant>(&*decoded)) {
        EXPECT_GT(grant->memory.bytes(), 0);
      }
      if (const auto* refusal = std::get_if<Refusal>(&*decoded)) {
        EXPECT_FALSE(MakeStatus(*refusal).ok());
      }
    }
  }
}

TEST(IpcWireTest, AnotherVersionIsRefusedByName) {
  std::string packet = Encode(Release{1});
  packet[1] = 9;
  absl::Status status = Decode(packet).status();
  EXPECT_THAT(status, HasReason("BAD_MESSAGE"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("version is 9"));
}

TEST(IpcWireTest, ARefusalKeepsCodeReasonAndWordsAndCutsLongOnes) {
  absl::Status why = Error(absl::StatusCode::kAborted, "SUPERSEDED", std::string(5000, 'x'));
  absl::StatusOr<Message> decoded = Decode(Encode(GetRefusal(8, why)));
  ASSERT_TRUE(decoded.ok());
  absl::Status told = MakeStatus(std::get<Refusal>(*decoded));
  EXPECT_EQ(told.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(told, HasReason("SUPERSEDED"));
  EXPECT_EQ(told.message().size(), 1024u);
}

TEST(IpcRendezvousTest, SurvivesItsText) {
  Rendezvous where{"4f2c-boot", 0xfeedULL, "/tmp/a folder/socket"};
  absl::StatusOr<Rendezvous> parsed = Rendezvous::Parse(where.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, where);
}

TEST(IpcRendezvousTest, RefusesWhatIsNone) {
  for (const char* text : {"", "host:1234", "ipc1", "ipc1 h 000000000000000g /s", "ipc1 h 0000000000000000 /s",
                           "ipc2 h 00000000000000ff /s", "ipc1 h 00000000000000ff s", "ipc1  00000000000000ff /s"}) {
    EXPECT_THAT(Rendezvous::Parse(text).status(), HasReason("BAD_RENDEZVOUS")) << text;
  }
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
