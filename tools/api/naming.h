#pragma once

#include <string>
#include <vector>

#include "tools/api/descriptors.h"

namespace syncopate::api {

// Where the interface departs from the STANDARD rules of buf (https://buf.build/docs/lint/rules), so that generated
// code looks at home in every language and the next version can live beside this one. One line each: "<where>: <what it
// should be> (<RULE>)". All rules of STANDARD except PACKAGE_SAME_* (language options, of which there are none) and
// PROTOVALIDATE (not used).
std::vector<std::string> NamingBreaches(const ApiDescriptors& api);

}  // namespace syncopate::api
