#include "bench/control/members_bench.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/latency_histogram.h"
#include "base/status.h"
#include "bench/control/scrape.h"
#include "services/rpc/channel.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kJoinLimit = absl::Minutes(1);
constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kProbe = absl::Milliseconds(50);  // between two probes of an idle loop
constexpr absl::Duration kProbeAgain = absl::Milliseconds(20);
constexpr int kScrapes = 20;

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

// Uses a call that the control loop answers itself, so its time is the loop's latency. An error counts as no member
// alive, as the fleet's own clients would see it.
int64_t MembersBench::Alive() {
  auto status = rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::GetStatus,
                               v1::SynchronizerServiceGetStatusRequest(), kCallLimit);
  return status.ok() ? status->rollouters_alive() : 0;
}

absl::Status MembersBench::AwaitAlive(int64_t members, absl::Duration limit) {
  const absl::Time deadline = Clock::Real()->Now() + limit;
  int64_t alive = 0;
  while (Clock::Real()->Now() < deadline) {
    // No call notifies a client of the count, so it is polled.
    alive = Alive();
    if (alive >= members) return absl::OkStatus();
    absl::SleepFor(kProbeAgain);
  }
  return Error(absl::StatusCode::kDeadlineExceeded, "NOT_JOINED",
               absl::StrCat(alive, " of ", members, " members are alive after ", absl::FormatDuration(limit)));
}

absl::Status MembersBench::Join() {
  ReportProgress(absl::StrCat(case_.members, " rollouters join"));
  // Two identities are needed: only an operator may ask for the status, and the members are rollouters.
  SYNCOPATE_ASSIGN_OR_RETURN(auto admin, LoadBenchSecurity(case_.tls, ""));
  SYNCOPATE_ASSIGN_OR_RETURN(auto rollouter, LoadBenchSecurity(case_.tls, "rollouter"));
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                             rpc::MakeChannel(hosts_.synchronizer(), {.security = admin, .peer_role = "synchronizer"}));
  stub_ = v1::SynchronizerService::NewStub(channel);
  SYNCOPATE_ASSIGN_OR_RETURN(fleet_, MemberFleet::Start({hosts_.synchronizer(), case_.members, rollouter}));
  SYNCOPATE_RETURN_IF_ERROR(fleet_->AwaitWelcomes(Clock::Real()->Now() + kJoinLimit));
  // A welcome only tells the member; the measurement starts when the synchronizer counts all of them.
  return AwaitAlive(case_.members, kJoinLimit);
}

absl::Status MembersBench::MeasureScrapes(bool members) {
  std::vector<double> took;
  Scrape last;
  for (int i = 0; i < kScrapes; ++i) {
    // A new connection for each scrape, as Prometheus makes if its own was closed.
    SYNCOPATE_ASSIGN_OR_RETURN(last, ScrapeMetrics(hosts_.synchronizer_metrics(), kCallLimit));
    took.push_back(absl::ToDoubleMilliseconds(last.took));
  }
  const std::string with = absl::StrCat(" with ", members ? case_.members : 0, " members");
  ControlFigure scrape{
      .part = "members", .name = absl::StrCat("GET /metrics", with), .unit = "ms", .value = ComputeSpread(took)};
  // The aim is for all members; without members the figure only shows the cost of the responder itself.
  if (members) scrape.at_most = 10;
  result_.figures.push_back(std::move(scrape));
  result_.figures.push_back({.part = "members",
                             .name = absl::StrCat("its answer", with),
                             .unit = "kB",
                             .value = ComputeSpread({static_cast<double>(last.bytes) / 1e3})});
  return absl::OkStatus();
}

absl::Status MembersBench::MeasureAtRest() {
  // Before any member joins, so that both figures come from one process.
  SYNCOPATE_RETURN_IF_ERROR(MeasureScrapes(/*members=*/false));
  SYNCOPATE_RETURN_IF_ERROR(Join());
  // TLS handshakes and first allocations at a join are no cost of members at rest.
  absl::SleepFor(case_.warmup);
  ReportProgress(absl::StrCat("they send heartbeats for ", absl::FormatDuration(case_.steady)));
  SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage before, hosts_.SynchronizerUsage());
  const absl::Time began = Clock::Real()->Now();
  LatencyHistogram probes;
  int64_t least = case_.members;
  while (Clock::Real()->Now() < began + case_.steady) {
    const absl::Time asked = Clock::Real()->Now();
    least = std::min(least, Alive());
    probes.Add(Clock::Real()->Now() - asked);
    absl::SleepFor(kProbe);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage after, hosts_.SynchronizerUsage());
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - began);
  // The process's own CPU time (user and system) over the same window: other load of the machine does not count.
  const double cores = (after.cpu_seconds - before.cpu_seconds) / seconds;
  auto one = [](double value) { return ComputeSpread({value}); };
  result_.figures.push_back(
      {.part = "members", .name = "of a core, probes included", .unit = "%", .value = one(100 * cores), .at_most = 10});
  result_.figures.push_back({.part = "members",
                             .name = "memory of the synchronizer",
                             .unit = "MB",
                             .value = one(Megabytes(after.resident_bytes)),
                             .at_most = 150});
  result_.figures.push_back({.part = "members",
                             .name = "GetStatus by way of the loop, p99",
                             .unit = "ms",
                             .value = one(absl::ToDoubleMilliseconds(probes.Quantile(0.99))),
                             .at_most = 50});
  result_.figures.push_back({.part = "members",
                             .name = "fewest that were alive",
                             .unit = "",
                             .value = one(static_cast<double>(least)),
                             .at_least = static_cast<double>(case_.members)});
  result_.figures.push_back({.part = "members",
                             .name = "threads of the synchronizer",
                             .unit = "",
                             .value = one(static_cast<double>(after.threads))});
  return MeasureScrapes(/*members=*/true);
}

absl::Status MembersBench::MeasureRestart() {
  SYNCOPATE_RETURN_IF_ERROR(Join());
  std::vector<double> from_kill, from_ready;
  for (int32_t round = 0; round < case_.rounds; ++round) {
    ReportProgress("the synchronizer is killed and starts again");
    // SIGKILL: no message is sent, so members notice by their streams, and the state is what the log contains.
    const absl::Time killed = Clock::Real()->Now();
    hosts_.KillSynchronizer();
    SYNCOPATE_RETURN_IF_ERROR(hosts_.StartSynchronizer());
    const absl::Time ready = Clock::Real()->Now();
    SYNCOPATE_RETURN_IF_ERROR(AwaitAlive(case_.members, kJoinLimit));
    // Two figures, because the first includes the start of a process, which depends on the machine.
    from_ready.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - ready));
    from_kill.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - killed));
  }
  result_.figures.push_back({.part = "restart",
                             .name = absl::StrCat("all ", case_.members, " back after the kill"),
                             .unit = "s",
                             .value = ComputeSpread(from_kill),
                             .at_most = 5});
  result_.figures.push_back(
      {.part = "restart", .name = "after it listened again", .unit = "s", .value = ComputeSpread(from_ready)});
  return absl::OkStatus();
}

}  // namespace syncopate::bench
