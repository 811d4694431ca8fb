#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/template/budget.h"
#include "text/template/syntax.h"

namespace syncopate::text::chat {

struct RenderedChat {
  std::string text;
  // What lies between {% generation %} and {% endgeneration %}, as [begin, end) bytes of the text: what the policy
  // wrote.
  std::vector<std::pair<size_t, size_t>> generated;
};

// Walks through the tree with the names of `context`, an object. `now` (Unix seconds, UTC) is what strftime_now tells.
// Errors: see RenderBudget.
absl::StatusOr<RenderedChat> RenderTemplate(const Node& root, const nlohmann::ordered_json& context, int64_t now,
                                            const TemplateLimits& limits);

}  // namespace syncopate::text::chat
