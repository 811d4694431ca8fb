#include "services/trainer/run_restore.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reasons.h"
#include "model/adapter_files.h"
#include "model/model_fingerprint.h"
#include "model/model_folder.h"
#include "services/config/loss_options.h"
#include "services/config/model_options.h"
#include "services/config/rules.h"
#include "services/trainer/run_paths.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/loop/checkpoint_writer.h"

namespace syncopate::trainerd {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;
constexpr char kModelRecord[] = "model.json";
constexpr char kBaseRecord[] = "base.json";
constexpr char kBaseDigestKey[] = "base_digest";

using Fingerprint = std::map<std::string, std::string>;

absl::StatusOr<Fingerprint> ParseRecord(const std::string& text, const std::string& path) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Fingerprint record;
  bool good = json.is_object();
  for (const auto& [name, digest] : json.items()) {
    good = good && digest.is_string();
    if (good) record[name] = digest.get<std::string>();
  }
  if (good) return record;
  return Error(absl::StatusCode::kDataLoss, "BAD_RECORD", absl::StrCat(path, " is no record of a model directory"));
}

// The first file of `now` that differs from the run's record; "" if there is none.
std::string FindDifference(const Fingerprint& now, const Fingerprint& kept) {
  for (const auto& [name, digest] : now) {
    const auto known = kept.find(name);
    if (known == kept.end() || known->second != digest) return name;
  }
  return "";
}

// Checks model.path against <run_dir>/state/trainer/model.json, the fingerprint of its files (model::FingerprintModel).
// A run that begins writes that record. Once the run has `begun`, the files in `folder` must match the record; the
// folder may have another path, and may be missing, in whole or in part. FAILED_PRECONDITION (reason FIXED_KEY) that
// names a file which differs; DATA_LOSS (reason BAD_RECORD); errors of FingerprintModel and FileSystem. OK if a begun
// run has no record. Blocks for the disk.
absl::Status KeepModelFingerprint(FileSystem* files, const std::string& run_dir, const std::string& folder,
                                  bool begun) {
  if (folder.empty()) return absl::OkStatus();
  const absl::StatusOr<Fingerprint> now = model::FingerprintModel(folder);
  if (begun && absl::IsNotFound(now.status())) return absl::OkStatus();
  if (!now.ok()) return Annotate(now.status(), "model.path");
  const std::string state = JoinPath(run_dir, kStateFolder), path = JoinPath(state, kModelRecord);
  if (!begun) {
    SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(state));
    return WriteFileAtomically(files, path, nlohmann::json(*now).dump());
  }
  const absl::StatusOr<std::string> text = ReadFile(files, path, kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  SYNCOPATE_ASSIGN_OR_RETURN(const Fingerprint kept, ParseRecord(*text, path));
  const std::string other = FindDifference(*now, kept);
  if (other.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "FIXED_KEY",
               absl::StrCat("model.path: ", folder, " is not the model that the run in ", run_dir,
                            " was begun with, which is fixed for the whole run: ", other, " differs"));
}

absl::Status CheckSameBase(const std::string& what, uint64_t kept, uint64_t now) {
  if (kept == now) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, reason::kBaseMismatch,
      absl::StrFormat("the adapters of %s were trained on a base of digest %016x, and the model that is given now "
                      "has %016x; resume with the model.path and run.seed that the run was begun with",
                      what, kept, now));
}

// Checks the base of the run's adapters against <run_dir>/state/trainer/base.json, which a run that begins writes.
// FAILED_PRECONDITION (reason BASE_MISMATCH); DATA_LOSS (reason BAD_RECORD); errors of FileSystem.
absl::Status KeepBaseDigest(FileSystem* files, const std::string& run_dir, uint64_t digest, bool begun) {
  if (digest == 0) return absl::OkStatus();
  const std::string state = JoinPath(run_dir, kStateFolder), path = JoinPath(state, kBaseRecord);
  const Fingerprint record = {{kBaseDigestKey, absl::StrFormat("%016x", digest)}};
  if (!begun) return WriteFileAtomically(files, path, nlohmann::json(record).dump());
  const absl::StatusOr<std::string> text = ReadFile(files, path, kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  SYNCOPATE_ASSIGN_OR_RETURN(const Fingerprint kept, ParseRecord(*text, path));
  uint64_t before = 0;
  const auto found = kept.find(kBaseDigestKey);
  if (found == kept.end() || !absl::SimpleHexAtoi(found->second, &before)) {
    return Error(absl::StatusCode::kDataLoss, "BAD_RECORD", absl::StrCat(path, " names no digest of a base"));
  }
  return CheckSameBase(absl::StrCat("the run in ", run_dir), before, digest);
}

// Checks that the reference policy of a run that begins with supervised steps, which is the policy at their end, can be
// had: from a checkpoint that is not beyond them, or contains it. FAILED_PRECONDITION (reason NO_REFERENCE).
absl::Status CheckReference(const v1::RunConfig& config, const trainer::CheckpointManifest& checkpoint,
                            bool has_reference) {
  const int64_t supervised = config.train().sft_steps();
  const bool needed =
      supervised > 0 && config::MakeLossOptions(config).needs_reference() && !config::HasAdapters(config);
  if (!needed || has_reference || checkpoint.version.step <= supervised) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, "NO_REFERENCE",
      absl::StrCat("train.kl_coef: checkpoint ", checkpoint.version.ToString(),
                   " does not contain the policy at the end of the ", supervised,
                   " supervised steps, as train.kl_coef was 0 when it was saved; resume with train.kl_coef=0"));
}

// Keeps the description of lora.path in the run directory.
absl::Status KeepAdapterConfig(FileSystem* files, const std::string& run_dir, const std::string& folder) {
  const std::string kept = config::KeptAdapterFolder(run_dir), to = JoinPath(kept, model::kAdapterConfigFile);
  if (folder.empty() || files->FileBytes(to).ok()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                             model::ReadModelFile(JoinPath(folder, model::kAdapterConfigFile), kMaxRecordBytes));
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(kept));
  return WriteFileAtomically(files, to, text);
}

absl::Status RunDirTaken(const std::string& dir) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "RUN_DIR_TAKEN",
      absl::StrCat(dir, " contains a run already; continue it with run.resume=true, or choose another run.dir"));
}

}  // namespace

RunRestore::RunRestore(daemon::Daemon* daemon, const TrainDevice* device)
    : daemon_(daemon), device_(device), identity_file_(FileSystem::Real(), daemon->Path(kIdentityFile)) {}

absl::StatusOr<std::unique_ptr<RunRestore>> RunRestore::Open(daemon::Daemon* daemon, const TrainDevice* device) {
  std::unique_ptr<RunRestore> run(new RunRestore(daemon, device));
  FileSystem* const files = FileSystem::Real();
  const v1::RunConfig& config = daemon->config();
  const std::string folder =
      config.checkpoint().dir().empty() ? daemon->Path("checkpoints") : config.checkpoint().dir();
  // First, because opening the store deletes what another trainer, still running here, has half saved.
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, run->identity_file_.Read());
  if (!config.run().resume() && identity.epoch > 0) return RunDirTaken(daemon->run_dir());
  SYNCOPATE_ASSIGN_OR_RETURN(run->checkpoints_, trainer::CheckpointStore::Open(files, folder));
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(daemon->Path(kStateFolder)));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<PolicyVersion> there, run->checkpoints_->List());
  if (!config.run().resume() && !there.empty()) return RunDirTaken(daemon->run_dir());
  SYNCOPATE_RETURN_IF_ERROR(
      KeepModelFingerprint(files, daemon->run_dir(), config.model().path(), /*begun=*/identity.epoch > 0));
  SYNCOPATE_RETURN_IF_ERROR(KeepAdapterConfig(files, daemon->run_dir(), config.lora().path()));
  SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t base, device->policy->BaseDigest());
  SYNCOPATE_RETURN_IF_ERROR(KeepBaseDigest(files, daemon->run_dir(), base, /*begun=*/identity.epoch > 0));
  const std::string kept = config::KeptModelFolder(daemon->run_dir());
  if (!device->model.by_keys() && device->model.description != kept) {
    SYNCOPATE_RETURN_IF_ERROR(model::CopyModelDescription(device->model.description, kept));
  }
  return run;
}

absl::StatusOr<RunRestore::Restored> RunRestore::RestoreLatest() {
  if (!daemon_->config().run().resume()) return Restored{};
  absl::StatusOr<trainer::CheckpointStore::Latest> latest = checkpoints_->LoadLatest();
  if (ErrorReason(latest.status()) == reason::kNoCheckpoint) {
    SYNCOPATE_LOG(kInfo, "no checkpoint yet: the run is repeated from its log");
    return Restored{};
  }
  SYNCOPATE_RETURN_IF_ERROR(latest.status());
  for (const auto& skipped : latest->skipped) {
    SYNCOPATE_LOG(kError, "checkpoint %s is damaged and skipped: %s", skipped.name, skipped.why.ToString());
  }
  const trainer::CheckpointManifest& checkpoint = latest->checkpoint;
  SYNCOPATE_ASSIGN_OR_RETURN(std::string data,
                             checkpoints_->ReadFile(checkpoint, trainer::CheckpointWriter::kDataFile));
  const auto saved = trainer::MapPolicy(device_->policy->trained(), checkpoint, [&](const std::string& name) {
    return checkpoints_->MapFile(checkpoint, name);
  });
  if (!saved.ok()) {
    return Annotate(saved.status(), absl::StrCat("checkpoint ", checkpoint.version.ToString(),
                                                 " cannot be used (remove it to go on from an older one)"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t base, device_->policy->BaseDigest());
  SYNCOPATE_RETURN_IF_ERROR(
      CheckSameBase(absl::StrCat("checkpoint ", checkpoint.version.ToString()), saved->policy.base_digest(), base));
  SYNCOPATE_RETURN_IF_ERROR(CheckReference(daemon_->config(), checkpoint, saved->policy.has_reference()));
  SYNCOPATE_RETURN_IF_ERROR(device_->policy->Restore(saved->policy));
  SYNCOPATE_LOG(kInfo, "restored checkpoint %s", checkpoint.version.ToString());
  return Restored{checkpoint.version, std::move(data)};
}

absl::StatusOr<RunRestore::Restored> RunRestore::RestoreNewer(Restored restored) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<PolicyVersion> there, checkpoints_->List());
  if (there.empty() || there.back() <= restored.version) return restored;
  return RestoreLatest();
}

absl::StatusOr<int64_t> RunRestore::HighestEpoch() const {
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, identity_file_.Read());
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<PolicyVersion> there, checkpoints_->List());
  return std::max(identity.epoch, there.empty() ? 0 : there.back().epoch);
}

}  // namespace syncopate::trainerd
