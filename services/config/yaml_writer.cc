#include "absl/strings/str_cat.h"
#include "services/config/field_value.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"

namespace syncopate::config {

std::string ToYaml(const v1::RunConfig& config, YamlComments comments) {
  std::string yaml;
  const google::protobuf::FieldDescriptor* section = nullptr;
  const ConfigSchema schema;
  for (const ConfigKey& key : schema.keys()) {
    // With model.path these keys have no meaning, and would be refused when the text is read again.
    if (!config.model().path().empty() && IsModelShapeKey(key.path)) continue;
    if (key.section != section) {
      section = key.section;
      absl::StrAppend(&yaml, yaml.empty() ? "" : "\n", section->name(), ":\n");
    }
    if (comments == YamlComments::kDocs) {
      absl::StrAppend(&yaml, "  # ", key.Doc(), " (", key.Expected(), ")\n");
    }
    absl::StrAppend(&yaml, "  ", key.field->name(), ": ", GetValue(key, config), "\n");
  }
  return yaml;
}

}  // namespace syncopate::config
