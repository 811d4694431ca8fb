#include "tools/cli/json_schema.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "services/config/field_value.h"
#include "services/config/schema.h"

namespace syncopate::cli {
namespace {

using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

// The durations that ParseDuration accepts, except that only ParseDuration checks that they are above zero.
constexpr char kDurationPattern[] = R"(^[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|ms|s|m|h))+$)";

// Writes integral bounds without a fraction: 1, not 1.0.
Json Number(double value) {
  const bool integral = value == std::floor(value) && std::fabs(value) < 1e15;
  return integral ? Json(static_cast<int64_t>(value)) : Json(value);
}

void AddRange(const v1::ConfigField& option, Json* schema) {
  if (option.has_min()) (*schema)["minimum"] = Number(option.min());
  if (option.has_max()) (*schema)["maximum"] = Number(option.max());
}

// A number in its range, or the value that means "automatic".
void AddAutomaticNumber(const config::ConfigKey& key, const char* type, Json* schema) {
  Json number = {{"type", type}};
  AddRange(key.option, &number);
  (*schema)["anyOf"] = {std::move(number), {{"enum", {0, "auto"}}}};
}

void AddType(const config::ConfigKey& key, Json* schema) {
  const bool integer = key.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  if (key.option.zero_is_auto()) return AddAutomaticNumber(key, integer ? "integer" : "number", schema);
  switch (key.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      (*schema)["type"] = "boolean";
      return;
    case FieldDescriptor::CPPTYPE_INT64:
      (*schema)["type"] = "integer";
      return AddRange(key.option, schema);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      (*schema)["type"] = "number";
      return AddRange(key.option, schema);
    default:
      break;
  }
  if (key.option.choices_size() > 0) {
    for (const std::string& choice : key.option.choices()) (*schema)["enum"].push_back(choice);
  } else if (key.option.duration()) {
    (*schema)["type"] = "string";
    const bool may_be_empty = key.option.default_().empty();
    (*schema)["pattern"] = may_be_empty ? std::string("^$|") + kDurationPattern : kDurationPattern;
  } else if (key.option.list()) {
    (*schema)["type"] = {"string", "number", "boolean", "array"};
    (*schema)["items"] = {{"type", {"string", "number", "boolean"}}};
  } else {
    // YAML reads 0400 or 7070 as a number where text is expected; the file may leave the quotes out.
    (*schema)["type"] = {"string", "number", "boolean"};
  }
}

Json KeySchema(const config::ConfigKey& key, const v1::RunConfig& defaults) {
  Json schema;
  schema["description"] = key.Doc();
  AddType(key, &schema);
  const std::string value = config::GetValue(key, defaults);
  const bool text = key.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  schema["default"] = text ? Json(key.option.default_()) : Json::parse(value);
  return schema;
}

}  // namespace

std::string ConfigJsonSchema() {
  const config::ConfigSchema schema;
  v1::RunConfig defaults;
  config::SetDefaults(schema, &defaults);
  Json sections = Json::object();
  for (const config::ConfigKey& key : schema.keys()) {
    Json& section = sections[key.section->name()];
    if (section.is_null()) section = {{"type", {"object", "null"}}, {"additionalProperties", false}};
    section["properties"][key.field->name()] = KeySchema(key, defaults);
  }
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Syncopate run configuration"},
               {"type", {"object", "null"}},
               {"additionalProperties", false}};
  root["properties"] = std::move(sections);
  return root.dump(2) + "\n";
}

}  // namespace syncopate::cli
