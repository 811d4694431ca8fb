#pragma once

#include <string>

#include "tools/k8s/document.h"

namespace syncopate::k8s {

// `text` as a document; ends the program if it is none.
inline Document Parsed(const std::string& text) { return ParseDocument(text, "test").value(); }

}  // namespace syncopate::k8s
