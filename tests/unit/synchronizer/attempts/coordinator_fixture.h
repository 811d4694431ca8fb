#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "synchronizer/attempts/sync_coordinator.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {

// A coordinator with a clock that the test sets, members whose reports the test makes, and the newest output.
class SyncCoordinatorTest : public ::testing::Test {
 protected:
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

  void SetTransport(const std::string& name) {
    SyncCoordinator::Options options;
    options.transport = name;
    coordinator_ = SyncCoordinator(options);
    transports_ = {name};
  }

  void SetSources(int32_t world = 1) {
    SourceGroup sources;
    sources.epoch = 1;
    sources.manifest = model_;
    for (int32_t rank = 0; rank < world; ++rank) sources.ranks.push_back({TrainerId("t", rank, world), transports_});
    Take(coordinator_.SetSources(std::move(sources), now_));
  }

  void AddReceiver(int index, PolicyVersion serving = {}, int32_t world = 1, const std::string& held = "",
                   uint64_t base_digest = 0) {
    ReceiverReplica replica;
    replica.replica_id = absl::StrCat("rollouter-", index);
    for (int32_t rank = 0; rank < world; ++rank) {
      replica.ranks.push_back({RollouterId(index, "r", rank, world), transports_});
    }
    replica.serving = serving;
    replica.held = held;
    replica.base_digest = base_digest;
    Take(coordinator_.SetReceiver(std::move(replica), now_));
  }

  void Publish(int64_t step) { Take(coordinator_.Publish(VersionWith({1, step}), 0.25, now_)); }

  // Publishes a version of adapters, tensor 1, on a base.
  void PublishWithBase(int64_t step, uint64_t base_digest) {
    PublishedVersion version = VersionWith({1, step});
    version.subset = {{{1, 2}}, base_digest};
    Take(coordinator_.Publish(version, 0, now_));
  }

  // The newest output replaces the one before.
  void Take(AttemptOutput output) {
    output_ = std::move(output);
    for (const auto& [to, command] : output_.sends) {
      if (const auto* prepare = std::get_if<Prepare>(&command)) attempt_ = prepare->attempt;
    }
    for (const SyncRecord& record : output_.ended) records_.push_back(record);
  }

  SyncReport Report(SyncStage stage, absl::Status status = absl::OkStatus()) {
    SyncReport report;
    report.attempt = attempt_;
    report.stage = stage;
    report.status = std::move(status);
    report.rendezvous = "trainer:1";
    if (stage == SyncStage::kTransfer) report.bytes = 100;
    return report;
  }

  void FromSource(SyncReport report, int32_t rank = 0, int32_t world = 1) {
    Take(coordinator_.OnReport(TrainerId("t", rank, world), report, now_));
  }
  void FromReceiver(int index, SyncReport report, int32_t rank = 0, int32_t world = 1) {
    Take(coordinator_.OnReport(RollouterId(index, "r", rank, world), report, now_));
  }

  template <typename T>
  std::vector<std::string> Receivers() const {  // the receivers of the newest output's commands of type T
    std::vector<std::string> names;
    for (const auto& [to, command] : output_.sends) {
      if (std::holds_alternative<T>(command)) names.push_back(to.replica_id);
    }
    return names;
  }

  static absl::Status Failure(const std::string& reason) {
    return Error(absl::StatusCode::kUnavailable, reason, "it did not work");
  }

  using Names = std::vector<std::string>;
  std::shared_ptr<const Manifest> model_ = std::make_shared<Manifest>(SmallModel());
  std::vector<std::string> transports_ = {"grpc"};
  absl::Time now_ = At(0);
  SyncCoordinator coordinator_{SyncCoordinator::Options{}};
  AttemptOutput output_;
  std::vector<SyncRecord> records_;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
