#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "services/config/duration.h"
#include "tools/cli/command.h"
#include "tools/ctl/target_security.h"
#include "tools/ctl/verbs.h"

namespace syncopate::cli {
namespace {

constexpr char kCtlExitCodes[] =
    "Exit codes: 0 done; 1 another error; 2 wrong command line, or no such daemon; 3 the daemon cannot be reached or "
    "did not answer in time; 4 the daemon refused.";

// The arguments of all verbs.
struct CtlArguments {
  ctl::DaemonOptions daemons;
  ctl::TargetSecurityFlags security;
  std::string timeout;
  bool json = false;
  bool follow = false;
  int32_t last = 10;
  int32_t rank = 0;
  int32_t level = 1;
  std::string who;
  std::string request_id;
  std::string reason = "asked for by an operator";
  std::string mode;
  ctl::GenerateArguments generate;
};

using Verb = std::function<absl::Status(const ctl::CtlContext&, const CtlArguments&)>;

// Draining and saving wait for work to end, so their default timeout is longer.
int Execute(const CtlArguments& arguments, absl::Duration default_timeout, const Verb& verb) {
  ctl::CtlContext context{arguments.daemons, arguments.json, &std::cout};
  context.daemons.timeout = default_timeout;
  absl::Status status;
  if (!arguments.timeout.empty()) {
    auto timeout = config::ParseDuration(arguments.timeout);
    if (!timeout.ok()) {
      std::cerr << "--timeout: " << timeout.status().message() << "\n";
      return 2;
    }
    context.daemons.timeout = *timeout;
  }
  auto security = ctl::FindTargetSecurity(arguments.security, context.daemons);
  if (!security.ok()) {
    std::cerr << security.status().message() << "\n";
    return 2;
  }
  context.daemons.security = *std::move(security);
  InitLogging({.role = "ctl", .minimum = Severity::kWarning}).IgnoreError();  // log lines are no part of the answer
  status = verb(context, arguments);
  if (!status.ok()) std::cerr << status.message() << "\n";
  return ctl::CtlExitCode(status);
}

class Verbs {
 public:
  Verbs(CLI::App* ctl, Command* chosen) : ctl_(ctl), chosen_(chosen) {}

  CLI::App* Add(const std::string& name, const std::string& help, Verb verb,
                absl::Duration timeout = absl::Seconds(10)) {
    CLI::App* added = ctl_->add_subcommand(name, help);
    added->fallthrough();  // allows --json and --target after the verb
    added->callback([chosen = chosen_, arguments = arguments_, verb = std::move(verb), timeout] {
      // Runs after the parsing, because options may follow the verb.
      *chosen = [=] { return Execute(*arguments, timeout, verb); };
    });
    return added;
  }
  // Adds a verb that takes a daemon's name.
  CLI::App* AddFor(const std::string& who, const std::string& name, const std::string& help, Verb verb,
                   absl::Duration timeout = absl::Seconds(10)) {
    CLI::App* added = Add(name, help, std::move(verb), timeout);
    added->add_option("DAEMON", arguments_->who, "e.g. rollouter-1; " + who + " if not given");
    return added;
  }
  CtlArguments* arguments() { return arguments_.get(); }

 private:
  CLI::App* ctl_;
  Command* chosen_;
  std::shared_ptr<CtlArguments> arguments_ = std::make_shared<CtlArguments>();
};

void AddReadingVerbs(Verbs* verbs) {
  CtlArguments* arguments = verbs->arguments();
  verbs->Add("status", "One line for each daemon", [](auto& context, auto&) { return ctl::CtlStatus(context); });
  verbs->Add("versions", "Policy versions and who serves them",
             [](auto& context, auto&) { return ctl::CtlVersions(context); });
  verbs->Add("members", "Who has joined and whether it is alive",
             [](auto& context, auto&) { return ctl::CtlMembers(context); });
  CLI::App* syncs = verbs->Add("syncs", "The last weight syncs, phase by phase", [](auto& context, auto& given) {
    return ctl::CtlSyncs(context, given.last, given.follow);
  });
  syncs->add_option("--last", arguments->last, "How many of the past")->check(CLI::Range(0, 1000));
  syncs->add_flag("--follow", arguments->follow, "Then each one as it ends");
  CLI::App* watch = verbs->Add("watch", "The last training steps, then each one as it ends",
                               [](auto& context, auto& given) { return ctl::CtlWatch(context, given.last); });
  watch->add_option("--last", arguments->last, "How many of the past")->check(CLI::Range(0, 1000));
  verbs->Add("explain", "What the trainer waits for, on whom, and what would end it",
             [](auto& context, auto&) { return ctl::CtlExplain(context); });
  verbs->Add("size", "How many rollouters and what staleness the run could use, and what one more would give",
             [](auto& context, auto&) { return ctl::CtlSize(context); });
}

void AddActingVerbs(Verbs* verbs) {
  CtlArguments* arguments = verbs->arguments();
  verbs->AddFor("the trainer", "pause", "Stop before the next step (trainer) or token (rollouter)",
                [](auto& context, auto& given) { return ctl::CtlPause(context, given.who); });
  verbs->AddFor("the trainer", "resume", "Go on after a pause",
                [](auto& context, auto& given) { return ctl::CtlResume(context, given.who); });
  verbs->AddFor(
      "the first rollouter", "drain", "Take no new work, finish what runs",
      [](auto& context, auto& given) { return ctl::CtlDrain(context, given.who); }, absl::Minutes(5));
  CLI::App* sleep = verbs->AddFor(
      "the first rollouter", "sleep", "Give the memory of weights, keys and values back; drain it first",
      [](auto& context, auto& given) { return ctl::CtlSleep(context, given.who, given.level); }, absl::Minutes(2));
  sleep->add_option("--level", arguments->level, "1: weights go to host memory, 2: they are dropped")
      ->check(CLI::Range(1, 2));
  verbs->AddFor(
      "the first rollouter", "wake", "Take the memory again; after level 2 the next weight sync brings weights",
      [](auto& context, auto& given) { return ctl::CtlWake(context, given.who); }, absl::Minutes(2));
  CLI::App* abort =
      verbs->AddFor("the first rollouter", "abort", "End running requests",
                    [](auto& context, auto& given) { return ctl::CtlAbort(context, given.who, given.request_id); });
  abort->add_option("--request", arguments->request_id, "This one only; otherwise all");
  verbs->Add("sync", "Send the newest version to receivers that do not serve it",
             [](auto& context, auto&) { return ctl::CtlSync(context); });
  CLI::App* evict = verbs->Add("evict", "Declare a member dead now", [](auto& context, auto& given) {
    return ctl::CtlEvict(context, given.who, given.rank, given.reason);
  });
  evict->add_option("REPLICA", arguments->who, "e.g. rollouter-1")->required();
  evict->add_option("--rank", arguments->rank, "Of the replica");
  evict->add_option("--reason", arguments->reason, "Shown to the member and in ctl members");
  verbs->Add(
      "checkpoint", "Save a checkpoint now", [](auto& context, auto&) { return ctl::CtlCheckpoint(context); },
      absl::Minutes(5));
  verbs->Add("stop", "End the run after the step under way, with a checkpoint",
             [](auto& context, auto&) { return ctl::CtlStop(context); });
  CLI::App* mode = verbs->AddFor(
      "the trainer", "mode", "Move the trainer's state off its device (rollout) or back (trainer)",
      [](auto& context, auto& given) { return ctl::CtlMode(context, given.who, given.mode); }, absl::Minutes(5));
  mode->add_option("--to", arguments->mode, "rollout or trainer")
      ->required()
      ->check(CLI::IsMember({"rollout", "trainer"}));
}

void AddGenerate(Verbs* verbs) {
  ctl::GenerateArguments* generate = &verbs->arguments()->generate;
  CLI::App* verb = verbs->Add(
      "generate", "Answer one prompt",
      [](auto& context, auto& given) { return ctl::CtlGenerate(context, given.who, given.generate); },
      absl::Minutes(1));
  CLI::Option* text =
      verb->add_option("TEXT", generate->text,
                       "What a user says, written down as the run's prompts are; with --prompt the daemon's name");
  CLI::Option* who =
      verb->add_option("DAEMON", verbs->arguments()->who, "e.g. rollouter-1; the first rollouter if not given");
  // Token ids are one word, so that the daemon's name may follow.
  CLI::Option* ids = verb->add_option("--prompt", generate->prompt_ids, "Token ids instead of a text, e.g. 8,1,2,3,4,9")
                         ->delimiter(',')
                         ->allow_extra_args(false);
  CLI::Option* model = verb->add_option(
      "--model", generate->model, "Model directory with tokenizer and chat template; the run directory's if not given");
  model->type_name(kFolderType)->excludes(ids);
  who->excludes(ids);
  verb->parse_complete_callback([=, arguments = verbs->arguments()] {
    if (ids->count() == 0 && (text->count() == 0 || generate->text.empty()))
      throw CLI::RequiredError("TEXT or --prompt");
    if (ids->count() > 0) arguments->who = std::exchange(generate->text, "");
  });
  verb->add_option("--max-new-tokens", generate->max_new_tokens,
                   "Longest answer; of a text as long as the run's, of ids 16 if not given")
      ->check(CLI::PositiveNumber);
  verb->add_option("--temperature", generate->temperature, "0 is greedy")->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", generate->top_p, "1 is off")->check(CLI::Range(0.0, 1.0));
  verb->add_option("--top-k", generate->top_k, "0 is off")->check(CLI::NonNegativeNumber);
  verb->add_option("--stop", generate->stop_token_ids, "Token ids that end the answer; of a text the model's own")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_option("--seed", generate->seed, "The same seed, prompt and weights give the same tokens");
  verb->add_option("--adapter", generate->adapter, "Of a run that trains adapters: base answers without them")
      ->check(CLI::IsMember({"policy", "base"}));
  verb->add_flag("--stream", generate->stream, "Print tokens as they come");
}

}  // namespace

void AddCtlCommand(CLI::App* app, Command* chosen) {
  CLI::App* ctl = app->add_subcommand("ctl", "Look at and steer running daemons");
  ctl->require_subcommand(1);
  ctl->footer(kCtlExitCodes);
  Verbs verbs(ctl, chosen);
  CtlArguments* arguments = verbs.arguments();
  ctl->add_option("--target", arguments->daemons.target, "host:port of one daemon");
  ctl->add_option("--run", arguments->daemons.run_dir, "Run directory; without it, the newest under runs/")
      ->type_name(kFolderType);
  ctl->add_option("--timeout", arguments->timeout, "Longest wait for an answer, such as 10s");
  // Options that are not given are taken from the run directory's configuration.
  ctl->add_option("--tls-cert", arguments->security.tls_cert, "PEM file of the certificate to show")
      ->type_name(kFileType);
  ctl->add_option("--tls-key", arguments->security.tls_key, "PEM file of its private key")->type_name(kFileType);
  ctl->add_option("--tls-ca", arguments->security.tls_ca,
                  "PEM file of the authorities that daemons' certificates must come from")
      ->type_name(kFileType);
  ctl->add_option("--token-file", arguments->security.token_file,
                  "File of bearer tokens, of which that of admin is shown")
      ->type_name(kFileType);
  ctl->add_option("--trust-domain", arguments->security.trust_domain, "In certificates' names; syncopate if not given");
  ctl->add_flag("--json", arguments->json, "What the daemon answered, as JSON, one object a line");
  AddReadingVerbs(&verbs);
  AddActingVerbs(&verbs);
  AddGenerate(&verbs);
}

}  // namespace syncopate::cli
