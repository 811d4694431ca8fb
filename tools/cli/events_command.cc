#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_join.h"
#include "tools/cli/command.h"
#include "tools/records/event_reader.h"
#include "tools/records/sync_trace.h"

namespace syncopate::cli {
namespace {

struct EventsArguments {
  std::string run_dir;
  std::string kind;     // "": all kinds
  int64_t attempt = 0;  // 0: the last successful attempt
};

void Warn(const records::RunEvents& events) {
  for (const std::string& warning : events.warnings) std::cerr << warning << "\n";
}

absl::StatusOr<std::string> GetTrace(const EventsArguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(records::RunEvents events, records::ReadRunEvents(FileSystem::Real(), arguments.run_dir));
  Warn(events);
  return records::SyncTrace(events.events, arguments.attempt == 0 ? std::nullopt : std::optional(arguments.attempt));
}

int PrintTrace(const EventsArguments& arguments) {
  absl::StatusOr<std::string> trace = GetTrace(arguments);
  if (!trace.ok()) {
    std::cerr << trace.status().message() << "\n";
    return 1;
  }
  std::cout << *trace << "\n";
  return 0;
}

int PrintEvents(const EventsArguments& arguments) {
  absl::StatusOr<records::RunEvents> events = records::ReadRunEvents(FileSystem::Real(), arguments.run_dir);
  if (!events.ok()) {
    std::cerr << events.status().message() << "\n";
    return 1;
  }
  Warn(*events);
  std::set<std::string> kinds;
  for (const v1::Event& event : events->events) {
    kinds.insert(event.kind());
    if (arguments.kind.empty() || event.kind() == arguments.kind) std::cout << records::ToJson(event) << "\n";
  }
  if (arguments.kind.empty() || kinds.contains(arguments.kind)) return 0;
  std::cerr << "no daemon of " << arguments.run_dir << " has recorded an event of kind " << arguments.kind
            << "; there are: " << absl::StrJoin(kinds, ", ") << "\n";
  return 1;
}

}  // namespace

void AddEventsCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<EventsArguments>();
  CLI::App* events = app->add_subcommand("events", "Print what the daemons of a run recorded, one JSON object a line");
  CLI::Option* run_dir = events->add_option("RUN_DIR", arguments->run_dir, "run directory")->type_name(kFolderType);
  events->add_option("--kind", arguments->kind,
                     "only this kind: publish, step, evaluation, checkpoint, install, phase, sync, rehearsal");
  CLI::App* trace = events->add_subcommand("trace", "Print one weight sync as a trace for ui.perfetto.dev");
  trace->add_option("RUN_DIR", arguments->run_dir, "run directory")->required()->type_name(kFolderType);
  trace->add_option("--attempt", arguments->attempt, "of which sync attempt; the last good one if not given");
  trace->callback([=] { *chosen = [=] { return PrintTrace(*arguments); }; });
  events->callback([=] {
    if (events->got_subcommand(trace)) return;
    if (run_dir->count() == 0) throw CLI::RequiredError("RUN_DIR");
    *chosen = [=] { return PrintEvents(*arguments); };
  });
}

}  // namespace syncopate::cli
