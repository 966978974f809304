/* unity.cpp - the values library as one translation unit. The build compiles this file alone.
 *
 * Why it exists: nearly all of the compiler's time goes into torch's headers. Here they are read
 * once instead of once per source file.
 *
 * Rule: names in anonymous namespaces must differ between the files. */
#include "values/allocator.cpp"
#include "values/callback.cpp"
#include "values/capture.cpp"
#include "values/choose.cpp"
#include "values/frame.cpp"
#include "values/hollow.cpp"
#include "values/host_allocator.cpp"
#include "values/host_api.cpp"
#include "values/members.cpp"
#include "values/modules.cpp"
#include "values/operators.cpp"
#include "values/replay.cpp"
#include "values/results.cpp"
#include "values/run.cpp"
#include "values/skip.cpp"
#include "values/steps.cpp"
#include "values/substitutes.cpp"
#include "values/tensors.cpp"
#include "values/trace.cpp"
