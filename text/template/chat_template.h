#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/template/renderer.h"

namespace syncopate::text::chat {

// The part of Jinja2 that chat templates use, with the settings of transformers (trim_blocks, lstrip_blocks, its
// tojson, raise_exception, strftime_now, loop controls, {% generation %}). Own code: no library for C++ does this.
//
// Templates are untrusted. A template can reach only the given values, no method changes a value, and steps, memory,
// output and depth have limits. Immutable and thread-safe.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT, reason BAD_TEMPLATE, with the line: if the template is not well formed, or uses an unsupported
  // feature (include, import, extends, recursive loops, raw, with, filters, tests and methods that no model uses).
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);

  // `context` is an object: messages, tools, add_generation_prompt, bos_token, ... ; its strings must be UTF-8. `now`
  // is Unix seconds. INVALID_ARGUMENT (reason TEMPLATE_FAILED) where Jinja would raise, and if the template calls
  // raise_exception; RESOURCE_EXHAUSTED (reason TEMPLATE_TOO_COSTLY) beyond a limit. Both errors name the line.
  absl::StatusOr<RenderedChat> Render(const nlohmann::ordered_json& context, int64_t now,
                                      const TemplateLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const Node> root) : root_(std::move(root)) {}

  std::shared_ptr<const Node> root_;
};

}  // namespace syncopate::text::chat
