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
  // The parts between {% generation %} and {% endgeneration %}, as [begin, end) bytes of the text: written by the
  // policy.
  std::vector<std::pair<size_t, size_t>> generated;
};

// Renders the tree with the names of `context`, an object. strftime_now formats `now` (Unix seconds) as UTC. Errors:
// see RenderBudget.
absl::StatusOr<RenderedChat> RenderTemplate(const Node& root, const nlohmann::ordered_json& context, int64_t now,
                                            const TemplateLimits& limits);

}  // namespace syncopate::text::chat
