#pragma once

#include <string>

#include "services/config/schema.h"

namespace syncopate::config {

// Writes `text` into the field of `config` that `key` names. False, and `config` is unchanged, if the text does not fit
// key.Expected().
bool SetValue(const ConfigKey& key, const std::string& text, v1::RunConfig* config);

// The value as YAML: numbers are written so that they read back exactly, strings in double quotes.
std::string GetValue(const ConfigKey& key, const v1::RunConfig& config);

}  // namespace syncopate::config
