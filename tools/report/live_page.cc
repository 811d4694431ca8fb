#include "tools/report/live_page.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/status.h"
#include "services/wire/codec.h"
#include "synchronizer/sync_outcome.h"
#include "tools/report/report_page.h"
#include "tools/report/sample_search.h"

namespace syncopate::report {
namespace {

// Browsers send more headers than a scraper, and cookies of other services of this host.
constexpr size_t kMaxRequestBytes = 32 << 10;
constexpr absl::Duration kSendTimeout = absl::Seconds(10);

absl::StatusOr<HostPort> Loopback(const std::string& address) {
  int port = 0;
  const bool is_port = absl::SimpleAtoi(address, &port);
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort place, ParseHostPort(is_port ? absl::StrCat("127.0.0.1:", address) : address));
  if (place.IsLoopback()) return place;
  return Error(
      absl::StatusCode::kInvalidArgument, "NOT_LOOPBACK",
      absl::StrCat("the page is not served on ", place.ToString(),
                   ": it authenticates no caller, so only this machine may reach it; give a port, and reach it "
                   "from elsewhere through a tunnel, such as ssh -L"));
}

// Whether a Host header names this machine, whatever the client. Any other name comes from another site's page.
bool IsThisMachine(const std::string& host, int port) {
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (host == absl::StrCat(name, ":", port)) return true;
  }
  return false;
}

RunHistory::Have GetHave(const std::string& query) {
  const auto number = [&query](const char* name) {
    uint64_t value = 0;
    return absl::SimpleAtoi(QueryValue(query, name), &value) ? value : 0;
  };
  return {.step_span = static_cast<int64_t>(number("steps_span")),
          .sync_span = static_cast<int64_t>(number("syncs_span")),
          .version_span = static_cast<int64_t>(number("versions_span")),
          .steps = number("steps"),
          .syncs = number("syncs"),
          .versions = number("versions"),
          .evaluations_revision = number("revision")};
}

double Seconds(const v1::SyncRecord& record, const char* phase) {
  auto found = record.seconds().find(phase);
  return found == record.seconds().end() ? 0 : found->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LivePage>> LivePage::Start(const std::string& address, const Clock* clock) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, Loopback(address));
  std::unique_ptr<LivePage> page(new LivePage(clock));
  SYNCOPATE_ASSIGN_OR_RETURN(page->responder_, HttpResponder::Start({.what = "the page of the run",
                                                                     .address = place.ToString(),
                                                                     .max_request_bytes = kMaxRequestBytes,
                                                                     .timeout = kSendTimeout},
                                                                    [self = page.get()](const HttpRequest& request) {
                                                                      return self->Answer(request);
                                                                    }));
  return page;
}

std::string LivePage::url() const { return absl::StrCat("http://", responder_->address(), "/"); }

std::string LivePage::Answer(const HttpRequest& request) {
  constexpr char kPages[] = "/, /new.json and /samples.json";
  if (request.code != 200) return HttpRefusal(request.code, kPages);
  // Against DNS rebinding: another site's host name may be made to point to 127.0.0.1, and its scripts could read this
  // page.
  if (!IsThisMachine(request.host, ParseHostPort(responder_->address())->port)) {
    return HttpPage(421, "text/plain; charset=utf-8", "421: this page is for this machine alone\n");
  }
  // Against other pages in the same browser: they may not frame this page, read it, or make it load anything.
  const std::vector<std::string> headers = {
      "Cache-Control: no-store",
      "X-Content-Type-Options: nosniff",
      "X-Frame-Options: DENY",
      "Referrer-Policy: no-referrer",
      "Cross-Origin-Resource-Policy: same-origin",
      absl::StrCat("Content-Security-Policy: ", PagePolicy(/*live=*/true), "; frame-ancestors 'none'")};
  if (request.path == "/new.json") return HttpPage(200, "application/json", News(request.query), headers);
  if (request.path == "/samples.json") return Samples(request.query, headers);
  if (request.path != "/") return HttpRefusal(404, kPages);
  return HttpPage(200, "text/html; charset=utf-8", Page(), headers);
}

// A browser polls for what is newer than its page, so the page may be some seconds old.
std::string LivePage::Page() {
  if (clock_->Now() - page_made_ < kPageFor) return page_;
  nlohmann::json run;
  {
    MutexLock lock(&mutex_);
    run = history_.ToJson();
  }
  page_ = MakePage({std::move(run)}, {.live = true});
  page_made_ = clock_->Now();
  return page_;
}

std::string LivePage::News(const std::string& query) {
  nlohmann::json news;
  {
    MutexLock lock(&mutex_);
    news = history_.ToJson(GetHave(query));
    polled_ = clock_->Now();
    told_ = true;
  }
  return EscapedJson(news);
}

std::string LivePage::Samples(const std::string& query, const std::vector<std::string>& headers) {
  const absl::StatusOr<SampleQuery> wanted = ReadSampleQuery(query);
  const std::string from = QueryValue(query, "from");
  const std::optional<SamplePlace> place = ReadSamplePlace(from);
  if (!wanted.ok() || (!from.empty() && !place.has_value())) {
    const std::string why(wanted.ok() ? "from: it is no place in the samples" : wanted.status().message());
    return HttpPage(400, "application/json", EscapedJson({{"error", why}}), headers);
  }
  std::string run_dir;
  {
    MutexLock lock(&mutex_);
    run_dir = run_dir_;
  }
  SampleSearch search{.query = *wanted, .from = place};
  return HttpPage(200, "application/json", EscapedJson(FindSamples(run_dir, search, *clock_)), headers);
}

void LivePage::SetRunDir(const std::string& run_dir) {
  MutexLock lock(&mutex_);
  run_dir_ = run_dir;
}

void LivePage::SetHistory(RunHistory history) {
  MutexLock lock(&mutex_);
  history_ = std::move(history);
}

void LivePage::AddRecord(const records::StepRecord& record) {
  MutexLock lock(&mutex_);
  history_.AddRecord(record);
  if (!record.is_evaluation) history_.AddVersion("trainer", Clock::Real()->UnixSeconds(), record.step);
}

void LivePage::AddSync(const v1::SyncRecord& record) {
  const synchronizer::SyncOutcome outcome = synchronizer::ClassifySyncResult(record.result());
  const bool moved = outcome == synchronizer::SyncOutcome::kDone;
  if (!moved && outcome != synchronizer::SyncOutcome::kRelabelled) return;
  MutexLock lock(&mutex_);
  history_.AddVersion(record.replica_id(), record.ended_unix_seconds(), record.version().step());
  if (!moved) return;
  const PolicyVersion version = wire::FromProto(record.version());
  history_.AddPause(version, record.pause_seconds());
  history_.AddSync({.version = version,
                    .stage = Seconds(record, "stage"),
                    .prepare = Seconds(record, "prepare"),
                    .transfer = Seconds(record, "transfer"),
                    .verify = Seconds(record, "verify"),
                    .install = Seconds(record, "install"),
                    .total = Seconds(record, "total")});
}

void LivePage::SetCheckpoints(const RunHistory::Checkpoints& checkpoints) {
  MutexLock lock(&mutex_);
  history_.description()->checkpoints = checkpoints;
}

void LivePage::SetStatus(const std::string& status) {
  MutexLock lock(&mutex_);
  history_.description()->status = status;
}

void LivePage::SetEnd(const std::string& status, const std::string& reason, const std::vector<std::string>& log,
                      nlohmann::json summary) {
  MutexLock lock(&mutex_);
  RunHistory::Description* description = history_.description();
  description->status = status;
  description->reason = reason;
  description->log = log;
  description->summary = std::move(summary);
  told_ = false;
}

bool LivePage::AwaitReaders(absl::Duration timeout) {
  // A page in a hidden window polls every five seconds.
  constexpr absl::Duration kLooksFor = absl::Seconds(6);
  MutexLock lock(&mutex_);
  if (clock_->Now() - polled_ > kLooksFor) return true;
  auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return told_; };
  return mutex_.AwaitWithTimeout(Condition(&told), timeout);
}

}  // namespace syncopate::report
