#include "services/rpc/status.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"

namespace syncopate::rpc {
namespace {

TEST(StatusMapTest, KeepsCodeMessageReasonAndMetadataThereAndBack) {
  absl::Status sent = Error(absl::StatusCode::kFailedPrecondition, "FENCED", "a newer trainer holds epoch 4",
                            {{"epoch", "4"}, {"holder", "trainer-1"}});
  grpc::Status wire = ToGrpc(sent);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(wire.error_message(), "a newer trainer holds epoch 4");
  EXPECT_EQ(FromGrpc(wire), sent);
  EXPECT_EQ(FromProto(ToProto(sent)), sent);
}

TEST(StatusMapTest, PutsAGoogleErrorInfoIntoTheDetails) {
  google::rpc::Status proto;
  ASSERT_TRUE(proto.ParseFromString(ToGrpc(Error(absl::StatusCode::kAborted, "SUPERSEDED", "gone")).error_details()));
  ASSERT_EQ(proto.details_size(), 1);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(proto.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "SUPERSEDED");
  EXPECT_EQ(info.domain(), "syncopate");
}

TEST(StatusMapTest, MapsEveryCanonicalCodeOntoItself) {
  for (int code = 0; code <= 16; ++code) {
    absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "text");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
    EXPECT_EQ(FromProto(ToProto(status)), status) << code;
  }
}

TEST(StatusMapTest, TakesPlainErrorsOfStrangersAsTheyAre) {
  absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused", "not a proto \xff"));
  EXPECT_EQ(status, absl::UnavailableError("connection refused"));
  EXPECT_EQ(ErrorReason(status), "");
}

TEST(StatusMapTest, IgnoresDetailsThatContradictTheCode) {
  google::rpc::Status other = ToProto(Error(absl::StatusCode::kNotFound, "X", "other"));
  absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "text", other.SerializeAsString()));
  EXPECT_EQ(status, absl::AbortedError("text"));
}

TEST(StatusMapTest, CutsAMessageThatWouldNotFitInTrailersAtACharacterBorder) {
  std::string text;
  while (text.size() < 5000) text += "\xc3\xa4";
  grpc::Status wire = ToGrpc(Error(absl::StatusCode::kInternal, "LONG", text, {{"a", text}}));
  EXPECT_LE(wire.error_message().size(), kMaxErrorMessageBytes);
  EXPECT_LE(wire.error_details().size(), 2 * kMaxErrorMessageBytes);
  absl::Status back = FromGrpc(wire);
  EXPECT_EQ(ErrorReason(back), "LONG");
  EXPECT_TRUE(std::string(back.message()).ends_with("\xc3\xa4 [cut]"));
}

}  // namespace
}  // namespace syncopate::rpc
