#include "bench/control/member_fleet.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/sync/bench_model.h"

namespace syncopate::bench {
namespace {

// Members leave in groups: one after the other, a thousand members would each wait for an answer.
constexpr size_t kLeaveTogether = 16;

}  // namespace

// Refuses every command. No trainer joins, so no command comes.
class MemberFleet::Refusal final : public member::SyncParticipant {
 public:
  synchronizer::SyncReport Prepare(const synchronizer::Prepare&) override { return Refuse(); }
  void Transfer(const synchronizer::Transfer&, Done done) override { done(Refuse()); }
  synchronizer::SyncReport Install(const synchronizer::Install&) override { return Refuse(); }
  void Finish(int64_t) override {}
  void FinishAll() override {}

 private:
  static synchronizer::SyncReport Refuse() {
    synchronizer::SyncReport report;
    report.status =
        Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS", "a member of a benchmark has no weights");
    return report;
  }
};

MemberFleet::MemberFleet() : refusal_(std::make_unique<Refusal>()) {}

MemberFleet::~MemberFleet() {
  std::vector<std::thread> leavers;
  const size_t share = (members_.size() + kLeaveTogether - 1) / kLeaveTogether;
  for (size_t begin = 0; begin < members_.size(); begin += share) {
    leavers.emplace_back([this, begin, end = std::min(begin + share, members_.size())] {
      for (size_t i = begin; i < end; ++i) members_[i]->Stop(absl::Seconds(1));
    });
  }
  for (std::thread& leaver : leavers) leaver.join();
}

absl::StatusOr<std::unique_ptr<MemberFleet>> MemberFleet::Start(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, BenchManifest("tiny"));
  auto model = std::make_shared<const Manifest>(std::move(manifest));
  std::unique_ptr<MemberFleet> fleet(new MemberFleet());
  for (int32_t i = 0; i < options.members; ++i) {
    member::MemberClient::Options member;
    member.synchronizer_address = options.synchronizer;
    member.secret = MemberSecret::Draw();
    member.hello.member = {synchronizer::kRollouterRole, absl::StrCat("rollouter-", i), 0, 1,
                           member.secret.incarnation()};
    member.hello.manifest = model;
    member.hello.transports = {"grpc"};
    member.security = options.security;
    SYNCOPATE_ASSIGN_OR_RETURN(fleet->members_.emplace_back(),
                               member::MemberClient::Start(std::move(member), fleet->refusal_.get()));
  }
  return fleet;
}

absl::Status MemberFleet::AwaitWelcomes(absl::Time deadline) {
  for (const auto& member : members_) {
    SYNCOPATE_RETURN_IF_ERROR(member->WaitForWelcome(deadline - Clock::Real()->Now()).status());
  }
  return absl::OkStatus();
}

}  // namespace syncopate::bench
