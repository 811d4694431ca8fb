#pragma once

#include <map>
#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"
#include "syncopate/v1/options.pb.h"

namespace syncopate::config {

// One key that a configuration may set.
struct ConfigKey {
  std::string path;  // "train.learning_rate"
  const google::protobuf::FieldDescriptor* section = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;
  v1::ConfigField option;

  // Whether a user may leave the key open: its default stands for a value that depends on others (automatic.h).
  bool IsAutomatic() const { return !option.former_default().empty(); }
  // What a value must be, in words: "an integer from 1 to 512", "one of dense, exact".
  std::string Expected() const;
  // The meaning of the key, and whether it is fixed for a whole run.
  std::string Doc() const;
};

// All keys of RunConfig, read from its descriptor and the (config) options. Immutable.
class ConfigSchema {
 public:
  ConfigSchema();

  const std::vector<ConfigKey>& keys() const { return keys_; }  // in the order of config.proto
  bool HasSection(const std::string& name) const { return sections_.count(name) > 0; }
  // Null if there is no such key. The pointer is valid as long as the schema.
  const ConfigKey* Find(const std::string& path) const;
  // The key or section with the smallest edit distance to `path`, by its last word, then by its section; "" if none is
  // so near that it was probably meant. A word that is cut short or made of initials, and a right word in a wrong
  // section, count as one edit.
  std::string Nearest(const std::string& path) const;

 private:
  std::vector<ConfigKey> keys_;
  std::map<std::string, size_t> index_;  // from path to position in keys_
  std::map<std::string, bool> sections_;
};

// The number of insertions, deletions, substitutions and swaps of neighbours that turn one word into the other (optimal
// string alignment distance).
size_t EditDistance(const std::string& a, const std::string& b);

// Sets every key of `config` to its default.
void SetDefaults(const ConfigSchema& schema, v1::RunConfig* config);

}  // namespace syncopate::config
