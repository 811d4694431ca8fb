#include "services/config/reward_rules.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "rollouter/reward/judge_messages.h"
#include "rollouter/reward/pattern.h"
#include "rollouter/reward/reward_formula.h"
#include "services/config/duration.h"

namespace syncopate::config {
namespace {

using rollouter::RewardTerm;
using Source = RewardTerm::Source;

constexpr size_t kMaxSocketPath = 107;  // of sockaddr_un

void CheckPattern(const std::string& key, const std::string& pattern, Rules* rules) {
  if (pattern.empty()) return;
  const absl::Status compiled = rollouter::Pattern::Compile(pattern).status();
  rules->Expect(compiled.ok(), {key}, absl::StrCat("a regular expression; ", compiled.message()));
}

void CheckTerm(const RewardTerm& term, const v1::RunConfig& config, Rules* rules) {
  const v1::RewardSection& reward = config.reward();
  const bool worker = !config.environment().address().empty() || !config.environment().command().empty();
  rules->Expect(term.part != "regex" || !reward.pattern().empty(), {"reward.pattern", "reward.name"},
                "a regular expression, which regex looks for");
  rules->Expect(term.part != "format" || !reward.format().empty(), {"reward.format", "reward.name"},
                "a regular expression, which format matches answers with");
  rules->Expect(term.part != "environment" || Plays(config), {"environment.name", "reward.name"},
                "the environment whose rewards the term environment is");
  rules->Expect(term.part != "overlong" || !Plays(config), {"reward.name", "environment.name"},
                "a reward without overlong, as a sample with turns has no single length");
  rules->Expect(term.part != "overlong" || reward.overlong_buffer() > 0, {"reward.overlong_buffer", "reward.name"},
                "at least 1: the number of tokens over which overlong falls");
  rules->Expect(term.source != Source::kHttp || !reward.url().empty(), {"reward.url", "reward.name"},
                "the address that http posts answers to");
  if (term.source == Source::kJudge) {
    rules->Expect(!reward.judge_url().empty(), {"reward.judge_url", "reward.name"},
                  "the base address of the endpoint that judge asks, such as http://127.0.0.1:8000/v1");
    rules->Expect(!reward.judge_model().empty(), {"reward.judge_model", "reward.name"},
                  "the model that judge asks for");
    rules->Expect(!reward.judge_prompt().empty(), {"reward.judge_prompt", "reward.name"},
                  "what judge asks about an answer, which {answer} stands for");
  }
  rules->Expect(term.source != Source::kPython || worker, {"environment.command", "environment.address", "reward.name"},
                absl::StrCat("the command of the worker that has ", term.part, ", or environment.address"));
  rules->Expect(term.part != "math" || reward.math_judge().empty() || worker,
                {"environment.command", "environment.address", "reward.math_judge"},
                absl::StrCat("the command of the worker that has ", reward.math_judge(), ", or environment.address"));
  rules->Expect(!rollouter::IsOfText(term) || !config.data().files().empty(), {"reward.name", "data.files"},
                absl::StrCat("dense, exact, overlong or environment, as ", term.part,
                             " reads text and the built-in tasks are of token ids; or data.files to name some"));
}

// All attempts at a reward together must take less time than the lease.
void CheckBudget(const v1::RunConfig& config, Rules* rules) {
  const v1::RewardSection& reward = config.reward();
  const double attempts = static_cast<double>(reward.attempts());
  rules->Expect(
      CheckedDuration(reward.timeout()) * attempts < CheckedDuration(config.data().lease_timeout()),
      {"reward.timeout", "reward.attempts", "data.lease_timeout"},
      absl::StrCat("reward.attempts ", reward.attempts(), " x reward.timeout to be less than data.lease_timeout ",
                   config.data().lease_timeout(), ", or the lease ends before the last attempt"));
}

bool IsWebAddress(const std::string& url) {
  return absl::StartsWith(url, "http://") || absl::StartsWith(url, "https://");
}

// Whether a key may be sent there: over TLS, or without leaving this machine.
bool IsPrivate(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://")) return true;
  const absl::string_view authority = url.substr(0, url.find('/'));
  const auto place = ParseHostPort(absl::StrCat(authority, absl::StrContains(authority, ':') ? "" : ":80"));
  return place.ok() && place->IsLoopback();
}

void CheckJudge(const v1::RunConfig& config, Rules* rules) {
  const v1::RewardSection& reward = config.reward();
  CheckPattern("reward.judge_pattern", reward.judge_pattern(), rules);
  rules->Expect(reward.judge_url().empty() || IsWebAddress(reward.judge_url()), {"reward.judge_url"},
                "an address that begins with http:// or https://");
  if (!reward.judge_prompt().empty()) {
    const absl::Status parsed = rollouter::JudgePrompt::Parse(reward.judge_prompt()).status();
    rules->Expect(parsed.ok(), {"reward.judge_prompt"}, absl::StrCat("a prompt; ", parsed.message()));
  }
  rules->Expect(reward.judge_key_file().empty() || IsPrivate(reward.judge_url()) || config.run().insecure_bind(),
                {"reward.judge_url", "reward.judge_key_file", "run.insecure_bind"},
                "an https:// or loopback address, as the key would be sent in plaintext; run.insecure_bind=true allows "
                "others");
}

void CheckWorkerAddress(const v1::RunConfig& config, const std::string& address, Rules* rules) {
  if (absl::StartsWith(address, "unix:")) {
    rules->Expect(address.size() > 5 && address.size() - 5 <= kMaxSocketPath, {"environment.address"},
                  absl::StrCat("unix: and the path of a socket of at most ", kMaxSocketPath, " bytes"));
    return;
  }
  const auto parsed = ParseHostPort(address);
  const bool dialled = parsed.ok() && parsed->port != 0;  // port 0 is for listening only
  rules->Expect(dialled, {"environment.address"}, "unix:PATH, or host:port such as 127.0.0.1:7080");
  rules->Expect(!dialled || parsed->IsLoopback() || WorkerUsesTls(config) || config.run().insecure_bind(),
                {"environment.address", "run.insecure_bind"},
                "a socket or a loopback address, as the connection is not encrypted without security.tls_ca; "
                "run.insecure_bind=true allows others");
}

}  // namespace

void CheckSetReward(const std::string& set, const std::string& formula, const v1::RunConfig& config, Rules* rules) {
  const auto terms = rollouter::ParseRewardFormula(formula);
  if (!terms.ok()) {
    rules->Expect(false, {"eval.sets"},
                  absl::StrCat("a reward or a sum of rewards in set ", set, "; ", terms.status().message()));
    return;
  }
  for (const RewardTerm& term : *terms) CheckTerm(term, config, rules);
}

void CheckReward(const v1::RunConfig& config, Rules* rules) {
  const v1::RewardSection& reward = config.reward();
  const auto terms = rollouter::ParseRewardFormula(reward.name());
  if (!terms.ok()) {
    rules->Expect(false, {"reward.name"}, absl::StrCat("a reward or a sum of rewards; ", terms.status().message()));
  } else {
    for (const RewardTerm& term : *terms) CheckTerm(term, config, rules);
    auto asks = [&reward](const RewardTerm& term) {
      return term.source != Source::kBuiltIn || (term.part == "math" && !reward.math_judge().empty());
    };
    if (std::any_of(terms->begin(), terms->end(), asks)) CheckBudget(config, rules);
  }
  CheckPattern("reward.pattern", reward.pattern(), rules);
  CheckPattern("reward.format", reward.format(), rules);
  CheckJudge(config, rules);
  rules->Expect(reward.overlong_buffer() <= config.rollout().max_new_tokens(),
                {"reward.overlong_buffer", "rollout.max_new_tokens"},
                absl::StrCat("at most rollout.max_new_tokens ", config.rollout().max_new_tokens()));
  rules->Expect(reward.url().empty() || IsWebAddress(reward.url()), {"reward.url"},
                "an address that begins with http:// or https://");
}

void CheckEnvironment(const v1::RunConfig& config, Rules* rules) {
  const std::string& group = config.environment().socket_group();
  const bool is_name = std::all_of(group.begin(), group.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  rules->Expect(is_name && !absl::StartsWith(group, "-"), {"environment.socket_group"},
                "the name of a group, of letters, digits, '-', '_' and '.'");
  rules->Expect(group.empty() || config.environment().socket_mode() == "0660",
                {"environment.socket_mode", "environment.socket_group"}, "0660, as 0600 lets no group call");
  const std::vector<std::string> addresses = WorkerAddresses(config);
  const int64_t workers = config.environment().workers();
  rules->Expect(
      workers == 1 || !config.environment().command().empty(), {"environment.workers", "environment.command"},
      "1 without a command, as syncopate run then starts no worker: list those that run in environment.address");
  rules->Expect(config.environment().command().empty() || addresses.empty() || std::ssize(addresses) == workers,
                {"environment.address", "environment.workers"},
                absl::StrCat("an address for each of the ", workers, " workers, or none"));
  rules->Expect(std::set<std::string>(addresses.begin(), addresses.end()).size() == addresses.size(),
                {"environment.address"}, "a different address for each worker");
  for (const std::string& one : addresses) CheckWorkerAddress(config, one, rules);
}

std::vector<std::string> WorkerAddresses(const v1::RunConfig& config) {
  std::vector<std::string> addresses;
  for (absl::string_view one : absl::StrSplit(config.environment().address(), ',', absl::SkipWhitespace())) {
    addresses.emplace_back(absl::StripAsciiWhitespace(one));
  }
  return addresses;
}

bool WorkerUsesTls(const v1::RunConfig& config) {
  const auto is_elsewhere = [](const std::string& address) {
    const auto place = ParseHostPort(address);
    return place.ok() && !place->IsLoopback();
  };
  const std::vector<std::string> addresses = WorkerAddresses(config);
  return std::any_of(addresses.begin(), addresses.end(), is_elsewhere) && !config.security().tls_ca().empty();
}

}  // namespace syncopate::config
