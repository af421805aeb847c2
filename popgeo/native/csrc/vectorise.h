// How a file asks for vectors in its loops. It is the first header of such a file, since GCC applies the setting only to
// functions after it.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")  // without it GCC keeps selections as branches
#define POPGEO_VECTORISE _Pragma("GCC ivdep")
#else
#define POPGEO_VECTORISE _Pragma("clang loop vectorize(assume_safety)")
#endif
