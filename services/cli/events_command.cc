#include <iostream>
#include <memory>
#include <string>

#include "services/cli/command.h"
#include "services/events/event_reader.h"

namespace syncopate::services {
namespace {

struct EventsArguments {
  std::string run_dir;
  std::string kind;  // "" is all
};

int PrintEvents(const EventsArguments& arguments) {
  absl::StatusOr<RunEvents> events = ReadRunEvents(FileSystem::Real(), arguments.run_dir);
  if (!events.ok()) {
    std::cerr << events.status().message() << "\n";
    return 1;
  }
  for (const std::string& warning : events->warnings) std::cerr << warning << "\n";
  for (const v1::Event& event : events->events) {
    if (arguments.kind.empty() || event.kind() == arguments.kind) std::cout << ToJson(event) << "\n";
  }
  return 0;
}

}  // namespace

void AddEventsCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<EventsArguments>();
  CLI::App* events = app->add_subcommand("events", "Print what the daemons of a run recorded, one JSON object a line");
  events->add_option("RUN_DIR", arguments->run_dir, "run directory")->required()->type_name(kFolderType);
  events->add_option("--kind", arguments->kind, "only this kind: publish, step, evaluation, checkpoint, install, sync");
  events->callback([=] { *chosen = [=] { return PrintEvents(*arguments); }; });
}

}  // namespace syncopate::services
