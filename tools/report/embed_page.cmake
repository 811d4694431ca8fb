# cmake -DROOT=folder -DOUTPUT=page_parts.inc -P embed_page.cmake
# Writes the files of the page as C++ constants.
file(WRITE "${OUTPUT}.new" "")
foreach(constant kPage:page.html kStyle:style.css kChartScript:chart.js kPageScript:page.js)
  string(REPLACE ":" ";" pair "${constant}")
  list(GET pair 0 name)
  list(GET pair 1 source)
  file(READ "${ROOT}/${source}" text)
  file(APPEND "${OUTPUT}.new" "constexpr char ${name}[] = R\"~~~~(${text})~~~~\";\n")
endforeach()
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
