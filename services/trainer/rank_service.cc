#include "services/trainer/rank_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/wire/codec.h"

namespace syncopate::trainerd {
namespace {

constexpr char kRank[] = "trainer rank";

// The error that a rank has reported of itself. OK is none, and neither is a number that is no code.
absl::Status ReportedError(int32_t rank, int32_t code, const std::string& reason, const std::string& message,
                           const ErrorMetadata& details = {}) {
  const bool is_error = code > static_cast<int32_t>(absl::StatusCode::kOk) &&
                        code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return Error(is_error ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, reason,
               absl::StrCat(kRank, " ", rank, ": ", message), details);
}

}  // namespace

RankServiceImpl::RankServiceImpl(rpc::RankStreamsOptions options, std::function<void(const absl::Status&)> on_refused)
    : RankStreams(
          {kRank, "trainer.world", "train.device", "trainer.rank0",
           "rank 0 keeps it in run.dir, state/trainer/endpoints/trainer-0.secret, and all ranks share that folder",
           "trainer.ranks_listen"},
          std::move(options)),
      on_refused_(std::move(on_refused)) {}

absl::Status RankServiceImpl::Send(const trainer::PolicyCommand& command,
                                   const std::vector<const TrajectoryGroup*>& groups) {
  for (const TrajectoryGroup* group : groups) {
    v1::AttendResponse message;
    *message.mutable_group() = wire::ToProto(*group);
    // Given answers have no log-probabilities, but the message of a trajectory must have one for each token.
    for (v1::Trajectory& sample : *message.mutable_group()->mutable_samples()) {
      sample.mutable_logprobs()->Resize(sample.tokens_size(), 0.0f);
    }
    SYNCOPATE_RETURN_IF_ERROR(Order(message));
  }
  v1::AttendResponse message;
  switch (command.kind) {
    case trainer::PolicyCommand::Kind::kStep:
    case trainer::PolicyCommand::Kind::kSupervisedStep:
    case trainer::PolicyCommand::Kind::kMeasureSupervised:
      message.mutable_step()->set_supervised(command.kind != trainer::PolicyCommand::Kind::kStep);
      message.mutable_step()->set_held_out(command.kind == trainer::PolicyCommand::Kind::kMeasureSupervised);
      message.mutable_step()->set_step(command.step);
      message.mutable_step()->set_groups(static_cast<int32_t>(groups.size()));
      break;
    case trainer::PolicyCommand::Kind::kWriteTensor:
      message.mutable_write_tensor()->set_part(static_cast<int32_t>(command.part));
      message.mutable_write_tensor()->set_tensor(static_cast<int64_t>(command.tensor));
      break;
    case trainer::PolicyCommand::Kind::kDigest:
      message.mutable_digest();
      break;
    case trainer::PolicyCommand::Kind::kStage:
      *message.mutable_stage()->mutable_version() = wire::ToProto(command.version);
      break;
    case trainer::PolicyCommand::Kind::kCheckFinite:
      message.mutable_check_finite();
      break;
    case trainer::PolicyCommand::Kind::kSave:
      message.mutable_save()->set_folder(command.folder);
      break;
    case trainer::PolicyCommand::Kind::kExport:
      message.mutable_export_weights()->set_folder(command.folder);
      break;
    case trainer::PolicyCommand::Kind::kMoveState:
      message.mutable_move_state()->set_to(static_cast<int32_t>(command.move));
      break;
  }
  return Order(message);
}

void RankServiceImpl::HandleMessage(int32_t rank, const v1::AttendRequest& message) {
  if (message.has_saved()) return HandleSaved(rank, message.saved());
  if (message.has_staged()) return HandleStaged(rank, message.staged());
  if (!message.has_refused()) return;  // a heartbeat
  const v1::AttendRequest::Refused& refused = message.refused();
  on_refused_(ReportedError(rank, refused.code(), refused.reason(), refused.message()));
}

void RankServiceImpl::HandleSaved(int32_t rank, const v1::AttendRequest::Saved& saved) {
  absl::StatusOr<trainer::CheckpointStore::Files> files = trainer::CheckpointStore::Files();
  for (const v1::AttendRequest::Saved::File& file : saved.files()) {
    (*files)[file.name()] = {file.bytes(), file.sha256()};
  }
  if (saved.code() != 0) {
    files = ReportedError(rank, saved.code(), saved.reason(), saved.message());
  }
  MutexLock lock(&mutex_);
  saved_.Add(saved.folder(), rank, std::move(files));
}

void RankServiceImpl::HandleStaged(int32_t rank, const v1::AttendRequest::Staged& message) {
  const PolicyVersion version = wire::FromProto(message.version());
  absl::StatusOr<trainer::WeightStager::Staged> staged = trainer::WeightStager::Staged{
      .version = version,
      .bucket_digests = {message.bucket_digests().begin(), message.bucket_digests().end()},
      .seconds = message.seconds()};
  if (message.code() != 0) {
    ErrorMetadata details;
    if (!message.tensor().empty()) details["tensor"] = message.tensor();
    staged = ReportedError(rank, message.code(), message.reason(), message.message(), details);
  }
  MutexLock lock(&mutex_);
  staged_.Add(version.ToString(), rank, std::move(staged));
}

absl::StatusOr<RankServiceImpl::OfRanks> RankServiceImpl::AwaitStaged(const PolicyVersion& version) {
  const std::string subject = version.ToString();
  MutexLock lock(&mutex_);
  const absl::Status waited = AwaitReports(
      kRankStageDeadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return staged_.AllIn(subject, others()); });
  OfRanks reports = staged_.Take(subject);
  if (absl::IsDeadlineExceeded(waited)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "STAGE_LATE",
                 absl::StrCat("not all trainer ranks have staged version ", subject, " within ",
                              absl::FormatDuration(kRankStageDeadline)));
  }
  SYNCOPATE_RETURN_IF_ERROR(waited);
  return reports;
}

absl::StatusOr<trainer::CheckpointStore::Files> RankServiceImpl::AwaitSaved(const std::string& folder) {
  SavedReports::OfRanks reports;
  absl::Status waited;
  {
    MutexLock lock(&mutex_);
    waited = AwaitReports(kRankSaveDeadline,
                          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return saved_.AllIn(folder, others()); });
    reports = saved_.Take(folder);
  }
  trainer::CheckpointStore::Files files;
  // Before the wait's own error: a rank's disk error is the cause when that rank has left since.
  for (const auto& [rank, written] : reports) {
    SYNCOPATE_RETURN_IF_ERROR(written.status());
    files.insert(written->begin(), written->end());
  }
  if (absl::IsDeadlineExceeded(waited)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "SAVE_LATE",
                 absl::StrCat("not all trainer ranks have written their files in ", folder, " within ",
                              absl::FormatDuration(kRankSaveDeadline)));
  }
  SYNCOPATE_RETURN_IF_ERROR(waited);
  return files;
}

void RankServiceImpl::Stop(const absl::Status& why, bool completed) {
  v1::AttendResponse::Stop stop;
  stop.set_completed(completed);
  Dismiss(why, stop);
}

}  // namespace syncopate::trainerd
