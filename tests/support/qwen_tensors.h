#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/manifest.h"

namespace syncopate::testing {

// Completes `tensors` with the fields that the specs of a Qwen give: heads have `head` elements, and the units are the
// layers, in the order of the tensors' names.
inline std::vector<TensorSpec> AsQwen(std::vector<TensorSpec> tensors, int64_t head) {
  std::string layer;
  int32_t unit = 0;
  for (TensorSpec& spec : tensors) {
    const size_t leaf = spec.name.rfind('.'), module = spec.name.rfind('.', leaf - 1) + 1;
    const std::string name = spec.name.substr(module, leaf - module), prefix = spec.name.substr(0, module);
    const bool is_bias = absl::EndsWith(spec.name, ".bias");
    const size_t layers = spec.name.find("layers.");
    const std::string its_layer =
        layers == std::string::npos ? "" : spec.name.substr(0, spec.name.find('.', layers + 7));
    if (its_layer != layer) layer = its_layer, ++unit;
    spec.unit = unit;
    if (name == "q_proj" || name == "k_proj" || name == "v_proj") {
      spec.split = Split::kRows;
      spec.head = head;
      spec.joint = prefix + "qkv_proj" + spec.name.substr(leaf);
    } else if (name == "gate_proj" || name == "up_proj") {
      spec.split = Split::kRows;
      spec.joint = prefix + "gate_up_proj" + spec.name.substr(leaf);
    } else if ((name == "o_proj" || name == "down_proj") && !is_bias) {
      spec.split = Split::kColumns;
      spec.head = name == "o_proj" ? head : 0;
    } else if (name == "embed_tokens" || name == "lm_head") {
      spec.split = Split::kVocabulary;
    }
  }
  return tensors;
}

}  // namespace syncopate::testing
