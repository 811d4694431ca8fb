#include "bench/control/control_bench.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "bench/control/control_hosts.h"
#include "bench/control/exchange_load.h"
#include "bench/control/member_fleet.h"
#include "bench/control/members_bench.h"
#include "bench/control/unary_load.h"
#include "bench/process/work_dir.h"

namespace syncopate::bench {
namespace {

// A sleep, because a benchmark measures for a fixed time.
void Pass(absl::Duration duration) { absl::SleepFor(duration); }

constexpr absl::Duration kOverloadTurn = absl::Seconds(10);
constexpr double kNoAim = std::numeric_limits<double>::infinity();

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// The measurements of a load's rounds.
struct Rates {
  std::vector<double> per_second;
  std::vector<double> p50_ms;
  std::vector<double> p99_ms;
  // CPU time of one operation: it predicts the rate on other cores, and does not count other load of the machine.
  std::vector<double> client_us;
  std::vector<double> server_us;
};

using UsageOf = std::function<absl::StatusOr<ProcessUsage>()>;

absl::Status LoadFailed(const LoadTotals& totals) {
  return Error(absl::StatusCode::kInternal, "LOAD_FAILED",
               absl::StrCat(totals.failed, " of ", totals.ok + totals.failed,
                            " calls failed, the first with: ", totals.first_failure.ToString()));
}

template <typename Load>
absl::StatusOr<Rates> MeasureRounds(const ControlCase& control_case, Load* load, const UsageOf& server) {
  Pass(control_case.warmup);
  load->TakeTotals();
  Rates rates;
  for (int32_t round = 0; round < control_case.rounds; ++round) {
    SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage server_before, server());
    SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage client_before, ReadProcessUsage(::getpid()));
    const absl::Time began = Clock::Real()->Now();
    Pass(control_case.round);
    const LoadTotals totals = load->TakeTotals();
    const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - began);
    SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage server_after, server());
    SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage client_after, ReadProcessUsage(::getpid()));
    if (totals.failed > 0 || totals.ok == 0) return LoadFailed(totals);
    const double each = 1e6 / static_cast<double>(totals.ok);
    rates.client_us.push_back(each * (client_after.cpu_seconds - client_before.cpu_seconds));
    rates.server_us.push_back(each * (server_after.cpu_seconds - server_before.cpu_seconds));
    rates.per_second.push_back(static_cast<double>(totals.ok) / seconds);
    rates.p50_ms.push_back(Milliseconds(totals.latency.Quantile(0.5)));
    rates.p99_ms.push_back(Milliseconds(totals.latency.Quantile(0.99)));
  }
  return rates;
}

// Adds the figures that all rates share.
void AddCosts(const std::string& part, const Rates& rates, double p99_at_most, ControlResult* result) {
  result->figures.push_back({.part = part, .name = "latency p50", .unit = "ms", .value = ComputeSpread(rates.p50_ms)});
  result->figures.push_back({.part = part,
                             .name = "latency p99",
                             .unit = "ms",
                             .value = ComputeSpread(rates.p99_ms),
                             .at_most = p99_at_most});
  result->figures.push_back(
      {.part = part, .name = "of a core for one, the daemon", .unit = "us", .value = ComputeSpread(rates.server_us)});
  result->figures.push_back(
      {.part = part, .name = "of a core for one, the client", .unit = "us", .value = ComputeSpread(rates.client_us)});
}

// One run of the benchmark, part by part.
class ControlBench {
 public:
  ControlBench(const ControlCase& control_case, const ControlBenchOptions& options, const std::string& work_dir)
      : case_(control_case), progress_(options.progress), hosts_({options.binary_dir, work_dir, control_case.tls}) {}

  absl::StatusOr<ControlResult> Run();

 private:
  absl::Status Measure(const std::string& part);
  absl::Status MeasureUnary();
  absl::Status MeasureOverload();
  // The results of the turns: peaks[i] and peaks[i + 1] are the peaks before and after turn i.
  struct Overload {
    std::vector<double> peaks;
    std::vector<double> goodput;
    std::vector<double> shares;
    LoadTotals totals;                // of the turns
    std::vector<double> resident_mb;  // after each turn
  };
  absl::Status MeasurePeak(Overload* overload);
  absl::Status MeasureTurn(absl::Duration duration, Overload* overload);
  absl::StatusOr<LoadTotals> TakeFor(absl::Duration duration, UnaryLoad* load) const;
  void AddOverload(const Overload& overload);
  absl::Status MeasureExchange(ExchangeLoad::Answers answers);
  absl::Status EnsureSynchronizer();

  absl::StatusOr<std::unique_ptr<UnaryLoad>> StartUnary(int32_t callers);
  void ReportProgress(const std::string& what) {
    if (progress_ != nullptr) progress_(what);
  }

  const ControlCase& case_;
  const std::function<void(const std::string&)>& progress_;
  ControlHosts hosts_;
  ControlResult result_;
};

absl::StatusOr<ControlResult> ControlBench::Run() {
  for (const std::string& part : case_.parts) {
    SYNCOPATE_RETURN_IF_ERROR(Annotate(Measure(part), part));
  }
  return std::move(result_);
}

absl::Status ControlBench::Measure(const std::string& part) {
  if (part == "stream") return MeasureExchange(ExchangeLoad::Answers::kLate);
  if (part == "ack") return MeasureExchange(ExchangeLoad::Answers::kLeased);
  if (part == "unary") return MeasureUnary();
  if (part == "overload") return MeasureOverload();
  hosts_.KillSynchronizer();  // memory from earlier parts would count otherwise
  SYNCOPATE_RETURN_IF_ERROR(hosts_.StartSynchronizer());
  MembersBench members(case_, &hosts_, progress_, &result_);
  return part == "members" ? members.MeasureAtRest() : members.MeasureRestart();
}

absl::Status ControlBench::EnsureSynchronizer() {
  return hosts_.synchronizer().empty() ? hosts_.StartSynchronizer() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<UnaryLoad>> ControlBench::StartUnary(int32_t callers) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto security, LoadBenchSecurity(case_.tls, ""));
  return UnaryLoad::Start({.address = hosts_.synchronizer(),
                           .channel = {.security = security, .peer_role = "synchronizer"},
                           .connections = case_.connections,
                           .callers = callers});
}

absl::Status ControlBench::MeasureUnary() {
  SYNCOPATE_RETURN_IF_ERROR(EnsureSynchronizer());
  ReportProgress(absl::StrCat("unary calls, ", case_.callers, " in flight"));
  SYNCOPATE_ASSIGN_OR_RETURN(auto load, StartUnary(case_.callers));
  SYNCOPATE_ASSIGN_OR_RETURN(Rates rates,
                             MeasureRounds(case_, load.get(), [this] { return hosts_.SynchronizerUsage(); }));
  result_.figures.push_back({.part = "unary",
                             .name = absl::StrCat("GetStatus, ", case_.callers, " in flight"),
                             .unit = "/s",
                             .value = ComputeSpread(rates.per_second),
                             .at_least = 50000});
  AddCosts("unary", rates, /*p99_at_most=*/5, &result_);
  return absl::OkStatus();
}

// Measures in turns, with the peak before and after each, because a machine's speed changes within a minute.
absl::Status ControlBench::MeasureOverload() {
  SYNCOPATE_RETURN_IF_ERROR(EnsureSynchronizer());
  const auto turns = std::max<int64_t>(1, case_.steady / kOverloadTurn);
  ReportProgress(absl::StrCat(case_.overload, " times as many callers for ", absl::FormatDuration(case_.steady), " in ",
                              turns, " turns"));
  Overload overload;
  SYNCOPATE_RETURN_IF_ERROR(MeasurePeak(&overload));
  for (int64_t turn = 0; turn < turns; ++turn) {
    SYNCOPATE_RETURN_IF_ERROR(MeasureTurn(case_.steady / turns, &overload));
    SYNCOPATE_RETURN_IF_ERROR(MeasurePeak(&overload));
    overload.shares.push_back(overload.goodput[turn] * 2 / (overload.peaks[turn] + overload.peaks[turn + 1]));
  }
  AddOverload(overload);
  return absl::OkStatus();
}

absl::Status ControlBench::MeasurePeak(Overload* overload) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto load, StartUnary(case_.callers));
  SYNCOPATE_ASSIGN_OR_RETURN(const LoadTotals totals, TakeFor(case_.round, load.get()));
  overload->peaks.push_back(static_cast<double>(totals.ok) / absl::ToDoubleSeconds(case_.round));
  return absl::OkStatus();
}

absl::Status ControlBench::MeasureTurn(absl::Duration duration, Overload* overload) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto load, StartUnary(case_.callers * case_.overload));
  SYNCOPATE_ASSIGN_OR_RETURN(const LoadTotals totals, TakeFor(duration, load.get()));
  SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage usage, hosts_.SynchronizerUsage());
  overload->resident_mb.push_back(static_cast<double>(usage.resident_bytes) / 1e6);
  overload->goodput.push_back(static_cast<double>(totals.ok) / absl::ToDoubleSeconds(duration));
  overload->totals.Merge(totals);
  return absl::OkStatus();
}

absl::StatusOr<LoadTotals> ControlBench::TakeFor(absl::Duration duration, UnaryLoad* load) const {
  Pass(case_.warmup);
  load->TakeTotals();
  Pass(duration);
  LoadTotals totals = load->TakeTotals();
  if (totals.ok == 0) return LoadFailed(totals);
  return totals;
}

void ControlBench::AddOverload(const Overload& overload) {
  auto add = [this](const std::string& name, const std::string& unit, const Spread& value) -> ControlFigure& {
    return result_.figures.emplace_back(ControlFigure{.part = "overload", .name = name, .unit = unit, .value = value});
  };
  add("peak, between the turns", "/s", ComputeSpread(overload.peaks));
  add(absl::StrCat("goodput with ", case_.overload, " times the callers"), "/s", ComputeSpread(overload.goodput));
  add("of the peak before and after", "", ComputeSpread(overload.shares)).at_least = 0.9;
  add("refused or late", "", ComputeSpread({static_cast<double>(overload.totals.failed)}));
  add("latency p99", "ms", ComputeSpread({Milliseconds(overload.totals.latency.Quantile(0.99))}));
  const double grown = *std::max_element(overload.resident_mb.begin(), overload.resident_mb.end());
  add("memory that it grew by after the first turn", "MB", ComputeSpread({grown - overload.resident_mb.front()}))
      .at_most = 10;
}

absl::Status ControlBench::MeasureExchange(ExchangeLoad::Answers answers) {
  const bool durable = answers == ExchangeLoad::Answers::kLeased;
  const std::string part = durable ? "ack" : "stream";
  SYNCOPATE_RETURN_IF_ERROR(hosts_.StartData());
  SYNCOPATE_ASSIGN_OR_RETURN(auto security, LoadBenchSecurity(case_.tls, "rollouter"));
  SYNCOPATE_ASSIGN_OR_RETURN(auto load, ExchangeLoad::Start({.address = hosts_.data(),
                                                             .run_id = kBenchRunId,
                                                             .channel = {.security = security, .peer_role = "trainer"},
                                                             .answers = answers,
                                                             .streams = case_.streams,
                                                             .window = case_.window,
                                                             .message_bytes = case_.message_bytes}));
  ReportProgress(absl::StrCat("answers of ", load->answer_bytes(), " bytes on ", case_.streams, " streams",
                              durable ? ", made durable" : ", refused"));
  SYNCOPATE_ASSIGN_OR_RETURN(Rates rates, MeasureRounds(case_, load.get(), [this] { return hosts_.DataUsage(); }));
  SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage after, hosts_.DataUsage());
  load.reset();
  hosts_.StopData();
  result_.figures.push_back(
      {.part = part,
       .name = absl::StrCat(durable ? "durable answers of " : "answers of ", case_.message_bytes / 1024, " KiB"),
       .unit = "/s",
       .value = ComputeSpread(rates.per_second),
       .at_least = durable          ? 12000.0
                   : case_.tls.on() ? 40000.0
                                    : 60000.0});
  AddCosts(part, rates, kNoAim, &result_);
  result_.figures.push_back({.part = part,
                             .name = "memory of the trainer's side at the end",
                             .unit = "MB",
                             .value = ComputeSpread({static_cast<double>(after.resident_bytes) / 1e6})});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ControlResult> RunControlBench(const ControlCase& control_case, const ControlBenchOptions& options) {
  SYNCOPATE_RETURN_IF_ERROR(control_case.Validate());
  RaiseDescriptorLimit();  // started processes inherit it
  SYNCOPATE_ASSIGN_OR_RETURN(WorkDir work_dir, WorkDir::Make());
  absl::StatusOr<ControlResult> result = ControlBench(control_case, options, work_dir.path()).Run();
  if (!result.ok()) work_dir.Keep();
  return result;
}

}  // namespace syncopate::bench
