#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

// Read fields of an object that another process of the benchmark wrote; a missing or mistyped field gives the fallback.
namespace syncopate::bench {

inline double NumberIn(const nlohmann::json& object, const char* key, double fallback = 0) {
  auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : fallback;
}

inline int64_t IntegerIn(const nlohmann::json& object, const char* key, int64_t fallback = 0) {
  auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : fallback;
}

inline std::string TextIn(const nlohmann::json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

inline bool FlagIn(const nlohmann::json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace syncopate::bench
