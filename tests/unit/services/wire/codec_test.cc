#include "services/wire/codec.h"

#include <gtest/gtest.h>

namespace syncopate::wire {
namespace {

TrajectoryGroup SampleGroup() {
  TrajectoryGroup group;
  group.lease = {{2, 17}, 3};
  group.kind = LeaseKind::kTraining;
  group.rollouter = "rollouter-1";
  group.incarnation = "i";
  group.prompt_ids = {8, 1, 9};
  Trajectory sample;
  sample.tokens = {1, 10};
  sample.logprobs = {-0.5f, -1.25f};
  sample.spans = {{{1, 4}, 0, 1}, {{1, 5}, 1, 2}};
  sample.finish = FinishReason::kLength;
  sample.reward = 0.75f;
  sample.reward_parts = {{"answer", 1.0f}, {"format", 0.5f}};
  sample.generate_seconds = 0.125;
  group.samples = {sample, sample};
  return group;
}

TEST(CodecTest, WritesAVersionAsPeopleReadItAndADashForNone) {
  v1::PolicyVersion version;
  EXPECT_EQ(VersionText(version), "-");
  version.set_epoch(2);
  version.set_step(14);
  EXPECT_EQ(VersionText(version), "e2-s14");
}

TEST(CodecTest, GroupsSurviveTheRoundTrip) {
  const TrajectoryGroup group = SampleGroup();
  absl::StatusOr<TrajectoryGroup> back = FromProto(ToProto(group));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->lease, group.lease);
  EXPECT_EQ(back->kind, group.kind);
  EXPECT_EQ(back->rollouter, group.rollouter);
  EXPECT_EQ(back->incarnation, group.incarnation);
  EXPECT_EQ(back->prompt_ids, group.prompt_ids);
  ASSERT_EQ(back->samples.size(), 2u);
  EXPECT_EQ(back->samples[1].tokens, group.samples[1].tokens);
  EXPECT_EQ(back->samples[1].logprobs, group.samples[1].logprobs);
  EXPECT_EQ(back->samples[1].spans, group.samples[1].spans);
  EXPECT_EQ(back->samples[1].finish, FinishReason::kLength);
  EXPECT_EQ(back->samples[1].reward, 0.75f);
  EXPECT_EQ(back->samples[1].reward_parts, group.samples[1].reward_parts);
  EXPECT_EQ(back->samples[1].generate_seconds, 0.125);
}

TEST(CodecTest, RefusesGroupsWhoseSizesOrEnumsCannotBe) {
  v1::TrajectoryGroup lengths = ToProto(SampleGroup());
  lengths.mutable_samples(1)->add_tokens(3);
  EXPECT_EQ(ErrorReason(FromProto(lengths).status()), "BAD_MESSAGE");
  v1::TrajectoryGroup kind = ToProto(SampleGroup());
  kind.clear_kind();
  EXPECT_EQ(ErrorReason(FromProto(kind).status()), "BAD_MESSAGE");
  v1::TrajectoryGroup finish = ToProto(SampleGroup());
  finish.mutable_samples(0)->set_finish(static_cast<v1::FinishReason>(77));
  EXPECT_EQ(ErrorReason(FromProto(finish).status()), "BAD_MESSAGE");
}

TEST(CodecTest, LeasesSurviveTheRoundTrip) {
  Lease lease;
  lease.id = {{0, 5}, 2};
  lease.kind = LeaseKind::kEvaluation;
  lease.version = {3, 9};
  lease.samples = 4;
  lease.prompt_ids = {1, 2};
  lease.answer_ids = {2, 1};
  lease.task = {"gsm8k", R"({"answer": "72"})"};
  lease.reward = "dense";
  lease.sampling = {.allowed_token_ids = {1, 2, 10},
                    .logit_bias = {{2, -0.5f}},
                    .repetition_penalty = 1.2f,
                    .presence_penalty = 0.1f,
                    .frequency_penalty = 0.2f,
                    .temperature = 0.5f,
                    .min_p = 0.05f,
                    .top_k = 3,
                    .top_p = 0.9f,
                    .max_new_tokens = 7,
                    .stop_token_ids = {10},
                    .stop_sequences = {{1, 2}, {3}},
                    .top_logprobs = 4};
  lease.seed = 0xfedcba9876543210ULL;
  absl::StatusOr<Lease> back = FromProto(ToProto(lease));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->id, lease.id);
  EXPECT_EQ(back->kind, lease.kind);
  EXPECT_EQ(back->version, lease.version);
  EXPECT_EQ(back->samples, 4);
  EXPECT_EQ(back->prompt_ids, lease.prompt_ids);
  EXPECT_EQ(back->answer_ids, lease.answer_ids);
  EXPECT_EQ(back->task, lease.task);
  EXPECT_EQ(back->reward, "dense");
  EXPECT_EQ(back->sampling, lease.sampling);
  EXPECT_EQ(back->seed, lease.seed);
  v1::ExchangeResponse::Lease none = ToProto(lease);
  none.set_samples(0);
  EXPECT_EQ(ErrorReason(FromProto(none).status()), "BAD_MESSAGE");
}

TEST(CodecTest, MembersNeedARoleANameAndARankInTheirWorld) {
  const MemberId member{"rollouter", "rollouter-0", 1, 2, "uuid"};
  EXPECT_EQ(FromProto(ToProto(member)).value(), member);
  v1::MemberId rank = ToProto(member);
  rank.set_rank(2);
  EXPECT_EQ(ErrorReason(FromProto(rank).status()), "BAD_MEMBER");
  v1::MemberId name = ToProto(member);
  name.set_replica_id("../rollouter-0");
  EXPECT_EQ(ErrorReason(FromProto(name).status()), "BAD_MEMBER");
  v1::MemberId role = ToProto(member);
  role.clear_role();
  EXPECT_EQ(ErrorReason(FromProto(role).status()), "BAD_MESSAGE");
}

TEST(CodecTest, WhatIsUnsetInTheSamplingIsOff) {
  EXPECT_EQ(FromProto(v1::SamplingParams()).top_p, 1.0f);
  EXPECT_EQ(FromProto(v1::SamplingParams()).repetition_penalty, 1.0f);
  EXPECT_TRUE(FromProto(v1::SamplingParams()).DrawsFromThePolicy());
}

TEST(CodecTest, ATrainingLeaseThatDoesNotDrawFromThePolicyIsRefused) {
  Lease lease;
  EXPECT_TRUE(FromProto(ToProto(lease)).ok());
  for (const SamplingParams& sampling : {SamplingParams{.allowed_token_ids = {1}},
                                         {.logit_bias = {{1, 1.0f}}},
                                         {.repetition_penalty = 1.1f},
                                         {.presence_penalty = 0.1f},
                                         {.frequency_penalty = 0.1f},
                                         {.min_p = 0.1f},
                                         {.top_k = 1},
                                         {.top_p = 0.9f}}) {
    lease.sampling = sampling;
    lease.kind = LeaseKind::kTraining;
    EXPECT_EQ(ErrorReason(FromProto(ToProto(lease)).status()), "BAD_MESSAGE");
    lease.kind = LeaseKind::kEvaluation;
    EXPECT_TRUE(FromProto(ToProto(lease)).ok());
  }
}

TEST(CodecTest, TokensThatWereGivenTravelAndWithoutThemAMessageIsAsItWas) {
  Trajectory sample;
  sample.tokens = {4, 5, 6};
  sample.logprobs = {-1, 0, -2};
  sample.spans = {{{1, 3}, 0, 1}, {{1, 3}, 2, 3}};
  TrajectoryGroup group;
  group.samples = {sample};
  const std::string before = ToProto(group).SerializeAsString();
  group.samples[0].given = {{1, 2}};
  auto back = FromProto(ToProto(group));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->samples[0].given, (std::vector<TokenRange>{{1, 2}}));
  EXPECT_EQ(ToProto(group).SerializeAsString().size(), before.size() + 6);  // a message of two small numbers
}

TEST(CodecTest, TurnsOfAnEnvironmentTravel) {
  TrajectoryGroup group;
  group.samples.resize(1);
  group.samples[0].turns = {{2, 0.5f, 0.25}, {3, -1, 0}};
  group.samples[0].rejected = true;
  auto back = FromProto(ToProto(group));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->samples[0].turns, group.samples[0].turns);
  EXPECT_TRUE(back->samples[0].rejected);
}

TEST(CodecTest, ManifestsAreRebuiltAndTheirFingerprintIsCompared) {
  const TensorSpec cut{.name = "a",
                       .dtype = DType::kFloat32,
                       .shape = {3, 4},
                       .unit = 2,
                       .split = Split::kColumns,
                       .head = 2,
                       .joint = "ab"};
  const TensorSpec whole{.name = "b", .dtype = DType::kBFloat16, .shape = {7}, .unit = 2, .spare_rows = 3};
  const TensorSpec adapter{.name = "c", .dtype = DType::kBFloat16, .shape = {7}, .unit = 2, .adapter = true};
  const Manifest manifest = Manifest::Create({cut, whole, adapter}, 512).value();
  absl::StatusOr<Manifest> back = FromProto(ToProto(manifest));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(manifest.CheckSame(*back).ok());
  EXPECT_EQ(manifest.tensors(), back->tensors());
  v1::Manifest unknown = ToProto(manifest);
  unknown.mutable_tensors(0)->set_split(static_cast<v1::TensorSpec::Split>(9));
  EXPECT_EQ(ErrorReason(FromProto(unknown).status()), "BAD_MESSAGE");
  v1::Manifest forged = ToProto(manifest);
  forged.mutable_tensors(0)->set_shape(0, 4);
  EXPECT_EQ(ErrorReason(FromProto(forged).status()), "BAD_MESSAGE");
  v1::Manifest negative = ToProto(manifest);
  negative.mutable_tensors(0)->set_shape(0, -1);
  EXPECT_EQ(ErrorReason(FromProto(negative).status()), "BAD_MANIFEST");
  // The manifest claims 2^46 bytes in buckets of 256: the list of the buckets alone would have 4 TiB.
  v1::Manifest in_crumbs = ToProto(manifest);
  in_crumbs.mutable_tensors(0)->set_shape(0, int64_t{1} << 42);
  in_crumbs.set_bucket_bytes(256);
  EXPECT_EQ(ErrorReason(FromProto(in_crumbs).status()), "BAD_MANIFEST");
}

}  // namespace
}  // namespace syncopate::wire
