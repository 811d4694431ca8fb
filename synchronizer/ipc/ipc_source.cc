#include "synchronizer/ipc/ipc_source.h"

#include <atomic>
#include <utility>

#include "base/status.h"
#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/superseded.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Superseded() { return SupersededError("the send slot was taken for a newer version; join that"); }

}  // namespace

absl::StatusOr<std::unique_ptr<IpcSource>> IpcSource::Create(LendingStore* store,
                                                             const ipc::IpcServer::Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string host, ipc::HostId());
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ipc::IpcServer> server, ipc::IpcServer::Start(options));
  return std::unique_ptr<IpcSource>(new IpcSource(store, std::move(host), std::move(server)));
}

absl::StatusOr<std::string> IpcSource::Open(const Prepare& attempt) {
  if (attempt.rehearsal) return std::string();  // no version has memory yet, and mapping memory takes little time
  auto gone = std::make_shared<std::atomic<bool>>(false);
  auto superseded = [this, gone, id = attempt.attempt] {
    *gone = true;
    server_->Withdraw(id, Superseded());
  };
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<LentVersion> version, store_->Lend(attempt.version, superseded));
  ipc::OfferTable::Offer offer;
  offer.attempt = attempt.attempt;
  offer.version = attempt.version;
  offer.fingerprint = store_->fingerprint();
  offer.memory = version->memory();
  offer.complete = true;
  ipc::Rendezvous where{host_, offer.memory->info.id, server_->socket_path()};
  server_->Add(std::move(offer));
  if (*gone) {  // superseded between Lend and Add
    server_->Withdraw(attempt.attempt, Superseded());
    return Superseded();
  }
  std::unique_ptr<LentVersion> previous;  // destroyed without the lock
  MutexLock lock(&mutex_);
  previous = std::exchange(lent_[attempt.attempt], std::move(version));
  return where.ToString();
}

void IpcSource::Close(int64_t attempt) {
  server_->Withdraw(attempt, Error(absl::StatusCode::kUnavailable, "PEER_LOST", "the source has ended the attempt"));
  std::unique_ptr<LentVersion> version;  // destroyed without the lock
  MutexLock lock(&mutex_);
  auto found = lent_.find(attempt);
  if (found == lent_.end()) return;
  version = std::move(found->second);
  lent_.erase(found);
}

}  // namespace syncopate::synchronizer
