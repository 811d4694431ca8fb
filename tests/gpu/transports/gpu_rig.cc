#include "tests/gpu/transports/gpu_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "tests/gpu/gpu_support.h"

namespace syncopate::synchronizer {

absl::StatusOr<std::unique_ptr<GpuRig>> GpuRig::Create(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(GpuCase of, GpuCase::Create(options.manifest, options.transport, options.source_layout,
                                                         options.destination_layout));
  of.chunk_bytes = options.chunk_bytes;
  std::unique_ptr<GpuRig> rig(new GpuRig(options, std::move(of)));
  SYNCOPATE_RETURN_IF_ERROR(rig->AddMembers(options.replicas));
  return rig;
}

absl::Status GpuRig::AddMembers(int replicas) {
  for (int32_t rank = 0; rank < plan().sources(); ++rank) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto source, GpuSource::Create(&case_, rank, rank % gpus_, absl::StrCat("t", rank)));
    sources_.push_back(std::move(source));
  }
  for (int32_t index = 0; index < replicas * plan().destinations(); ++index) {
    const int device = (plan().sources() + index) % gpus_;
    SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, GpuReceiver::Create(&case_, index, device, absl::StrCat("r", index)));
    receivers_.push_back(std::move(receiver));
  }
  return absl::OkStatus();
}

absl::Status GpuRig::Stage(int64_t step) {
  version_ = {1, step};
  digests_.clear();
  for (auto& source : sources_) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<uint64_t> digests, source->Stage(step));
    digests_.insert(digests_.end(), digests.begin(), digests.end());
  }
  return absl::OkStatus();
}

absl::Status GpuRig::Prepare(std::vector<int> receivers, absl::Duration deadline) {
  taking_part_ = std::move(receivers);
  if (taking_part_.empty()) {
    taking_part_.resize(receivers_.size());
    std::iota(taking_part_.begin(), taking_part_.end(), 0);
  }
  synchronizer::Prepare prepare;
  prepare.attempt = ++attempt_;
  prepare.version = version_;
  prepare.digest = CombineDigests(digests_);
  prepare.manifest_fingerprint = case_.manifest.fingerprint();
  prepare.plan_hash = plan().hash();
  prepare.transport = case_.transport;
  prepare.deadline = deadline;
  prepare.receivers = static_cast<int32_t>(taking_part_.size()) / plan().destinations();
  prepare.sources = plan().sources();
  prepare.group = Command().group;
  prepare.source_layout = case_.source_layout;
  prepare.destination_layout = case_.destination_layout;
  for (auto& source : sources_) {
    SYNCOPATE_ASSIGN_OR_RETURN(source->rendezvous, source->source->Prepare(prepare));
  }
  for (int index : taking_part_) {
    SYNCOPATE_ASSIGN_OR_RETURN(WeightReceiver::Prepared prepared, receivers_[index]->receiver->Prepare(prepare));
    receivers_[index]->rendezvous = prepared.rendezvous;
  }
  return absl::OkStatus();
}

synchronizer::Transfer GpuRig::Command() const {
  synchronizer::Transfer transfer;
  transfer.attempt = attempt_;
  transfer.bucket_digests = digests_;
  std::vector<MemberId> sources;
  std::vector<MemberId> receivers;
  for (const auto& source : sources_) {
    transfer.sources.push_back({source->id, source->rendezvous});
    sources.push_back(source->id);
  }
  for (int index : taking_part_) {
    transfer.receivers.push_back({receivers_[index]->id, receivers_[index]->rendezvous});
    receivers.push_back(receivers_[index]->id);
  }
  transfer.group = GroupName(sources, receivers);
  return transfer;
}

void GpuRig::StartSources() {
  const synchronizer::Transfer transfer = Command();
  {
    MutexLock lock(&mutex_);
    source_statuses_.clear();
  }
  for (int32_t rank = 0; rank < plan().sources(); ++rank) {
    sources_[rank]->source->Transfer(transfer, [this, rank](const absl::Status& status) {
      MutexLock lock(&mutex_);
      source_statuses_[rank] = status;
    });
  }
}

std::vector<absl::Status> GpuRig::Transfer() {
  StartSources();
  const synchronizer::Transfer transfer = Command();
  std::vector<absl::Status> statuses(taking_part_.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < taking_part_.size(); ++i) {
    threads.emplace_back([this, i, &statuses, &transfer] {
      GpuReceiver& receiver = *receivers_[taking_part_[i]];
      absl::StatusOr<WeightReceiver::Received> received = receiver.receiver->Transfer(transfer);
      statuses[i] = received.status();
      if (received.ok()) receiver.received = *received;
    });
  }
  threads.clear();
  // Acts as the synchronizer does: an attempt that succeeds does not end before its sources have reported.
  if (std::ranges::all_of(statuses, &absl::Status::ok)) SourceStatuses();
  return statuses;
}

std::vector<absl::Status> GpuRig::SourceStatuses() const {
  MutexLock lock(&mutex_);
  auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return source_statuses_.size() == sources_.size(); };
  mutex_.AwaitWithTimeout(Condition(&all), absl::Seconds(10));
  std::vector<absl::Status> statuses;
  for (const auto& [rank, status] : source_statuses_) statuses.push_back(status);
  return statuses;
}

absl::Status GpuRig::Install() {
  for (int index : taking_part_) {
    SYNCOPATE_RETURN_IF_ERROR(receivers_[index]->receiver->Install({attempt_}).status());
  }
  return absl::OkStatus();
}

void GpuRig::Finish() {
  for (int index : taking_part_) receivers_[index]->receiver->Finish(attempt_);
  for (auto& source : sources_) source->source->Finish(attempt_);
}

absl::Status GpuRig::Sync(std::vector<int> receivers, absl::Duration deadline) {
  absl::Status status = Prepare(std::move(receivers), deadline);
  if (status.ok()) {
    for (const absl::Status& received : Transfer()) {
      if (status.ok()) status = received;
    }
  }
  if (status.ok()) status = Install();
  Finish();
  return status;
}

void GpuRig::ExpectServes(int index, int64_t step) const {
  const GpuReceiver& receiver = *receivers_[index];
  EXPECT_EQ(receiver.receiver->serving(), (PolicyVersion{1, step}));
  EXPECT_EQ(receiver.target->serving(), (PolicyVersion{1, step}));
  std::map<int32_t, std::vector<char>> sent;  // key: source
  std::vector<char> live = ToHost(receiver.device, receiver.target->live(), receiver.target->bytes());
  for (const Copy& copy : plan().CopiesTo(receiver.id.rank)) {
    const GpuSource& source = *sources_[copy.source];
    if (!sent.contains(copy.source)) {
      auto reader = source.arena->OpenOnDevice(version_);
      ASSERT_TRUE(reader.ok()) << reader.status();
      sent[copy.source] = ToHost(source.device, (*reader)->arena().data(), plan().send_bytes(copy.source));
    }
    ASSERT_EQ(std::memcmp(live.data() + copy.destination_offset, sent[copy.source].data() + copy.source_offset,
                          static_cast<size_t>(copy.bytes)),
              0)
        << "receiver " << index << ", from source " << copy.source << " at " << copy.destination_offset;
  }
}

}  // namespace syncopate::synchronizer
