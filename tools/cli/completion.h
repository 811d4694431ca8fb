#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "services/config/schema.h"

namespace syncopate::cli {

enum class CompletionShell { kBash, kZsh };

// The script by which a shell completes command lines of `app`: subcommands, options and their values, files, and for
// "section.key=value" words the keys of `schema` and the values of those that have few. Everything in it is read from
// the two, options by the type names of command.h. Pure.
//
// An option's values are those of its CLI::IsMember; a command's words are completed in the order of its positionals.
std::string CompletionScript(const CLI::App& app, const config::ConfigSchema& schema, CompletionShell shell);

}  // namespace syncopate::cli
