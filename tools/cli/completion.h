#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "services/config/schema.h"

namespace syncopate::cli {

enum class CompletionShell { kBash, kZsh };

// The script with which a shell completes command lines of `app`: subcommands, options and their values, files, and for
// "section.key=value" words the keys of `schema` and the values of keys that have few. The script is derived from `app`
// and `schema` alone; the type names of command.h say what an option takes. Pure.
//
// An option's values come from its CLI::IsMember; a command's words are completed in the order of its positionals.
std::string CompletionScript(const CLI::App& app, const config::ConfigSchema& schema, CompletionShell shell);

}  // namespace syncopate::cli
