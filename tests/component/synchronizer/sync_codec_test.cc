#include "services/wire/sync_codec.h"

#include <google/protobuf/util/message_differencer.h>

#include <limits>

#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizerd {
namespace {

using synchronizer::Command;
using synchronizer::HasReason;
using synchronizer::HelloFor;

template <typename T>
T RoundTrip(const T& command) {
  v1::JoinResponse message;
  EXPECT_TRUE(message.ParseFromString(wire::ToProto(Command(command)).SerializeAsString()));
  absl::StatusOr<Command> back = wire::FromProto(message);
  EXPECT_TRUE(back.ok()) << back.status();
  return std::get<T>(*back);
}

TEST(SyncCodecTest, CommandsComeBackAsTheyWere) {
  synchronizer::Directory directory{"trainer:1", 3, {3, 14}, true};
  EXPECT_EQ(RoundTrip(directory), directory);
  auto welcome = RoundTrip(synchronizer::Welcome{"run", 3, absl::Seconds(1), absl::Seconds(5), directory});
  EXPECT_EQ(welcome.run_id, "run");
  EXPECT_EQ(welcome.epoch, 3);
  EXPECT_EQ(welcome.heartbeat, absl::Seconds(1));
  EXPECT_EQ(welcome.dead_after, absl::Seconds(5));
  EXPECT_EQ(welcome.directory, directory);
  const synchronizer::Subset subset{{{3, 5}}, 77};
  auto prepare = RoundTrip(synchronizer::Prepare{7,
                                                 {1, 2},
                                                 0xffffffffffffffffu,
                                                 9,
                                                 10,
                                                 "grpc",
                                                 true,
                                                 absl::Milliseconds(1500),
                                                 3,
                                                 2,
                                                 "group",
                                                 "flat:2:fp32",
                                                 "tp:2:x",
                                                 subset,
                                                 true,
                                                 true});
  EXPECT_EQ(prepare.attempt, 7);
  EXPECT_EQ(prepare.version, (PolicyVersion{1, 2}));
  EXPECT_EQ(prepare.digest, 0xffffffffffffffffu);
  EXPECT_EQ(prepare.manifest_fingerprint, 9u);
  EXPECT_EQ(prepare.plan_hash, 10u);
  EXPECT_EQ(prepare.transport, "grpc");
  EXPECT_TRUE(prepare.source);
  EXPECT_EQ(prepare.deadline, absl::Milliseconds(1500));
  EXPECT_EQ(prepare.receivers, 3);
  EXPECT_EQ(prepare.sources, 2);
  EXPECT_EQ(prepare.group, "group");
  EXPECT_EQ(prepare.source_layout, "flat:2:fp32");
  EXPECT_EQ(prepare.destination_layout, "tp:2:x");
  EXPECT_EQ(prepare.subset, subset);
  EXPECT_TRUE(prepare.rehearsal);
  EXPECT_TRUE(prepare.check_weights);
  const std::vector<synchronizer::SyncMember> sources = {{synchronizer::TrainerId("t", 0, 2), "a:1"},
                                                         {synchronizer::TrainerId("t", 1, 2), "b:2"}};
  const std::vector<synchronizer::SyncMember> receivers = {{synchronizer::RollouterId(0, "r"), "", true},
                                                           {synchronizer::RollouterId(1, "r"), "x", false}};
  auto transfer = RoundTrip(synchronizer::Transfer{7, sources, receivers, "group", {1, 2, 3}});
  EXPECT_EQ(transfer.sources, sources);
  EXPECT_EQ(transfer.receivers, receivers);
  EXPECT_EQ(transfer.group, "group");
  EXPECT_EQ(transfer.bucket_digests, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(RoundTrip(synchronizer::Install{8}).attempt, 8);
  EXPECT_EQ(RoundTrip(synchronizer::Finish{9, "DEADLINE"}).reason, "DEADLINE");
  EXPECT_EQ(RoundTrip(synchronizer::Evicted{"FENCED"}).reason, "FENCED");
}

TEST(SyncCodecTest, AHelloComesBackWithItsModel) {
  synchronizer::Hello hello =
      HelloFor(synchronizer::RollouterId(4, "x"), std::make_shared<Manifest>(synchronizer::SmallModel()));
  hello.run_id = "run";
  hello.serving = {2, 5};
  hello.serving_digest = 77;
  hello.held_epoch = 2;
  hello.checkpoint_epoch = 1;
  hello.facts = {"boot-7 host", "GPU-1", {"GPU-2", "GPU-3"}, true, "2.28.9"};
  hello.layout = "tp:2:x";
  hello.destination_layout = "whole";
  hello.start = "its rank 0";
  hello.endpoint_address = "127.0.0.1:8000";
  auto back = wire::FromProto(wire::ToProto(hello));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->member, hello.member);
  EXPECT_EQ(back->manifest->fingerprint(), hello.manifest->fingerprint());
  EXPECT_EQ(back->transports, hello.transports);
  EXPECT_EQ(back->serving, hello.serving);
  EXPECT_EQ(back->serving_digest, 77u);
  EXPECT_EQ(back->held_epoch, 2);
  EXPECT_EQ(back->checkpoint_epoch, 1);
  EXPECT_EQ(back->run_id, "run");
  EXPECT_EQ(back->facts, hello.facts);
  EXPECT_EQ(back->start, hello.start);
  EXPECT_EQ(back->endpoint_address, hello.endpoint_address);
  EXPECT_EQ(back->layout, "tp:2:x");
  EXPECT_EQ(back->destination_layout, "whole");
}

TEST(SyncCodecTest, AReportKeepsItsReasonAndFigures) {
  synchronizer::SyncReport report;
  report.attempt = 3;
  report.stage = synchronizer::SyncStage::kTransfer;
  report.status = Error(absl::StatusCode::kAborted, "SUPERSEDED", "the slot was needed");
  report.verify_seconds = 0.5;
  report.connect_seconds = 0.25;
  report.bytes = 12;
  report.lora_bytes = 5;
  report.mapped_bytes = 70;
  report.base_rendezvous = "ipc1 host 0000000000000001 /tmp/s";
  report.bytes_by_source = {8, 0, 4};
  report.weights.base_present = true;
  report.weights.sleep_level = 2;
  report.weights.slept = true;
  auto back = wire::FromProto(wire::ToProto(report));
  ASSERT_TRUE(back.ok());
  EXPECT_THAT(back->status, HasReason("SUPERSEDED"));
  EXPECT_EQ(back->status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(back->verify_seconds, 0.5);
  EXPECT_EQ(back->connect_seconds, 0.25);
  EXPECT_EQ(back->bytes, 12);
  EXPECT_EQ(back->lora_bytes, 5);
  EXPECT_EQ(back->mapped_bytes, 70);
  EXPECT_EQ(back->base_rendezvous, report.base_rendezvous);
  EXPECT_EQ(back->bytes_by_source, report.bytes_by_source);
  EXPECT_TRUE(back->weights.base_present && back->weights.slept && !back->weights.free_cache_engine);
  EXPECT_EQ(back->weights.sleep_level, 2);
}

TEST(SyncCodecTest, RefusesWhatCannotBe) {
  EXPECT_THAT(wire::FromProto(v1::JoinResponse()).status(), HasReason("BAD_MESSAGE"));
  EXPECT_THAT(wire::FromProto(v1::JoinRequest::Hello()).status(), HasReason("BAD_MESSAGE"));
  auto hello = wire::ToProto(
      HelloFor(synchronizer::RollouterId(4, "x"), std::make_shared<Manifest>(synchronizer::SmallModel())));
  hello.mutable_facts()->set_host(std::string(1000, 'x'));
  EXPECT_THAT(wire::FromProto(hello).status(), HasReason("BAD_MESSAGE"));
  hello.mutable_facts()->set_host("here");
  EXPECT_TRUE(wire::FromProto(hello).ok());
  for (const std::string& text : {std::string(60000, 'x'), std::string("a\nb")}) {
    std::vector<v1::JoinRequest::Hello> bad(5, hello);
    bad[0].set_run_id(text);
    bad[1].set_address(text);
    bad[2].set_metrics_address(text);
    bad[3].set_build(text);
    bad[4].set_endpoint_address(text);
    for (const auto& one : bad) EXPECT_THAT(wire::FromProto(one).status(), HasReason("BAD_MESSAGE"));
    hello.mutable_member()->set_replica_id(text);
    EXPECT_THAT(wire::FromProto(hello).status(), HasReason("BAD_MEMBER"));
    hello.mutable_member()->set_replica_id("rollouter-4");
  }
  EXPECT_THAT(wire::FromProto(v1::JoinRequest::SyncReport()).status(), HasReason("BAD_MESSAGE"));
  EXPECT_THAT(wire::ProtoStateCodec().decode("").status(), HasReason("BAD_MESSAGE"));
  v1::JoinRequest::SyncReport negative;
  negative.set_stage(v1::STAGE_TRANSFER);
  negative.set_bytes(-1);
  EXPECT_THAT(wire::FromProto(negative).status(), HasReason("BAD_MESSAGE"));
  negative.set_bytes(0);
  for (const int64_t impossible : {-1, 1}) {  // a number below 0, and one above the number of all bytes
    negative.mutable_bytes_by_source()->Clear();
    negative.add_bytes_by_source(impossible);
    EXPECT_THAT(wire::FromProto(negative).status(), HasReason("BAD_MESSAGE"));
  }
  negative.mutable_bytes_by_source()->Clear();
  for (double none : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    (*negative.mutable_seconds())["verify"] = none;
    EXPECT_THAT(wire::FromProto(negative).status(), HasReason("BAD_MESSAGE"));
  }
}

synchronizer::SyncRecord EndedSync(const std::string& result, double total_seconds, double pause_seconds) {
  synchronizer::SyncRecord record;
  record.SetResult(result);
  record.seconds.total = total_seconds;
  record.bytes_by_kind.full = 10;
  record.pause_seconds = pause_seconds;
  return record;
}

TEST(SyncCodecTest, ATallyIsTheSameAfterItWasWrittenDownInParts) {
  using synchronizer::SyncTally;
  SyncTally whole, read;
  for (int i = 0; i < 300; ++i) {
    const auto sync = EndedSync(i % 7 == 0 ? "DEADLINE" : "ok", 1e-6 * i * i * i, 1e-6 * i);
    whole.Add(sync);
    SyncTally one;
    one.Add(sync);
    read.Merge(wire::FromProto(wire::ToProto(one)));
  }
  using google::protobuf::util::MessageDifferencer;
  EXPECT_TRUE(MessageDifferencer::Equals(wire::ToProto(read), wire::ToProto(whole)));
  const SyncTally again = wire::FromProto(wire::ToProto(whole));
  EXPECT_TRUE(MessageDifferencer::Equals(wire::ToProto(again), wire::ToProto(whole)));
}

TEST(SyncCodecTest, FiguresOfATallyThatCannotBeDoNoHarm) {
  v1::SyncTally message;
  (*message.mutable_counts())["ok"] = -5;
  (*message.mutable_counts())["unheard of"] = 7;
  (*message.mutable_bytes_by_kind())["full"] = -5;
  v1::SyncTally::Times::Class* one = message.mutable_total()->add_classes();
  one->set_up_to_seconds(std::numeric_limits<double>::quiet_NaN());
  one->set_count(-3);
  message.mutable_total()->set_longest_seconds(-1);
  const synchronizer::SyncTally tally = wire::FromProto(message);
  EXPECT_EQ(tally.count(), 0);
  EXPECT_EQ(tally.sums().bytes.total(), 0);
  EXPECT_EQ(tally.sums().total.Quantile(0.5), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncopate::synchronizerd
