# cmake -DROOT=folder -DOUTPUT=completion_scripts.inc -P embed_scripts.cmake
# Writes the completion scripts as C++ constants.
file(WRITE "${OUTPUT}.new" "")
foreach(constant kFindCandidates:candidates.sh kBashEntry:entry.bash kZshEntry:entry.zsh)
  string(REPLACE ":" ";" pair "${constant}")
  list(GET pair 0 name)
  list(GET pair 1 script)
  file(READ "${ROOT}/${script}" text)
  file(APPEND "${OUTPUT}.new" "constexpr char ${name}[] = R\"~~~~(\n${text})~~~~\";\n")
endforeach()
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
