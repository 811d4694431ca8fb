#include "trainer/loop/export_writer.h"

#include <utility>

#include "base/clock.h"

namespace syncopate::trainer {

void ExportWriter::Export(const PolicyVersion& version, const Request& request, Done done) {
  ExportStore::Request job{.name = request.name.empty() ? version.ToString() : request.name,
                           .options = request.options,
                           .snapshot = absl::UnavailableError("not copied")};
  const absl::Time begun = Clock::Real()->Now();
  const absl::Status begins = Begin(version, &job);
  wait_seconds_ += absl::ToDoubleSeconds(Clock::Real()->Now() - begun);
  if (!begins.ok()) return done(begins);
  {
    MutexLock lock(&mutex_);
    is_busy_ = true;
  }
  thread_.Post([this, version, job = std::move(job), done = std::move(done)]() mutable {
    Exported exported{.version = version, .path = parts_.store->GetPath(job.name), .model = {}};
    const absl::StatusOr<model::ExportedModel> written = parts_.store->Write(std::move(job));
    if (written.ok()) exported.model = *written;
    Finish();
    done(written.ok() ? absl::StatusOr<Exported>(std::move(exported)) : written.status());
  });
}

absl::Status ExportWriter::Begin(const PolicyVersion& version, ExportStore::Request* request) const {
  if (parts_.store == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_MODEL",
                 "this run did not begin with model.path, so that there is no config.json to go with the weights");
  }
  if (parts_.ranks != nullptr) {
    // The folder must exist before the other ranks are told to write into it.
    SYNCOPATE_ASSIGN_OR_RETURN(request->folder, parts_.store->BeginFolder(version));
    request->await_others = [ranks = parts_.ranks, folder = request->folder] { return ranks->AwaitSaved(folder); };
  }
  request->snapshot = parts_.policy->TakeWeights(request->folder);
  // The others are writing by now, and are waited for before the folder goes.
  return parts_.ranks != nullptr ? absl::OkStatus() : request->snapshot.status();
}

void ExportWriter::Finish() {
  std::vector<std::function<void()>> waiting;
  {
    MutexLock lock(&mutex_);
    is_busy_ = false;
    waiting.swap(waiting_);
  }
  for (const std::function<void()>& again : waiting) again();
}

bool ExportWriter::is_free() const {
  MutexLock lock(&mutex_);
  return !is_busy_;
}

void ExportWriter::CallWhenFree(std::function<void()> again) {
  {
    MutexLock lock(&mutex_);
    if (is_busy_) {
      waiting_.push_back(std::move(again));
      return;
    }
  }
  again();
}

double ExportWriter::TakeWaitSeconds() { return std::exchange(wait_seconds_, 0); }

absl::Status ExportWriter::Wait() {
  return thread_.Wait([this] { return parts_.store == nullptr ? absl::OkStatus() : parts_.store->CheckDisk(); });
}

}  // namespace syncopate::trainer
