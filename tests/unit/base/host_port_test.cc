#include "base/host_port.h"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(HostPortTest, ReadsNamesAndBothFamilies) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:7070")->host, "127.0.0.1");
  EXPECT_EQ(ParseHostPort("127.0.0.1:7070")->port, 7070);
  EXPECT_EQ(ParseHostPort("trainer-0.rl:65535")->host, "trainer-0.rl");
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
}

TEST(HostPortTest, WritesWhatItRead) {
  for (const char* text : {"127.0.0.1:7070", "[::1]:0", "trainer.rl:7071"}) {
    EXPECT_EQ(ParseHostPort(text)->ToString(), text);
  }
}

TEST(HostPortTest, RefusesWhatIsNoAddress) {
  for (const char* text : {"", ":", "127.0.0.1", ":7070", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
                           "127.0.0.1:-1", "::1:7070", "[]:1", "a b:1", "host:+1"}) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
}

TEST(HostPortTest, KnowsLoopbackAndWildcard) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"}) {
    EXPECT_TRUE(ParseHostPort(text)->IsLoopback()) << text;
  }
  EXPECT_FALSE(ParseHostPort("10.0.0.1:1")->IsLoopback());
  EXPECT_TRUE(ParseHostPort("0.0.0.0:1")->IsWildcard());
  EXPECT_TRUE(ParseHostPort("[::]:1")->IsWildcard());
  EXPECT_FALSE(ParseHostPort("127.0.0.1:1")->IsWildcard());
}

}  // namespace
}  // namespace syncopate
